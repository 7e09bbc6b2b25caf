"""What the conformance tests work with: an adapter for the backend, and short ways to make each call."""
# ruff: noqa: ANN401, S101 - tests: fields of any of the calls, and assertions

from __future__ import annotations

import itertools
import threading
import time
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from anarchon_tasks.model import Run, RunRef, Status, Trigger
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginAnswer,
    BeginKind,
    Claim,
    ClaimAnswer,
    ClaimKind,
    Definition,
    Delivered,
    Finish,
    LeaseStore,
    Overlap,
    Park,
    Policy,
    Queued,
    Release,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

LONG_MS = 600_000
"""A lease that does not end within a test."""
AGO_MS = 10_000_000
"""How long before the test its jobs were registered."""
_PATIENCE_S = 20.0


class StoreAdapter(Protocol):
    """A backend, as the suite needs it. One is made for each test, in a namespace that holds nothing.

    The store's clock must be injectable (`advance` moves it and returns True) or run by itself (`advance` returns
    False, and the suite waits).
    """

    def store(self) -> LeaseStore:
        """Return another client of the test's namespace."""
        ...

    def elsewhere(self) -> LeaseStore:
        """Return a client of another namespace on the same server or in the same file."""
        ...

    def advance(self, ms: int) -> bool:
        """Move the store's clock, if that is possible; return whether it was."""
        ...


@runtime_checkable
class Alike(Protocol):
    """What an adapter can have beside that, where a namespace has a name of one's choice."""

    def alike(self) -> Sequence[LeaseStore]:
        """Return clients of empty namespaces that look alike: heads of each other, names like the other's keys."""
        ...


def alike(adapter: StoreAdapter) -> Sequence[LeaseStore]:
    """Return clients of several namespaces: those that look alike, or else any two."""
    return adapter.alike() if isinstance(adapter, Alike) else [adapter.store(), adapter.elsewhere()]


