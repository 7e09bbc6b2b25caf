"""The file of an SQLite store: connections, transactions, the tables, and what its errors mean."""

from __future__ import annotations

import logging
import sqlite3
import threading
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from anarchon_tasks.clock import SystemClock
from anarchon_tasks.errors import StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.stores import _mounts, _sql
from anarchon_tasks.stores._sqlite_forks import GATE, Connection, identity
from anarchon_tasks.stores._sqlite_pool import Pool
from anarchon_tasks.stores._sqlite_table import Table
from anarchon_tasks.stores.base import FORMAT

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

log = logging.getLogger("anarchon_tasks.stores")

# Equal for all stores and each with a suffix of its own; `present` finds what another table put in their way.
_NAMES = {
    "runs": "",
    "state": "_state",
    "state_open": "_state_open",
    "state_wake": "_state_wake",
    "jobs": "_jobs",
    "definitions": "_definitions",
    "queues": "_queues",
    "format": "_format",
}
_WAL_RETRY_S = 0.01
_PASSING = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED, sqlite3.SQLITE_FULL})
"""Errors that say nothing against the connection; after another one, the file is opened anew."""


class SqliteFile:
    """Gives out connections, one user at a time each, and never one that was opened before a fork."""

    def __init__(self, path: Path, *, table: str, busy_timeout_s: float, create: bool = True) -> None:
        self.path = path
        self.create = create
        self.table = table
        self.busy_timeout_s = busy_timeout_s
        self._names = {name: table + suffix for name, suffix in _NAMES.items()}
        self._identifiers = {name: _sql.quoted(real) for name, real in self._names.items()}
        schema = _sql.load("sqlite/schema.sql")
        self._schema = {name: text.format(**self._identifiers) for name, text in schema.items()}
        self._texts = _sql.load("sqlite/statements.sql")
        self.sql = {name: self._filled(name, 1) for name in self._texts}
        """The statements; those that take several parameters, for one."""
        self._for_many: dict[tuple[str, int], str] = {}
        self.states = self._table(_sql.columns(schema["state"]), key=3, name="state")
        self.jobs = self._table(_sql.columns(schema["jobs"]), key=1, name="job")
        self.runs = self._table(_sql.columns(schema["runs"]), key=4, name="entry")
        self._pool = Pool()
        self._warned = False

    def for_many(self, statement: str, count: int) -> str:
        """Return a statement that takes this many parameters."""
        text = self._for_many.get((statement, count))
        if text is None:
            text = self._for_many[statement, count] = self._filled(statement, count)
        return text

    def _filled(self, statement: str, count: int) -> str:
        marks = ", ".join("?" * count)
        fill = {"marks": marks, "columns": "job", "sets": "job = ?"}
        return self._texts[statement].format(**self._identifiers, **fill)

    def _table(self, columns: Sequence[str], *, key: int, name: str) -> Table:
        insert, update, delete = (self._texts.get(f"{what}_{name}", "") for what in ("insert", "update", "delete"))
        return Table(columns, key=key, insert=insert, update=update, delete=delete, names=self._identifiers)

    @contextmanager
    def write(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that holds the write lock from its beginning."""
        with self._in_use(), self._transaction("BEGIN IMMEDIATE") as db:
            yield db

    @contextmanager
    def read(self) -> Iterator[sqlite3.Connection]:
        """Run a transaction that sees one moment of the store."""
        with self._in_use(), self._transaction("BEGIN") as db:
            yield db

    def close(self) -> None:
        """Close every connection that is not in use, and the others after their use."""
        with self._in_use():
            pool, self._pool = self._own_pool(), Pool()
            pool.close()

    @contextmanager
    def _in_use(self) -> Iterator[None]:
        """Keep this process from being forked by another thread."""
        use = GATE.enter(self.path, self.busy_timeout_s)
        try:
            yield
        finally:
            GATE.leave(use)

    @contextmanager
    def _transaction(self, begin: str) -> Iterator[sqlite3.Connection]:
        pool = self._own_pool()
        try:
            connection = pool.take(self.path) or self._open(pool)
        except sqlite3.Error as error:
            raise self._meaning(error) from error
        except PermissionError as error:
            raise StoreUnavailable(f"{self.path} cannot be reached ({error}): give this user permission") from error
        usable = True
        try:
            connection.db.execute(begin)
            self._check_format(connection.db)
            yield connection.db
            self._check_process(pool)
            connection.db.execute("COMMIT")
        except sqlite3.Error as error:
            usable = pool.is_ours and self._rolled_back(connection.db) and _code(error) in _PASSING
            raise self._meaning(error) from error
        except BaseException:
            usable = pool.is_ours and self._rolled_back(connection.db)
            raise
        finally:
            pool.give_back(connection, usable=usable)

    def _check_process(self, pool: Pool) -> None:
        if not pool.is_ours:
            raise StoreUnavailable(f"{self.path}: the transaction belongs to the process that this was forked from")

    @staticmethod
    def _rolled_back(db: sqlite3.Connection) -> bool:
        with suppress(sqlite3.Error):
            if db.in_transaction:
                db.execute("ROLLBACK")
            return True
        return False

    def _own_pool(self) -> Pool:
        pool = self._pool
        if not pool.is_ours:
            pool = self._pool = Pool()  # the one of the parent is left alone
        return pool

    def _open(self, pool: Pool) -> Connection:
        self._check_place()
        if GATE.is_inherited(identity(self.path)):
            raise StoreUnavailable(
                f"{self.path} cannot be used in this process, which was forked while the file was in use, and so has "
                "no locks on it: end it and fork again, from a thread that has no transaction under way"
            )
        db = sqlite3.connect(self.path, timeout=self.busy_timeout_s, isolation_level=None, check_same_thread=False)
        connection = Connection(db, self.path)
        GATE.opened(connection)
        try:
            fresh = not self._check_names(db)
            if fresh:
                self._may_create()
            self._prepare(db)
            if fresh:
                self._create(db)
            connection.identity = identity(self.path)
        except BaseException:
            pool.give_back(connection, usable=False)
            raise
        self._warn_of_network()
        return connection

    # --- the tables --------------------------------------------------------------------------------------------------

    def _check_names(self, db: sqlite3.Connection) -> bool:
        """Say whether our tables are there; refuse those of others and of newer versions. Writes nothing."""
        wanted = list(self._names.values())
        found = {name for (name,) in db.execute(self.for_many("present", len(wanted)), wanted)}
        if not found:
            return False
        if found != set(wanted):
            raise StoreError(
                f"{self.path} holds {', '.join(sorted(found))}, which are not tables of an anarchon-tasks store with "
                f"table={self.table!r}: choose another table name"
            )
        self._check_format(db)
        return True

    def _check_format(self, db: sqlite3.Connection) -> None:
        row = db.execute(self.sql["format"]).fetchone()
        if row is None or row[1] != self.table:
            raise StoreError(
                f"{self.path} holds {self._names['format']}, which does not belong to a store with "
                f"table={self.table!r}: choose another table name"
            )
        if row[0] > FORMAT:
            raise StoreFormatError(
                f"{self.path} has the store format {row[0]} and this version reads up to {FORMAT}: upgrade "
                "anarchon-tasks here; the file was left untouched"
            )

    def _create(self, db: sqlite3.Connection) -> None:
        db.execute("BEGIN IMMEDIATE")
        try:
            if not self._check_names(db):
                for statement in self._schema.values():
                    db.execute(statement)
                db.execute(self.sql["write_format"], (FORMAT, self.table))
            db.execute("COMMIT")
        except BaseException:
            self._rolled_back(db)
            raise

    def _prepare(self, db: sqlite3.Connection) -> None:
        """Switch to write-ahead logging, written through at each commit.

        Processes that switch at once can be told "locked" without having waited, so this waits by itself.
        """
        clock, pause = SystemClock(), threading.Event()
        deadline = clock.monotonic() + self.busy_timeout_s
        while True:
            try:
                mode = db.execute("PRAGMA journal_mode = WAL").fetchone()[0]
                break
            except sqlite3.OperationalError as error:
                if _code(error) != sqlite3.SQLITE_BUSY or clock.monotonic() > deadline:
                    raise
                clock.wait(pause, _WAL_RETRY_S)
        if mode != "wal":
            log.warning("sqlite_no_wal", extra={"path": str(self.path), "journal_mode": mode})
        db.execute("PRAGMA synchronous = FULL")

    # --- the place ---------------------------------------------------------------------------------------------------

    def _check_place(self) -> None:
        if self.path.is_dir():
            raise StoreUnavailable(f"{self.path} is a directory: give the path of a file in it")
        if not self.path.parent.is_dir():
            raise StoreUnavailable(f"the directory {self.path.parent} does not exist: create it, or correct the path")
        if not self.path.exists():
            self._may_create()

    def _may_create(self) -> None:
        if not self.create:
            raise StoreUnavailable(
                f"{self.path} holds no anarchon-tasks store with table={self.table!r}: correct the path or the table, "
                "or start a scheduler, which makes the store"
            )

    def _warn_of_network(self) -> None:
        kind = None if self._warned else _mounts.network_filesystem(self.path)
        self._warned = True
        if kind is not None:
            log.warning(
                "sqlite_on_network_filesystem: %s is on %s, whose locks do not hold between hosts; "
                "use Redis or Valkey for more than one host",
                self.path,
                kind,
                extra={"path": str(self.path), "filesystem": kind},
            )

    def _rights(self) -> str:
        name = self.path.name
        return f"permission to read and write it, {name}-wal and {name}-shm beside it if they exist, and the directory"

    def _meaning(self, error: sqlite3.Error) -> StoreError:
        """Say what an error of SQLite means, and what to do."""
        what = str(error)
        match _code(error):
            case sqlite3.SQLITE_BUSY | sqlite3.SQLITE_LOCKED:
                return StoreUnavailable(
                    f"{self.path} was locked by another process for {self.busy_timeout_s:g} s ({what}): look for a "
                    "process that keeps a transaction open, or that is stopped in one"
                )
            case sqlite3.SQLITE_FULL:
                return StoreUnavailable(f"no space is left for {self.path} ({what}): free some on its disk")
            case sqlite3.SQLITE_READONLY | sqlite3.SQLITE_PERM:
                return StoreUnavailable(f"{self.path} cannot be written ({what}): give this user {self._rights()}")
            case sqlite3.SQLITE_CANTOPEN | sqlite3.SQLITE_AUTH:
                return StoreUnavailable(f"{self.path} cannot be opened ({what}): give this user {self._rights()}")
            case sqlite3.SQLITE_NOTADB:
                return StoreError(f"{self.path} is not an SQLite database ({what}): give the path of another file")
            case sqlite3.SQLITE_CORRUPT:
                return StoreError(f"{self.path} is damaged ({what}): restore it from a backup, or move it away")
            case sqlite3.SQLITE_IOERR | sqlite3.SQLITE_NOMEM | sqlite3.SQLITE_PROTOCOL:
                return StoreUnavailable(f"{self.path} cannot be read or written ({what}): look at its disk")
        return StoreError(f"{self.path}: {what}")


def _code(error: sqlite3.Error) -> int:
    """Return the primary result code; the extended ones carry more in their higher bits."""
    return int(getattr(error, "sqlite_errorcode", None) or 0) & 0xFF
