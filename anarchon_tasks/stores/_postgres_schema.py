"""What a PostgreSQL store consists of: the names made from the option `table`, and the statements that make it."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from string import Formatter

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _sql
from anarchon_tasks.stores.base import FORMAT

DEFAULT_SCHEMA = "public"
TABLES = {
    "runs": "",
    "state": "_state",
    "jobs": "_jobs",
    "definitions": "_definitions",
    "queues": "_queues",
    "format": "_format",
}
"""The tables: what statements call each, and what its name ends with."""

_LONGEST = 63
"""How many bytes a name has in PostgreSQL; it would cut a longer one without a word."""
_FOLDER = "postgres"
_NOT_FUNCTIONS = ("tables", "migrate")
_FUNCTION = "fn_"
_MIGRATION_LOCK = 0x616E6172_63686F6E
"""One for all stores of a database: two of them may want to make the same schema."""


@cache
def tables() -> dict[str, str]:
    """Return the statements that make tables and indexes."""
    return _sql.load(f"{_FOLDER}/tables.sql")


@cache
def functions() -> dict[str, str]:
    """Return the statements that make functions, by the function's name."""
    found: dict[str, str] = {}
    for file in _function_files():
        for name, text in _sql.load(f"{_FOLDER}/{file}.sql").items():
            if name in found:
                raise LookupError(f"two files make the function {name}")
            found[name] = text
    return found


@cache
def revision() -> str:
    """Return what tells the functions of this version from those of others.

    It is a part of their names, so that several versions work on one store as long as its format is the same.
    """
    digest = hashlib.sha256()
    for name, text in sorted(functions().items()):
        digest.update(f"{name}\0{text}\0".encode())
    return digest.hexdigest()[:8]


@cache
def indexes() -> tuple[str, ...]:
    """Return what the statements of the tables name beside the tables."""
    known = {*TABLES, "namespace"}
    found = (field for text in tables().values() for _, field, _, _ in Formatter().parse(text) if field)
    return tuple(dict.fromkeys(field for field in found if field not in known))


