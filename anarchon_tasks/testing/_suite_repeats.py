"""Conformance: a call that is executed twice, because its reply was lost, is one call."""
# ruff: noqa: S101 - tests: assertions are what they are for

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import BeginKind, ClaimKind, Policy
from anarchon_tasks.testing import _repeats_scheduler, _repeats_workers
from anarchon_tasks.testing._lab import LONG_MS, Lab
from anarchon_tasks.testing._repeats import observed

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import StoreAdapter

CASES = [*_repeats_scheduler.CASES, *_repeats_workers.CASES]


def _answers_as_before(adapter: StoreAdapter, operation: str) -> None:
    """Execute each call of an operation twice, by two clients: the same answer, and the same account."""
    lab, other = Lab(adapter), adapter.store()
    for case in (case for case in CASES if case.operation == operation):
        call = case.prepare(lab, case.name)
        first = call(lab.store).answers
        before = observed(lab, case.name, refusals=False)
        lab.pass_ms(2)
        second = call(other).answers
        if operation not in {"register", "forget"}:  # these tell what their own execution did
            told = [_until_aside(answer) for answer in first]
            assert [_until_aside(answer) for answer in second] == told, case.name
        assert observed(lab, case.name, refusals=False) == before, case.name
    other.close()


def _until_aside(answer: object) -> object:
    """A lease that is pushed forward once more ends later."""
    return replace(answer, until=0) if hasattr(answer, "until") else answer  # type: ignore[type-var]


class RepeatTests:
    """What every call guarantees when it is executed twice."""

    def test_register_twice(self, adapter: StoreAdapter) -> None:
        """A definition that is sent again moves no floor."""
        _answers_as_before(adapter, "register")
        _answers_as_before(adapter, "forget")

    def test_claim_twice(self, adapter: StoreAdapter) -> None:
        """A claim that is sent again is answered as before, whatever it decided: no second attempt, token or entry."""
        _answers_as_before(adapter, "claim")

    def test_queued_twice(self, adapter: StoreAdapter) -> None:
        """A confirmed publish is counted once."""
        _answers_as_before(adapter, "queued")

    def test_release_twice(self, adapter: StoreAdapter) -> None:
        """A failed publish is counted once, and what a release ended is ended."""
        _answers_as_before(adapter, "release")

    def test_beat_twice(self, adapter: StoreAdapter) -> None:
        """A heartbeat that is sent again is a heartbeat."""
        _answers_as_before(adapter, "beat")

    def test_begin_twice(self, adapter: StoreAdapter) -> None:
        """A begin that is sent again is answered as before: the delivery that was admitted is admitted."""
        _answers_as_before(adapter, "begin")

    def test_park_twice(self, adapter: StoreAdapter) -> None:
        """A run that is parked again is parked."""
        _answers_as_before(adapter, "park")

    def test_finish_twice(self, adapter: StoreAdapter) -> None:
        """The end of a run that is told again is accepted again, and the refused one is refused again."""
        _answers_as_before(adapter, "finish")

    def test_read_twice(self, adapter: StoreAdapter) -> None:
        """What spans jobs and what readers ask changes nothing."""
        for operation in ("announce", "repair", "expired", "read"):
            _answers_as_before(adapter, operation)

    def test_release_repeated_rests_once(self, adapter: StoreAdapter) -> None:
        """A release that is repeated, at once or when the run has rested, is not counted as another failure."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.won(ref).token
        assert lab.release(ref, token)
        rests = lab.claim(ref).until
        assert lab.release(ref, token)
        assert lab.claim(ref).until == rests
        lab.pass_ms(1_000)
        assert lab.release(ref, token)
        assert lab.won(ref).kind is ClaimKind.WON, "it rests no longer"

    def test_release_after_a_renewal(self, adapter: StoreAdapter) -> None:
        """A heartbeat of the instance that crosses its own release is ended by the repeat of the release."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.won(ref).token
        assert lab.release(ref, token)
        rests = lab.claim(ref).until
        lab.beat(ref, token, phase=Status.CLAIMED)
        assert lab.release(ref, token)
        assert lab.claim(ref).until == rests, "one failed publish, one rest"

    def test_publish_repeated_doubles_once(self, adapter: StoreAdapter) -> None:
        """Each publish that no run began from doubles the next wait; the repeat of its record does not."""
        lab = Lab(adapter)
        lab.job()
        policy = Policy(claim_lease_ms=LONG_MS, start_timeout_ms=5)
        ref = lab.ref(1_000)
        token = lab.won(ref, policy=policy).token
        for _ in range(3):
            assert lab.enqueue(ref, token, policy=policy)
        lab.pass_ms(5)
        longer = replace(policy, start_timeout_ms=LONG_MS)
        token = lab.won(ref, policy=policy).token
        before = lab.now()
        assert lab.enqueue(ref, token, policy=longer)
        until = lab.claim(ref).until
        assert before + 2 * LONG_MS <= until <= lab.now() + 2 * LONG_MS

    def test_begin_repeated_after_its_lease(self, adapter: StoreAdapter) -> None:
        """A begin whose reply took longer than the lease is admitted when it is repeated, unless somebody else was."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        token = lab.waiting(ref).token
        first = lab.begin(ref, token, delivery_id="mine", lease_ms=1)
        lab.pass_ms(1)
        again = lab.begin(ref, token, delivery_id="mine", lease_ms=LONG_MS)
        assert (again.kind, again.attempt, again.token) == (BeginKind.OK, 1, first.token)
        lab.end_lease(ref, first.token)
        lab.won(ref)
        assert lab.begin(ref, token, delivery_id="mine").token != first.token
