"""Cron slots against the minute walk, over clock changes of all kinds."""

from __future__ import annotations

from datetime import UTC, date, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anarchon_tasks.schedules import cron, from_sets, slots_between
from tests.unit.schedules.oracle import CHANGES, EXPRESSIONS, Matcher, expected, judge, moments

if TYPE_CHECKING:
    from collections.abc import Callable

CONTROLS = {"Asia/Kathmandu", "UTC"}
SECONDS = [
    *("0 30 2 * * *", "*/20 * * * * *", "30 0 * * * *", "15,45 59 1-3 * * *", "59 59 23 * * *", "0 0 0 * * *"),
    *("*/30 */10 2 * * *", "7 7 */1 * * *", "*/5 30 2 * * *"),
]


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_slots_equal_the_minute_walk_around_a_change(zone: str, day: date) -> None:
    """Each expression gives exactly the slots of the independent walk, in order and without doubles."""
    assert differences(zone, day, around=timedelta(hours=18)) == {}


@pytest.mark.slow
@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_slots_equal_the_minute_walk_over_many_days(zone: str, day: date) -> None:
    """The days before and after a change are right as well."""
    assert differences(zone, day, around=timedelta(days=8)) == {}


def differences(zone: str, day: date, *, around: timedelta) -> dict[str, list[int]]:
    """Return the expressions whose slots differ from the walk, with the slots that differ."""
    different = {}
    for expression in EXPRESSIONS:
        wanted, start, end = expected(expression, zone, day, around=around)
        got = slots_between(cron(expression, timezone=zone), start, end, 1_000_000)
        if got != wanted:
            different[expression] = sorted(set(got) ^ set(wanted))
    return different


@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_the_window_of_each_change_holds_the_change(zone: str, day: date) -> None:
    """The windows are worth comparing: the offset differs between their ends (but for the controls)."""
    _, start, end = expected("0 0 1 1 *", zone, day)
    offsets = {datetime.fromtimestamp(ms / 1_000, ZoneInfo(zone)).utcoffset() for ms in (start, end)}
    assert len(offsets) == (1 if zone in CONTROLS else 2)


@pytest.mark.parametrize(
    ("zone", "change"),
    [
        ("Europe/Berlin", "2025-03-30T02:00"),
        ("Europe/Berlin", "2025-10-26T02:00"),
        ("Australia/Lord_Howe", "2025-04-06T02:00"),
        ("America/St_Johns", "2006-10-29T00:00"),
    ],
)
def test_slots_with_seconds_equal_the_second_walk(zone: str, change: str) -> None:
    """With six fields each second of the hours around a change is right."""
    middle = datetime.fromisoformat(change)
    walk = moments(zone, middle - timedelta(hours=2), middle + timedelta(hours=2), timedelta(seconds=1))
    existing = [instant for moment in walk for instant in moment.instants]
    different = {}
    for expression in SECONDS:
        wanted = [slot * 1_000 for slot in judge(Matcher(expression), walk)]
        got = slots_between(
            cron(expression, timezone=zone), (min(existing) - 1) * 1_000, max(existing) * 1_000, 100_000
        )
        if got != wanted:
            different[expression] = sorted(set(got) ^ set(wanted))[:10]
    assert different == {}


BERLIN = {
    "30 2 * * *": ("03:00+02:00", "02:30+02:00"),
    "0 2 * * *": ("03:00+02:00", "02:00+02:00"),
    "0,30 2 * * *": ("03:00+02:00", "02:00+02:00 02:30+02:00"),
    "15,45 2 * * *": ("03:00+02:00", "02:15+02:00 02:45+02:00"),
    "0 2,3 * * *": ("03:00+02:00", "02:00+02:00 03:00+01:00"),
    "0 1-3 * * *": ("01:00+01:00 03:00+02:00", "01:00+02:00 02:00+02:00 03:00+01:00"),
    "*/30 2 * * *": ("", "02:00+02:00 02:30+02:00 02:00+01:00 02:30+01:00"),
    "0 */12 * * *": ("00:00+01:00 12:00+02:00", "00:00+02:00 12:00+01:00"),
}


@pytest.mark.parametrize("expression", BERLIN)
def test_berlin_days_of_change(expression: str) -> None:
    """A missing time runs once right after the gap, a repeated one once; a star follows elapsed time."""
    assert (local_times(expression, "2025-03-30"), local_times(expression, "2025-10-26")) == BERLIN[expression]