def _function_files() -> list[str]:
    folder = files("anarchon_tasks.stores").joinpath("sql", _FOLDER)
    stems = (entry.name.removesuffix(".sql") for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return sorted(stem for stem in stems if stem not in _NOT_FUNCTIONS)


@dataclass(frozen=True, slots=True)
class Names:
    """What the things of one store are called.

    Args:
        table: The main table, with or without its schema: `anarchon_runs`, `shipping.cron_runs`. Each part is taken as
            it stands: upper case stays upper case.

    Raises:
        ConfigError: A name made from it is empty, too long, or not a text that PostgreSQL can hold.

    """

    table: str

    def __post_init__(self) -> None:
        if not isinstance(self.table, str):
            raise ConfigError(f"table={self.table!r} is not a text: give a name such as 'anarchon_runs'")
        if "\0" in self.table or not _is_unicode(self.table):
            raise ConfigError(f"table={self.table!r} holds characters that PostgreSQL cannot: use others")
        if not self.schema or not self.name:
            raise ConfigError(f"table={self.table!r} has an empty part: give 'table', or 'schema.table'")
        if len(self.schema.encode()) > _LONGEST:
            raise ConfigError(f"table={self.table!r}: the schema has more than {_LONGEST} bytes")
        longest = max(self._derived(), key=lambda name: len(name.encode()))
        excess = len(longest.encode()) - _LONGEST
        if excess > 0:
            most = len(self.name.encode()) - excess
            raise ConfigError(
                f"table={self.table!r} is too long: names are made from it, and {longest!r} has {excess} bytes too "
                f"many for PostgreSQL; use at most {most} bytes"
            )

    @property
    def schema(self) -> str:
        """The schema's name."""
        schema, dot, _ = self.table.partition(".")
        return schema if dot else DEFAULT_SCHEMA

    @property
    def name(self) -> str:
        """The main table's name without its schema."""
        before, dot, after = self.table.partition(".")
        return after if dot else before

    @property
    def namespace(self) -> str:
        """The same text for every way to write the table: without `public`, where a text without it means that."""
        return self.name if self.schema == DEFAULT_SCHEMA and "." not in self.name else f"{self.schema}.{self.name}"

    @property
    def relations(self) -> list[str]:
        """The names of the tables, bare."""
        return [self.name + suffix for suffix in TABLES.values()]

    @property
    def function_prefix(self) -> str:
        """What the names of the functions of this version begin with."""
        return f"{self.name}_{revision()}_"

    @property
    def functions(self) -> dict[str, str]:
        """The bare names of the functions, by what the statements call them."""
        return {name: self._function(name) for name in functions()}

    def _derived(self) -> list[str]:
        return [*self.relations, *(f"{self.name}_{index}" for index in indexes()), *self.functions.values()]

    def function(self, operation: str) -> str:
        """Return a function as it is written in a statement."""
        return self._qualified(self._function(operation))

    def _function(self, name: str) -> str:
        """The revision stands before the name, so that no two tables, as `t` and `t_claim`, make one of it."""
        return f"{self.function_prefix}{name}"

    def filled(self, text: str) -> str:
        """Return a statement with the names filled in."""
        return text.format_map(self._fields())

    def _qualified(self, name: str) -> str:
        return f"{_identifier(self.schema)}.{_identifier(name)}"

    def _fields(self) -> dict[str, object]:
        return {
            **{name: self._qualified(self.name + suffix) for name, suffix in TABLES.items()},
            **{name: _identifier(f"{self.name}_{name}") for name in indexes()},
            **{_FUNCTION + name: self._qualified(real) for name, real in self.functions.items()},
            "namespace": self._namespace(),
            "schema": _identifier(self.schema),
            "schema_text": _literal(self.schema),
            "made_for": _literal(self.name),
            "named_relations": ", ".join(_literal(name) for name in [*self.relations, *self._index_names()]),
            "named_functions": ", ".join(_literal(name) for name in self.functions.values()) or "''",
            "dollar": _dollar(self.schema),
            "lock": _MIGRATION_LOCK,
            "newest": FORMAT,
        }

    def _index_names(self) -> list[str]:
        return [f"{self.name}_{name}" for name in indexes()]

    def _namespace(self) -> int:
        """Return the first half of the keys of this store's locks: a positive integer of four bytes."""
        digest = hashlib.sha256(f"{self.schema}\0{self.name}".encode()).digest()
        return int.from_bytes(digest[:4], "big") >> 1


@cache
def migration(names: Names) -> dict[str, str]:
    """Return the statements that look at a store and make it, with the names filled in."""
    return {name: names.filled(text) for name, text in _sql.load(f"{_FOLDER}/migrate.sql").items()}


def make_tables(names: Names) -> list[str]:
    """Return the statements that make the tables and say of which format they are."""
    own = migration(names)
    made = [own["make_schema"]] if names.schema != DEFAULT_SCHEMA else []
    return [*made, *(names.filled(text) for text in tables().values()), own["write_format"]]


def make_functions(names: Names) -> dict[str, str]:
    """Return the statements that make the functions of this version, by the function's bare name."""
    real = names.functions
    return {real[name]: names.filled(text) for name, text in functions().items()}


def ddl(names: Names) -> list[str]:
    """Return every statement that makes a store, in order, for one transaction. None has a `;` at its end."""
    own = migration(names)
    first = [own["lock"], own["check_encoding"], own["late_bodies"]]
    return [*first, *make_tables(names), *make_functions(names).values()]


def _is_unicode(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _identifier(name: str) -> str:
    """Return a quoted identifier, also for use in a body between dollar signs."""
    if "$" not in name:
        return _sql.quoted(name)
    return "U&" + _sql.quoted(name.replace("\\", "\\\\").replace("$", "\\0024"))


def _literal(text: str) -> str:
    """Return a text of SQL that means the same with every setting of `standard_conforming_strings`."""
    escaped = text.replace("'", "''")
    return "E'" + escaped.replace("\\", "\\\\") + "'" if "\\" in text else f"'{escaped}'"


def _dollar(text: str) -> str:
    """Return a quote for a body that holds this text."""
    tag = "$make$"
    while tag in text:
        tag = f"{tag[:-1]}_$"
    return tag
