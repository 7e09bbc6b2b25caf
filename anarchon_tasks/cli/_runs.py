"""`anarchon history`: what became of past slots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from anarchon_tasks.cli._options import json_option, store_options
from anarchon_tasks.cli._output import length, one_line, print_json, print_table
from anarchon_tasks.cli._store import find_job, reading
from anarchon_tasks.model import iso
from anarchon_tasks.reader import HISTORY_LIMIT

if TYPE_CHECKING:
    from anarchon_tasks.model import Run

HEADS = ("SLOT", "ATTEMPT", "STATUS", "REASON", "SLOTS", "LATE", "TOOK", "WORKER", "ERROR")
ERROR_WIDTH = 60


@click.command()
@click.argument("job")
@click.option(
    *("-n", "--limit"), type=click.IntRange(1, HISTORY_LIMIT), default=20, show_default=True, help="How many entries."
)
@store_options
@json_option
def history(*, job: str, limit: int, store: str | None, prefix: str | None, table: str | None, as_json: bool) -> None:
    """Show what became of the slots of JOB, newest first.

    One entry is one attempt of a run, or a stretch of slots that were skipped or missed for one reason.
    """
    with reading(store=store, prefix=prefix, table=table) as reader:
        runs = reader.history(job, limit=limit)
        if not runs:
            find_job(reader, job)  # says so when there is none
    if as_json:
        print_json([run.to_json() for run in runs])
    elif runs:
        print_table(HEADS, [_cells(run) for run in runs])
    else:
        click.echo(one_line(f"no runs of {job} yet"))


def _cells(run: Run) -> tuple[str, ...]:
    error = run.error or ""
    return (
        iso(run.slot) or "",
        str(run.attempt or "-"),
        run.status.value,
        run.reason or "",
        str(run.count) if run.count > 1 else "",
        length(run.lateness_ms),
        length(run.duration_ms),
        run.worker or "",
        error if len(error) <= ERROR_WIDTH else error[: ERROR_WIDTH - 3] + "...",
    )
