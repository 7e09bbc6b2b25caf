"""Conformance: registering jobs and claiming runs."""
# ruff: noqa: S101 - tests: expected values are literals, and assertions are what they are for

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anarchon_tasks.model import Reason, RunRef, Status
from anarchon_tasks.stores.base import ClaimKind, Definition, Policy, SlotRange
from anarchon_tasks.testing._lab import ALLOW, LONG_MS, MANUAL, Lab
from anarchon_tasks.testing._repeats_scheduler import CASES

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import StoreAdapter


def _definition(name: str = "job", fingerprint: str = "1", floor: int | None = None) -> Definition:
    return Definition(name=name, fingerprint=fingerprint, document=f'{{"of": "{name}"}}', floor=floor)


class RegisterTests:
    """What `register` and `forget` guarantee."""

    def test_new_job_begins_now(self, adapter: StoreAdapter) -> None:
        """A job that nobody registered before gets the present time as its floor."""
        lab = Lab(adapter)
        reply = lab.store.register([_definition()])
        [answer] = reply.answers
        assert lab.base <= answer.floor <= reply.now_ms
        assert answer.changed
        assert answer.error is None

    def test_registered_again_nothing_moves(self, adapter: StoreAdapter) -> None:
        """Registering the same definition again, by another client and after a while, moves nothing."""
        lab = Lab(adapter)
        [first] = lab.store.register([_definition()]).answers
        lab.pass_ms(2)
        [second] = adapter.store().register([_definition()]).answers
        assert (second.floor, second.changed) == (first.floor, False)

    def test_changed_job_begins_anew(self, adapter: StoreAdapter) -> None:
        """A job whose fingerprint changed gets the present time as its floor: its new schedule has no past."""
        lab = Lab(adapter)
        [first] = lab.store.register([_definition()]).answers
        lab.pass_ms(2)
        [second] = lab.store.register([_definition(fingerprint="2")]).answers
        assert second.floor > first.floor
        assert second.changed

    def test_known_floor_is_restored(self, adapter: StoreAdapter) -> None:
        """A store without the job takes over the floor that the instance knows, though none in the future."""
        lab = Lab(adapter)
        past, future = lab.base - 5_000, lab.base + LONG_MS
        reply = lab.store.register([_definition("past", floor=past), _definition("future", floor=future)])
        assert reply.answers[0].floor == past
        assert reply.answers[1].floor <= reply.now_ms

    def test_known_floor_does_not_move_an_account(self, adapter: StoreAdapter) -> None:
        """A floor that an instance sends is ignored when the store has the job."""
        lab = Lab(adapter)
        [first] = lab.store.register([_definition(floor=lab.base - 5_000)]).answers
        [second] = lab.store.register([_definition(floor=lab.base - 9_000)]).answers
        assert second.floor == first.floor

    def test_definitions_by_name(self, adapter: StoreAdapter) -> None:
        """Readers get the stored definitions by name, in their last form."""
        lab = Lab(adapter)
        lab.store.register([_definition("b"), _definition("a"), _definition("c")])
        lab.store.register([_definition("b", "2")])
        assert lab.store.definitions().answers == [_definition("a"), _definition("b", "2"), _definition("c")]

    def test_forgotten_job_keeps_its_account(self, adapter: StoreAdapter) -> None:
        """A forgotten job leaves the list, and what it had settled stays settled when it comes back."""
        lab = Lab(adapter)
        lab.job()
        lab.succeeded(lab.ref(1_000))
        assert lab.store.forget(["job", "other"]).answers == [True, False]
        assert lab.store.forget(["job"]).answers == [False]
        assert lab.store.definitions().answers == []
        lab.job()
        assert lab.claim(lab.ref(1_000)).kind is ClaimKind.DONE
        assert lab.claim(lab.ref(2_000)).kind is ClaimKind.DONE


