"""The option `table` of a PostgreSQL store is taken as it stands, and names everything of the store."""

from __future__ import annotations

import re

import pytest

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _postgres_schema as schema
from anarchon_tasks.stores._postgres_schema import TABLES, Names, ddl, make_functions, revision


@pytest.mark.parametrize(
    ("table", "wanted"),
    [
        ("anarchon_runs", '"public"."anarchon_runs_state"'),
        ("shipping.cron_runs", '"shipping"."cron_runs_state"'),
        ("Shipping.Cron", '"Shipping"."Cron_state"'),
        ('We"ird.Table x', '"We""ird"."Table x_state"'),
        ("a.b.c", '"a"."b.c_state"'),
        ("задания", '"public"."задания_state"'),
        ("a'b{x}%s", '"public"."a\'b{x}%s_state"'),
        ("a$$b\\c", 'U&"a\\0024\\0024b\\\\c_state"'),
    ],
)
def test_each_part_is_quoted_as_it_is(table: str, wanted: str) -> None:
    """Case, quotes, spaces and other scripts are kept; the first dot ends the schema."""
    assert Names(table).filled("{state}").endswith(wanted)


@pytest.mark.parametrize("table", ["", ".", "a.", ".b", "a\0b", "\ud800", "x" * 64, f"{'x' * 64}.t"])
def test_a_name_that_postgresql_cannot_use_is_refused(table: str) -> None:
    """The error names the option and the value."""
    with pytest.raises(ConfigError, match="table="):
        Names(table)


def test_a_table_that_is_no_text_is_refused() -> None:
    """A number is a mistake, not a name."""
    with pytest.raises(ConfigError, match="table=3 is not a text"):
        Names(3)  # type: ignore[arg-type]


def test_no_derived_name_is_cut() -> None:
    """The longest name made from the table has 63 bytes, counted as PostgreSQL counts; one more is refused."""
    longest = max(len(name) for name in [*Names("x").functions.values(), *schema.indexes()]) - 1
    most = 63 - longest
    assert max(len(name) for name in Names("x" * most).functions.values()) == 63
    for table in ("x" * (most + 1), "é" * (most // 2 + 1)):
        with pytest.raises(ConfigError, match=rf"at most {most}|too long"):
            Names(table)


def test_the_functions_of_two_tables_never_meet() -> None:
    """Nor do those of two versions, also where one table is called as a part of the other's functions is."""
    mine = set(Names("t").functions.values())
    for name in schema.functions():
        for table in (f"t_{name}", f"t_{revision()}", f"t_{revision()}_{name}", f"t_{name}_{revision()}"):
            assert not mine & set(Names(table).functions.values()), table


def test_everything_is_filled_in() -> None:
    """No braces are left, and every function that is called is made."""
    made = set(make_functions(Names("x")))
    text = ";\n".join(ddl(Names("x")))
    assert not re.search(r"\{(?!\})[a-z_]+\}", text)
    assert set(re.findall(rf'"(x_{revision()}_\w+)"', text)) == made


def test_the_lock_comes_first_and_the_format_before_the_functions() -> None:
    """Whoever executes the statements in order, in one transaction, is alone, and has a whole store at the end."""
    statements = ddl(Names("shipping.cron"))
    assert "pg_advisory_xact_lock" in statements[0]
    assert "server_encoding" in statements[1]
    assert "CREATE SCHEMA" in statements[3]
    kinds = [statement.split()[0:2] for statement in statements if "CREATE" in statement or "INSERT" in statement]
    assert kinds.index(["INSERT", "INTO"]) < kinds.index(["CREATE", "OR"])
    assert not any(statement.endswith(";") for statement in statements if not statement.startswith("DO"))


def test_the_schema_public_is_never_made() -> None:
    """Where it was dropped on purpose, it stays away."""
    assert not any("CREATE SCHEMA" in statement for statement in ddl(Names("x")))


def test_another_text_is_another_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    """Functions of two versions have different names, so one store serves both."""
    before = Names("x").function("claim")
    changed = {**schema.functions(), "claim": "-- another"}
    monkeypatch.setattr(schema, "functions", lambda: changed)
    revision.cache_clear()
    try:
        assert Names("x").function("claim") != before
    finally:
        monkeypatch.undo()
        revision.cache_clear()
    assert Names("x").function("claim") == before


def test_two_tables_lock_apart() -> None:
    """The first half of the locks' keys differs, and fits into a positive integer of four bytes."""
    spaces = {int(Names(table).filled("{namespace}")) for table in ("a", "b", "a.a", "A")}
    assert len(spaces) == 4
    assert all(0 <= space < 2**31 for space in spaces)


def test_the_tables_are_those_of_the_files() -> None:
    """The list here and the statements name the same tables."""
    assert TABLES.keys() <= schema.tables().keys()
