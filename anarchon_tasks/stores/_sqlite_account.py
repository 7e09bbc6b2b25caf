"""The account of a job inside a transaction of SQLite: reads what a rule asks for, writes what it touched."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_tasks.model import Status
from anarchon_tasks.stores import _sqlite_rows as rows
from anarchon_tasks.stores.rules import JobState, RunState

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from anarchon_tasks.model import Run, RunRef
    from anarchon_tasks.stores._sqlite_file import SqliteFile

TRIM_ENTRIES = 100
"""How many entries of the history one step drops at most."""
_SIZES = (1, 2, 5, 10, 25, 50, 100)


class Step:
    """The accounts that one transaction works with. Nothing is written before `flush`, except to the history."""

    def __init__(self, file: SqliteFile, db: sqlite3.Connection, jobs: Iterable[str]) -> None:
        self.db = db
        self.sql = file.sql
        names = list(dict.fromkeys(jobs))
        found = {row[0]: row for row in _of_jobs(file, db, "jobs", names)}
        self.accounts = {name: Account(self, name, found.get(name)) for name in names}
        for row in _of_jobs(file, db, "open", names) if found else ():
            self.accounts[row[0]].rows[rows.row_ref(row)] = row

    def flush(self) -> None:
        """Write everything that the rules changed."""
        put: list[rows.Row] = []
        drop: list[rows.Row] = []
        jobs: list[rows.Row] = []
        for account in self.accounts.values():
            account.collect(put, drop, jobs)
        self.write_states(put, drop)
        if jobs:
            self.db.executemany(self.sql["put_job"], jobs)

    def write_states(self, put: list[rows.Row], drop: list[rows.Row]) -> None:
        """Write states and remove others."""
        if drop:
            self.db.executemany(self.sql["drop_state"], drop)
        if put:
            self.db.executemany(self.sql["put_state"], put)


class Account:
    """One job's account, as `rules.Account` asks for it."""

    def __init__(self, step: Step, name: str, row: rows.Row | None) -> None:
        self.rows: dict[RunRef, rows.Row | None] = {}
        """What is known of the states: all that are open, and those that were asked for."""
        self.job = rows.row_job(row) if row is not None else JobState()
        self._step = step
        self._name = name
        self._stored = row[:-1] if row is not None else None
        self._entries: int = row[8] if row is not None else 0
        self._lowest: int | None = row[9] if row is not None else None
        self._touched: dict[RunRef, None] = {}

    def get(self, ref: RunRef) -> RunState | None:
        """Return a run's state."""
        try:
            row = self.rows[ref]
        except KeyError:
            row = None
            if self._lowest is not None and ref.slot >= self._lowest:
                found = self._step.db.execute(self._step.sql["state"], (ref.job, ref.slot, ref.key))
                row = found.fetchone()
            self.rows[ref] = row
        return rows.row_state(row) if row is not None else None

    def open_runs(self, *, claimed: bool = False) -> Iterable[RunState]:
        """Return the runs that have not ended, lowest slot first; or only those that an instance holds a claim of."""
        alive = [row for row in self._open() if not claimed or row[rows.STATUS] == Status.CLAIMED]
        return [rows.row_state(row) for row in sorted(alive, key=rows.row_ref)]

    def open_count(self) -> int:
        """Return how many runs have not ended."""
        return sum(1 for _ in self._open())

    def _open(self) -> Iterable[rows.Row]:
        return (row for row in self.rows.values() if row is not None and row[rows.WAKE] is not None)

    def put(self, state: RunState) -> None:
        """Store a run's state, new or changed."""
        self.rows[state.ref] = rows.state_row(state)
        self._touched[state.ref] = None
        if self._lowest is None or state.ref.slot < self._lowest:
            self._lowest = state.ref.slot

    def oldest(self, *, below: int, limit: int) -> Iterable[RunState]:
        """Return the states with the lowest slots below the given one, ended or not."""
        if self._lowest is None or self._lowest >= below:
            return []
        put: list[rows.Row] = []
        drop: list[rows.Row] = []
        self._collect_states(put, drop)
        self._step.write_states(put, drop)
        found = self._step.db.execute(self._step.sql["oldest"], (self._name, below, limit)).fetchall()
        for row in found:
            self.rows[rows.row_ref(row)] = row
        return [rows.row_state(row) for row in found]

    def drop(self, ref: RunRef) -> None:
        """Remove a run's state."""
        self.rows[ref] = None
        self._touched[ref] = None

    def settled_at(self, job: str, slot: int) -> Run | None:
        """Return the history's entry of a skipped or missed slot, or of the stretch that ends with it."""
        row = self._step.db.execute(self._step.sql["settled_at"], (job, slot)).fetchone()
        return rows.row_entry(row) if row is not None else None

    def erase(self, entry: Run) -> None:
        """Remove an entry from the history."""
        order = (entry.job, entry.slot, entry.key, entry.attempt)
        self._entries -= self._step.db.execute(self._step.sql["erase"], order).rowcount

    def record(self, entry: Run, *, keep: int) -> None:
        """Add to the history, in place of an entry of the same attempt, and keep only the newest entries."""
        db, sql, row = self._step.db, self._step.sql, rows.entry_row(entry)
        if db.execute(sql["add_entry"], row).rowcount:
            self._entries += 1
        else:
            db.execute(sql["replace_entry"], row)
        surplus = min(self._entries - keep, TRIM_ENTRIES)
        if surplus > 0:
            self._entries -= db.execute(sql["trim_entries"], (self._name, self._name, surplus)).rowcount

    def forget(self, *, before: int) -> None:
        """Remove the entries of slots before the given one from the history, a bounded number of them."""
        row = (self._name, self._name, before, TRIM_ENTRIES)
        self._entries -= self._step.db.execute(self._step.sql["forget_entries"], row).rowcount

    def execute(self, statement: str, row: rows.Row) -> int:
        """Execute a statement that stands beside the account, in its transaction; return how many rows it changed."""
        return self._step.db.execute(self._step.sql[statement], row).rowcount

    def refuse(self, ref: RunRef, token: int) -> None:
        """Count a refused write in the history entry of the attempt that had this token, if there is one."""
        if token:
            self._step.db.execute(self._step.sql["refuse"], (ref.job, ref.slot, ref.key, token))

    def collect(self, put: list[rows.Row], drop: list[rows.Row], jobs: list[rows.Row]) -> None:
        """Give away what must be written."""
        self._collect_states(put, drop)
        row = rows.job_row(self._name, self.job, self._entries)
        if row != self._stored and (self._stored is not None or self.job != JobState()):
            jobs.append(row)

    def _collect_states(self, put: list[rows.Row], drop: list[rows.Row]) -> None:
        for ref in self._touched:
            row = self.rows[ref]
            if row is not None:
                put.append(row)
            else:
                drop.append((ref.job, ref.slot, ref.key))
        self._touched.clear()


def _of_jobs(file: SqliteFile, db: sqlite3.Connection, statement: str, names: list[str]) -> Iterable[rows.Row]:
    """Read rows of several jobs. The number of parameters is one of a few, so that statements stay prepared."""
    size = next((size for size in _SIZES if size >= len(names)), len(names))
    padded = [*names, *([names[-1]] * (size - len(names)))]
    return db.execute(file.for_many(statement, size), padded)
