"""The operations of the Redis store on a cluster: each call of a script is about one job, or about one shared key.

The five keys of a job lie on one node, and each step of a run is decided there, by the same scripts and by that node's
clock. What a single server writes to shared keys in the same step is written here afterwards: the index of lease ends
and the list of definitions. See `lua/index.lua` for what that means for the index.
"""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from functools import lru_cache
from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.stores import _wire as wire
from anarchon_tasks.stores._redis_eviction import warn_if_evicting
from anarchon_tasks.stores._redis_nodes import Call, Nodes, Wait, kwargs_of
from anarchon_tasks.stores._redis_options import DEFAULT_PREFIX, check_prefix, location_of, secrets
from anarchon_tasks.stores._redis_replicas import ReplicatedScripts
from anarchon_tasks.stores._redis_scripts import read, script
from anarchon_tasks.stores._remote import RemoteStore
from anarchon_tasks.stores.base import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores._remote import Operations

FORMAT_S = 10.0
"""How long a store that could be read counts as readable: a newer version that takes it over is noticed by then."""
_PUT_OFF_MS = 60_000
_PAGE = 500
_TELLABLE_MS = 100
"""A smaller difference between two clocks is not told from the time that the calls took."""

_JOB_KEYS = ("state", "active", "slots", "runs", "results")
_SHARED = {
    "announce": "queues",
    "define": "jobs",
    "definitions": "jobs",
    "due": "leases",
    "forget": "jobs",
    "open": "format",
    "queues": "queues",
    "reindex": "leases",
    "time": "format",
}
"""The operations on a key that jobs share."""
_READ = frozenset({"definitions", "queues", "read_runs", "time"})
_TELL = frozenset({"claim", "look", "read_runs", "register", "repair"})
"""Whose answers can say that a job must wait, so that the others need not."""
_SHOW = frozenset({"read_runs"})
"""What shows people the jobs of the nodes that answer, though another one is away. All other calls fail as a whole: an
instance must know of each outage, for after it the workers beat first, and nothing is taken over until they could."""
_UNTIL = {"claim": 2, "begin": 2}
"""Where an answer has an instant."""


@dataclass(slots=True)
class _Part:
    """The items of one job in a batch."""

    job: str
    places: list[int] = field(default_factory=list)
    items: list[Any] = field(default_factory=list)
    call: Call | None = None
    now: int = 0
    at: float = 0.0
    """When its reply was here, by our monotonic clock."""
    answers: list[Any] = field(default_factory=list)
    notes: list[list[Any]] = field(default_factory=list)
    error: StoreError | None = None
    moving: bool = False


class RedisClusterStore(RemoteStore):
    """Leases and the account of runs in a cluster of Redis 5 or newer, or of Valkey.

    Args:
        client: The cluster client of redis-py or valkey-py. It stays open when the store closes.
        prefix: The head of every key; ends in `:`.
        clock: Tells the time in place of the nodes, for tests that move it.
        min_replicas: How many replicas of its node must have a grant.
        replicas_timeout_ms: How long a node waits for them.

    """

    def __init__(
        self,
        client: Any,  # noqa: ANN401 - the drivers' own types
        *,
        prefix: str = DEFAULT_PREFIX,
        clock: Clock | None = None,
        min_replicas: int = 0,
        replicas_timeout_ms: int = 100,
    ) -> None:
        check_prefix(prefix)
        kwargs = kwargs_of(client)
        location = location_of(kwargs)
        nodes = Nodes(client, location=location, secrets=secrets(kwargs))
        scripts = ClusterScripts(nodes, location=location, prefix=prefix, clock=clock)
        operations: Operations = scripts
        if min_replicas:
            operations = ReplicatedScripts(
                scripts, count=min_replicas, timeout_ms=replicas_timeout_ms, location=location
            )
        super().__init__(operations, namespace=prefix, location=location)

    def close(self) -> None:
        """Leave the client open: it was handed in."""


