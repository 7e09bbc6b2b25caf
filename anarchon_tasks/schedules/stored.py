"""Schedules from what the store knows of them, without the code that made them."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anarchon_tasks.schedules.base import Bounds
from anarchon_tasks.schedules.cron import CronSchedule
from anarchon_tasks.schedules.dst import Rule
from anarchon_tasks.schedules.every import EverySchedule
from anarchon_tasks.schedules.explain import parse

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anarchon_tasks.schedules.base import Schedule


def details(schedule: Schedule) -> dict[str, Any]:
    """Return what the text and the zone of a schedule do not show: its bounds, and a rule for clock changes.

    Plain data, ready for JSON; empty for most schedules, and for those of other packages.
    """
    found: dict[str, Any] = {}
    if isinstance(schedule, (CronSchedule, EverySchedule)):
        found = {"start": schedule.bounds.start_ms, "end": schedule.bounds.end_ms}
    if isinstance(schedule, CronSchedule):
        fixed = schedule.expression.fixed
        if schedule.rule != Rule(shift=fixed, twice=not fixed):
            found |= {"shift": schedule.rule.shift, "twice": schedule.rule.twice}
    return {name: value for name, value in found.items() if value is not None}


def rebuild(text: str, *, job: str, timezone: str | None, details: Mapping[str, Any]) -> Schedule:
    """Return the schedule with this text, this zone and these details.

    Args:
        text: The canonical text.
        job: The job's name, for expressions with `H`.
        timezone: The zone that the schedule named.
        details: What `details` returned.

    Raises:
        ScheduleError: The text is none that `parse` reads.

    """
    schedule = parse(text, timezone=timezone).for_job(job)
    if isinstance(schedule, (CronSchedule, EverySchedule)):
        schedule = replace(schedule, bounds=Bounds(start_ms=details.get("start"), end_ms=details.get("end")))
    if isinstance(schedule, CronSchedule) and "shift" in details:
        schedule = replace(schedule, rule=Rule(shift=bool(details["shift"]), twice=bool(details["twice"])))
    return schedule
