"""Stores: where claims, leases and the account of runs live.

A store is named by a URL, by a backend (`SqliteBackend("jobs.db")`), or is handed in ready-made. Nothing here loads a
driver before a store that needs it is opened.
"""

from __future__ import annotations

import inspect
from dataclasses import fields, is_dataclass, replace
from importlib import import_module
from typing import TYPE_CHECKING, cast

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _urls
from anarchon_tasks.stores._backends import Backend, MemoryBackend, SqliteBackend

if TYPE_CHECKING:
    from collections.abc import Callable

    from anarchon_tasks.stores._postgres_backend import PostgresBackend
    from anarchon_tasks.stores.base import LeaseStore
    from anarchon_tasks.stores.redis import RedisBackend, ValkeyBackend

__all__ = [
    "Backend",
    "MemoryBackend",
    "PostgresBackend",
    "RedisBackend",
    "SqliteBackend",
    "ValkeyBackend",
    "backend_from_url",
    "from_url",
    "open_store",
    "open_to_read",
]

_LAZY = {
    "PostgresBackend": "anarchon_tasks.stores._postgres_backend",
    "RedisBackend": "anarchon_tasks.stores.redis",
    "ValkeyBackend": "anarchon_tasks.stores.redis",
}
# Scheme of a URL: the backend's name, and the extra that brings its driver.
_SCHEMES = {
    "memory": ("MemoryBackend", ""),
    "postgres": ("PostgresBackend", "postgres"),
    "postgresql": ("PostgresBackend", "postgres"),
    "redis": ("RedisBackend", "redis"),
    "rediss": ("RedisBackend", "redis"),
    "sqlite": ("SqliteBackend", ""),
    "unix": ("RedisBackend", "redis"),
    "valkey": ("ValkeyBackend", "valkey"),
    "valkeys": ("ValkeyBackend", "valkey"),
}
_NOT_TEXT = frozenset({"clock", "create"})
"""Options of backends that a URL cannot carry."""

_NOT_YET = {
    "amqp": "RabbitMQ",
    "amqps": "RabbitMQ",
    "nats": "NATS",
    "tls": "NATS",
}


def __getattr__(name: str) -> object:
    """Load the backends of optional drivers when they are asked for."""
    if name in _LAZY:
        return getattr(import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def backend_from_url(url: str, **options: object) -> Backend:
    """Return the backend that a URL names.

    Args:
        url: `sqlite:///path`, `redis://`, `rediss://`, `valkey://`, `valkeys://`, `unix://` (a Redis socket),
            `postgresql://`, `postgres://` or `memory://`. Options of the backend may stand in its query:
            `sqlite:///jobs.db?table=billing`.
        options: The same options as arguments.

    Raises:
        ConfigError: The scheme is not known, an option is not one of that store, or the driver is not installed.

    """
    scheme = _urls.scheme_of(url)
    if scheme not in _SCHEMES:
        raise ConfigError(_unknown_scheme(url, scheme))
    name, extra = _SCHEMES[scheme]
    try:
        make = cast("Callable[..., Backend]", globals().get(name) or __getattr__(name))
        return _made(make, scheme, url, options)
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anarchon_tasks"):
            raise
        raise _missing_driver(url, extra) from error


def from_url(url: str, **options: object) -> LeaseStore:
    """Return the store that a URL names. It connects at its first call.

    Args:
        url: See `backend_from_url`.
        options: See `backend_from_url`.

    Raises:
        ConfigError: The scheme is not known, an option is not one of that store, or the driver is not installed.

    """
    return _opened(backend_from_url(url, **options), url)


def _opened(backend: Backend, url: str) -> LeaseStore:
    try:
        return backend.open()
    except ModuleNotFoundError as error:
        if (error.name or "").startswith("anarchon_tasks"):
            raise
        raise _missing_driver(url, _SCHEMES[_urls.scheme_of(url)][1]) from error


def open_store(value: str | Backend | LeaseStore, **options: object) -> LeaseStore:
    """Return the store that a setting means: a URL, a backend, or a store, which is returned as it is.

    Args:
        value: The setting.
        options: More options of the store, for a URL only.

    Raises:
        ConfigError: The setting is none of these, or has options that have no place.

    """
    if isinstance(value, str):
        return from_url(value, **options)
    if options:
        name, option = next(iter(options.items()))
        raise ConfigError(f"{name}={option!r} has no place beside {type(value).__name__}: give it to that object")
    if isinstance(value, type) or not (hasattr(value, "open") or hasattr(value, "claim")):
        raise ConfigError(
            f"{value!r} is not a store: give a URL ({_known_schemes()}), a backend such as SqliteBackend('jobs.db'), "
            "or a store"
        )
    return value.open() if hasattr(value, "open") else value


def open_to_read(value: str | Backend | LeaseStore, **options: object) -> LeaseStore:
    """Return the store that a setting means, as `open_store`; a store that is not there is not made.

    Args:
        value: The setting.
        options: More options of the store, for a URL only.

    Raises:
        ConfigError: The setting is none of these, or has options that have no place.

    """
    backend = backend_from_url(value, **options) if isinstance(value, str) else value
    if _makes_things(backend) and not (options and backend is value):
        backend = replace(backend, create=False)  # type: ignore[type-var]
    if isinstance(value, str):
        return _opened(cast("Backend", backend), value)
    return open_store(backend, **options)


def _makes_things(backend: object) -> bool:
    return is_dataclass(backend) and any(field.name == "create" for field in fields(backend))


def _made(make: Callable[..., Backend], scheme: str, url: str, options: dict[str, object]) -> Backend:
    names = [name for name in inspect.signature(make).parameters if not name.startswith("_")]
    ours = names if scheme == "memory" else names[1:]
    for name, value in options.items():
        if name not in ours:
            raise ConfigError(f"{name}={value!r} is not an option of {scheme}:// stores; {_urls.known(ours)}")
    if scheme == "memory":
        if url.lower().partition(":")[2] not in {"", "//"}:
            raise ConfigError(f"{url} has too much in it: write memory://")
        return make(**options)
    rest, in_url = _urls.split_options(url, ours=[name for name in ours if name not in _NOT_TEXT], driver=None)
    return make(rest, **_urls.merged(url, in_url, options))


def _known_schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in sorted(_SCHEMES))


def _unknown_scheme(url: str, scheme: str) -> str:
    shown = _urls.without_password(url)
    if scheme in _NOT_YET:
        return (
            f"{shown}: {_NOT_YET[scheme]} stores are not available in this version; the known schemes are: "
            f"{_known_schemes()}"
        )
    what = f"the scheme {scheme!r} is not known" if scheme else "the store's URL has no scheme"
    return f"{shown}: {what}; the known schemes are: {_known_schemes()}"


def _missing_driver(url: str, extra: str) -> ConfigError:
    shown = _urls.without_password(url)
    return ConfigError(f"{shown} needs a driver that is not installed: pip install 'anarchon-tasks[{extra}]'")
