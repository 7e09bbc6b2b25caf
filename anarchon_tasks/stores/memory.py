"""The memory store: one process, and the reference that the other stores are compared with."""

from __future__ import annotations

import bisect
import threading
from collections import defaultdict
from dataclasses import replace
from typing import TYPE_CHECKING, TypeVar

from anarchon_tasks.clock import Clock, SystemClock
from anarchon_tasks.model import OPEN, Status
from anarchon_tasks.stores import rules
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginAnswer,
    Capabilities,
    Claim,
    ClaimAnswer,
    Definition,
    Finish,
    Park,
    Queued,
    QueueNote,
    Registered,
    Release,
    Reply,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from anarchon_tasks.model import Run, RunRef

Q = TypeVar("Q")
A = TypeVar("A")


def history_order(entry: Run) -> tuple[int, str, int]:
    """Order entries by slot, key and attempt."""
    return entry.slot, entry.key, entry.attempt


class _Account:
    """One job's account, in dictionaries. The caller holds the lock."""

    def __init__(self) -> None:
        self.job = rules.JobState()
        self.states: dict[RunRef, rules.RunState] = {}
        self.history: list[Run] = []

    def get(self, ref: RunRef) -> rules.RunState | None:
        state = self.states.get(ref)
        return replace(state) if state is not None else None

    def open_runs(self, *, claimed: bool = False) -> Iterable[rules.RunState]:
        wanted = {Status.CLAIMED} if claimed else OPEN
        return [replace(state) for _, state in sorted(self.states.items()) if state.status in wanted]

    def open_count(self) -> int:
        return sum(state.open for state in self.states.values())

    def put(self, state: rules.RunState) -> None:
        self.states[state.ref] = replace(state)

    def oldest(self, *, below: int, limit: int) -> Iterable[rules.RunState]:
        refs = sorted(ref for ref in self.states if ref.slot < below)
        return [self.states[ref] for ref in refs[:limit]]

    def drop(self, ref: RunRef) -> None:
        del self.states[ref]

    def settled_at(self, job: str, slot: int) -> Run | None:
        del job
        at = bisect.bisect_left(self.history, (slot, "", 0), key=history_order)
        for entry in self.history[at:]:
            if entry.slot != slot or entry.key:
                return None
            if entry.status in rules.SETTLED:
                return entry
        return None

    def erase(self, entry: Run) -> None:
        self.history.remove(entry)

    def record(self, entry: Run, *, keep: int) -> None:
        order = history_order(entry)
        at = bisect.bisect_left(self.history, order, key=history_order)
        if at < len(self.history) and history_order(self.history[at]) == order:
            self.history[at] = entry
        else:
            self.history.insert(at, entry)
        del self.history[: max(0, len(self.history) - keep)]

    def forget(self, *, before: int) -> None:
        del self.history[: bisect.bisect_left(self.history, (before, "", 0), key=history_order)]

    def refuse(self, ref: RunRef, token: int) -> None:
        for at, entry in enumerate(self.history):
            if (entry.slot, entry.key, entry.token) == (ref.slot, ref.key, token) and token:
                self.history[at] = replace(entry, refused=entry.refused + 1)


