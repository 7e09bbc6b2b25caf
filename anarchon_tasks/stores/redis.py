"""The Redis and Valkey store, strategy `lease`: each batch is one script on the server.

The keys, and what each script guarantees, are described in `lua/account.lua` and at the top of each operation's file.
Keys carry no expiry, so a server with a `volatile-*` eviction policy never drops them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, cast

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _redis_options as options
from anarchon_tasks.stores._redis_client import Client, Connection, Scripts
from anarchon_tasks.stores._remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.clock import Clock


class RedisStore(RemoteStore):
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
        scripts = Scripts(connection, prefix=prefix, clock=clock)
        super().__init__(scripts, namespace=prefix, location=connection.location)

    def close(self) -> None:
        """Close the client that we opened; one that was handed in stays open."""
        self._connection.close()


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
