"""Conformance: runs of one job that meet, and the scheduler's records."""
# ruff: noqa: PLR2004, S101 - tests: expected values are literals, and assertions are what they are for

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anarchon_tasks.model import Reason, Status
from anarchon_tasks.stores.base import BeginKind, ClaimKind, Delivery, Policy, SlotRange
from anarchon_tasks.testing._lab import ALLOW, LONG_MS, MANUAL, Lab

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import StoreAdapter

SKIP = Policy(claim_lease_ms=LONG_MS, start_timeout_ms=LONG_MS)
AT_MOST_ONCE = replace(SKIP, delivery=Delivery.AT_MOST_ONCE)


class OverlapTests:
    """What `claim` guarantees to the runs of one job."""

    def test_skipped_while_another_runs(self, adapter: StoreAdapter) -> None:
        """A slot that was due while an earlier run was under way is skipped, once and for all."""
        lab = Lab(adapter)
        lab.job()
        earlier = lab.running(lab.ref(1_000))
        lab.pass_ms(2)
        slot = lab.now()
        between = SlotRange(first=slot - 1, last=slot - 1, count=1, status=Status.MISSED, reason=Reason.TOO_LATE)
        ask = lab.ask(replace(lab.ref(0), slot=slot), ranges=(between,), gap_ms=1)
        [answer] = lab.claim_all([ask])
        assert (answer.kind, answer.run, answer.reason) == (ClaimKind.OVERLAP, lab.ref(1_000).run, Reason.OVERLAP)
        assert (answer.status, answer.until) == (Status.RUNNING, earlier.until), "of the run in the way"
        assert lab.claim_all([ask]) == [answer]
        assert lab.finish(lab.ref(1_000), earlier.token)
        [again] = lab.claim_all([ask])
        assert (again.kind, again.run, again.status) == (ClaimKind.OVERLAP, ask.ref.run, Status.SKIPPED)
        stranger = lab.claim(ask.ref)
        assert (stranger.kind, stranger.reason) == (ClaimKind.DONE, None)
        assert lab.told() == [
            (lab.base - slot, 1, "skipped", "overlap"),
            (lab.base - slot + 1, 0, "missed", "too_late"),
            (1_000, 1, "succeeded", None),
        ]

    def test_waits_after_an_outage(self, adapter: StoreAdapter) -> None:
        """After an outage nothing is skipped for a run whose worker may only not have told its end yet."""
        lab = Lab(adapter)
        lab.job()
        earlier = lab.running(lab.ref(1_000))
        lab.pass_ms(2)
        ask = lab.ask(replace(lab.ref(0), slot=lab.now()), gap_ms=1)
        assert lab.claim_all([replace(ask, takeover=False)])[0].kind is ClaimKind.WAIT
        assert lab.finish(lab.ref(1_000), earlier.token)
        assert lab.claim_all([replace(ask, takeover=False)])[0].kind is ClaimKind.WON

    def test_skipped_slots_in_a_row_are_one_stretch(self, adapter: StoreAdapter) -> None:
        """While one run goes on, the slots skipped for it share one entry, with the first, the last and the count."""
        lab = Lab(adapter)
        lab.job()
        earlier = lab.running(lab.ref(1_000))
        slots = []
        for _ in range(3):
            lab.pass_ms(2)
            slots.append(lab.now())
            assert lab.claim(replace(lab.ref(0), slot=slots[-1]), gap_ms=1).kind is ClaimKind.OVERLAP
        [stretch, running] = lab.history()
        assert (stretch.first_slot, stretch.slot, stretch.count) == (slots[0], slots[-1], 3)
        assert (stretch.status, stretch.reason) == (Status.SKIPPED, Reason.OVERLAP)
        assert running.status is Status.RUNNING
        assert [lab.claim(replace(lab.ref(0), slot=slot)).kind for slot in slots] == [ClaimKind.DONE] * 3
        assert lab.finish(lab.ref(1_000), earlier.token)

    def test_waits_for_a_run_that_we_delayed(self, adapter: StoreAdapter) -> None:
        """A slot behind an earlier run that was not under way when the slot was due waits, and is won afterwards."""
        lab = Lab(adapter)
        lab.job()
        earlier = lab.won(lab.ref(2_000))
        for _ in range(2):
            answer = lab.claim(lab.ref(1_000))
            assert (answer.kind, answer.run, answer.until) == (ClaimKind.WAIT, lab.ref(2_000).run, earlier.until)
        assert lab.enqueue(lab.ref(2_000), earlier.token)
        assert lab.claim(lab.ref(1_000)).kind is ClaimKind.WAIT
        begun = lab.begin(lab.ref(2_000), earlier.token)
        assert lab.finish(lab.ref(2_000), begun.token)
        assert lab.claim(lab.ref(1_000)).kind is ClaimKind.WON

    def test_allowed_overlap(self, adapter: StoreAdapter) -> None:
        """A job that allows overlap has its runs side by side."""
        lab = Lab(adapter)
        lab.job()
        tokens = [lab.running(lab.ref(ago), policy=ALLOW).token for ago in (3_000, 2_000, 1_000)]
        assert len(set(tokens)) == 3
        assert [r.status for r in lab.history()] == [Status.RUNNING] * 3

    def test_oldest_first_though_overlap_is_allowed(self, adapter: StoreAdapter) -> None:
        """A slot does not pass an older one that is claimed and not yet published."""
        lab = Lab(adapter)
        lab.job()
        lab.won(lab.ref(2_000), policy=ALLOW)
        assert lab.claim(lab.ref(1_000), policy=ALLOW).kind is ClaimKind.WAIT

    def test_only_a_winner_supersedes(self, adapter: StoreAdapter) -> None:
        """A slot that would settle older ones as superseded waits for a running run and settles nothing yet."""
        lab = Lab(adapter)
        lab.job()
        earlier = lab.running(lab.ref(9_000))
        lab.pass_ms(5)
        slot = replace(lab.ref(0), slot=lab.now())
        older = slot.slot - 1
        stretch = SlotRange(first=older, last=older, count=1, status=Status.MISSED, reason=Reason.SUPERSEDED)
        assert lab.claim(slot, ranges=(stretch,)).kind is ClaimKind.WAIT
        assert len(lab.history()) == 1
        assert lab.finish(lab.ref(9_000), earlier.token)
        assert lab.claim(slot, ranges=(stretch,)).kind is ClaimKind.WON
        assert lab.told()[1] == (lab.base - older, 0, "missed", "superseded")

    def test_untracked_runs_do_not_overlap(self, adapter: StoreAdapter) -> None:
        """Of a job that is not tracked nobody knows what runs, so nothing is skipped."""
        lab = Lab(adapter)
        lab.job()
        lab.running(lab.ref(1_000))
        lab.pass_ms(2)
        assert lab.claim(replace(lab.ref(0), slot=lab.now()), tracked=False).kind is ClaimKind.WON

    def test_newer_slot_supersedes_a_dead_claim(self, adapter: StoreAdapter) -> None:
        """A claim that was never published is superseded by a newer slot, once it is old enough and its lease over."""
        lab = Lab(adapter)
        lab.job()
        old, new = lab.ref(60_000), lab.ref(1_000)
        claimed = lab.won(old)
        assert lab.claim(new).kind is ClaimKind.WAIT
        lab.end_lease(old, claimed.token, phase=Status.CLAIMED)
        assert lab.claim(new).kind is ClaimKind.WON
        assert lab.told() == [(1_000, 1, "claimed", None), (60_000, 1, "missed", "superseded")]
        assert lab.claim(old).kind is ClaimKind.DONE

    def test_young_slots_are_not_superseded(self, adapter: StoreAdapter) -> None:
        """Within the time that the policy gives, a claim that was not published still comes first."""
        lab = Lab(adapter)
        lab.job()
        old = lab.ref(60_000)
        policy = replace(SKIP, coalesce_ms=LONG_MS)
        lab.end_lease(old, lab.won(old, policy=policy).token, phase=Status.CLAIMED)
        assert lab.claim(lab.ref(1_000), policy=policy).kind is ClaimKind.WAIT
        assert lab.claim(old, policy=policy).kind is ClaimKind.WON

    def test_manual_run_respects_overlap(self, adapter: StoreAdapter) -> None:
        """A manual run does not start beside a running one."""
        lab = Lab(adapter)
        lab.job()
        lab.running(lab.ref(1_000))
        manual = replace(lab.ref(0, key="m"), slot=lab.now())
        assert lab.claim(manual, trigger=MANUAL).kind in {ClaimKind.OVERLAP, ClaimKind.WAIT}


