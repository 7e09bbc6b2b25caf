"""The account of a job inside a transaction of SQLite: reads what a rule asks for, writes what it touched."""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeAlias

from anarchon_tasks.model import Status
from anarchon_tasks.stores import _sqlite_rows as rows
from anarchon_tasks.stores.rules import JobState, RunState

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable

    from anarchon_tasks.model import Run, RunRef
    from anarchon_tasks.stores._sqlite_file import SqliteFile
    from anarchon_tasks.stores._sqlite_table import Change

TRIM_ENTRIES = 100
"""How many entries of the history one step drops at most."""
LOWEST, HIGHEST = 9, 10
"""Where a row of an account says which is the lowest slot that has a state, and which the highest."""
_SIZES = (1, 2, 5, 10, 25, 50, 100)

_NO_SLOTS = (2**63, -(2**63))
_UNKNOWN: rows.Row = ()

Key: TypeAlias = tuple[int, str]
"""The run of a job: its slot and its key."""


class Step:
    """The accounts that one transaction works with. Nothing is written before `flush`, except to the history."""

    def __init__(self, file: SqliteFile, db: sqlite3.Connection, jobs: Iterable[str]) -> None:
        self.db = db
        self.file = file
        names = list(dict.fromkeys(jobs))
        found = {row[0]: row for row in _of_jobs(file, db, "jobs", names)}
        self.accounts = {name: Account(file, db, name, found.get(name)) for name in names}
        with_states = [name for name, row in found.items() if row[LOWEST] is not None]
        for row in _of_jobs(file, db, "open", with_states) if with_states else ():
            self.accounts[row[0]].rows[row[1:3]] = row

    def flush(self) -> None:
        """Write everything that the rules changed."""
        states: list[Change] = []
        jobs: list[Change] = []
        for account in self.accounts.values():
            account.collect(states, jobs)
        self.file.states.write(self.db, states)
        self.file.jobs.write(self.db, jobs)


