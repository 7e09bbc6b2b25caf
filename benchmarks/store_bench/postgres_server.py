"""PostgreSQL: the limit is a multi-row `INSERT ... ON CONFLICT DO NOTHING` of the rows that a claim writes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any, ClassVar

import psycopg
from psycopg import sql

from anarchon_tasks.stores import from_url
from store_bench.servers import batches
from store_bench.template import claimed_row

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import LeaseStore

_STORE, _LIMIT = "store", "bare"


class Insert:
    """One statement per batch, into a table of states of its own with the indexes of the store.

    The texts are put together before the clock runs.
    """

    def __init__(self, url: str, schema: str, head: str) -> None:
        self._db = psycopg.connect(url, autocommit=True, prepare_threshold=None)
        self._table = sql.Identifier(schema, f"{_LIMIT}_state")
        found = self._db.execute(sql.SQL("SELECT * FROM {} WHERE job = 'template'").format(self._table))
        names = [column.name for column in found.description or ()]
        row = found.fetchone()
        if row is None:
            raise AssertionError("the template is missing")
        self._template = dict(zip(names, row, strict=True))
        self._head = head

    def prepare(self, count: int, size: int) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return the statements, and what runs one."""
        jobs = [f"{self._head}-{number}" for number in range(count)]
        return [self._statement(part) for part in batches(jobs, size)], self._db.execute

    def _statement(self, jobs: Sequence[str]) -> bytes:
        rows = sql.SQL(", ").join(sql.SQL("({})").format(sql.SQL(", ").join(self._row(job))) for job in jobs)
        text = sql.SQL("INSERT INTO {} VALUES {} ON CONFLICT DO NOTHING").format(self._table, rows)
        return text.as_bytes(self._db)

    def _row(self, job: str) -> list[sql.Literal]:
        return [sql.Literal(value) for value in (self._template | {"job": job, "grant_id": uuid.uuid4().hex}).values()]

    def close(self) -> None:
        """Close the connection."""
        self._db.close()


class PostgresServer:
    """One database; a place in it is a schema."""

    limit = "INSERT ... ON CONFLICT DO NOTHING"
    more_limits: ClassVar[tuple[str, ...]] = ()

    def __init__(self, url: str) -> None:
        self._url = url
        self._db = psycopg.connect(url, autocommit=True)

    def describe(self) -> str:
        """Name the server and the driver."""
        version = self._db.info.parameter_status("server_version")
        return f"PostgreSQL {(version or '').split()[0]}, psycopg {psycopg.__version__} ({psycopg.pq.__impl__})"

    def make_room(self, name: str) -> None:
        """Make a schema with a store for the limit."""
        self._db.execute(sql.SQL("CREATE SCHEMA {}").format(sql.Identifier(name)))
        store = from_url(self._url, table=f"{name}.{_LIMIT}")
        claimed_row(store)
        store.close()

    def store(self, name: str) -> LeaseStore:
        """Open the store."""
        return from_url(self._url, table=f"{name}.{_STORE}", timeout="30s")

    def limits(self, name: str, head: str) -> dict[str, Insert]:
        """Open the limit."""
        return {self.limit: Insert(self._url, name, head)}

    def cpu_us(self) -> None:
        """Return nothing: each client has a process of its own on the server."""

    def calls(self) -> None:
        """Return nothing: a call holds nobody but its own connection."""

    def remove(self, name: str) -> None:
        """Drop the schema."""
        self._db.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


server = PostgresServer
