"""The Redis and Valkey store, strategy `lease`: each batch is one script on the server.

The keys, and what each script guarantees, are described in `lua/account.lua` and at the top of each operation's file.
Keys carry no expiry, so a server with a `volatile-*` eviction policy never drops them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar, cast

from anarchon_tasks.errors import ConfigError, StoreError
from anarchon_tasks.stores import _redis_codec as codec
from anarchon_tasks.stores import _redis_options as options
from anarchon_tasks.stores._redis_client import Client, Connection, Scripts
from anarchon_tasks.stores._redis_scripts import script
from anarchon_tasks.stores.base import Capabilities, Definition, QueueNote, Reply

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from anarchon_tasks.clock import Clock
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

Q = TypeVar("Q")
A = TypeVar("A")

CHUNK = 100
"""How many items one script call takes: near the best rate, and the server is held for a few milliseconds at most."""
_EXPIRED_LOOKS = 500
_EXPIRED_CALLS = 4


class RedisStore:
    """Leases and the account of runs in Redis 5 or newer, or Valkey.

    Args:
        connection: The way to the server.
        prefix: The head of every key; ends in `:`.
        clock: Tells the time in place of the server, for tests that move it.

    """

    def __init__(
        self, connection: Connection, *, prefix: str = options.DEFAULT_PREFIX, clock: Clock | None = None
    ) -> None:
        options.check_prefix(prefix)
        self._connection = connection
        self._scripts = Scripts(connection, prefix=prefix, clock=clock)
        self.namespace = prefix
        self.location = connection.location
        self.capabilities = Capabilities()

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.location} {self.namespace!r}>"

    def _batch(
        self, name: str, items: Sequence[Q], encode: Callable[[Sequence[Q]], object], decode: Callable[[Any], A]
    ) -> Reply[A]:
        operation, answers, now = script(name), [], 0
        for chunk in _chunks(items):
            now, said, *_ = self._scripts.run(operation, encode(chunk))
            answers += [decode(answer) for answer in said]
        return Reply(now_ms=now, answers=answers)

    def _each(
        self, name: str, items: Sequence[Q], encode: Callable[[Q], object], decode: Callable[[Any], A]
    ) -> Reply[A]:
        return self._batch(name, items, lambda chunk: [encode(item) for item in chunk], decode)

    def time(self) -> Reply[None]:
        """Ask for the server's time."""
        return Reply(now_ms=self._scripts.run(script("time"), [])[0], answers=[])

    def register(self, definitions: Sequence[Definition]) -> Reply[Registered]:
        """Make jobs known."""
        return self._each("register", definitions, codec.definition, codec.registered)

    def forget(self, names: Sequence[str]) -> Reply[bool]:
        """Remove definitions from the list that readers see."""
        return self._batch("forget", names, list, codec.yes)

    def claim(self, claims: Sequence[Claim]) -> Reply[ClaimAnswer]:
        """Take runs."""
        return self._batch("claim", claims, codec.claims, codec.claimed)

    def queued(self, records: Sequence[Queued]) -> Reply[bool]:
        """Record confirmed publishes."""
        return self._each("queued", records, codec.queued, codec.yes)

    def release(self, records: Sequence[Release]) -> Reply[bool]:
        """Hand claims back."""
        return self._each("release", records, codec.release, codec.yes)

    def beat(self, beats: Sequence[Beat]) -> Reply[bool]:
        """Push lease ends forward."""
        return self._each("beat", beats, codec.beat, codec.yes)

    def begin(self, begins: Sequence[Begin]) -> Reply[BeginAnswer]:
        """Admit one execution per attempt and retry."""
        return self._each("begin", begins, codec.begin, codec.begun)

    def park(self, parks: Sequence[Park]) -> Reply[bool]:
        """Put running runs back into their queue."""
        return self._each("park", parks, codec.park, codec.yes)

    def finish(self, ends: Sequence[Finish]) -> Reply[bool]:
        """End runs or attempts."""
        return self._each("finish", ends, codec.finish, codec.yes)

    def expired(self, *, limit: int) -> Reply[RunRef]:
        """Return runs whose lease is over, longest over first.

        One call looks at a bounded number of due index entries. Entries of leases that were pushed forward are moved
        on the way, so what this call does not reach, the next one does.
        """
        over: dict[RunRef, int] = {}
        most = max(limit, _EXPIRED_LOOKS)
        now = 0
        for _ in range(_EXPIRED_CALLS):
            now, found, more = self._scripts.run(script("expired"), [most])
            over.update((codec.index_ref(member), ending) for ending, member in found)
            if not more or len(over) >= limit:
                break
        ordered = sorted(over, key=lambda ref: (over[ref], ref))
        return Reply(now_ms=now, answers=ordered[: max(limit, 0)])

    def repair(self, jobs: Sequence[str]) -> Reply[bool]:
        """Put the open runs of these jobs back into the index of lease ends, should they be missing there."""
        return self._each("repair", jobs, codec.job_key, codec.yes)

    def announce(self, worker: str, queues: Mapping[str, int]) -> Reply[None]:
        """Say that a worker with the integration consumes these queues."""
        del worker
        reply = self._scripts.run(script("announce"), list(queues.items()))
        return Reply(now_ms=reply[0], answers=[])

    def queues(self) -> Reply[tuple[str, QueueNote]]:
        """Return what workers said of their queues, at most a day old."""
        now, found = self._scripts.run(script("queues"), [])
        notes = [(queue, QueueNote(announced_ms=announced, begun_ms=begun)) for queue, announced, begun in found]
        return Reply(now_ms=now, answers=sorted(notes, key=lambda pair: pair[0]))

    def definitions(self) -> Reply[Definition]:
        """Return the stored definitions, by name."""
        now, found = self._scripts.run(script("definitions"), [])
        return Reply(
            now_ms=now,
            answers=[
                Definition(name=name, fingerprint=fingerprint, document=document)
                for name, (fingerprint, document) in sorted(found)
            ],
        )

    def history(self, job: str, *, limit: int) -> Reply[Run]:
        """Return the newest attempts and stretches of a job, newest first."""
        now, [entries] = self._scripts.run(script("read_runs"), [limit, [codec.job_key(job)]])
        if entries[:1] == ["error"]:
            raise StoreError(f"{self.location}: the history of {job!r} cannot be read: {entries[1]}")
        return Reply(now_ms=now, answers=codec.runs(job, entries, limit))

    def last_runs(self, jobs: Sequence[str]) -> Reply[Run | None]:
        """Return the newest entry of each job; None too for a job that cannot be read."""
        reply = self._batch("read_runs", jobs, lambda chunk: [1, [codec.job_key(job) for job in chunk]], list[Any])
        newest = [
            None if entries[:1] == ["error"] else next(iter(codec.runs(job, entries, 1)), None)
            for job, entries in zip(jobs, reply.answers, strict=True)
        ]
        return Reply(now_ms=reply.now_ms, answers=newest)

    def close(self) -> None:
        """Close the client that we opened; one that was handed in stays open."""
        self._connection.close()


