"""Makes the tables and functions of a PostgreSQL store, once, whoever comes first; and tells what is in their way."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.stores import _postgres_schema as schema
from anarchon_tasks.stores._postgres_calls import Failed, call
from anarchon_tasks.stores.base import FORMAT

if TYPE_CHECKING:
    from psycopg import Connection

    from anarchon_tasks.stores._postgres_schema import Names

_NO_COLUMN = "42703"
_DENIED = "42501"


def migrate(connection: Connection[Any], names: Names, *, location: str, timeout_s: float) -> list[str]:
    """Make what is missing in one transaction, and return the names of what was made.

    Any number of processes may do so at once: all but the first wait, and find everything made.

    Raises:
        Failed: The server failed or refused a statement.
        StoreFormatError: The store was written by a newer version.
        StoreError: Something else has these names, or this role may not make them.

    """

    def run(statement: str) -> list[tuple[bytes | None, ...]]:
        return call(connection, statement.encode(), timeout_s=timeout_s)

    own = schema.migration(names)
    run("BEGIN")
    try:
        run(f"SET LOCAL lock_timeout = {max(1, int(timeout_s * 1_000 * 0.8))}")
        run(own["lock"])
        made = _made(_Look(connection, names, location, timeout_s), names)
        if made:
            run(own["check_encoding"])
            run(own["late_bodies"])
        for _, statement in made:
            run(statement)
        run("COMMIT")
    except Failed as failed:
        _roll_back(connection, failed, timeout_s)
        if failed.sqlstate == _DENIED:
            raise StoreError(_may_not(failed, names, location)) from None
        raise
    except BaseException:
        _roll_back(connection, None, timeout_s)
        raise
    return [name for name, _ in made if name]


def explain_missing(connection: Connection[Any], names: Names, *, location: str, timeout_s: float) -> None:
    """Say what is missing, for those who may not make anything.

    Raises:
        StoreFormatError: The store was written by a newer version.
        StoreError: There is no store, or not for this version.

    """
    look = _Look(connection, names, location, timeout_s)
    if not look.tables_are_there():
        raise StoreUnavailable(
            f"{location} holds no anarchon-tasks store with table={names.table!r}: correct the URL or the table, or "
            "start a scheduler or run `anarchon migrate`, which make the store"
        )
    if missing := look.missing_functions():
        raise StoreError(
            f"{location} has a store with table={names.table!r}, but not the functions of this version (such as "
            f"{missing[0]}): run `anarchon migrate` with this version, or start a scheduler of it"
        )


def newer(found: object, names: Names, location: str) -> str:
    """Say that this version is too old for the store."""
    return (
        f"{location} holds format {found} in the table {names.table!r}, and this version reads up to {FORMAT}: upgrade "
        "this instance. The store was left untouched."
    )


class _Look:
    """What is there, of that which has the names of a store."""

    def __init__(self, connection: Connection[Any], names: Names, location: str, timeout_s: float) -> None:
        self._connection = connection
        self._names = names
        self._location = location
        self._timeout_s = timeout_s
        self._sql = schema.migration(names)

    def tables_are_there(self) -> bool:
        """Tell whether the tables are there; refuse those of others and of newer versions."""
        found = {row[0] for row in self._rows("relations")}
        if not found:
            return False
        wanted = {name.encode() for name in self._names.relations}
        if not wanted <= found:
            raise self._foreign(sorted(name.decode("utf-8", "replace") for name in found if name))
        try:
            rows = self._rows("read_format")
        except Failed as failed:
            if failed.sqlstate == _NO_COLUMN:
                raise self._foreign([self._names.name + "_format"]) from None
            raise
        if not rows:
            raise self._no_format()
        if len(rows) != 1 or rows[0][1] != self._names.name.encode():
            raise self._foreign([self._names.name + "_format"])
        number = int(rows[0][0] or 0)
        if number > FORMAT:
            raise StoreFormatError(newer(number, self._names, self._location))
        return True

    def missing_functions(self) -> list[str]:
        """Return the functions of this version that are not there."""
        found = {row[0] for row in self._rows("functions")}
        return [name for name in self._names.functions.values() if name.encode() not in found]

    def _rows(self, statement: str) -> list[tuple[bytes | None, ...]]:
        return call(self._connection, self._sql[statement].encode(), timeout_s=self._timeout_s)

    def _no_format(self) -> StoreError:
        restored = self._names.filled("INSERT INTO {format} (format, made_for) VALUES ({newest}, {made_for})")
        return StoreError(
            f"{self._location}: the only row of the table {self._names.name}_format is missing in the schema "
            f"{self._names.schema!r}: restore it, with the format that it had (of this version: {FORMAT}), for "
            f"example {restored};"
        )

    def _foreign(self, found: list[str]) -> StoreError:
        return StoreError(
            f"{self._location} holds {', '.join(found)} in the schema {self._names.schema!r}, which do not belong to "
            f"an anarchon-tasks store with table={self._names.table!r}: choose another table name"
        )


def _made(look: _Look, names: Names) -> list[tuple[str, str]]:
    """Return what is to be made: a name for people, or none, and the statement."""
    made: list[tuple[str, str]] = []
    if not look.tables_are_there():
        made += [("", statement) for statement in schema.make_tables(names)]
        made += [(name, "SELECT 1") for name in names.relations]
    statements = schema.make_functions(names)
    return made + [(name, statements[name]) for name in look.missing_functions()]


def _may_not(failed: Failed, names: Names, location: str) -> str:
    return (
        f"{location}: the store with table={names.table!r} is missing or of an older version, and this role may not "
        f"make it ({failed.text}): run `anarchon migrate --store URL --table {names.table}` with a role that may "
        "create tables and functions there, or apply what `anarchon migrate --sql` prints; then grant this role "
        "SELECT, INSERT, UPDATE and DELETE on the tables"
    )


def _roll_back(connection: Connection[Any], failed: Failed | None, timeout_s: float) -> None:
    if failed is not None and failed.broken:
        return
    try:
        call(connection, b"ROLLBACK", timeout_s=timeout_s)
    except Failed:
        connection.pgconn.finish()