class MemoryStore:
    """A store in this process's memory; nothing outlives the process."""

    def __init__(self, *, namespace: str = "cron:", clock: Clock | None = None) -> None:
        self.namespace = namespace
        self.location = "memory://"
        self.capabilities = Capabilities(server_clock=False, many_processes=False, many_hosts=False)
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._accounts: defaultdict[str, _Account] = defaultdict(_Account)
        self._definitions: dict[str, Definition] = {}
        self._queues: dict[str, QueueNote] = {}

    def _each(self, items: Iterable[Q], job: Callable[[Q], str], do: Callable[[_Account, Q, int], A]) -> Reply[A]:
        with self._lock:
            now = self._clock.wall_ms()
            return Reply(now_ms=now, answers=[do(self._accounts[job(item)], item, now) for item in items])

    def time(self) -> Reply[None]:
        """Return the host's time."""
        return Reply(now_ms=self._clock.wall_ms(), answers=[])

    def register(self, definitions: Sequence[Definition]) -> Reply[Registered]:
        """Make jobs known."""
        reply = self._each(definitions, lambda d: d.name, rules.register)
        with self._lock:
            self._definitions.update((d.name, replace(d, floor=None, since=None)) for d in definitions)
        return reply

    def forget(self, names: Sequence[str]) -> Reply[bool]:
        """Remove definitions from the list that readers see."""
        with self._lock:
            gone = [self._definitions.pop(name, None) is not None for name in names]
        return Reply(now_ms=self._clock.wall_ms(), answers=gone)

    def claim(self, claims: Sequence[Claim]) -> Reply[ClaimAnswer]:
        """Take runs."""
        return self._each(claims, lambda c: c.ref.job, rules.claim)

    def queued(self, records: Sequence[Queued]) -> Reply[bool]:
        """Record confirmed publishes."""
        return self._each(records, lambda r: r.ref.job, rules.queued)

    def release(self, records: Sequence[Release]) -> Reply[bool]:
        """Hand claims back."""
        return self._each(records, lambda r: r.ref.job, rules.release)

    def beat(self, beats: Sequence[Beat]) -> Reply[bool]:
        """Push lease ends forward."""
        return self._each(beats, lambda b: b.ref.job, rules.beat)

    def begin(self, begins: Sequence[Begin]) -> Reply[BeginAnswer]:
        """Admit one execution per attempt and retry."""
        return self._each(begins, lambda b: b.ref.job, rules.begin)

    def park(self, parks: Sequence[Park]) -> Reply[bool]:
        """Put running runs back into their queue."""
        return self._each(parks, lambda p: p.ref.job, rules.park)

    def finish(self, ends: Sequence[Finish]) -> Reply[bool]:
        """End runs or attempts."""
        return self._each(ends, lambda e: e.ref.job, rules.finish)

    def expired(self, *, limit: int) -> Reply[RunRef]:
        """Return runs whose lease is over, longest over first."""
        with self._lock:
            now = self._clock.wall_ms()
            over = sorted(
                (max(state.lease_until, state.not_before), ref)
                for account in self._accounts.values()
                for ref, state in account.states.items()
                if state.open and max(state.lease_until, state.not_before) <= now
            )
        return Reply(now_ms=now, answers=[ref for _, ref in over[:limit]])

    def repair(self, jobs: Sequence[str]) -> Reply[bool]:
        """Do nothing: there is no index that could be wrong."""
        return Reply(now_ms=self._clock.wall_ms(), answers=[True for _ in jobs])

    def announce(self, worker: str, queues: Mapping[str, int]) -> Reply[None]:
        """Say that a worker with the integration consumes these queues."""
        del worker
        with self._lock:
            now = self._clock.wall_ms()
            for queue, begun in queues.items():
                old = self._queues.get(queue)
                self._queues[queue] = QueueNote(announced_ms=now, begun_ms=max(begun, old.begun_ms if old else 0))
        return Reply(now_ms=now, answers=[])

    def queues(self) -> Reply[tuple[str, QueueNote]]:
        """Return what workers said of their queues, at most a day old."""
        with self._lock:
            now = self._clock.wall_ms()
            fresh = [(q, note) for q, note in self._queues.items() if note.announced_ms > now - rules.DAY_MS]
        return Reply(now_ms=now, answers=sorted(fresh, key=lambda pair: pair[0]))

    def definitions(self) -> Reply[Definition]:
        """Return the stored definitions, by name."""
        with self._lock:
            return Reply(now_ms=self._clock.wall_ms(), answers=[d for _, d in sorted(self._definitions.items())])

    def history(self, job: str, *, limit: int) -> Reply[Run]:
        """Return the newest attempts and stretches of a job, newest first."""
        with self._lock:
            account = self._accounts.get(job)
            return Reply(now_ms=self._clock.wall_ms(), answers=_newest(account, limit) if account else [])

    def last_runs(self, jobs: Sequence[str]) -> Reply[Run | None]:
        """Return the newest entry of each job."""
        return Reply(
            now_ms=self._clock.wall_ms(),
            answers=[next(iter(self.history(job, limit=1).answers), None) for job in jobs],
        )

    def close(self) -> None:
        """Keep everything: closing a connection does not empty a store."""


def _newest(account: _Account, limit: int) -> list[Run]:
    entries = {history_order(entry): entry for entry in account.history}
    for state in account.states.values():
        if state.open:
            entry = state.entry()
            entries[history_order(entry)] = entry
    return [entries[order] for order in sorted(entries, reverse=True)[:limit]]
