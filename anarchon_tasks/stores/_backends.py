"""What a store is made from: small values that can be passed around before anything is opened."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol
from urllib.parse import unquote

from anarchon_tasks._durations import Duration, to_ms
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _urls

if TYPE_CHECKING:
    import os

    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores.base import LeaseStore

DEFAULT_TABLE = "anarchon_runs"


class Backend(Protocol):
    """A kind of store with its settings."""

    def open(self) -> LeaseStore:
        """Return a store with these settings. It connects at its first call."""
        ...


@dataclass(frozen=True, slots=True)
class MemoryBackend:
    """A store in this process's memory. Whoever opens the same backend object shares the store.

    Args:
        clock: What tells the time, for tests; the host's clock by default.

    """

    clock: Clock | None = field(default=None, kw_only=True)
    _opened: list[LeaseStore] = field(default_factory=list, init=False, repr=False, compare=False)

    def open(self) -> LeaseStore:
        """Return the store of this backend, always the same."""
        from anarchon_tasks.stores.memory import MemoryStore  # noqa: PLC0415 - stores load when they are opened

        if not self._opened:
            self._opened.append(MemoryStore(clock=self.clock))
        return self._opened[0]


@dataclass(frozen=True, slots=True)
class SqliteBackend:
    """A store in an SQLite file: for the processes of one host.

    Args:
        path: The file, as a path or as a URL: `sqlite:///relative.db`, `sqlite:////absolute.db`.
        table: The name of its main table and the head of the names of the others; several can live in one file.
        busy_timeout: How long a call waits for other processes before it raises `StoreUnavailable`.
        create: Make the file and its tables when they are missing. Without, every call raises `StoreUnavailable` then.
        clock: What tells the time, for tests; the host's clock by default.

    """

    path: str | os.PathLike[str]
    table: str = field(default=DEFAULT_TABLE, kw_only=True)
    busy_timeout: Duration = field(default=5.0, kw_only=True)
    create: bool = field(default=True, kw_only=True)
    clock: Clock | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if isinstance(self.path, str) and _urls.scheme_of(self.path) == "sqlite":
            url, options = _urls.split_options(self.path, ours={"table", "busy_timeout"})
            object.__setattr__(self, "path", sqlite_path(url))
            for name, value in options.items():
                object.__setattr__(self, name, value)
        check_table(self.table)
        to_ms(self.busy_timeout, option="busy_timeout")

    def open(self) -> LeaseStore:
        """Return a store on this file. The file opens at the first call."""
        from anarchon_tasks.stores.sqlite import SqliteStore  # noqa: PLC0415 - stores load when they are opened

        timeout_s = to_ms(self.busy_timeout, option="busy_timeout") / 1_000
        return SqliteStore(self.path, table=self.table, busy_timeout_s=timeout_s, create=self.create, clock=self.clock)


def sqlite_path(url: str) -> str:
    """Return the file that a URL without options names.

    Raises:
        ConfigError: The URL has a host, or no path, or asks for a database in memory.

    """
    path = unquote(url.partition(":")[2])
    if path in {"", "//", "///"} or path.endswith("/:memory:"):
        raise ConfigError(f"{url} names no file: write sqlite:///relative.db or sqlite:////absolute.db, or memory://")
    if not path.startswith("///"):
        correct = "sqlite:///" + path.removeprefix("//")
        raise ConfigError(f"{url} needs three slashes for a relative path and four for an absolute one: {correct}")
    return path[3:]


def check_table(table: str) -> None:
    """Refuse a name that SQLite cannot use.

    Raises:
        ConfigError: The name is empty, holds a zero character, or begins with `sqlite_`.

    """
    if not table or "\0" in table or table.lower().startswith("sqlite_"):
        raise ConfigError(
            f"table={table!r} cannot be the name of a table: give a text that is not empty, holds no zero character "
            "and does not begin with sqlite_"
        )
