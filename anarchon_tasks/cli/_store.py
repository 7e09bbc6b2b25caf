"""The reader that the options or the environment give, and the jobs in it."""

from __future__ import annotations

import difflib
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING

import click

from anarchon_tasks.cli._failures import STORE
from anarchon_tasks.config import Settings, variable
from anarchon_tasks.errors import ConfigError, UnknownJob
from anarchon_tasks.reader import Reader

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.reader import StoredJob

CLOSE_NAMES = 3
NAMES_SHOWN = 10


@contextmanager
def reading(*, store: str | None, prefix: str | None, table: str | None) -> Iterator[Reader]:
    """Open a reader on the store that the options or the environment name.

    Raises:
        ConfigError: No store is named, or its options are not its own.

    """
    with named_store(store=store, prefix=prefix, table=table) as settings:
        reader = Reader(str(settings.store), **settings.store_options())
    try:
        yield reader
    finally:
        reader.close()


@contextmanager
def named_store(*, store: str | None, prefix: str | None, table: str | None) -> Iterator[Settings]:
    """Return the settings of the store that the options or the environment name.

    Raises:
        ConfigError: No store is named; or the block raised it, and then it says what came from the environment.

    """
    explicit = Settings(store=store, prefix=prefix, table=table)
    settings = explicit.over(Settings.from_environment(os.environ))
    if settings.store is None:
        message = f"no store is named: give --store URL, or set {variable('store')}"
        raise ConfigError(message)
    click.get_current_context().meta[STORE] = settings.store
    try:
        yield settings
    except ConfigError as error:
        raise ConfigError(f"{error}{_origin(explicit, settings)}") from None


def _origin(explicit: Settings, settings: Settings) -> str:
    """Say which of the settings came from the environment."""
    from_environment = [
        variable(name)
        for name in ("store", "prefix", "table")
        if getattr(explicit, name) is None and getattr(settings, name) is not None
    ]
    return f" (set in the environment: {', '.join(from_environment)})" if from_environment else ""


def find_job(reader: Reader, name: str) -> StoredJob:
    """Return a job that the store knows.

    Raises:
        UnknownJob: It knows none of that name; the message names similar ones.

    """
    stored = reader.jobs()
    for job in stored:
        if job.name == name:
            return job
    raise UnknownJob(f"the store knows no job named {name!r}{_similar(name, [job.name for job in stored])}")


def _similar(name: str, names: list[str]) -> str:
    if not names:
        return ": it knows no jobs at all; check --prefix or --table, and that a scheduler has run"
    close = difflib.get_close_matches(name, names, n=CLOSE_NAMES)
    if close:
        return f"; did you mean {' or '.join(map(repr, close))}?"
    if len(names) <= NAMES_SHOWN:
        return f"; it knows {', '.join(map(repr, names))}"
    return f"; it knows {len(names)} others, see `anarchon jobs`"