class ClaimTests:
    """What `claim` guarantees to one run."""

    def test_won(self, adapter: StoreAdapter) -> None:
        """A run that is due and nobody's is won, with a token and a lease on the store's clock."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        reply = lab.store.claim([lab.ask(ref)])
        [answer] = reply.answers
        assert answer.kind is ClaimKind.WON
        assert (answer.attempt, answer.status, answer.run) == (1, Status.CLAIMED, ref.run)
        assert answer.until == reply.now_ms + LONG_MS
        assert answer.floor == ref.slot
        assert answer.token > 0
        assert answer.tracked
        assert answer.error is None

    def test_repeat_is_won_again(self, adapter: StoreAdapter) -> None:
        """A claim repeated with its claim id after a lost reply is won with the same attempt, token and lease."""
        lab = Lab(adapter)
        lab.job()
        ask = lab.ask(lab.ref(1_000))
        [first] = lab.store.claim([ask]).answers
        assert lab.store.claim([ask]).answers == [first]
        assert adapter.store().claim([ask]).answers == [first]
        assert len(lab.history()) == 1
        assert lab.enqueue(ask.ref, first.token)
        assert lab.store.claim([ask]).answers[0].kind is ClaimKind.RUNNING, "its message is with the broker"

    def test_running_tells_until_when(self, adapter: StoreAdapter) -> None:
        """A second claim is told that the run is somebody's, and until when."""
        lab = Lab(adapter)
        lab.job()
        held = lab.won(lab.ref(1_000))
        answer = lab.claim(lab.ref(1_000))
        assert answer.kind is ClaimKind.RUNNING
        assert (answer.until, answer.status, answer.run) == (held.until, Status.CLAIMED, held.run)

    def test_unregistered(self, adapter: StoreAdapter) -> None:
        """A job that the store does not know is answered so, and nothing is stored."""
        lab = Lab(adapter)
        assert lab.claim(lab.ref(1_000)).kind is ClaimKind.UNREGISTERED
        assert lab.history() == []

    def test_early(self, adapter: StoreAdapter) -> None:
        """A claim ahead of the store's time is refused and stores nothing, whatever the caller's clock says."""
        lab = Lab(adapter)
        lab.job()
        ref = RunRef("job", lab.base + LONG_MS)
        answer = lab.claim(ref)
        assert (answer.kind, answer.until) == (ClaimKind.EARLY, ref.slot)
        assert lab.history() == []
        assert answer.floor == lab.floors["job"]

    def test_early_by_jitter(self, adapter: StoreAdapter) -> None:
        """A slot that is past can still be early: its jitter is part of when it is due."""
        lab = Lab(adapter)
        lab.job()
        assert lab.claim(lab.ref(1_000), due_ms=lab.base + LONG_MS).kind is ClaimKind.EARLY

    def test_late_is_settled_with_its_reason(self, adapter: StoreAdapter) -> None:
        """A slot past its latest time becomes missed with the caller's reason; the repeat is told late, others done."""
        lab = Lab(adapter)
        lab.job()
        ask = lab.ask(lab.ref(5_000), latest_ms=lab.base - 4_000, late_reason=Reason.STORE_UNAVAILABLE)
        [answer] = lab.claim_all([ask])
        assert (answer.kind, answer.status) == (ClaimKind.LATE, Status.MISSED)
        assert lab.told() == [(5_000, 1, "missed", "store_unavailable")]
        assert lab.claim_all([ask])[0].kind is ClaimKind.LATE
        assert lab.claim(lab.ref(5_000)).kind is ClaimKind.DONE

    def test_late_slot_settles_those_before_it(self, adapter: StoreAdapter) -> None:
        """A slot that is too late puts the slots before it on the account as well."""
        lab = Lab(adapter)
        lab.job()
        first = lab.ref(9_000).slot
        stretch = SlotRange(first=first, last=first, count=1, status=Status.MISSED, reason=Reason.TOO_LATE)
        assert lab.claim(lab.ref(5_000), latest_ms=lab.base - 4_000, ranges=(stretch,)).kind is ClaimKind.LATE
        assert lab.told() == [(5_000, 1, "missed", "no_instance"), (9_000, 0, "missed", "too_late")]

    def test_at_the_floor_is_done(self, adapter: StoreAdapter) -> None:
        """A slot at or below the floor is settled: it was before the job's registration."""
        lab = Lab(adapter)
        lab.job(ago_ms=5_000)
        assert lab.claim(lab.ref(5_000)).kind is ClaimKind.DONE
        assert lab.claim(lab.ref(6_000)).kind is ClaimKind.DONE
        assert lab.claim(lab.ref(4_999)).kind is ClaimKind.WON

    def test_moved(self, adapter: StoreAdapter) -> None:
        """A caller that saw an older floor is told the new one and settles nothing by mistake."""
        lab = Lab(adapter)
        lab.job()
        old = lab.floors["job"]
        lab.succeeded(lab.ref(2_000))
        stretch = SlotRange(first=old + 1, last=old + 2, count=2, status=Status.MISSED, reason=Reason.TOO_LATE)
        answer = lab.claim(lab.ref(1_000), floor=old, ranges=(stretch,))
        assert (answer.kind, answer.floor) == (ClaimKind.MOVED, lab.ref(2_000).slot)
        assert lab.told() == [(2_000, 1, "succeeded", None)]
        assert lab.claim(lab.ref(1_000)).kind is ClaimKind.WON

    def test_ranges_are_settled_with_the_claim(self, adapter: StoreAdapter) -> None:
        """The slots between the floor and a claimed slot stand in the history as stretches, and are done."""
        lab = Lab(adapter)
        lab.job()
        first, last = lab.ref(9_000), lab.ref(5_000)
        stretch = SlotRange(first=first.slot, last=last.slot, count=5, status=Status.MISSED, reason=Reason.NO_INSTANCE)
        ask = lab.ask(lab.ref(1_000), ranges=(stretch,))
        lab.claim_all([ask, ask])
        assert lab.told() == [(1_000, 1, "claimed", None), (5_000, 0, "missed", "no_instance")]
        entry = lab.history()[1]
        assert (entry.first_slot, entry.count) == (first.slot, 5)
        assert lab.claim(lab.ref(7_000)).kind is ClaimKind.DONE

    def test_next_claim_after_the_lease(self, adapter: StoreAdapter) -> None:
        """A claim whose lease is over goes to the next who asks: the same attempt, a higher token, the old one void."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        first = lab.won(ref)
        claimed_at = lab.history()[0].claimed_at
        lab.end_lease(ref, first.token, phase=Status.CLAIMED)
        second = lab.won(ref, instance="instance-2")
        assert second.attempt == 1
        assert second.token > first.token
        assert lab.enqueue(ref, first.token) is False
        assert lab.release(ref, first.token) is False
        assert lab.beat(ref, first.token, phase=Status.CLAIMED) is False
        assert (lab.history()[0].instance, lab.history()[0].claimed_at) == ("instance-2", claimed_at)

    def test_own_claim_after_the_lease(self, adapter: StoreAdapter) -> None:
        """The claim id of a lease that is over gives no right: repeating it is a claim like any other."""
        lab = Lab(adapter)
        lab.job()
        ask = lab.ask(lab.ref(1_000))
        [first] = lab.claim_all([ask])
        lab.end_lease(ask.ref, first.token, phase=Status.CLAIMED)
        [second] = lab.claim_all([ask])
        assert second.kind is ClaimKind.WON
        assert second.token > first.token

    def test_never_published_and_late(self, adapter: StoreAdapter) -> None:
        """A claim that nobody published until its latest time ends as missed, with what was in the way."""
        lab = Lab(adapter)
        lab.job()
        alone, refused = lab.ref(2_000), lab.ref(1_000)
        lab.end_lease(alone, lab.won(alone, latest_ms=lab.now() + 30, policy=ALLOW).token, phase=Status.CLAIMED)
        lab.pass_ms(30)
        assert lab.claim(alone, policy=ALLOW).kind is ClaimKind.LATE
        lab.release(refused, lab.won(refused, latest_ms=lab.now() + 900, policy=ALLOW).token, error="refused")
        lab.pass_ms(1_000)
        assert lab.claim(refused, policy=ALLOW).kind is ClaimKind.LATE
        assert lab.told() == [(1_000, 1, "missed", "publish_failed"), (2_000, 1, "missed", "no_instance")]
        assert lab.history()[0].error == "refused"

    def test_done_after_the_end(self, adapter: StoreAdapter) -> None:
        """A run that has ended is done, with its status."""
        lab = Lab(adapter)
        lab.job()
        lab.finish(lab.ref(1_000), lab.running(lab.ref(1_000)).token, Status.FAILED)
        answer = lab.claim(lab.ref(1_000))
        assert (answer.kind, answer.status) == (ClaimKind.DONE, Status.FAILED)

    def test_an_end_is_told_to_the_claim_that_decided_it(self, adapter: StoreAdapter) -> None:
        """A claim that ends a run instead of taking it over is told why, and so is its repeat; nobody else is."""
        lab = Lab(adapter)
        for name, settled, status in (
            ("settled_as_late", Reason.NO_INSTANCE, Status.MISSED),
            ("ends_as_interrupted", Reason.TAKEN_OVER, Status.INTERRUPTED),
            ("ends_as_expired", Reason.DEADLINE, Status.EXPIRED),
            ("ends_as_lost", Reason.NEVER_STARTED, Status.LOST),
            ("ends_as_perhaps_published", Reason.PUBLISH_UNKNOWN, Status.LOST),
            ("ends_as_missed", Reason.NO_INSTANCE, Status.MISSED),
        ):
            [case] = [case for case in CASES if case.name == name]
            call = case.prepare(lab, name)
            for _ in range(2):
                [answer] = call(lab.store).answers
                assert (answer.reason, answer.status) == (settled, status), name
            stranger = lab.claim(RunRef.parse(name, answer.run or ""))
            assert (stranger.kind, stranger.reason) == (ClaimKind.DONE, None), name
        lab.job()
        assert lab.won(lab.ref(1_000)).reason is None

    def test_manual_runs_stand_beside_the_floor(self, adapter: StoreAdapter) -> None:
        """A manual run can be claimed below the floor, is told apart by its key, and does not move the floor."""
        lab = Lab(adapter)
        lab.job()
        lab.succeeded(lab.ref(1_000))
        low, high = lab.ref(3_000, key="a"), lab.ref(0, key="a")
        other = RunRef("job", low.slot, "b")
        for ref in (low, other, high):
            assert lab.won(ref, trigger=MANUAL, policy=ALLOW).floor == lab.ref(1_000).slot
        assert lab.claim(low, trigger=MANUAL).kind is ClaimKind.RUNNING
        assert [r.key for r in lab.history()] == ["a", "", "b", "a"]

    def test_tokens_increase(self, adapter: StoreAdapter) -> None:
        """The tokens of a job increase strictly over all its runs and grants."""
        lab = Lab(adapter)
        lab.job()
        tokens = []
        for ago in (5_000, 4_000, 3_000):
            ref = lab.ref(ago)
            claimed = lab.waiting(ref)
            begun = lab.begin(ref, claimed.token)
            tokens += [claimed.token, begun.token]
            lab.finish(ref, begun.token)
        assert tokens == sorted(set(tokens))
        assert all(0 < token < 2**63 for token in tokens)

    def test_tokens_increase_though_the_store_lost_some(self, adapter: StoreAdapter) -> None:
        """A store that knows nothing of a job gives it higher tokens than another store gave it before."""
        lab = Lab(adapter)
        lab.job()
        before = lab.won(lab.ref(1_000)).token
        lab.pass_ms(2)
        empty = adapter.elsewhere()
        floor = lab.base - 5_000
        empty.register([replace(_definition(), floor=floor)])
        assert empty.claim([lab.ask(lab.ref(1_000), floor=floor)]).answers[0].token > before

    def test_lease_of_a_policy(self, adapter: StoreAdapter) -> None:
        """A claim's lease is as long as its policy says, and a beat of its holder pushes it forward."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        reply = lab.store.claim([lab.ask(ref, policy=Policy(claim_lease_ms=60_000))])
        [answer] = reply.answers
        assert answer.until == reply.now_ms + 60_000
        assert lab.beat(ref, answer.token, phase=Status.CLAIMED)
        assert lab.claim(ref).until >= reply.now_ms + LONG_MS
        assert lab.beat(ref, answer.token) is False
