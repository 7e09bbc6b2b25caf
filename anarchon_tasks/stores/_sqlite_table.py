"""Writes the rows of a table of the SQLite store with as little as possible."""

from __future__ import annotations

from itertools import compress
from operator import ne
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
    """Writes of new rows what is not NULL, and of known rows the columns that changed.

    An index without a changed column is not touched then, and the driver takes longer for a NULL than for a text.

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
        self._all = range(len(columns))
        self._key = key
        self._insert, self._update, self._delete = insert, update, delete.format(**names)
        self._names = names
        self._inserts: dict[Columns, str] = {}
        self._updates: dict[Columns, str] = {}

    def write(self, db: sqlite3.Connection, changes: Iterable[Change]) -> None:
        """Make the rows what they are to be. No two changes are of the same row."""
        inserts: dict[Columns, list[Row]] = {}
        updates: dict[Columns, list[Row]] = {}
        deletes: list[Row] = []
        for before, after in changes:
            if after is None:
                deletes += [before[: self._key]] if before is not None else []
            elif before is None:
                columns, values = self._filled(after)
                inserts.setdefault(columns, []).append(values)
            elif before != after:
                changed = tuple(compress(self._all, map(ne, before, after)))
                updates.setdefault(changed, []).append((*(after[at] for at in changed), *after[: self._key]))
        if deletes:
            db.executemany(self._delete, deletes)
        for columns, rows in inserts.items():
            db.executemany(self.insert_of(columns), rows)
        for columns, rows in updates.items():
            db.executemany(self.update_of(columns), rows)

    def add(self, db: sqlite3.Connection, row: Row) -> bool:
        """Add a row; return whether it is new, which only an INSERT OR IGNORE can deny."""
        columns, values = self._filled(row)
        return db.execute(self.insert_of(columns), values).rowcount > 0

    def _filled(self, row: Row) -> tuple[Columns, Row]:
        filled = [value is not None for value in row]
        return tuple(compress(self._all, filled)), tuple(compress(row, filled))

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
