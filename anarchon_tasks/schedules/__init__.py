"""When a job runs: pure schedules that every instance computes alike."""

from __future__ import annotations

from anarchon_tasks.schedules.at import AtSchedule, at
from anarchon_tasks.schedules.base import Schedule, latest, slots_between, upcoming
from anarchon_tasks.schedules.cron import CronSchedule, cron, from_sets
from anarchon_tasks.schedules.every import EverySchedule, every
from anarchon_tasks.schedules.explain import ExplainedSlot, Explanation, explain, explain_slots, parse
from anarchon_tasks.schedules.zones import EngineVersions, engine_versions

__all__ = [
    "AtSchedule",
    "CronSchedule",
    "EngineVersions",
    "EverySchedule",
    "ExplainedSlot",
    "Explanation",
    "Schedule",
    "at",
    "cron",
    "engine_versions",
    "every",
    "explain",
    "explain_slots",
    "from_sets",
    "latest",
    "parse",
    "slots_between",
    "upcoming",
]