class Account:
    """One job's account, as `rules.Account` asks for it."""

    __slots__ = (
        "_db",
        "_entries",
        "_file",
        "_highest",
        "_lowest",
        "_name",
        "_sql",
        "_stored",
        "_touched",
        "job",
        "rows",
    )

    def __init__(self, file: SqliteFile, db: sqlite3.Connection, name: str, row: rows.Row | None) -> None:
        self.rows: dict[Key, rows.Row | None] = {}
        """What is known of the states: all that are open, and those that were asked for."""
        self.job = rows.row_job(row) if row is not None else JobState()
        self._db = db
        self._file = file
        self._sql = file.sql
        self._name = name
        self._stored = row[:LOWEST] if row is not None else None
        self._entries: int = row[8] if row is not None else 0
        self._lowest, self._highest = row[LOWEST:] if row is not None and row[LOWEST] is not None else _NO_SLOTS
        self._touched: dict[Key, rows.Row | None] = {}
        """The states to write, as the table has them."""

    def get(self, ref: RunRef) -> RunState | None:
        """Return a run's state."""
        row = self._row((ref.slot, ref.key))
        return rows.row_state(row) if row is not None else None

    def _row(self, key: Key) -> rows.Row | None:
        row = self.rows.get(key, _UNKNOWN)
        if row is _UNKNOWN:
            row = None
            if self._lowest <= key[0] <= self._highest:
                row = self._db.execute(self._sql["state"], (self._name, *key)).fetchone()
            self.rows[key] = row
        return row

    def open_runs(self, *, claimed: bool = False) -> Iterable[RunState]:
        """Return the runs that have not ended, lowest slot first; or only those that an instance holds a claim of."""
        alive = [row for row in self._open() if not claimed or row[rows.STATUS] == Status.CLAIMED]
        return [rows.row_state(row) for row in (sorted(alive, key=_key) if len(alive) > 1 else alive)]

    def open_count(self) -> int:
        """Return how many runs have not ended."""
        return len(self._open())

    def _open(self) -> list[rows.Row]:
        return [row for row in self.rows.values() if row is not None and row[rows.WAKE] is not None]

    def put(self, state: RunState) -> None:
        """Store a run's state, new or changed."""
        row = rows.state_row(state)
        self._change(row[1:3], row)
        self._lowest, self._highest = min(self._lowest, row[1]), max(self._highest, row[1])

    def _change(self, key: Key, row: rows.Row | None) -> None:
        if key not in self._touched:
            self._touched[key] = self._row(key)
        self.rows[key] = row

    def oldest(self, *, below: int, limit: int) -> Iterable[RunState]:
        """Return the states with the lowest slots below the given one, ended or not."""
        if self._lowest >= below:
            return []
        if any(slot < below for slot, _ in self._touched):
            changes: list[Change] = []
            self._collect_states(changes)
            self._file.states.write(self._db, changes)
        found = self._db.execute(self._sql["oldest"], (self._name, below, limit)).fetchall()
        for row in found:
            self.rows[row[1:3]] = row
        return [rows.row_state(row) for row in found]

    def drop(self, ref: RunRef) -> None:
        """Remove a run's state."""
        self._change((ref.slot, ref.key), None)

    def settled_at(self, job: str, slot: int) -> Run | None:
        """Return the history's entry of a skipped or missed slot, or of the stretch that ends with it."""
        row = self._db.execute(self._sql["settled_at"], (job, slot)).fetchone()
        return rows.row_entry(row) if row is not None else None

    def erase(self, entry: Run) -> None:
        """Remove an entry from the history."""
        order = (entry.job, entry.slot, entry.key, entry.attempt)
        self._entries -= self._db.execute(self._sql["delete_entry"], order).rowcount

    def record(self, entry: Run, *, keep: int) -> None:
        """Add to the history, in place of an entry of the same attempt, and keep only the newest entries."""
        db, sql, row = self._db, self._sql, rows.entry_row(entry)
        if self._file.runs.add(db, row):
            self._entries += 1
        else:
            db.execute(sql["replace_entry"], row)
        surplus = min(self._entries - keep, TRIM_ENTRIES)
        if surplus > 0:
            self._entries -= db.execute(sql["trim_entries"], (self._name, self._name, surplus)).rowcount

    def forget(self, *, before: int) -> None:
        """Remove the entries of slots before the given one from the history, a bounded number of them."""
        row = (self._name, self._name, before, TRIM_ENTRIES)
        self._entries -= self._db.execute(self._sql["forget_entries"], row).rowcount

    def execute(self, statement: str, row: rows.Row) -> int:
        """Execute a statement that stands beside the account, in its transaction; return how many rows it changed."""
        return self._db.execute(self._sql[statement], row).rowcount

    def refuse(self, ref: RunRef, token: int) -> None:
        """Count a refused write in the history entry of the attempt that had this token, if there is one."""
        if token:
            self._db.execute(self._sql["refuse"], (ref.job, ref.slot, ref.key, token))

    def collect(self, states: list[Change], jobs: list[Change]) -> None:
        """Give away what must be written."""
        self._collect_states(states)
        row = rows.job_row(self._name, self.job, self._entries)
        if row != self._stored and (self._stored is not None or self.job != JobState()):
            jobs.append((self._stored, row))

    def _collect_states(self, changes: list[Change]) -> None:
        changes += [(before, self.rows[key]) for key, before in self._touched.items()]
        self._touched.clear()


def _key(row: rows.Row) -> Key:
    return row[1], row[2]


def _of_jobs(file: SqliteFile, db: sqlite3.Connection, statement: str, names: list[str]) -> Iterable[rows.Row]:
    """Read rows of several jobs. The number of parameters is one of a few, so that statements stay prepared."""
    size = next((size for size in _SIZES if size >= len(names)), len(names))
    padded = [*names, *([names[-1]] * (size - len(names)))]
    return db.execute(file.for_many(statement, size), padded)