class Lab:
    """One test's stores, jobs and clock."""

    def __init__(self, adapter: StoreAdapter) -> None:
        self.adapter = adapter
        self.store = adapter.store()
        self.base = self.now()
        self.floors: dict[str, int] = {}
        self._ids = itertools.count(1)

    # --- time --------------------------------------------------------------------------------------------------------

    def now(self) -> int:
        """Return the store's time."""
        return self.store.time().now_ms

    def pass_ms(self, ms: int) -> None:
        """Let the store's clock move on by more than so many milliseconds."""
        if self.adapter.advance(ms + 1):
            return
        until, deadline, pause = self.now() + ms, time.monotonic() + _PATIENCE_S, threading.Event()
        while self.now() <= until:
            if time.monotonic() > deadline:
                raise AssertionError(f"the store's clock did not move by {ms} ms within {_PATIENCE_S:g} s")
            pause.wait(0.002)

    # --- jobs and runs -----------------------------------------------------------------------------------------------

    def job(self, name: str = "job", *, ago_ms: int = AGO_MS) -> str:
        """Register a job as if that had been some time ago."""
        definition = Definition(name=name, fingerprint="1", document="{}", floor=self.base - ago_ms)
        [answer] = self.store.register([definition]).answers
        self.floors[name] = answer.floor
        return name

    def ref(self, ago_ms: int, job: str = "job", key: str = "") -> RunRef:
        """Name the run of a slot before the beginning of the test."""
        return RunRef(job, self.base - ago_ms, key)

    def unique(self, head: str) -> str:
        """Return an id that nobody had."""
        return f"{head}-{next(self._ids)}"

    def ask(self, ref: RunRef, *, policy: Policy | None = None, **fields: Any) -> Claim:
        """Make a claim: of a run that is due, by an instance that knows the floor."""
        claim = Claim(
            ref=ref,
            claim_id=self.unique("claim"),
            instance="instance-1",
            policy=policy or Policy(claim_lease_ms=LONG_MS, start_timeout_ms=LONG_MS),
            due_ms=ref.slot,
            latest_ms=self.base + LONG_MS,
            floor=self.floors.get(ref.job, 0),
        )
        return replace(claim, **fields)

    def claim(self, ref: RunRef, **fields: Any) -> ClaimAnswer:
        """Claim a run, and remember the floor that comes back."""
        return self.claim_all([self.ask(ref, **fields)])[0]

    def claim_all(self, claims: Sequence[Claim]) -> list[ClaimAnswer]:
        """Send claims in one batch, and remember the floors that come back."""
        answers = self.store.claim(claims).answers
        for claim, answer in zip(claims, answers, strict=True):
            if claim.ref.job in self.floors:
                self.floors[claim.ref.job] = max(self.floors[claim.ref.job], answer.floor)
        return answers

    def won(self, ref: RunRef, **fields: Any) -> ClaimAnswer:
        """Claim a run that can be had."""
        answer = self.claim(ref, **fields)
        assert answer.kind is ClaimKind.WON, answer
        return answer

    def enqueue(self, ref: RunRef, token: int, *, policy: Policy | None = None, **fields: Any) -> bool:
        """Record a confirmed publish."""
        policy = policy or Policy(start_timeout_ms=LONG_MS)
        record = Queued(ref=ref, token=token, policy=policy, task_id="task-1")
        return self.store.queued([replace(record, **fields)]).answers[0]

    def waiting(self, ref: RunRef, **fields: Any) -> ClaimAnswer:
        """Claim a run and publish its message."""
        answer = self.won(ref, **fields)
        assert self.enqueue(ref, answer.token, **({"policy": fields["policy"]} if "policy" in fields else {}))
        return answer

    def release(self, ref: RunRef, token: int, **fields: Any) -> bool:
        """Hand a claim back."""
        return self.store.release([replace(Release(ref=ref, token=token), **fields)]).answers[0]

    def begin(self, ref: RunRef, token: int, *, retries: int = 0, pid: int = 1, **fields: Any) -> BeginAnswer:
        """Ask to execute a run, with a message that carries this token."""
        delivered = Delivered(message_id="message-1", retries=retries, worker="worker-1", pid=pid)
        ask = Begin(
            ref=ref,
            delivery_id=self.unique("delivery"),
            delivered=delivered,
            attempt=1,
            token=token,
            lease_ms=LONG_MS,
        )
        return self.store.begin([replace(ask, **fields)]).answers[0]

    def running(self, ref: RunRef, **fields: Any) -> BeginAnswer:
        """Claim a run, publish it and begin it."""
        answer = self.begin(ref, self.waiting(ref, **fields).token)
        assert answer.kind is BeginKind.OK, answer
        return answer

    def beat(self, ref: RunRef, token: int, *, lease_ms: int = LONG_MS, phase: Status = Status.RUNNING) -> bool:
        """Push a lease end."""
        return self.store.beat([Beat(ref=ref, token=token, lease_ms=lease_ms, phase=phase)]).answers[0]

    def end_lease(self, ref: RunRef, token: int, *, phase: Status = Status.RUNNING) -> None:
        """Let the lease of a run be over now."""
        assert self.beat(ref, token, lease_ms=1, phase=phase)
        self.pass_ms(1)

    def park(self, ref: RunRef, token: int, **fields: Any) -> bool:
        """Put a running run back into its queue."""
        item = Park(ref=ref, token=token, eta_ms=0, start_timeout_ms=LONG_MS)
        return self.store.park([replace(item, **fields)]).answers[0]

    def finish(self, ref: RunRef, token: int = 0, status: Status = Status.SUCCEEDED, **fields: Any) -> bool:
        """End a run or an attempt."""
        return self.store.finish([replace(Finish(ref=ref, token=token, status=status), **fields)]).answers[0]

    def succeeded(self, ref: RunRef, **fields: Any) -> None:
        """Take a run through its whole life."""
        assert self.finish(ref, self.running(ref, **fields).token)

    def history(self, job: str = "job", *, limit: int = 1_000) -> list[Run]:
        """Return the job's history."""
        return self.store.history(job, limit=limit).answers

    def told(self, job: str = "job") -> list[tuple[int, int, str, str | None]]:
        """Return the job's history as slot (before the test), attempt, status and reason."""
        return [(self.base - r.slot, r.attempt, r.status.value, r.reason and str(r.reason)) for r in self.history(job)]


ALLOW = Policy(overlap=Overlap.ALLOW, claim_lease_ms=LONG_MS, start_timeout_ms=LONG_MS)
"""Runs of the job may be under way side by side."""
MANUAL = Trigger.MANUAL