def _chunks(items: Sequence[Q]) -> Iterator[Sequence[Q]]:
    """Cut a batch into calls; an empty one is a call too, which tells the time."""
    for first in range(0, max(len(items), 1), CHUNK):
        yield items[first : first + CHUNK]


@dataclass(frozen=True, slots=True, repr=False)
class RedisBackend:
    """A store in Redis.

    Args:
        redis: A URL (`redis://`, `rediss://` for TLS, `unix://` for a socket), the options of one as a mapping
            (`{"host": "cache", "password": ...}`), or a client: anything with `execute_command(*args)`. A client stays
            open when the store closes, and its timeouts and retries are its own. By default localhost:6379.
        prefix: The head of every key; ends in `:`. Instances that share it share jobs.
        strategy: How one winner is picked; in this version `lease` alone.

    `prefix` and `strategy` may also stand in the query of the URL, and so may the driver's `db`, `client_name`,
    `protocol`, `max_connections`, `health_check_interval`, `socket_timeout`, `socket_connect_timeout`,
    `socket_keepalive` and `ssl_*`.

    """

    redis: str | Mapping[str, object] | Client | None = None
    prefix: str = field(default=options.DEFAULT_PREFIX, kw_only=True)
    strategy: str = field(default="lease", kw_only=True)

    def __post_init__(self) -> None:
        _prepare(self, "redis")

    def __repr__(self) -> str:
        return _shown(self, "redis")

    def open(self) -> RedisStore:
        """Return a store with these settings. It connects at its first call."""
        return RedisStore(_connection(self.redis, drivers=("redis",), extra="redis"), prefix=self.prefix)


