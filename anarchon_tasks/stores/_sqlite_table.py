"""Writes the rows of a table of the SQLite store with as little as possible."""

from __future__ import annotations

from itertools import compress
from typing import TYPE_CHECKING, TypeAlias

from anarchon_tasks.stores import _sql

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Iterable, Mapping, Sequence

    from anarchon_tasks.stores._sqlite_rows import Row

Change: TypeAlias = "tuple[Row | None, Row | None]"
"""A row as the table has it, and as it is to be; None: no such row."""
Columns: TypeAlias = tuple[int, ...]


class Table:
    """Writes of new rows the columns that are not NULL in all of them, and of known rows those that changed in any.

    An index without a changed column is not touched then, and the driver takes longer for a NULL than for a text. Rows
    of one batch are alike, so one statement does for all of them.

    Args:
        columns: All of them, in the order of the rows.
        key: How many of the first ones are the primary key.
        insert: The statement that adds a row, with `{columns}` and `{marks}` to fill in.
        update: The statement that changes one, with `{sets}`; empty where none does.
        delete: The statement that removes one; empty where none does.
        names: What else is to be filled in.

    """

    def __init__(
        self, columns: Sequence[str], *, key: int, insert: str, update: str, delete: str, names: Mapping[str, str]
    ) -> None:
        self._columns = [_sql.quoted(name) for name in columns]
        self._key = key
        self._insert, self._update, self._delete = insert, update, delete.format(**names)
        self._names = names
        self._inserts: dict[Columns, str] = {}
        self._updates: dict[Columns, str] = {}

    def write(self, db: sqlite3.Connection, changes: Iterable[Change]) -> None:
        """Make the rows what they are to be. No two changes are of the same row."""
        new: list[Row] = []
        before: list[Row] = []
        after: list[Row] = []
        gone: list[Row] = []
        for old, row in changes:
            if old is None:
                new += [row] if row is not None else []
            elif row is None:
                gone.append(old[: self._key])
            elif old != row:
                before.append(old)
                after.append(row)
        if gone:
            db.executemany(self._delete, gone)
        if new:
            self._insert_all(db, new)
        if after:
            self._update_all(db, before, after)

    def _insert_all(self, db: sqlite3.Connection, rows: Sequence[Row]) -> None:
        values = list(zip(*rows, strict=True))
        filled = [at for at, first in enumerate(rows[0]) if first is not None or values[at].count(None) < len(rows)]
        db.executemany(self.insert_of(tuple(filled)), zip(*(values[at] for at in filled), strict=True))

    def _update_all(self, db: sqlite3.Connection, before: Sequence[Row], after: Sequence[Row]) -> None:
        old, new = list(zip(*before, strict=True)), list(zip(*after, strict=True))
        changed = [at for at, values in enumerate(new) if values != old[at]]
        values = (*(new[at] for at in changed), *new[: self._key])
        db.executemany(self.update_of(tuple(changed)), zip(*values, strict=True))

    def add(self, db: sqlite3.Connection, row: Row) -> bool:
        """Add a row; return whether it is new, which only an INSERT OR IGNORE can deny."""
        filled = [value is not None for value in row]
        text = self.insert_of(tuple(compress(range(len(row)), filled)))
        return db.execute(text, tuple(compress(row, filled))).rowcount > 0

    def insert_of(self, columns: Columns) -> str:
        """Return the statement that adds a row with these columns."""
        text = self._inserts.get(columns)
        if text is None:
            names, marks = ", ".join(self._columns[at] for at in columns), ", ".join("?" * len(columns))
            text = self._inserts[columns] = self._insert.format(**self._names, columns=names, marks=marks)
        return text

    def update_of(self, columns: Columns) -> str:
        """Return the statement that changes these columns of a row."""
        text = self._updates.get(columns)
        if text is None:
            sets = ", ".join(f"{self._columns[at]} = ?" for at in columns)
            text = self._updates[columns] = self._update.format(**self._names, sets=sets)
        return text