class ClusterScripts:
    """Runs the operations of one prefix on a cluster.

    Args:
        nodes: The cluster.
        location: Where it is, for people.
        prefix: The head of every key.
        clock: Tells the time in place of the nodes, for tests that move it.

    """

    def __init__(self, nodes: Nodes, *, location: str, prefix: str, clock: Clock | None = None) -> None:
        self._nodes = nodes
        self._location = location
        self._prefix = prefix
        self._clock = clock
        self._readable_until = self._writable_until = 0.0
        self._warner_pid: int | None = os.getpid()

    def run(self, operation: str, payload: Any) -> list[Any]:  # noqa: ANN401 - as the operation wants it
        """Run an operation and return `[now, answers, ...]`.

        The time is that of the node that is furthest ahead among those that were asked, and instants in answers are
        told by that clock too. Where a slot is on its way to another node, claims of its jobs answer with an error;
        other operations are not available until it has arrived, at least for the batch.

        Raises:
            StoreFormatError: The store was written by a newer version.
            StoreUnavailable: A node does not answer, or cannot do it at the moment. The others may have done it.
            StoreError: The nodes refuse it.

        """
        if operation == "time":
            return self._on_key(operation, payload)
        self._check_format(writes=operation not in _READ)
        if operation == "expired":
            return self._expired(payload[0])
        if operation in _SHARED:
            return self._on_key(operation, payload)
        return self._on_jobs(operation, payload)[0]

    def run_and_wait(self, operation: str, payload: Any, replicas: int, timeout_ms: int) -> tuple[list[Any], int]:  # noqa: ANN401
        """Run an operation on jobs; return its reply, and how many replicas each of their nodes has that have it, too.

        Args:
            operation: Its name.
            payload: Its questions.
            replicas: How many are enough.
            timeout_ms: How long each node waits for its own.

        Raises:
            StoreError: As in `run`.

        """
        self._check_format(writes=True)
        return self._on_jobs(operation, payload, wait=(replicas, timeout_ms))

    # --- one call ----------------------------------------------------------------------------------------------------

    def _call(self, operation: str, keys: tuple[bytes, ...], payload: object) -> Call:
        now = self._clock.wall_ms() if self._clock is not None else 0
        args = (self._prefix.encode("utf-8", "surrogatepass"), now, FORMAT, wire.dumps(payload))
        return Call(script(operation), keys, args)

    def _on_key(self, operation: str, payload: object) -> list[Any]:
        """Run an operation on a key that jobs share."""
        call = self._call(operation, (_key(self._prefix, _SHARED[operation]),), payload)
        self._nodes.send([call])
        if call.error is not None:
            raise call.error
        return self._read(call)

    def _read(self, call: Call) -> list[Any]:
        assert call.reply is not None  # noqa: S101 - it has no error
        return read(call.reply, self._location, self._prefix)

    def _check_format(self, *, writes: bool) -> None:
        """See to it that the store has a format that this version reads. On a single server each script does."""
        now = time.monotonic()
        if now < (self._writable_until if writes else max(self._readable_until, self._writable_until)):
            return
        self._on_key("open" if writes else "time", [])
        if not writes:
            self._readable_until = now + FORMAT_S
            return
        self._writable_until = now + FORMAT_S
        if self._warner_pid == os.getpid():  # children of a fork leave the warning to their parent
            for location, execute in self._nodes.primaries().items():
                warn_if_evicting(execute, location)
        self._warner_pid = None

    def _on_jobs(self, operation: str, payload: Any, wait: Wait | None = None) -> tuple[list[Any], int]:  # noqa: ANN401
        """Run an operation on the five keys of each job, and write what it noted for others."""
        parts = _split(operation, payload)
        if not parts:
            return [self._on_key("time", [])[0], []], 0
        replicas = self._ask(operation, payload, parts, wait)
        self._write_index(note for part in parts for note in part.notes)
        if operation == "register":
            self._define(parts)
        if error := _away(operation, parts) or _moving(operation, parts):
            raise error
        return _merged(operation, parts), replicas

    def _ask(self, operation: str, payload: Any, parts: Sequence[_Part], wait: Wait | None = None) -> int:  # noqa: ANN401
        """Run an operation on each job, note at each part what came of it, and return the least number of replicas."""
        calls = [
            self._call(operation, _job_keys(self._prefix, part.job), _payload(operation, payload, part.items))
            for part in parts
        ]
        self._nodes.send(calls, wait=wait)
        for part, call in zip(parts, calls, strict=True):
            part.error, part.moving = call.error, call.moving
            if call.error is None:
                part.now, part.answers, *more = self._read(call)
                part.at = call.at
                part.notes = more[0] if more else []
        return min(call.replicas for call in calls)

    # --- what is written afterwards ----------------------------------------------------------------------------------

    def _define(self, parts: Iterable[_Part]) -> None:
        """Put the definitions that were registered on the list that readers see; what fails is the job's answer."""
        found = [
            (part.answers, place, [item[1], item[4]])
            for part in parts
            for place, item in enumerate(part.items[: len(part.answers)])
            if part.answers[place][0] != "error"
        ]
        if not found:
            return
        written = self._on_key("define", [definition for _, _, definition in found])[1]
        for (answers, place, _), done in zip(found, written, strict=True):
            if done is not True:
                answers[place] = done

    def _write_index(self, notes: Iterable[list[Any]]) -> None:
        """Write to the index what scripts noted, in their order."""
        scores: dict[str, int | None] = {}
        for member, score in notes:
            had = scores.get(member)
            scores[member] = score if score is None or had is None else min(score, had)
        entries = list(scores.items())
        for first in range(0, len(entries), _PAGE):
            page = entries[first : first + _PAGE]
            earlier = [[member, score] for member, score in page if score is not None]
            self._on_key("reindex", [earlier, [], [member for member, score in page if score is None]])

    # --- runs whose lease is over ------------------------------------------------------------------------------------

    def _expired(self, most: int) -> list[Any]:
        """Find runs that are over their lease, by the clock of their node; drop and move entries of the others."""
        now, due, more = self._on_key("due", [most])
        over: list[list[Any]] = []
        moved: dict[str, int] = {}
        gone: list[str] = []
        for member, ends, node_now in self._look(due):
            if isinstance(ends, list):
                moved[member] = now + _PUT_OFF_MS  # it cannot be read
            elif ends is None:
                gone.append(member)
            elif ends > node_now:
                moved[member] = ends
            else:
                over.append([ends, member])
        if moved or gone:
            self._on_key("reindex", [[], list(moved.items()), gone])
            # A run may have changed since it was looked at, and its entry been written before this one.
            seen_again = self._look([*moved, *gone])
            self._write_index([member, ends] for member, ends, _ in seen_again if isinstance(ends, int))
        return [now, over, more]

    def _look(self, members: Sequence[str]) -> Iterable[tuple[str, Any, int]]:
        """Return when the leases of runs end, an error, or None for one that is not open; and their nodes' time."""
        items = [list(member.partition(":")[::2]) for member in members]
        parts = _split("look", items)
        if not parts:
            return
        self._ask("look", items, parts)
        if away := _away("look", parts):
            raise away
        for part in parts:
            answers = part.answers if part.error is None else [["error", str(part.error)]] * len(part.items)
            for (job, run), answer in zip(part.items, answers, strict=True):
                if not part.moving:
                    yield f"{job}:{run}", answer, part.now


