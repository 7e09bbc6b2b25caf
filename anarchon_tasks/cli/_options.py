"""Options that several commands have."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import click

if TYPE_CHECKING:
    from collections.abc import Callable

F = TypeVar("F", bound="Callable[..., Any]")

MOST_SLOTS = 10_000


def store_options(command: F) -> F:
    """Give a command the options that name a store."""
    for option in (
        click.option("--table", metavar="NAME", help="Table of the store (PostgreSQL, SQLite).  [env: ANARCHON_TABLE]"),
        click.option("--prefix", metavar="PREFIX", help="Prefix of the store (Redis, Valkey).  [env: ANARCHON_PREFIX]"),
        click.option("--store", metavar="URL", help="Where the store is.  [env: ANARCHON_STORE]"),
    ):
        command = option(command)
    return command


def json_option(command: F) -> F:
    """Give a command `--json`."""
    return click.option("--json", "as_json", is_flag=True, help="Print JSON, and nothing else, to standard output.")(
        command
    )


def slot_options(command: F) -> F:
    """Give a command `--from` and `-n`."""
    since = "List the slots after this, in ISO 8601 with Z or an offset.  [default: now]"
    several = click.IntRange(1, MOST_SLOTS)
    for option in (
        click.option("--from", "since", metavar="INSTANT", help=since),
        click.option("-n", "--count", type=several, default=5, show_default=True, help="How many slots."),
    ):
        command = option(command)
    return command
