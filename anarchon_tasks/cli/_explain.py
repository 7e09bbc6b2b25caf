"""`anarchon explain`: what a schedule means, before anything runs it."""

from __future__ import annotations

import os

import click

from anarchon_tasks import schedules
from anarchon_tasks.cli._options import json_option, slot_options
from anarchon_tasks.cli._output import instant_ms, print_json, print_slots, slots_as_data
from anarchon_tasks.clock import SystemClock
from anarchon_tasks.config import Settings
from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules.base import utc_text

FOR_JOB = ("bind the schedule with for_job() first", "give that name with --job")


@click.command()
@click.argument("expression")
@click.option("--tz", "zone", metavar="ZONE", help="Zone of the wall clock.  [env: ANARCHON_TIMEZONE; default: UTC]")
@slot_options
@click.option("--job", metavar="NAME", help="The job's name, for expressions with H.")
@json_option
def explain(
    *, expression: str, zone: str | None, since: str | None, count: int, job: str | None, as_json: bool
) -> None:
    """Say what EXPRESSION means, and list its next slots.

    EXPRESSION is a cron expression ("0 8 * * 1-5", six fields with seconds first, "@daily"), an interval ("every 10s")
    or one instant ("at 2026-10-24T00:00:00Z"). A slot at the instant of --from itself is not listed.
    """
    settings = Settings(timezone=zone).over(Settings.from_environment(os.environ))
    after = SystemClock().wall_ms() if since is None else instant_ms(since, option="--from")
    try:
        found = schedules.explain(expression, after=after, timezone=settings.zone(), count=count, job=job)
    except ScheduleError as error:
        raise ScheduleError(str(error).replace(*FOR_JOB)) from None
    if as_json:
        print_json(
            {
                "expression": expression,
                "schedule": found.text,
                "kind": found.kind,
                "words": found.words,
                "timezone": found.timezone,
                "from": utc_text(after),
                "slots": slots_as_data(found.slots),
                "remarks": list(found.remarks),
            }
        )
        return
    click.echo(f"{found.text}: {found.words}")
    print_slots(found.slots, found.timezone)
    for remark in found.remarks:
        click.echo(f"- {remark}")
