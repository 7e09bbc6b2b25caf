"""Conformance: what workers call."""
# ruff: noqa: PLR2004, S101 - tests: expected values are literals, and assertions are what they are for

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anarchon_tasks.model import Reason, RunRef, Status
from anarchon_tasks.stores.base import BeginKind, ClaimKind, Delivered, Overlap, Policy
from anarchon_tasks.testing._lab import ALLOW, LONG_MS, Lab

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import StoreAdapter

DELIVERED = Delivered(message_id="message-1", retries=0, worker="worker-1", pid=1)


class BeginTests:
    """What `begin` and `beat` guarantee."""

    def test_ok(self, adapter: StoreAdapter) -> None:
        """The first delivery begins the run, with a token above the claim's and a lease on the store's clock."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        claimed = lab.waiting(ref)
        before = lab.now()
        answer = lab.begin(ref, claimed.token)
        assert (answer.kind, answer.attempt, answer.status) == (BeginKind.OK, 1, Status.RUNNING)
        assert answer.token > claimed.token
        assert before + LONG_MS <= answer.until <= lab.now() + LONG_MS
        [entry] = lab.history()
        assert (entry.status, entry.worker, entry.pid, entry.token) == (Status.RUNNING, "worker-1", 1, answer.token)
        assert entry.started_at is not None

    def test_repeat_is_ok_again(self, adapter: StoreAdapter) -> None:
        """A begin repeated with its delivery id after a lost reply is admitted again, with the same token."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        first = lab.begin(ref, token, delivery_id="d")
        again = lab.begin(ref, token, delivery_id="d")
        assert (again.kind, again.attempt, again.token) == (first.kind, first.attempt, first.token)
        assert again.until >= first.until

    def test_repeat_after_the_lease(self, adapter: StoreAdapter) -> None:
        """A begin whose reply was lost in an outage longer than the lease is still admitted, if nobody took over."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        first = lab.begin(ref, token, delivery_id="d")
        lab.end_lease(ref, first.token)
        again = lab.begin(ref, token, delivery_id="d")
        assert (again.kind, again.attempt, again.token) == (BeginKind.OK, 1, first.token)
        assert again.until > lab.now()
        lab.end_lease(ref, first.token)
        assert lab.begin(ref, token, delivery_id="e").attempt == 2
        assert lab.begin(ref, token, delivery_id="d").kind is BeginKind.BUSY

    def test_duplicate_is_busy(self, adapter: StoreAdapter) -> None:
        """A second delivery of the message is dropped while the first executes."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        begun = lab.begin(ref, token)
        answer = lab.begin(ref, token, pid=2)
        assert (answer.kind, answer.status, answer.until) == (BeginKind.BUSY, Status.RUNNING, begun.until)
        assert lab.history()[0].pid == 1

    def test_done_after_the_end(self, adapter: StoreAdapter) -> None:
        """A delivery of a run that has ended is dropped."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        lab.finish(ref, lab.begin(ref, token).token, Status.FAILED)
        answer = lab.begin(ref, token)
        assert (answer.kind, answer.status) == (BeginKind.DONE, Status.FAILED)

    def test_takeover_after_the_lease(self, adapter: StoreAdapter) -> None:
        """A redelivery takes over a run whose lease is over: next attempt, higher token, and the old one is refused."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        first = lab.begin(ref, token)
        lab.end_lease(ref, first.token)
        second = lab.begin(ref, token, pid=2)
        assert (second.kind, second.attempt) == (BeginKind.OK, 2)
        assert second.token > first.token
        assert lab.beat(ref, first.token) is False
        assert lab.finish(ref, first.token) is False
        assert lab.park(ref, first.token) is False
        assert lab.beat(ref, second.token)
        assert lab.finish(ref, second.token)
        assert lab.told() == [(1_000, 2, "succeeded", None), (1_000, 1, "interrupted", "taken_over")]
        assert [r.refused for r in lab.history()] == [0, 3]

    def test_no_takeover_after_an_outage(self, adapter: StoreAdapter) -> None:
        """A worker that just reached the store again lets the others beat before it takes over."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        lab.end_lease(ref, lab.begin(ref, token).token)
        assert lab.begin(ref, token, takeover=False).kind is BeginKind.BUSY
        assert lab.history()[0].attempt == 1

    def test_no_takeover_by_a_claim_after_an_outage(self, adapter: StoreAdapter) -> None:
        """A scheduler can leave runs that were begun to their workers, and still claim those that nobody executes."""
        lab = Lab(adapter)
        for name in ("running", "parked", "claimed", "queued"):
            lab.job(name)
        refs = {name: lab.ref(1_000, name) for name in ("running", "parked", "claimed", "queued")}
        running = lab.running(refs["running"]).token
        lab.end_lease(refs["running"], running)
        lab.park(refs["parked"], lab.running(refs["parked"]).token, start_timeout_ms=1)
        lab.end_lease(refs["claimed"], lab.won(refs["claimed"]).token, phase=Status.CLAIMED)
        lab.waiting(refs["queued"], policy=replace(ALLOW, start_timeout_ms=1))
        lab.pass_ms(1)
        answers = {name: lab.claim(ref, takeover=False) for name, ref in refs.items()}
        assert {name: (answer.kind, answer.attempt) for name, answer in answers.items()} == {
            "running": (ClaimKind.RUNNING, 1),
            "parked": (ClaimKind.RUNNING, 1),
            "claimed": (ClaimKind.WON, 1),
            "queued": (ClaimKind.WON, 1),
        }
        assert lab.beat(refs["running"], running), "its worker was alive"

    def test_late_beat_counts(self, adapter: StoreAdapter) -> None:
        """A beat after the lease end keeps the run as long as nobody took it over."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        lab.end_lease(ref, begun.token)
        assert lab.beat(ref, begun.token)
        assert lab.claim(ref).kind is ClaimKind.RUNNING

    def test_scheduler_takes_over(self, adapter: StoreAdapter) -> None:
        """A run whose worker fell silent can be claimed for its next attempt, and is published anew."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.end_lease(ref, lab.running(ref).token)
        again = lab.waiting(ref)
        assert again.attempt == 2
        entry = lab.history()[0]
        assert (entry.worker, entry.pid, entry.retries, entry.publishes, entry.started_at) == (None, None, 0, 1, None)
        begun = lab.begin(ref, again.token, attempt=2)
        assert (begun.kind, begun.attempt) == (BeginKind.OK, 2)
        assert lab.told() == [(1_000, 2, "running", None), (1_000, 1, "interrupted", "taken_over")]

    def test_takeover_delay(self, adapter: StoreAdapter) -> None:
        """A policy can keep others from a silent run for longer than its lease."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        policy = replace(ALLOW, takeover_delay_ms=LONG_MS)
        lab.end_lease(ref, lab.running(ref, policy=policy).token)
        answer = lab.claim(ref, policy=policy)
        assert answer.kind is ClaimKind.RUNNING
        assert answer.until > lab.now() + LONG_MS / 2

    def test_attempts_used_up(self, adapter: StoreAdapter) -> None:
        """A run whose last attempt died ends as interrupted, for schedulers as for workers."""
        lab = Lab(adapter)
        lab.job()
        by_claim, by_begin = lab.ref(2_000), lab.ref(1_000)
        policy = replace(ALLOW, max_attempts=1)
        lab.end_lease(by_claim, lab.running(by_claim, policy=policy).token)
        assert lab.claim(by_claim, policy=policy).kind is ClaimKind.DONE
        token = lab.waiting(by_begin, policy=policy).token
        lab.end_lease(by_begin, lab.begin(by_begin, token).token)
        assert lab.begin(by_begin, token, max_attempts=1).kind is BeginKind.DONE
        assert lab.told() == [(1_000, 1, "interrupted", "taken_over"), (2_000, 1, "interrupted", "taken_over")]

    def test_unknown_run_begins(self, adapter: StoreAdapter) -> None:
        """A message of a run that a restored store does not know is executed, once."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.begin(ref, 5, attempt=2)
        assert (begun.kind, begun.attempt) == (BeginKind.OK, 2)
        assert lab.begin(ref, 5, attempt=2).kind is BeginKind.BUSY
        assert lab.finish(ref, begun.token)
        assert lab.told() == [(1_000, 2, "succeeded", None)]

    def _lost(self, lab: Lab, policy: Policy) -> tuple[RunRef, int]:
        """Let a run be given up, because its message stayed away while others of its queue began."""
        ref = lab.ref(9_000)
        policy = replace(policy, start_timeout_ms=1, max_attempts=1)
        token = lab.waiting(ref, policy=policy).token
        lab.pass_ms(2)
        assert lab.claim(ref, policy=policy, queue_begun_ms=lab.now()).status is Status.LOST
        return ref, token

    def test_lost_message_comes_before_a_waiting_one(self, adapter: StoreAdapter) -> None:
        """A run that was given up and comes after all takes the place of a later one that has not begun."""
        lab = Lab(adapter)
        lab.job()
        ref, token = self._lost(lab, replace(ALLOW, overlap=Overlap.SKIP))
        lab.waiting(lab.ref(1_000))
        assert lab.begin(ref, token).kind is BeginKind.OK
        assert lab.told() == [(1_000, 1, "skipped", "overlap"), (9_000, 1, "running", None)]

    def test_lost_message_does_not_disturb_a_running_one(self, adapter: StoreAdapter) -> None:
        """A run that was given up stays so when a later one of its job is executing."""
        lab = Lab(adapter)
        lab.job()
        ref, token = self._lost(lab, replace(ALLOW, overlap=Overlap.SKIP))
        lab.running(lab.ref(1_000))
        assert lab.begin(ref, token).kind is BeginKind.DONE
        assert lab.told() == [(1_000, 1, "running", None), (9_000, 1, "lost", "never_started")]

    def test_lost_message_beside_others(self, adapter: StoreAdapter) -> None:
        """Where overlap is allowed, a run that was given up comes back beside the others."""
        lab = Lab(adapter)
        lab.job()
        ref, token = self._lost(lab, ALLOW)
        lab.waiting(lab.ref(1_000), policy=ALLOW)
        assert lab.begin(ref, token).kind is BeginKind.OK
        assert lab.told() == [(1_000, 1, "queued", None), (9_000, 1, "running", None)]

    def test_unregistered_job_begins(self, adapter: StoreAdapter) -> None:
        """A message of a job that the store does not know is executed, once."""
        lab = Lab(adapter)
        begun = lab.begin(lab.ref(1_000), 5)
        assert begun.kind is BeginKind.OK
        assert lab.finish(lab.ref(1_000), begun.token)
        assert lab.begin(lab.ref(1_000), 5).kind is BeginKind.DONE


class RetryTests:
    """What `park` guarantees."""

    def test_parked_run_waits_for_its_retry(self, adapter: StoreAdapter) -> None:
        """A parked run is executed by the retry's own message alone, in the same attempt."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        claimed = lab.waiting(ref)
        begun = lab.begin(ref, claimed.token)
        assert lab.park(ref, begun.token)
        assert lab.history()[0].status is Status.QUEUED
        assert lab.begin(ref, claimed.token).kind is BeginKind.BUSY
        assert lab.begin(ref, claimed.token, retries=1).kind is BeginKind.BUSY
        retry = lab.begin(ref, begun.token, retries=1)
        assert (retry.kind, retry.attempt) == (BeginKind.OK, 1)
        assert retry.token > begun.token
        assert lab.finish(ref, retry.token)
        [entry] = lab.history()
        assert (entry.status, entry.retries) == (Status.SUCCEEDED, 1)

    def test_park_repeated(self, adapter: StoreAdapter) -> None:
        """A park that is repeated after a lost reply answers as before."""
        lab = Lab(adapter)
        lab.job()
        begun = lab.running(lab.ref(1_000))
        assert lab.park(lab.ref(1_000), begun.token)
        assert lab.park(lab.ref(1_000), begun.token)
        assert lab.beat(lab.ref(1_000), begun.token) is False

    def test_parked_run_still_overlaps(self, adapter: StoreAdapter) -> None:
        """A run that waits for its retry is under way."""
        lab = Lab(adapter)
        lab.job()
        assert lab.park(lab.ref(1_000), lab.running(lab.ref(1_000)).token)
        lab.pass_ms(2)
        assert lab.claim(replace(lab.ref(0), slot=lab.now()), gap_ms=1).kind is ClaimKind.OVERLAP

    def test_lost_retry(self, adapter: StoreAdapter) -> None:
        """A retry whose message never came back is followed by the next attempt."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        assert lab.park(ref, lab.running(ref).token, start_timeout_ms=1)
        lab.pass_ms(1)
        assert lab.won(ref).attempt == 2
        assert lab.told()[1] == (1_000, 1, "interrupted", "retry_lost")

    def test_retry_faster_than_park(self, adapter: StoreAdapter) -> None:
        """A retry that is delivered before the park was recorded goes on with the run."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        retry = lab.begin(ref, begun.token, retries=1, pid=2)
        assert (retry.kind, retry.attempt) == (BeginKind.OK, 1)
        assert lab.park(ref, begun.token) is False


