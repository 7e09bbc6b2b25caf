"""The work of one client on a store: its own jobs, each taken through the life of a run, operation by operation."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginKind,
    Claim,
    ClaimKind,
    Definition,
    Delivered,
    Finish,
    Policy,
    Queued,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import LeaseStore

    Call = Callable[[Sequence[Any]], Any]

OPERATIONS = ("claim", "claim lost", "queued", "begin", "beat", "finish")
"""In the order of a run's life."""
POLICY = Policy()
MESSAGE = Delivered(message_id="0a2f1c7b-5c8d-5e0c-9d53-6f3a4e900a2f", retries=0, worker="worker-1.example", pid=4711)
LEASE_MS = 600_000


class Lives:
    """The runs of one client: fresh jobs, one slot each.

    Args:
        store: Where they live.
        head: The head of the names of the jobs, which no other client has.
        count: How many there are.

    """

    def __init__(self, store: LeaseStore, head: str, count: int) -> None:
        self.store = store
        names = [f"{head}-{number}" for number in range(count)]
        now = store.time().now_ms
        floors: list[int] = []
        for first in range(0, count, 100):
            part = [Definition(name=n, fingerprint="f", document="{}", floor=0) for n in names[first : first + 100]]
            floors += [answer.floor for answer in store.register(part).answers]
        self.claims = [claim_of(name, floor, now) for name, floor in zip(names, floors, strict=True)]
        self._answers: list[Any] = []
        self._tokens: list[int] = []

    def prepare(self, operation: str) -> tuple[Sequence[Any], Call]:
        """Return the items of an operation, and what to call with each batch of them."""
        if operation == "claim":
            return self.claims, self._noted(self.store.claim)
        if operation == "claim lost":
            self._tokens = self._taken(ClaimKind.WON)
            now = self.store.time().now_ms
            return [claim_of(ask.ref.job, ask.floor, now, ask.ref) for ask in self.claims], self.store.claim
        refs = [ask.ref for ask in self.claims]
        held = list(zip(refs, self._tokens, strict=True))
        match operation:
            case "queued":
                records = [Queued(ref=r, token=t, policy=POLICY, task_id=MESSAGE.message_id) for r, t in held]
                return records, self.store.queued
            case "begin":
                return [begin_of(ref, token) for ref, token in held], self._noted(self.store.begin)
            case "beat":
                self._tokens = self._taken(BeginKind.OK)
                running = zip(refs, self._tokens, strict=True)
                return [Beat(ref=r, token=t, lease_ms=LEASE_MS) for r, t in running], self.store.beat
            case "finish":
                return [Finish(ref=r, status=Status.SUCCEEDED, token=t) for r, t in held], self.store.finish
        raise LookupError(operation)

    def _noted(self, call: Call) -> Call:
        self._answers = []
        return lambda batch: self._answers.extend(call(batch).answers)

    def _taken(self, kind: ClaimKind | BeginKind) -> list[int]:
        wrong = [answer for answer in self._answers if answer.kind is not kind]
        if wrong:
            raise AssertionError(f"{len(wrong)} of {len(self._answers)} answers are not {kind}: {wrong[0]}")
        return [answer.token for answer in self._answers]


def claim_of(job: str, floor: int, now: int, ref: RunRef | None = None) -> Claim:
    """Make a claim that nobody made before, of a run that is due."""
    ref = ref or RunRef(job, now - 10)
    return Claim(
        ref=ref,
        claim_id=uuid.uuid4().hex,
        instance="scheduler-1.example:1",
        policy=POLICY,
        due_ms=ref.slot,
        latest_ms=now + 3_600_000,
        floor=floor,
    )


def begin_of(ref: RunRef, token: int) -> Begin:
    """Make the delivery of a run's message."""
    return Begin(
        ref=ref,
        delivery_id=uuid.uuid4().hex,
        delivered=MESSAGE,
        attempt=1,
        token=token,
        lease_ms=LEASE_MS,
    )
