"""PostgreSQL, as the conformance suite and the comparison with the rules need it."""

from __future__ import annotations

import uuid
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.rows import dict_row

from anarchon_tasks.stores import PostgresBackend
from anarchon_tasks.stores._postgres_schema import TABLES, Names
from anarchon_tasks.testing import ManualClock
from tests.contract.machine import STATE

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores.base import LeaseStore


@dataclass(frozen=True, slots=True)
class EmptyTables:
    """One store's tables in a database that tests share, and a way to empty them."""

    url: str
    table: str

    def name(self, table: str) -> str:
        """Return a table as it is written in a statement."""
        return Names(self.table).filled(f"{{{table}}}")

    @contextmanager
    def connection(self) -> Iterator[psycopg.Connection[dict[str, Any]]]:
        """Open a connection of our own, beside those of the store."""
        with psycopg.connect(self.url, autocommit=True, row_factory=dict_row) as connection:
            yield connection

    def empty(self) -> None:
        """Remove every row, except that of the format."""
        with self.connection() as connection:
            for table in TABLES.keys() - {"format"}:
                connection.execute(f"DELETE FROM {self.name(table)}")


def new_table() -> str:
    """Return the name of a table that nobody has."""
    return f"t{uuid.uuid4().hex[:12]}"


class PostgresAdapter:
    """Two tables in one database, and a clock that the test moves."""

    def __init__(self, url: str, table: str | None = None) -> None:
        self.url = url
        self.clock = ManualClock()
        self.table = table or new_table()
        self.opened: list[LeaseStore] = []

    def _backend(self, table: str) -> PostgresBackend:
        return PostgresBackend(self.url, table=table, timeout=60, clock=self.clock)

    def _open(self, table: str) -> LeaseStore:
        self.opened.append(self._backend(table).open())
        return self.opened[-1]

    def store(self) -> LeaseStore:
        """Open another client, with connections of its own."""
        return self._open(self.table)

    def elsewhere(self) -> LeaseStore:
        """Open a client of another table, in a schema of its own, with characters that SQL must quote."""
        return self._open(f'S"{self.table} {{x}}.My "cron"; %s $$')

    def alike(self) -> list[LeaseStore]:
        """Open tables of one schema that continue each other's names, and one in another schema."""
        names = ("r", "R", "r_", "r_x", "r_jobs_state", "r%", '"r"')
        return [*(self._open(f"{self.table}.{name}") for name in names), self._open(f"{self.table}_state.r")]

    def advance(self, ms: int) -> bool:
        """Move the clock."""
        self.clock.advance(ms / 1_000)
        return True

    def write_format(self, number: int) -> None:
        """Change the row of the format."""
        tables = EmptyTables(self.url, self.table)
        with tables.connection() as connection:
            connection.execute(f"UPDATE {tables.name('format')} SET format = %s", (number,))

    def close(self) -> None:
        """Close all connections."""
        for store in self.opened:
            store.close()


class OwnClock(PostgresAdapter):
    """The same, and the server's own clock."""

    def _backend(self, table: str) -> PostgresBackend:
        return PostgresBackend(self.url, table=table, timeout=60)

    def advance(self, ms: int) -> bool:
        """Leave the waiting to the suite."""
        del ms
        return False


class PostgresDriver:
    """Tables that are emptied for each sequence of calls."""

    def __init__(self, tables: EmptyTables) -> None:
        self.tables = tables
        self.tables.empty()
        self.connection = psycopg.connect(tables.url, autocommit=True, row_factory=dict_row)

    def open(self, clock: Clock) -> LeaseStore:
        """Return the store, with nothing in it."""
        self.store = PostgresBackend(self.tables.url, table=self.tables.table, timeout=60, clock=clock).open()
        return self.store

    def close(self) -> None:
        """Close the connections."""
        self.store.close()
        self.connection.close()

    def lose_index(self) -> None:
        """Do nothing: the server's indexes are not lost."""

    def _rows(self, job: str, table: str, where: str = "true") -> list[dict[str, Any]]:
        name = self.tables.name(table)
        statement = f"SELECT * FROM {name} WHERE job = %s AND {where}"
        return self.connection.execute(statement.encode(), [job]).fetchall()

    def states(self, job: str) -> dict[str, dict[str, object]]:
        """Return what is stored of each run."""
        found = {}
        for row in self._rows(job, "state"):
            given = [row["message_id"], row["message_retries"], row["worker"], row["pid"]]
            state = {**row, "delivered": None if row["message_id"] is None else given}
            found[_run(row)] = {name: state[name] for name in STATE}
        return found

    def open_runs(self, job: str) -> set[str]:
        """Return the runs in the index of open ones; none of them wakes after its lease."""
        rows = self._rows(job, "state", "wake IS NOT NULL")
        assert all(row["wake"] <= max(row["lease_until"], row["not_before"]) for row in rows)
        return {_run(row) for row in rows}

    def known(self, job: str) -> dict[str, int | None]:
        """Return what stands beside the runs. What is counted there agrees with what is there."""
        defaults: dict[str, int | None] = {"floor": None, "trimmed": -1, "token": 0}
        found = {**defaults, "entries": 0, "lowest": None, **next(iter(self._rows(job, "jobs")), {})}
        assert found["entries"] == len(self._rows(job, "runs"))
        assert all(found["lowest"] is not None and found["lowest"] <= row["slot"] for row in self._rows(job, "state"))
        return {name: found[name] for name in defaults}


def _run(row: dict[str, Any]) -> str:
    key = row["key"].replace("\uffff0000", "\0")  # as the store writes what PostgreSQL cannot hold
    return f"{row['slot']}:{key}" if key else str(row["slot"])
