"""`anarchon migrate`: makes the tables of a store by hand."""

from __future__ import annotations

from dataclasses import asdict
from importlib.metadata import version
from typing import TYPE_CHECKING

import click

from anarchon_tasks.cli._options import json_option, store_options
from anarchon_tasks.cli._output import print_json
from anarchon_tasks.cli._store import named_store
from anarchon_tasks.stores import _migrate

if TYPE_CHECKING:
    from collections.abc import Sequence


@click.command()
@store_options
@click.option("--sql", is_flag=True, help="Print the SQL to run by hand, and connect to nothing (PostgreSQL).")
@json_option
def migrate(*, store: str | None, prefix: str | None, table: str | None, sql: bool, as_json: bool) -> None:
    """Make the store, or bring it to the format of this version.

    Schedulers do so by themselves, if their role may. Run it by hand, with a role that may create tables and
    functions, where theirs may not. It is safe beside running schedulers, and any number of times.
    """
    with named_store(store=store, prefix=prefix, table=table) as settings:
        url, options = str(settings.store), settings.store_options()
        if sql:
            statements = _migrate.statements(url, **options)
        else:
            done = _migrate.migrate(url, **options)
    if sql:
        _print_sql(statements, as_json=as_json)
    elif as_json:
        print_json(asdict(done))
    elif done.made:
        click.echo(f"made in {done.store}, namespace {done.namespace!r}: {_summary(done.made)}")
    else:
        click.echo(f"nothing to do: {done.store}, namespace {done.namespace!r}, is in format {done.format}")


def _print_sql(statements: Sequence[str], *, as_json: bool) -> None:
    if as_json:
        print_json({"statements": list(statements)})
        return
    click.echo(f"-- The store of anarchon-tasks {version('anarchon-tasks')}. Its owner may run it again and again.")
    for statement in ("BEGIN", *statements, "COMMIT"):
        click.echo(f"{statement};\n")


def _summary(made: Sequence[str], most: int = 6) -> str:
    """Return the first names, and how many more there are."""
    shown = ", ".join(made[:most])
    return shown if len(made) <= most else f"{shown} and {len(made) - most} functions"
