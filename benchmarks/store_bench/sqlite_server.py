"""SQLite: the limit is an INSERT of the rows that a claim writes, one transaction per batch, written through."""

from __future__ import annotations

import shutil
import sqlite3
import sys
import uuid
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from anarchon_tasks.stores import _sql, from_url
from store_bench.servers import batches
from store_bench.template import claimed_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import LeaseStore

_STATE = "anarchon_runs_state"


class Insert:
    """The rows of claimed runs into the table of states of a file of its own, with the indexes of the store.

    Args:
        path: The file; it holds a store.
        head: The head of the names of the jobs.
        nulls: Bind all columns of a row; else leave out those that are NULL, as the store does. Python's driver takes
            longer for a NULL than for a text.

    """

    def __init__(self, path: Path, head: str, *, nulls: bool) -> None:
        self._db = sqlite3.connect(path, isolation_level=None, timeout=30)
        self._db.execute("PRAGMA synchronous = FULL")
        found = self._db.execute(f"SELECT * FROM {_STATE} LIMIT 1")
        self._template = dict(zip([column[0] for column in found.description], found.fetchone(), strict=True))
        self._names = [name for name, value in self._template.items() if nulls or value is not None]
        columns = ", ".join(_sql.quoted(name) for name in self._names)
        self._text = f"INSERT INTO {_STATE} ({columns}) VALUES ({', '.join('?' * len(self._names))})"
        self._head = head

    def prepare(self, count: int, size: int) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return the rows, and a transaction."""
        rows = [self._row(f"{self._head}-{number}") for number in range(count)]
        return batches(rows, size), self._call

    def _row(self, job: str) -> tuple[Any, ...]:
        row = self._template | {"job": job, "grant_id": uuid.uuid4().hex}
        return tuple(row[name] for name in self._names)

    def _call(self, rows: Sequence[Any]) -> None:
        self._db.execute("BEGIN IMMEDIATE")
        self._db.executemany(self._text, rows)
        self._db.execute("COMMIT")

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class SqliteServer:
    """A directory; a place in it is a file, or several."""

    limit = "INSERT, all columns"
    more_limits: ClassVar[tuple[str, ...]] = ("INSERT, no NULLs",)

    def __init__(self, url: str) -> None:
        path = url.partition(":///")[2].partition("?")[0]
        if not path or not Path(path).is_dir():
            raise SystemExit(f"{url}: name a directory that is there, in which the benchmark makes its files")
        self._directory = Path(path)

    def describe(self) -> str:
        """Name the library and the driver."""
        return f"SQLite {sqlite3.sqlite_version}, sqlite3 of Python {sys.version.split()[0]}, synchronous=FULL"

    def _place(self, name: str) -> Path:
        return self._directory.absolute() / name

    def make_room(self, name: str) -> None:
        """Make a directory with a file for the store and one for each limit."""
        self._place(name).mkdir()
        for file in ("all", "some"):
            store = self._open(name, file)
            claimed_row(store)
            store.close()

    def _open(self, name: str, file: str) -> LeaseStore:
        return from_url(f"sqlite:///{self._place(name) / file}.db", busy_timeout="30s")

    def store(self, name: str) -> LeaseStore:
        """Open the store."""
        return self._open(name, "store")

    def limits(self, name: str, head: str) -> dict[str, Insert]:
        """Open the limits."""
        return {
            self.limit: Insert(self._place(name) / "all.db", head, nulls=True),
            self.more_limits[0]: Insert(self._place(name) / "some.db", head, nulls=False),
        }

    def cpu_us(self) -> None:
        """Return nothing: there is no server."""

    def calls(self) -> None:
        """Return nothing: there is no server."""

    def remove(self, name: str) -> None:
        """Delete the files."""
        shutil.rmtree(self._place(name), ignore_errors=True)


server = SqliteServer