def test_a_star_hour_runs_in_both_passes_and_invents_nothing_in_the_gap() -> None:
    """Hourly runs go from 01:00 to 03:00 in spring, and through 02:00 twice in autumn."""
    assert local_times("0 * * * *", "2025-03-30").split()[:3] == ["00:00+01:00", "01:00+01:00", "03:00+02:00"]
    assert local_times("0 * * * *", "2025-10-26").split()[1:5] == [
        *("01:00+02:00", "02:00+02:00", "02:00+01:00", "03:00+01:00")
    ]
    assert local_times("0 */2 * * *", "2025-03-30").split()[:2] == ["00:00+01:00", "04:00+02:00"]
    assert local_times("0 */2 * * *", "2025-10-26").split()[:3] == ["00:00+02:00", "02:00+02:00", "02:00+01:00"]


@pytest.mark.parametrize(
    ("gap", "fold", "spring", "autumn"),
    [
        ("skip", None, "", "02:30+02:00"),
        (None, "both", "03:00+02:00", "02:30+02:00 02:30+01:00"),
        ("skip", "both", "", "02:30+02:00 02:30+01:00"),
        ("shift", "first", "03:00+02:00", "02:30+02:00"),
    ],
)
def test_gap_and_fold_change_the_rule(gap: str | None, fold: str | None, spring: str, autumn: str) -> None:
    """Both halves of the rule can be set on their own."""
    options = {"gap": gap, "fold": fold}
    assert local_times("30 2 * * *", "2025-03-30", **options) == spring
    assert local_times("30 2 * * *", "2025-10-26", **options) == autumn


def test_first_only_makes_a_starred_minute_run_once_per_named_time() -> None:
    """With gap and fold set, `*/30 2` runs like `0,30 2`."""
    assert local_times("*/30 2 * * *", "2025-03-30", gap="shift", fold="first") == "03:00+02:00"
    assert local_times("*/30 2 * * *", "2025-10-26", gap="shift", fold="first") == "02:00+02:00 02:30+02:00"


def local_times(expression: str, day: str, **options: object) -> str:
    """Write the slots of a day in Berlin as local times with their offsets."""
    zone = ZoneInfo("Europe/Berlin")
    start = datetime.fromisoformat(day).replace(tzinfo=zone)
    first, last = (int(moment.timestamp() * 1_000) for moment in (start, start + timedelta(days=1)))
    schedule = cron(expression, timezone="Europe/Berlin", **options)
    slots = slots_between(schedule, first - 1, last - 1, 1_000)
    local = (datetime.fromtimestamp(slot / 1_000, zone).isoformat() for slot in slots)
    return " ".join(text[11:16] + text[19:] for text in local)


def last_of_month(day: date) -> bool:
    """Tell whether a date is the last of its month."""
    return (day + timedelta(days=1)).day == 1


def nearest_weekday(day: date, wanted: int) -> bool:
    """Tell whether a date is the weekday nearest to a day of its month."""
    target = day.replace(day=wanted)
    moved = {5: -1, 6: 1}.get(target.weekday(), 0)
    return day == target + timedelta(days=moved)


DATES: list[tuple[str, bool, Callable[[date], bool]]] = [
    ("0 0 L * *", True, last_of_month),
    ("0 0 1,L * *", True, lambda day: day.day == 1 or last_of_month(day)),
    ("0 0 L 2 *", True, lambda day: day.month == 2 and last_of_month(day)),
    ("0 0 * * 5#2", True, lambda day: day.isoweekday() == 5 and 8 <= day.day <= 14),
    ("0 0 * * L5", True, lambda day: day.isoweekday() == 5 and (day + timedelta(days=7)).month != day.month),
    ("0 0 15W * *", True, lambda day: nearest_weekday(day, 15)),
    ("0 0 L * 1", True, lambda day: last_of_month(day) or day.isoweekday() == 1),
    ("0 0 31 * *", True, lambda day: day.day == 31),
    ("0 0 29-31 * *", True, lambda day: day.day >= 29),
    ("0 0 29 2 *", True, lambda day: (day.month, day.day) == (2, 29)),
    ("0 0 30 1,2 *", True, lambda day: (day.month, day.day) == (1, 30)),
    ("0 0 13 * 5", True, lambda day: day.day == 13 or day.isoweekday() == 5),
    ("0 0 13 * 5", False, lambda day: day.day == 13 and day.isoweekday() == 5),
    ("0 0 1-7 * mon", False, lambda day: day.day <= 7 and day.isoweekday() == 1),
    ("0 0 13 * 5#2", False, lambda day: day.day == 13 and day.isoweekday() == 5),
    ("0 0 */2 * 1", True, lambda day: day.day % 2 == 1 or day.isoweekday() == 1),
    ("0 0 * * fri-mon", True, lambda day: day.isoweekday() in (5, 6, 7, 1)),
    ("0 0 * nov-feb 0", True, lambda day: day.month in (11, 12, 1, 2) and day.isoweekday() == 7),
    ("0 0 * * 7", True, lambda day: day.isoweekday() == 7),
    ("0 0 * * 0-7", True, lambda _: True),
    ("0 0 31 2 1", True, lambda day: day.month == 2 and day.isoweekday() == 1),
]


