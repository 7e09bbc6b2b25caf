"""`anarchon next`: when a job runs."""

from __future__ import annotations

import click

from anarchon_tasks.cli._failures import Failed
from anarchon_tasks.cli._options import json_option, slot_options, store_options
from anarchon_tasks.cli._output import instant_ms, one_line, print_json, print_slots, slots_as_data
from anarchon_tasks.cli._store import find_job, reading
from anarchon_tasks.schedules import explain_slots
from anarchon_tasks.schedules.base import utc_text
from anarchon_tasks.schedules.zones import zone_name


@click.command("next")
@click.argument("job")
@click.option("--tz", "zone", metavar="ZONE", help="Zone of the local times.  [default: the schedule's]")
@slot_options
@store_options
@json_option
def next_slots(
    *,
    job: str,
    count: int,
    zone: str | None,
    since: str | None,
    store: str | None,
    prefix: str | None,
    table: str | None,
    as_json: bool,
) -> None:
    """List the next slots of JOB, with what clock changes do to them.

    Slots are the planned times; a job with jitter or spread is enqueued that much later.
    """
    local = zone_name(zone, option="--tz")
    after = None if since is None else instant_ms(since, option="--from")
    with reading(store=store, prefix=prefix, table=table) as reader:
        stored = find_job(reader, job)
        after = reader.now_ms() if after is None else after
    schedule = stored.rebuild()
    if schedule is None:
        message = (
            f"the slots of job {job!r} cannot be computed here: its schedule ({stored.schedule}) is known to the code "
            "that registered it alone"
        )
        raise Failed(message)
    shown = local or stored.timezone or "UTC"
    slots = explain_slots(schedule, after_ms=after, count=count, zone=shown)
    if not as_json:
        click.echo(one_line(f"{job}: {stored.schedule} - {stored.describe}"))
        print_slots(slots, shown)
        return
    print_json(
        {
            "job": job,
            "schedule": stored.schedule,
            "words": stored.describe,
            "timezone": shown,
            "from": utc_text(after),
            "slots": slots_as_data(slots),
        }
    )
