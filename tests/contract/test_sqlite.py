"""The SQLite store passes the conformance suite."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.stores.sqlite import SqliteStore
from anarchon_tasks.testing import LeaseStoreSuite, ManualClock

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


class SqliteAdapter:
    """Two tables in one file."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.clock = ManualClock()
        self.opened: list[SqliteStore] = []

    def _open(self, table: str) -> SqliteStore:
        self.opened.append(SqliteStore(self.path, table=table, clock=self.clock))
        return self.opened[-1]

    def store(self) -> SqliteStore:
        """Open the file once more."""
        return self._open("anarchon_runs")

    def elsewhere(self) -> SqliteStore:
        """Open another table in the same file."""
        return self._open('other "runs"')

    def alike(self) -> list[SqliteStore]:
        """Open tables that continue each other's names."""
        return [self._open(table) for table in ("r", "r_", "r_x", "r.state", "r_jobs_state", "r%", '"r"')]

    def advance(self, ms: int) -> bool:
        """Move the clock."""
        self.clock.advance(ms / 1_000)
        return True

    def write_format(self, number: int) -> None:
        """Change the row of the format."""
        with closing(sqlite3.connect(self.path)) as db, db:
            db.execute("UPDATE anarchon_runs_format SET format = ?", (number,))


class TestSqlite(LeaseStoreSuite):
    """One file per test."""

    @pytest.fixture
    def adapter(self, tmp_path: Path) -> Iterator[SqliteAdapter]:
        """Make an empty file for each test."""
        adapter = SqliteAdapter(tmp_path / "store.db")
        yield adapter
        for store in adapter.opened:
            store.close()
