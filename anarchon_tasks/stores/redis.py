"""The Redis and Valkey store, strategy `lease`: each batch is one script on the server.

The keys, and what each script guarantees, are described in `lua/account.lua` and at the top of each operation's file.
Keys carry no expiry, so a server with a `volatile-*` eviction policy never drops them.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, ClassVar, cast

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _glide
from anarchon_tasks.stores import _redis_options as options
from anarchon_tasks.stores import _redis_strategies as strategies
from anarchon_tasks.stores._redis_client import Client, Connection, Scripts, as_bytes
from anarchon_tasks.stores._redis_cluster import RedisClusterStore
from anarchon_tasks.stores._redis_nodes import is_cluster, kwargs_of
from anarchon_tasks.stores._redis_replicas import ReplicatedScripts
from anarchon_tasks.stores._remote import RemoteStore

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks._durations import Duration
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores._remote import Operations


class RedisStore(RemoteStore):
    """Leases and the account of runs in Redis 5 or newer, or Valkey.

    Args:
        connection: The way to the server.
        prefix: The head of every key; ends in `:`.
        clock: Tells the time in place of the server, for tests that move it.
        min_replicas: How many replicas must have a grant; the connection's client has a `pipeline` then.
        replicas_timeout_ms: How long the server waits for them.

    """

    chunk: ClassVar[int] = 64
    """A script holds the server, and 64 claims take about two milliseconds."""

    def __init__(
        self,
        connection: Connection,
        *,
        prefix: str = options.DEFAULT_PREFIX,
        clock: Clock | None = None,
        min_replicas: int = 0,
        replicas_timeout_ms: int = 100,
    ) -> None:
        options.check_prefix(prefix)
        self._connection = connection
        scripts = Scripts(connection, prefix=prefix, clock=clock)
        operations: Operations = scripts
        if min_replicas:
            operations = ReplicatedScripts(
                scripts, count=min_replicas, timeout_ms=replicas_timeout_ms, location=connection.location
            )
        super().__init__(operations, namespace=prefix, location=connection.location)

    def stored_format(self) -> int | None:
        """Return the format that the store says it has; None before anything is in it."""
        found = self._connection.execute("GET", f"{self.namespace}format".encode("utf-8", "surrogatepass"))
        return None if found is None else int(found)

    def close(self) -> None:
        """Close the client that we opened; one that was handed in stays open."""
        self._connection.close()


@dataclass(frozen=True, slots=True, repr=False)
class RedisBackend:
    """A store in Redis.

    Args:
        redis: A URL (`redis://`, `rediss://` for TLS, `unix://` for a socket), the options of one as a mapping
            (`{"host": "cache", "password": ...}`), or a client: one of redis-py or valkey-py (also their clients of
            a cluster), GLIDE's synchronous one, or anything with `execute_command(*args)`. A client stays open when
            the store closes, and its timeouts and retries are its own. By default localhost:6379.
        prefix: The head of every key; ends in `:`. Instances that share it share jobs.
        strategy: How one winner is picked: a name, or a mapping with the `name` and that strategy's settings. In this
            version `lease` alone, which has none.
        min_replicas: How many replicas must have a grant before anything runs. 0: the server's own word is enough.
        min_replicas_timeout: How long the server waits for them.

    Our options may also stand in the query of the URL, and so may the driver's `db`, `client_name`, `protocol`,
    `max_connections`, `health_check_interval`, `socket_timeout`, `socket_connect_timeout`, `socket_keepalive` and
    `ssl_*`.

    """

    redis: str | Mapping[str, object] | Client | None = None
    prefix: str = field(default=options.DEFAULT_PREFIX, kw_only=True)
    strategy: str | Mapping[str, object] = field(default=strategies.DEFAULT, kw_only=True)
    min_replicas: int = field(default=0, kw_only=True)
    min_replicas_timeout: Duration = field(default=options.DEFAULT_REPLICAS_TIMEOUT, kw_only=True)

    def __post_init__(self) -> None:
        _prepare(self, "redis", {})

    def __repr__(self) -> str:
        return _shown(self, "redis")

    def open(self) -> RedisStore | RedisClusterStore:
        """Return a store with these settings. It connects at its first call."""
        return _opened(self, self.redis, drivers=("redis",), extra="redis")


@dataclass(frozen=True, slots=True, repr=False)
class ValkeyBackend:
    """A store in Valkey.

    Args:
        valkey: As `redis` of `RedisBackend`, with the schemes `valkey://` and `valkeys://` too. A URL is opened with
            the package `valkey`, or with `redis` when that is missing.
        prefix: The head of every key; ends in `:`. Instances that share it share jobs.
        strategy: As with `RedisBackend`. `idmp` is refused: Valkey has no command for it.
        min_replicas: How many replicas must have a grant before anything runs. 0: the server's own word is enough.
        min_replicas_timeout: How long the server waits for them.

    """

    valkey: str | Mapping[str, object] | Client | None = None
    prefix: str = field(default=options.DEFAULT_PREFIX, kw_only=True)
    strategy: str | Mapping[str, object] = field(default=strategies.DEFAULT, kw_only=True)
    min_replicas: int = field(default=0, kw_only=True)
    min_replicas_timeout: Duration = field(default=options.DEFAULT_REPLICAS_TIMEOUT, kw_only=True)

    def __post_init__(self) -> None:
        _prepare(self, "valkey", strategies.NOT_ON_VALKEY)

    def __repr__(self) -> str:
        return _shown(self, "valkey")

    def open(self) -> RedisStore | RedisClusterStore:
        """Return a store with these settings. It connects at its first call."""
        return _opened(self, self.valkey, drivers=("valkey", "redis"), extra="valkey")


def _prepare(backend: RedisBackend | ValkeyBackend, name: str, refused: Mapping[str, str]) -> None:
    """Check the settings, and take those out of the URL that are ours."""
    target = getattr(backend, name)
    if isinstance(target, str):
        given = {option: getattr(backend, option) for option in options.DEFAULTS}
        target, found = options.from_url(target, **given)
        for option, value in {name: target, **found}.items():
            object.__setattr__(backend, option, value)
    elif isinstance(target, Mapping):
        object.__setattr__(backend, name, options.checked(target, name))
    elif target is not None:
        _check_client(target, name)
    options.check_prefix(backend.prefix)
    strategy = strategies.parse(backend.strategy, refused=refused)
    known = {"name": strategy.name, **strategy.settings} if strategy.settings else strategy.name
    object.__setattr__(backend, "strategy", known)
    object.__setattr__(backend, "min_replicas", options.replicas(backend.min_replicas))
    if backend.min_replicas and _is_client(target):
        _check_pipelines(target, name, backend.min_replicas)
    _replicas_timeout_ms(backend, getattr(backend, name))


def _replicas_timeout_ms(
    backend: RedisBackend | ValkeyBackend, target: str | Mapping[str, object] | Client | None
) -> int:
    if not backend.min_replicas:
        return options.replicas_timeout_ms(backend.min_replicas_timeout)
    if target is None or isinstance(target, str | Mapping):
        kwargs = options.arguments(target)
    else:
        kwargs = kwargs_of(target) if is_cluster(target) else options.of_client(target)
    return options.replicas_timeout_ms(backend.min_replicas_timeout, kwargs.get("socket_timeout"))


def _opened(
    backend: RedisBackend | ValkeyBackend,
    target: str | Mapping[str, object] | Client | None,
    *,
    drivers: Sequence[str],
    extra: str,
) -> RedisStore | RedisClusterStore:
    replicas_timeout_ms = _replicas_timeout_ms(backend, target)
    if is_cluster(target):
        return RedisClusterStore(
            target,
            prefix=backend.prefix,
            min_replicas=backend.min_replicas,
            replicas_timeout_ms=replicas_timeout_ms,
        )
    return RedisStore(
        _connection(target, drivers=drivers, extra=extra),
        prefix=backend.prefix,
        min_replicas=backend.min_replicas,
        replicas_timeout_ms=replicas_timeout_ms,
    )


def _shown(backend: RedisBackend | ValkeyBackend, name: str) -> str:
    target = getattr(backend, name)
    shown = "client" if _is_client(target) else repr(options.location(target))
    more = "".join(
        f", {option}={value!r}"
        for option in ("min_replicas", "min_replicas_timeout")
        if (value := getattr(backend, option)) != options.DEFAULTS[option]
    )
    return f"{type(backend).__name__}({name}={shown}, prefix={backend.prefix!r}, strategy={backend.strategy!r}{more})"


def _is_client(target: object) -> bool:
    return target is not None and not isinstance(target, str | Mapping)


_NO_CLIENTS = {
    "Pipeline": "the client that it was made of",
    "ClusterPipeline": "the client that it was made of",
    "PubSub": "the client that it was made of",
    "Sentinel": "the client that its master_for(...) returns",
}
"""Families of the drivers' classes that have `execute_command`, too, and what to give in their place."""


