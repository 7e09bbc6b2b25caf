"""Makes what a store consists of ahead of its first use, for those whose schedulers may not."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from anarchon_tasks import stores
from anarchon_tasks.errors import ConfigError, StoreUnavailable
from anarchon_tasks.stores._postgres_backend import PostgresBackend
from anarchon_tasks.stores.base import FORMAT

PATIENCE_S = 60.0
"""How long one statement of a migration may take."""


@runtime_checkable
class _HasFormat(Protocol):
    """A store that outlives the program."""

    def stored_format(self) -> int | None:
        """Return the format that it says it has; None before anything is in it."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Migrated:
    """What a migration did."""

    store: str
    namespace: str
    format: int = FORMAT
    """The format that the store says it has."""
    made: tuple[str, ...] = ()
    """The names of what was not there before, where the store tells."""


def migrate(url: str, **options: object) -> Migrated:
    """Make what is missing in a store, or bring it to this version's format. Fine any number of times.

    Args:
        url: The store's.
        options: More options of the store.

    Raises:
        ConfigError: The URL or an option is not valid.
        StoreFormatError: The store was written by a newer version.
        StoreUnavailable: No answer.
        StoreError: The store refuses it, or something else has its names.

    """
    backend = stores.backend_from_url(url, **options)
    if isinstance(backend, PostgresBackend):
        database = backend.database()
        try:
            made = database.migrate(timeout_s=PATIENCE_S)
        finally:
            database.close()
        return Migrated(store=database.location, namespace=database.names.namespace, made=tuple(made))
    was_there = _is_there(url, options)
    store = backend.open()
    try:
        store.time()
        store.register([])  # writes the format where no call has yet
        found = _format(store)
    finally:
        store.close()
    made = [] if was_there else [store.namespace]
    return Migrated(
        store=store.location, namespace=store.namespace, format=FORMAT if found is None else found, made=tuple(made)
    )


def statements(url: str, **options: object) -> list[str]:
    """Return the SQL that makes the store, in order, for one transaction. Nothing is connected to.

    Raises:
        ConfigError: The URL or an option is not valid, or the store has no SQL to run by hand.

    """
    backend = stores.backend_from_url(url, **options)
    if isinstance(backend, PostgresBackend):
        return backend.statements()
    raise ConfigError(
        f"--sql is for PostgreSQL: {type(backend).__name__} has nothing to run by hand, `anarchon migrate` without "
        "--sql makes what it needs"
    )


def _is_there(url: str, options: dict[str, object]) -> bool:
    store = stores.open_to_read(url, **options)
    try:
        store.time()  # which refuses a newer format
        return _format(store) is not None
    except StoreUnavailable:
        return False
    finally:
        store.close()


def _format(store: object) -> int | None:
    """Return the format that a store holds, or None; one without a format holds what this version reads."""
    return store.stored_format() if isinstance(store, _HasFormat) else FORMAT