class PublishTests:
    """What `queued` and `release` guarantee."""

    def test_queued(self, adapter: StoreAdapter) -> None:
        """A confirmed publish is recorded once, also when the record is repeated."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.won(ref).token
        assert lab.enqueue(ref, token)
        assert lab.enqueue(ref, token)
        [entry] = lab.history()
        assert (entry.status, entry.publishes, entry.task_id) == (Status.QUEUED, 1, "task-1")
        assert entry.enqueued_at is not None
        assert entry.claimed_at is not None
        assert lab.base <= entry.claimed_at <= entry.enqueued_at
        assert lab.claim(ref).kind is ClaimKind.RUNNING

    def test_queued_after_begin(self, adapter: StoreAdapter) -> None:
        """A worker can begin before the publish is recorded; the record then is stale and changes nothing."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.won(ref).token
        assert lab.begin(ref, token).kind is BeginKind.OK
        assert lab.enqueue(ref, token) is False
        assert lab.history()[0].status is Status.RUNNING

    def test_unknown_run(self, adapter: StoreAdapter) -> None:
        """Records of a run that nobody claimed are stale."""
        lab = Lab(adapter)
        lab.job()
        assert lab.enqueue(lab.ref(1_000), 1) is False
        assert lab.release(lab.ref(1_000), 1) is False
        assert lab.beat(lab.ref(1_000), 1) is False
        assert lab.park(lab.ref(1_000), 1) is False
        assert lab.finish(lab.ref(1_000), 1) is False
        assert lab.history() == []

    def test_enqueue_only(self, adapter: StoreAdapter) -> None:
        """Of a run that is not tracked, being enqueued is the end; workers execute its message and report nothing."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        answer = lab.won(ref, tracked=False)
        assert not answer.tracked
        assert lab.enqueue(ref, answer.token)
        assert lab.enqueue(ref, answer.token)
        assert lab.claim(ref, tracked=False).kind is ClaimKind.DONE
        assert lab.begin(ref, answer.token).kind is BeginKind.UNTRACKED
        assert lab.told() == [(1_000, 1, "enqueued", None)]
        assert not lab.history()[0].tracked
        assert lab.claim(lab.ref(0), tracked=False).kind is ClaimKind.WON

    def test_failed_publish_rests(self, adapter: StoreAdapter) -> None:
        """After a failed publish the run rests for a second, then for two, and stays on record."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        for rest in (1_000, 2_000):
            token = lab.won(ref).token
            before = lab.now()
            assert lab.release(ref, token, error="no route")
            after = lab.now()
            answer = lab.claim(ref)
            assert answer.kind is ClaimKind.RUNNING
            assert before + rest <= answer.until <= after + rest
            assert lab.history()[0].error == "no route"
            if rest == 1_000:
                lab.pass_ms(rest)

    def test_release_repeated(self, adapter: StoreAdapter) -> None:
        """A release that is repeated after a lost reply counts once."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.won(ref).token
        assert lab.release(ref, token)
        until = lab.claim(ref).until
        assert lab.release(ref, token)
        assert lab.claim(ref).until == until

    def test_stopping_instance_hands_over(self, adapter: StoreAdapter) -> None:
        """A run that is released because its instance stops can be claimed at once."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        first = lab.won(ref)
        assert lab.release(ref, first.token, failed=False)
        second = lab.won(ref)
        assert second.attempt == 1
        assert second.token > first.token

    def test_release_after_queued_is_stale(self, adapter: StoreAdapter) -> None:
        """A run whose message is with the broker cannot be handed back."""
        lab = Lab(adapter)
        lab.job()
        token = lab.waiting(lab.ref(1_000)).token
        assert lab.release(lab.ref(1_000), token) is False

    def test_unknown_outcome_at_most_once(self, adapter: StoreAdapter) -> None:
        """With at-most-once delivery a publish whose outcome is unknown ends the run as lost."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        assert lab.release(ref, lab.won(ref).token, unknown=True, policy=AT_MOST_ONCE)
        assert lab.told() == [(1_000, 1, "lost", "publish_unknown")]
        assert lab.claim(ref).kind is ClaimKind.DONE

    def test_silent_holder_at_most_once(self, adapter: StoreAdapter) -> None:
        """With at-most-once delivery a claim whose holder died without a word is lost: it may have been published."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.end_lease(ref, lab.won(ref, policy=AT_MOST_ONCE).token, phase=Status.CLAIMED)
        assert lab.claim(ref, policy=AT_MOST_ONCE).kind is ClaimKind.DONE
        assert lab.told() == [(1_000, 1, "lost", "publish_unknown")]

    def test_released_at_most_once(self, adapter: StoreAdapter) -> None:
        """With at-most-once delivery a run that was surely not published can be claimed again."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        assert lab.release(ref, lab.won(ref, policy=AT_MOST_ONCE).token, failed=False, policy=AT_MOST_ONCE)
        assert lab.won(ref, policy=AT_MOST_ONCE).attempt == 1

    def test_unknown_outcome_at_least_once(self, adapter: StoreAdapter) -> None:
        """With at-least-once delivery a publish whose outcome is unknown is repeated."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        assert lab.release(ref, lab.won(ref).token, unknown=True)
        lab.pass_ms(1_000)
        assert lab.won(ref).attempt == 1

    def test_lost_message_is_published_again(self, adapter: StoreAdapter) -> None:
        """A message that nobody began in time is published again, in the same attempt, which counts its publishes."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.waiting(ref, policy=replace(SKIP, start_timeout_ms=1))
        enqueued_at = lab.history()[0].enqueued_at
        lab.pass_ms(1)
        assert lab.waiting(ref).attempt == 1
        assert (lab.history()[0].publishes, lab.history()[0].enqueued_at) == (2, enqueued_at)

    def test_start_timeout_doubles(self, adapter: StoreAdapter) -> None:
        """The time a message may wait doubles with each publish of the job, and starts over when a run begins."""
        lab = Lab(adapter)
        lab.job()
        policy = replace(ALLOW, start_timeout_ms=60_000)
        agos = (6_000, 5_000, 4_000)
        tokens = []
        for times, ago in zip((1, 2, 4), agos, strict=True):
            ref = lab.ref(ago)
            tokens.append(lab.won(ref, policy=policy).token)
            before = lab.now()
            assert lab.enqueue(ref, tokens[-1], policy=policy)
            after = lab.now()
            assert before + times * 60_000 <= lab.claim(ref, policy=policy).until <= after + times * 60_000
        lab.begin(lab.ref(agos[0]), tokens[0])
        lab.waiting(lab.ref(3_000), policy=policy)
        assert lab.claim(lab.ref(3_000), policy=policy).until <= lab.now() + 60_000

    def test_eta_delays_the_start_timeout(self, adapter: StoreAdapter) -> None:
        """The wait of a message counts from when workers can see it."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.won(ref).token
        eta = lab.now() + LONG_MS
        assert lab.enqueue(ref, token, eta_ms=eta, policy=replace(SKIP, start_timeout_ms=60_000))
        assert lab.claim(ref).until == eta + 60_000

    def test_never_started_at_most_once(self, adapter: StoreAdapter) -> None:
        """With at-most-once delivery a message that nobody began in time is lost, not repeated."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        policy = replace(AT_MOST_ONCE, start_timeout_ms=1)
        lab.waiting(ref, policy=policy)
        lab.pass_ms(1)
        assert lab.claim(ref, policy=policy).kind is ClaimKind.DONE
        assert lab.told() == [(1_000, 1, "lost", "never_started")]

    def test_never_started_while_others_do(self, adapter: StoreAdapter) -> None:
        """A message that stays away while other runs of its queue begin is given up; if it comes, it still runs."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        policy = replace(SKIP, start_timeout_ms=1, max_attempts=1)
        token = lab.waiting(ref, policy=policy).token
        lab.pass_ms(2)
        assert lab.claim(ref, policy=policy, queue_begun_ms=lab.now()).kind is ClaimKind.DONE
        assert lab.told() == [(1_000, 1, "lost", "never_started")]
        begun = lab.begin(ref, token)
        assert begun.kind is BeginKind.OK
        assert lab.finish(ref, begun.token)
        assert lab.told() == [(1_000, 1, "succeeded", None)]

    @staticmethod
    def _queued_too_long(lab: Lab, policy: Policy, *, begun_ago_ms: int) -> ClaimKind:
        policy = replace(policy, start_timeout_ms=1)
        lab.waiting(lab.ref(1_000), policy=policy)
        lab.pass_ms(2)
        return lab.claim(lab.ref(1_000), policy=policy, queue_begun_ms=lab.now() - begun_ago_ms).kind

    def test_quiet_queue_loses_nothing(self, adapter: StoreAdapter) -> None:
        """A message is not given up while nothing else of its queue began either: its workers are away."""
        lab = Lab(adapter)
        lab.job()
        assert self._queued_too_long(lab, replace(SKIP, max_attempts=1), begun_ago_ms=LONG_MS) is ClaimKind.WON

    def test_published_as_often_as_allowed(self, adapter: StoreAdapter) -> None:
        """A message is not given up before it was published as often as the policy allows."""
        lab = Lab(adapter)
        lab.job()
        assert self._queued_too_long(lab, replace(SKIP, max_attempts=2), begun_ago_ms=0) is ClaimKind.WON
        assert lab.told() == [(1_000, 1, "claimed", None)]

    def test_past_its_deadline_in_the_queue(self, adapter: StoreAdapter) -> None:
        """A message that is still in its queue at its start deadline is not published again."""
        lab = Lab(adapter)
        lab.job()
        assert self._queued_too_long(lab, replace(SKIP, start_deadline_ms=500), begun_ago_ms=0) is ClaimKind.DONE
        assert lab.told() == [(1_000, 1, "expired", "deadline")]

    def test_deadline_ends_the_wait(self, adapter: StoreAdapter) -> None:
        """A message waits no longer than to its start deadline."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        policy = replace(SKIP, start_deadline_ms=61_000)
        lab.waiting(ref, policy=policy)
        assert lab.claim(ref, policy=policy).until == lab.base + 60_001

    def test_confirmed_publish_forgives(self, adapter: StoreAdapter) -> None:
        """After a confirmed publish the next failure rests for a second again."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.release(ref, lab.won(ref).token)
        lab.pass_ms(1_000)
        lab.waiting(ref, policy=replace(SKIP, start_timeout_ms=1))
        lab.pass_ms(1)
        lab.release(ref, lab.won(ref).token)
        assert lab.claim(ref).until <= lab.now() + 1_000

    def test_start_deadline(self, adapter: StoreAdapter) -> None:
        """A run that has not begun by its deadline does not begin any more."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref, policy=replace(SKIP, start_deadline_ms=500)).token
        answer = lab.begin(ref, token)
        assert (answer.kind, answer.status) == (BeginKind.DONE, Status.EXPIRED)
        assert lab.told() == [(1_000, 1, "expired", "deadline")]