@dataclass(frozen=True, slots=True, repr=False)
class ValkeyBackend:
    """A store in Valkey.

    Args:
        valkey: As `redis` of `RedisBackend`, with the schemes `valkey://` and `valkeys://` too. A URL is opened with
            the package `valkey`, or with `redis` when that is missing.
        prefix: The head of every key; ends in `:`. Instances that share it share jobs.
        strategy: How one winner is picked; in this version `lease` alone.

    """

    valkey: str | Mapping[str, object] | Client | None = None
    prefix: str = field(default=options.DEFAULT_PREFIX, kw_only=True)
    strategy: str = field(default="lease", kw_only=True)

    def __post_init__(self) -> None:
        _prepare(self, "valkey")

    def __repr__(self) -> str:
        return _shown(self, "valkey")

    def open(self) -> RedisStore:
        """Return a store with these settings. It connects at its first call."""
        return RedisStore(_connection(self.valkey, drivers=("valkey", "redis"), extra="valkey"), prefix=self.prefix)


def _prepare(backend: RedisBackend | ValkeyBackend, name: str) -> None:
    """Check the settings, and take those out of the URL that are ours."""
    target = getattr(backend, name)
    if isinstance(target, str):
        target, found = options.from_url(target, prefix=backend.prefix, strategy=backend.strategy)
        for option, value in {name: target, **found}.items():
            object.__setattr__(backend, option, value)
    elif isinstance(target, Mapping):
        object.__setattr__(backend, name, options.checked(target, name))
    elif target is not None:
        _check_client(target, name)
    options.check_prefix(backend.prefix)
    options.check_strategy(backend.strategy)


def _shown(backend: RedisBackend | ValkeyBackend, name: str) -> str:
    target = getattr(backend, name)
    shown = "client" if _is_client(target) else repr(options.location(target))
    return f"{type(backend).__name__}({name}={shown}, prefix={backend.prefix!r}, strategy={backend.strategy!r})"


def _is_client(target: object) -> bool:
    return target is not None and not isinstance(target, str | Mapping)


def _check_client(client: object, name: str) -> None:
    command = getattr(client, "execute_command", None)
    kind = type(client).__name__
    if command is None or isinstance(client, type):
        raise ConfigError(
            f"{name}={kind} is not a way to a server: give a URL, a mapping of options, or a client with "
            "execute_command(*args)"
        )
    if inspect.iscoroutinefunction(command):
        raise ConfigError(f"{name}={kind} is an asynchronous client: give a synchronous one, or a URL")
    if hasattr(client, "get_node_from_key"):
        raise ConfigError(f"{name}={kind} is a client of a cluster, which this version cannot use: give one server")


def _connection(
    target: str | Mapping[str, object] | Client | None, *, drivers: Sequence[str], extra: str
) -> Connection:
    if target is not None and not isinstance(target, str | Mapping):
        kwargs = options.of_client(target)
        return Connection(client=target, location=options.location_of(kwargs), secrets=options.secrets(kwargs))
    kwargs = options.arguments(target)
    driver = _driver(drivers, extra)
    return Connection(
        make=lambda: driver(kwargs), location=options.location_of(kwargs), secrets=options.secrets(kwargs)
    )


def _driver(names: Sequence[str], extra: str) -> Callable[[Mapping[str, object]], Client]:
    """Return what opens a client with the first of these packages that is installed."""
    for name in names:
        try:
            package = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        retry = importlib.import_module(f"{name}.retry").Retry
        no_backoff = importlib.import_module(f"{name}.backoff").NoBackoff
        broken = importlib.import_module(f"{name}.exceptions").ConnectionError
        kind = getattr(package, name.capitalize())
        # One immediate repetition mends a connection that the server closed while it was idle. A server that does not
        # answer in time is not asked twice: that is for the caller's own backoff.
        return lambda kwargs: cast("Client", kind(**kwargs, retry=retry(no_backoff(), 1, (broken,))))
    raise ConfigError(f'the driver is not installed: pip install "anarchon-tasks[{extra}]"')