def _key(prefix: str, name: str) -> bytes:
    return f"{prefix}{name}".encode("utf-8", "surrogatepass")


@lru_cache(maxsize=16_384)
def _job_keys(prefix: str, job: str) -> tuple[bytes, ...]:
    return tuple(_key(f"{{{prefix}{job}}}:", kind) for kind in _JOB_KEYS)


def _split(operation: str, payload: Any) -> list[_Part]:  # noqa: ANN401 - as the operation wants it
    """Gather the items of each job, in their order."""
    items = payload[1] if operation in {"claim", "read_runs"} else payload
    parts: dict[str, _Part] = {}
    for place, item in enumerate(items):
        job = item if isinstance(item, str) else item[0]
        part = parts.get(job)
        if part is None:
            part = parts[job] = _Part(job)
        part.places.append(place)
        part.items.append(item)
    return list(parts.values())


def _payload(operation: str, payload: Any, items: list[Any]) -> object:  # noqa: ANN401
    """Return the payload of one job's call."""
    if operation == "read_runs":
        return [payload[0], items]
    if operation != "claim":
        return items
    policies, used = payload[0], list[int]()
    claims = []
    for item in items:
        if item[5] not in used:
            used.append(item[5])
        claims.append([*item[:5], used.index(item[5]), *item[6:]])
    return [[policies[place] for place in used], claims]


def _away(operation: str, parts: Sequence[_Part]) -> StoreError | None:
    """Return what the whole call must fail with: a node is away, or nothing at all can be done."""
    failed = [part for part in parts if part.error is not None and not part.moving]
    away = next((part.error for part in failed if isinstance(part.error, StoreUnavailable)), None)
    if operation in _SHOW and len(failed) < len(parts):
        return None
    if away is None and len(failed) == len(parts):
        return failed[0].error
    return away


def _moving(operation: str, parts: Sequence[_Part]) -> StoreError | None:
    """Return why a batch must be asked again: a slot is on its way, and the answers cannot tell, or all are."""
    moving = [part for part in parts if part.moving]
    return moving[0].error if moving and (operation not in _TELL or len(moving) == len(parts)) else None


def _merged(operation: str, parts: Sequence[_Part]) -> list[Any]:
    """Put the answers back into the order of the batch, told by one clock."""
    first = max(parts, key=lambda part: part.now)
    instant = _UNTIL.get(operation)
    answers: dict[int, Any] = {}
    for part in parts:
        said: list[Any] = part.answers
        if part.error is not None:
            said = [["error", str(part.error)]] * len(part.items)
        elif instant is not None and (ahead := _ahead_ms(first, part)):
            for answer in said:
                if answer[0] != "error" and answer[instant] > 0:
                    answer[instant] += ahead
        answers.update(zip(part.places, said, strict=True))
    return [first.now, [answers[place] for place in sorted(answers)]]


def _ahead_ms(one: _Part, other: _Part) -> int:
    """Return by how much the clock of one part's node is ahead of another's, as far as it can be told."""
    ahead = one.now - other.now - int((one.at - other.at) * 1_000)
    return ahead if ahead > _TELLABLE_MS else 0
