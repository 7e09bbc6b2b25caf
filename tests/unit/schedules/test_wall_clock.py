"""Cron slots against the minute walk, over clock changes of all kinds."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta

import pytest

from anarchon_tasks.schedules import cron, slots_between
from tests.unit.schedules.oracle import CHANGES, EXPRESSIONS, expected

SECONDS = [
    *("0 30 2 * * *", "*/20 * * * * *", "30 0 * * * *", "15,45 59 1-3 * * *", "59 59 23 * * *", "0 0 0 * * *"),
    *("*/30 */10 2 * * *", "7 7 */1 * * *", "* 30 2 * * *"),
]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_slots_equal_the_minute_walk_around_a_change(zone: str, day: date) -> None:
    """Each expression gives exactly the slots of the independent walk, in order and without doubles."""
    different = {}
    for expression in EXPRESSIONS:
        wanted, start, end = expected(expression, zone, day)
        got = slots_between(cron(expression, timezone=zone), start, end, 100_000)
        if got != wanted:
            different[expression] = sorted(set(got) ^ set(wanted))
    assert different == {}


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Berlin", datetime(2025, 3, 30, 2)),
        ("Europe/Berlin", datetime(2025, 10, 26, 2)),
        ("Australia/Lord_Howe", datetime(2025, 4, 6, 2)),
        ("Australia/Lord_Howe", datetime(2025, 10, 5, 2)),
        ("America/Santiago", datetime(2025, 9, 7)),
        ("America/St_Johns", datetime(2006, 10, 29)),
    ],
)
def test_slots_with_seconds_equal_the_second_walk(zone: str, change: datetime) -> None:
    """With six fields each second of the hours around a change is right."""
    hour = timedelta(hours=1)
    different = {}
    for expression in SECONDS:
        wanted, start, end = walk_seconds(expression, zone, change, 3 * hour)
        got = slots_between(cron(expression, timezone=zone), start, end, 100_000)
        if got != wanted:
            different[expression] = sorted(set(got) ^ set(wanted))[:10]
    assert different == {}


def walk_seconds(expression: str, zone: str, change: datetime, around: timedelta) -> tuple[list[int], int, int]:
    """Judge each second from `around` before to `around` after a change of the wall clock."""
    from tests.unit.schedules.oracle import EPOCH, Matcher, judge, moments

    walk = moments(zone, change - around, change + around, timedelta(seconds=1))
    slots = judge(Matcher(expression), walk)
    existing = [instant for moment in walk for instant in moment.instants]
    start, end = min(existing) - 1, max(existing)
    assert EPOCH.tzinfo is UTC
    return [slot * 1_000 for slot in slots], start * 1_000, end * 1_000