@pytest.mark.parametrize(("expression", "day_or", "matches"), DATES)
def test_dates_equal_the_calendar_over_eight_years(
    expression: str, day_or: bool, matches: Callable[[date], bool]
) -> None:
    """The day fields pick exactly the dates the calendar says, leap days included."""
    first = date(2023, 1, 1)
    days = [first + timedelta(days=offset) for offset in range(8 * 366)]
    wanted = [day for day in days if matches(day)]
    start = int(datetime(2023, 1, 1, tzinfo=UTC).timestamp()) * 1_000
    end = start + (len(days) - 1) * 86_400_000
    slots = slots_between(cron(expression, day_or=day_or), start - 1, end, 10_000)
    assert [datetime.fromtimestamp(slot / 1_000, UTC).date() for slot in slots] == wanted


def test_sets_need_both_days() -> None:
    """The sets of a crontab ask for the 13th and a Friday, and give the Fridays the 13th."""
    schedule = from_sets({0}, {0}, {13}, set(range(1, 13)), {5}, fixed=True)
    start = int(datetime(2026, 1, 1, tzinfo=UTC).timestamp()) * 1_000
    slots = slots_between(schedule, start, start + 365 * 86_400_000, 100)
    dates = [datetime.fromtimestamp(slot / 1_000, UTC).date().isoformat() for slot in slots]
    assert dates == ["2026-02-13", "2026-03-13", "2026-11-13"]


def numbers(low: int, high: int, *, least_step: int) -> st.SearchStrategy[str]:
    """Draw a value, a range or a stepped item of a field."""
    value = st.integers(low, high)
    span = st.tuples(value, value).filter(lambda pair: pair[0] < pair[1])
    step = st.integers(least_step, high)
    return st.one_of(
        value.map(str),
        span.map(lambda pair: f"{pair[0]}-{pair[1]}"),
        st.tuples(span, step).map(lambda drawn: f"{drawn[0][0]}-{drawn[0][1]}/{drawn[1]}"),
        st.tuples(value, step).map(lambda drawn: f"{drawn[0]}/{drawn[1]}"),
        step.map(lambda number: f"*/{number}"),
    )


def fields(low: int, high: int, *, least_step: int = 1) -> st.SearchStrategy[str]:
    """Draw a whole field."""
    items = st.lists(numbers(low, high, least_step=least_step), min_size=1, max_size=3).map(",".join)
    return items if least_step > 1 else st.one_of(st.just("*"), items)


EXPRESSION = st.tuples(fields(0, 59, least_step=7), fields(0, 5), fields(1, 31), st.just("*"), fields(0, 6)).map(
    " ".join
)


@settings(max_examples=25, deadline=None)
@given(expression=EXPRESSION, change=st.sampled_from(CHANGES), day_or=st.booleans())
def test_any_expression_equals_the_minute_walk(expression: str, change: tuple[str, date], day_or: bool) -> None:
    """Whatever the fields, and around whatever change, engine and walk agree."""
    agree(expression, change, day_or=day_or)


@pytest.mark.slow
@settings(max_examples=1_000, deadline=None)
@given(expression=EXPRESSION, change=st.sampled_from(CHANGES), day_or=st.booleans())
def test_many_expressions_equal_the_minute_walk(expression: str, change: tuple[str, date], day_or: bool) -> None:
    """The same, a thousand times."""
    agree(expression, change, day_or=day_or)


def agree(expression: str, change: tuple[str, date], *, day_or: bool) -> None:
    """Compare one expression around one change."""
    zone, day = change
    wanted, start, end = expected(expression, zone, day, day_or=day_or)
    assert slots_between(cron(expression, timezone=zone, day_or=day_or), start, end, 10_000) == wanted
