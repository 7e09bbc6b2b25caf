"""A store whose server decides: each batch becomes calls of one operation there, of at most `chunk` items each."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

from anarchon_tasks.errors import StoreError
from anarchon_tasks.stores import _wire as wire
from anarchon_tasks.stores.base import Capabilities, Definition, QueueNote, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from anarchon_tasks.model import Run, RunRef
    from anarchon_tasks.stores.base import (
        Beat,
        Begin,
        BeginAnswer,
        Claim,
        ClaimAnswer,
        Finish,
        Park,
        Queued,
        Registered,
        Release,
    )

logger = logging.getLogger("anarchon_tasks")

Q = TypeVar("Q")
A = TypeVar("A")

_EXPIRED_LOOKS = 500
_EXPIRED_CALLS = 4


class Operations(Protocol):
    """The operations of one namespace on a server."""

    def run(self, operation: str, payload: object) -> list[Any]:
        """Run an operation and return `[now, answers, ...]`.

        Raises:
            StoreFormatError: The store was written by a newer version.
            StoreUnavailable: No answer, or the server cannot do it at the moment.
            StoreError: The server refuses it.

        """
        ...


class RemoteStore:
    """The calls of a lease store, as operations on a server.

    Args:
        operations: Runs them.
        namespace: The prefix or the table.
        location: Where the server is, for people.

    """

    capabilities: ClassVar[Capabilities] = Capabilities()
    chunk: ClassVar[int] = 100
    """How many items one call takes: near the best rate, and bounds for how long others wait."""

    def __init__(self, operations: Operations, *, namespace: str, location: str) -> None:
        self._operations = operations
        self.namespace = namespace
        self.location = location

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location} {self.namespace!r}>"

    @staticmethod
    def _key(job: str) -> str:
        """Write the name of a job as the server knows it."""
        return wire.job_key(job)

    @staticmethod
    def _ref(member: Any) -> RunRef:  # noqa: ANN401 - JSON is of any type
        """Read whose lease is over."""
        return wire.index_ref(member)

    def _chunks(self, items: Sequence[Q]) -> Iterator[Sequence[Q]]:
        """Cut a batch into calls; an empty one is a call too, which tells the time."""
        for first in range(0, max(len(items), 1), self.chunk):
            yield items[first : first + self.chunk]

    def _batch(
        self, name: str, items: Sequence[Q], encode: Callable[[Sequence[Q]], object], decode: Callable[[Any], A]
    ) -> Reply[A]:
        answers, now = [], 0
        for chunk in self._chunks(items):
            now, said, *_ = self._operations.run(name, encode(chunk))
            answers += [decode(answer) for answer in said]
        return Reply(now_ms=now, answers=answers)

    def _each(
        self, name: str, items: Sequence[Q], encode: Callable[[Q, wire.Key], object], decode: Callable[[Any], A]
    ) -> Reply[A]:
        return self._batch(name, items, lambda chunk: [encode(item, self._key) for item in chunk], decode)

    def time(self) -> Reply[None]:
        """Ask for the server's time."""
        return Reply(now_ms=self._operations.run("time", [])[0], answers=[])

    def register(self, definitions: Sequence[Definition]) -> Reply[Registered]:
        """Make jobs known."""
        return self._each("register", definitions, wire.definition, wire.registered)

    def forget(self, names: Sequence[str]) -> Reply[bool]:
        """Remove definitions from the list that readers see."""
        return self._batch("forget", names, list, wire.yes)

    def claim(self, claims: Sequence[Claim]) -> Reply[ClaimAnswer]:
        """Take runs."""
        return self._batch("claim", claims, lambda chunk: wire.claims(chunk, self._key), wire.claimed)

    def queued(self, records: Sequence[Queued]) -> Reply[bool]:
        """Record confirmed publishes."""
        return self._each("queued", records, wire.queued, wire.yes)

    def release(self, records: Sequence[Release]) -> Reply[bool]:
        """Hand claims back."""
        return self._each("release", records, wire.release, wire.yes)

    def beat(self, beats: Sequence[Beat]) -> Reply[bool]:
        """Push lease ends forward."""
        return self._each("beat", beats, wire.beat, wire.yes)

    def begin(self, begins: Sequence[Begin]) -> Reply[BeginAnswer]:
        """Admit one execution per attempt and retry."""
        return self._each("begin", begins, wire.begin, wire.begun)

    def park(self, parks: Sequence[Park]) -> Reply[bool]:
        """Put running runs back into their queue."""
        return self._each("park", parks, wire.park, wire.yes)

    def finish(self, ends: Sequence[Finish]) -> Reply[bool]:
        """End runs or attempts."""
        return self._each("finish", ends, wire.finish, wire.yes)

    def expired(self, *, limit: int) -> Reply[RunRef]:
        """Return runs whose lease is over, longest over first.

        One call looks at a bounded number of due index entries. Entries of leases that were pushed forward are moved
        on the way, so what this call does not reach, the next one does.
        """
        over: dict[RunRef, int] = {}
        most = max(limit, _EXPIRED_LOOKS)
        now = 0
        for _ in range(_EXPIRED_CALLS):
            now, found, more = self._operations.run("expired", [most])
            over.update((self._ref(member), ending) for ending, member in found)
            if not more or len(over) >= limit:
                break
        ordered = sorted(over, key=lambda ref: (over[ref], ref))
        return Reply(now_ms=now, answers=ordered[: max(limit, 0)])

    def repair(self, jobs: Sequence[str]) -> Reply[bool]:
        """Put the open runs of these jobs back into the index of lease ends, should they be missing there."""
        return self._each("repair", jobs, lambda job, key: key(job), wire.yes)

    def announce(self, worker: str, queues: Mapping[str, int]) -> Reply[None]:
        """Say that a worker with the integration consumes these queues."""
        del worker
        reply = self._operations.run("announce", list(queues.items()))
        return Reply(now_ms=reply[0], answers=[])

    def queues(self) -> Reply[tuple[str, QueueNote]]:
        """Return what workers said of their queues, at most a day old."""
        now, found = self._operations.run("queues", [])
        notes = [(queue, QueueNote(announced_ms=announced, begun_ms=begun)) for queue, announced, begun in found]
        return Reply(now_ms=now, answers=sorted(notes, key=lambda pair: pair[0]))

    def definitions(self) -> Reply[Definition]:
        """Return the stored definitions, by name."""
        now, found = self._operations.run("definitions", [])
        return Reply(
            now_ms=now,
            answers=[
                Definition(name=name, fingerprint=fingerprint, document=document)
                for name, (fingerprint, document) in sorted(found)
            ],
        )

    def history(self, job: str, *, limit: int) -> Reply[Run]:
        """Return the newest attempts and stretches of a job, newest first."""
        now, [entries] = self._operations.run("read_runs", [limit, [self._key(job)]])
        if entries[:1] == ["error"]:
            raise StoreError(f"{self.location}: the history of {job!r} cannot be read: {entries[1]}")
        return Reply(now_ms=now, answers=wire.runs(job, entries, limit))

    def last_runs(self, jobs: Sequence[str]) -> Reply[Run | None]:
        """Return the newest entry of each job; None too for a job that cannot be read, with a warning in the log.

        Raises:
            StoreError: None of them can be read.

        """
        reply = self._batch("read_runs", jobs, lambda chunk: [1, [self._key(job) for job in chunk]], list[Any])
        failed = [entries[1] for entries in reply.answers if entries[:1] == ["error"]]
        if failed:
            said = f"{self.location}: the history of {len(failed)} of {len(jobs)} jobs cannot be read: {failed[0]}"
            if len(failed) == len(jobs):
                raise StoreError(said)
            logger.warning(said)
        newest = [
            None if entries[:1] == ["error"] else next(iter(wire.runs(job, entries, 1)), None)
            for job, entries in zip(jobs, reply.answers, strict=True)
        ]
        return Reply(now_ms=reply.now_ms, answers=newest)