class FinishTests:
    """What `finish` guarantees."""

    def test_by_token(self, adapter: StoreAdapter) -> None:
        """The holder of the token ends the run; repeating that answers the same, and nobody ends it otherwise."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        assert lab.finish(ref, begun.token, Status.FAILED, error="boom", reason=Reason.REJECTED)
        assert lab.finish(ref, begun.token, Status.FAILED)
        assert lab.finish(ref, begun.token, Status.SUCCEEDED) is False
        assert lab.finish(ref, begun.token + 1, Status.FAILED) is False
        assert lab.beat(ref, begun.token) is False
        [entry] = lab.history()
        assert (entry.status, entry.reason, entry.error) == (Status.FAILED, "rejected", "boom")
        assert entry.started_at is not None
        assert entry.finished_at is not None
        assert entry.finished_at >= entry.started_at

    def test_claim_token_does_not_end(self, adapter: StoreAdapter) -> None:
        """The token of a claim does not end the run before a worker has it."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        assert lab.finish(ref, lab.won(ref).token) is False
        assert lab.history()[0].status is Status.CLAIMED

    def test_by_delivery(self, adapter: StoreAdapter) -> None:
        """The parent of the executing process ends the run by its delivery, and not by that of another process."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.running(ref)
        assert lab.finish(ref, delivered=replace(DELIVERED, pid=2), attempt=1, status=Status.FAILED) is False
        assert lab.finish(ref, delivered=DELIVERED, attempt=1, status=Status.FAILED)
        assert lab.told() == [(1_000, 1, "failed", None)]

    def test_by_delivery_before_the_begin(self, adapter: StoreAdapter) -> None:
        """A message that is refused before it begins, as a revoked one, ends its own attempt only."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.waiting(ref)
        for attempt, accepted in ((2, False), (1, True)):
            end = lab.finish(ref, attempt=attempt, delivered=DELIVERED, status=Status.CANCELLED, reason=Reason.REVOKED)
            assert end is accepted
        assert lab.told() == [(1_000, 1, "cancelled", "revoked")]

    def test_by_delivery_of_a_retry(self, adapter: StoreAdapter) -> None:
        """Of a parked run only the retry's own message can end it before it begins."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        assert lab.park(ref, begun.token)
        retry = replace(DELIVERED, retries=1, pid=2)
        for token, accepted in ((begun.token - 1, False), (begun.token, True)):
            end = lab.finish(ref, delivered=retry, attempt=1, header_token=token, status=Status.CANCELLED)
            assert end is accepted
        assert lab.told() == [(1_000, 1, "cancelled", None)]

    def test_interrupted_attempt(self, adapter: StoreAdapter) -> None:
        """A worker that is reported dead frees the run at once, and the next attempt has the reason on record."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        assert lab.finish(ref, delivered=DELIVERED, attempt=1, status=Status.INTERRUPTED, reason=Reason.TIME_LIMIT)
        assert lab.beat(ref, begun.token) is False
        assert lab.won(ref).attempt == 2
        assert lab.told()[1] == (1_000, 1, "interrupted", "time_limit")

    def test_interrupted_last_attempt(self, adapter: StoreAdapter) -> None:
        """A worker that is reported dead in the last attempt ends the run."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        assert lab.finish(ref, begun.token, Status.INTERRUPTED, max_attempts=1)
        assert lab.told() == [(1_000, 1, "interrupted", "worker_lost")]
        assert lab.claim(ref).kind is ClaimKind.DONE