def _check_client(client: object, name: str) -> None:
    command = getattr(client, "execute_command", None)
    kind = type(client).__name__
    is_glide = _glide.is_glide(client)
    if (command is None and not is_glide) or isinstance(client, type):
        raise ConfigError(
            f"{name}={kind} is not a way to a server: give a URL, a mapping of options, or a client with "
            "execute_command(*args)"
        )
    families = {cls.__name__ for cls in type(client).__mro__}
    for family, instead in _NO_CLIENTS.items():
        if family in families:
            raise ConfigError(f"{name}={kind} cannot run scripts and return their replies: give {instead}")
    if inspect.iscoroutinefunction(command) or (is_glide and _glide.is_asynchronous(client)):
        raise ConfigError(f"{name}={kind} is an asynchronous client: give a synchronous one, or a URL")
    if is_glide and _glide.is_cluster(client):
        raise ConfigError(
            f"{name}={kind} is GLIDE's client of a cluster, which this version cannot use: give redis.RedisCluster or "
            "valkey.ValkeyCluster"
        )


def _check_pipelines(client: object, name: str, count: int) -> None:
    if not (hasattr(client, "pipeline") or _glide.is_glide(client)):
        raise ConfigError(
            f"min_replicas={count} needs a client that can send several commands on one connection, and "
            f"{name}={type(client).__name__} has no pipeline(): give a client of redis-py, valkey-py or GLIDE, or a URL"
        )


def _connection(
    target: str | Mapping[str, object] | Client | None, *, drivers: Sequence[str], extra: str
) -> Connection:
    if target is not None and not isinstance(target, str | Mapping):
        kwargs = options.of_client(target)
        client = cast("Client", _glide.GlideClient(target)) if _glide.is_glide(target) else target
        return Connection(
            client=client,
            location=options.location_of(kwargs),
            secrets=options.secrets(kwargs),
            options=as_bytes(kwargs),
        )
    kwargs = options.arguments(target)
    options.check_files(kwargs)
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
        # valkey-py, and redis-py before 6, repeat only what `retry_on_error` names.
        return lambda kwargs: cast(
            "Client", kind(**kwargs, retry=retry(no_backoff(), 1, (broken,)), retry_on_error=[broken])
        )
    other = ""
    if "valkey" not in names and _is_installed("valkey"):
        other = ", or use ValkeyBackend: its driver is installed"
    raise ConfigError(f'the driver is not installed: pip install "anarchon-tasks[{extra}]"{other}')


def _is_installed(package: str) -> bool:
    try:
        importlib.import_module(package)
    except ModuleNotFoundError:
        return False
    return True
