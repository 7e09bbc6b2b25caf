"""`anarchon jobs`: what the store knows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from anarchon_tasks.cli._options import json_option, store_options
from anarchon_tasks.cli._output import print_json, print_table
from anarchon_tasks.cli._store import reading
from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.model import iso

if TYPE_CHECKING:
    from anarchon_tasks.model import Run
    from anarchon_tasks.reader import Reader, StoredJob

PAGE = 500


@click.command()
@store_options
@json_option
def jobs(*, store: str | None, prefix: str | None, table: str | None, as_json: bool) -> None:
    """List the jobs, with their last run and next slot.

    A job whose slots only your code can compute has no next slot here.
    """
    with reading(store=store, prefix=prefix, table=table) as reader:
        stored = reader.jobs()
        last = _last_runs(reader, stored)
        now = reader.now_ms()
    rows = [_row(job, run, now) for job, run in zip(stored, last, strict=True)]
    if as_json:
        print_json(rows)
    elif rows:
        heads = ("NAME", "SCHEDULE", "ZONE", "LAST", "STATUS", "NEXT")
        print_table(heads, [_cells(row) for row in rows])
    else:
        click.echo("no jobs: no scheduler has registered one in this namespace")


def _last_runs(reader: Reader, stored: list[StoredJob]) -> list[Run | None]:
    names = [job.name for job in stored]
    return [run for at in range(0, len(names), PAGE) for run in reader.last_runs(names[at : at + PAGE])]


def _row(job: StoredJob, last: Run | None, now: int) -> dict[str, Any]:
    return {
        "name": job.name,
        "schedule": job.schedule,
        "kind": job.kind,
        "timezone": job.timezone,
        "describe": job.describe,
        "target": job.target,
        "queue": job.queue,
        "options": job.options,
        "next": iso(_next(job, now)),
        "last_run": None if last is None else last.to_json(),
    }


def _next(job: StoredJob, now: int) -> int | None:
    schedule = job.rebuild()
    try:
        return None if schedule is None else schedule.next(now)
    except ScheduleError:
        return None


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    last = row["last_run"] or {}
    status = " ".join(filter(None, (last.get("status"), f"({last['reason']})" if last.get("reason") else None)))
    zone, following = row["timezone"] or "", row["next"] or "-"
    return row["name"], row["schedule"], zone, last.get("scheduled_for") or "-", status or "-", following
