"""A slot depends on the schedule and the question alone: not on what was asked before, where, or when."""

from __future__ import annotations

import subprocess
import sys
from bisect import bisect_right
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, date, datetime, timedelta
from random import Random
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anarchon_tasks.schedules import cron, every, slots_between, upcoming
from anarchon_tasks.schedules import cron as cron_function
from anarchon_tasks.schedules._memo import SlotMemo
from tests.unit.schedules.oracle import CHANGES, EXPRESSIONS, expected

WINDOWS = [
    ("*/20 * * * *", "Europe/Berlin", "2025-10-26T02:00"),
    ("30 2 * * *", "Europe/Berlin", "2025-03-30T01:59"),
    ("15,45 2 * * *", "Europe/Berlin", "2025-10-26T02:55"),
    ("15,45 1 * * *", "Europe/Dublin", "2025-10-26T01:55"),
    ("*/7 * * * *", "Australia/Lord_Howe", "2025-04-06T02:00"),
    ("0,30 0 * * *", "America/Santiago", "2025-09-06T23:59"),
    ("*/30 2 * * *", "Antarctica/Troll", "2025-10-26T02:00"),
]


def compute(expression: str, zone: str) -> SlotMemo:
    """Return a fresh computation with nothing remembered."""
    engine = cron(expression, timezone=zone)._bound_engine()
    return SlotMemo(engine._next)


def seconds_around(zone: str, middle: str, around: timedelta) -> range:
    """Return every second around a local time, in milliseconds."""
    centre = int(datetime.fromisoformat(middle).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000
    ms = around // timedelta(milliseconds=1)
    return range(centre - ms, centre + ms, 1_000)


@pytest.mark.parametrize(("expression", "zone", "middle"), WINDOWS)
def test_every_second_gives_the_next_slot(expression: str, zone: str, middle: str) -> None:
    """From each second around a change a cold computation finds the slot that the minute walk names."""
    assert wrong_seconds(expression, zone, middle, timedelta(minutes=10)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("expression", "zone", "middle"), WINDOWS)
def test_every_second_of_four_hours_gives_the_next_slot(expression: str, zone: str, middle: str) -> None:
    """The same for two hours before a change and two hours after it."""
    assert wrong_seconds(expression, zone, middle, timedelta(hours=2)) == []


@pytest.mark.slow
@pytest.mark.parametrize(("zone", "day"), CHANGES)
def test_every_half_minute_of_a_day_of_change_gives_the_next_slot(zone: str, day: date) -> None:
    """The same over a whole day, for expressions of each kind."""
    for expression in ("30 2 * * *", "*/7 */3 * * *", "0 0 * * *", "1,31 0,2 * * *"):
        assert wrong_seconds(expression, zone, f"{day}T12:00", timedelta(hours=13), step=30) == []


def wrong_seconds(expression: str, zone: str, middle: str, around: timedelta, *, step: int = 1) -> list[int]:
    """Return the questions around a local time whose answer is not the one of the minute walk."""
    slots, _, end = expected(expression, zone, date.fromisoformat(middle[:10]), around=timedelta(hours=40))
    ask = cron(expression, timezone=zone)._bound_engine()._next
    seconds = seconds_around(zone, middle, around)[::step]
    assert slots[0] < seconds[0] < seconds[-1] < min(slots[-1], end)
    return [after for after in seconds if ask(after) != slots[bisect_right(slots, after)]]


@settings(max_examples=40, deadline=None)
@given(
    expression=st.sampled_from(EXPRESSIONS),
    change=st.sampled_from(CHANGES),
    offset_ms=st.integers(-100_000_000, 100_000_000),
)
def test_next_is_later_and_nothing_lies_between(expression: str, change: tuple[str, date], offset_ms: int) -> None:
    """The next slot is after the question, and from any instant before it, it is still the next."""
    zone, day = change
    schedule = cron(expression, timezone=zone)
    after = int(datetime(day.year, day.month, day.day, 12, tzinfo=ZoneInfo(zone)).timestamp()) * 1_000 + offset_ms
    slot = schedule.next(after)
    assert slot is not None
    assert slot > after
    for part in (1, 3, 7, 9):
        between = after + (slot - after) * part // 10
        assert schedule._bound_engine()._next(between) == slot
    assert schedule._bound_engine()._next(slot - 1) == slot


@pytest.mark.parametrize("expression", ["0 3 * * 0", "5 0 1 * *", "0 0 31 12 *", "30 2 29 * *"])
def test_starts_that_differ_by_years_meet_in_the_same_list(expression: str) -> None:
    """Walking here from twenty years ago gives the list that a start of today gives."""
    schedule = cron(expression, timezone="Europe/Athens")
    today, old = (int(datetime(year, 1, 1, tzinfo=UTC).timestamp()) * 1_000 for year in (2025, 2005))
    end = today + 3 * 366 * 86_400_000
    from_old = slots_between(schedule, old, end, 10_000)
    assert from_old == sorted(set(from_old))
    assert [slot for slot in from_old if slot > today] == slots_between(schedule, today, end, 10_000)


def test_asking_once_per_slot_equals_walking_on() -> None:
    """A fresh computation for each slot gives what one that remembers gives."""
    schedule = cron("*/20 1-3 * * *", timezone="Europe/Berlin")
    start = seconds_around("Europe/Berlin", "2025-10-26T00:00", timedelta(0)).start
    walked = upcoming(schedule, start, 40)
    fresh = [start]
    for _ in range(40):
        slot = compute("*/20 1-3 * * *", "Europe/Berlin").next(fresh[-1])
        assert slot is not None
        fresh.append(slot)
    assert fresh[1:] == walked


def test_a_fresh_process_gives_the_same_slots() -> None:
    """Another process, with another hash seed, agrees; also on `H`."""
    code = (
        "from anarchon_tasks.schedules import cron, upcoming\n"
        "print(upcoming(cron('H H(1-3) * * *', timezone='Europe/Berlin').for_job('digest'), 1_760_000_000_000, 30))"
    )
    result = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        text=True,
        env={"PYTHONHASHSEED": "77", "PYTHONPATH": ":".join(filter(None, sys.path))},
    )
    schedule = cron("H H(1-3) * * *", timezone="Europe/Berlin").for_job("digest")
    assert result.stdout.strip() == str(upcoming(schedule, 1_760_000_000_000, 30))


def test_threads_that_share_a_computation_agree() -> None:
    """Eight threads that ask in different orders all get the answers of one."""
    schedule = cron_function("*/20 * * * *", timezone="Europe/Berlin")
    questions = list(seconds_around("Europe/Berlin", "2025-10-26T02:00", timedelta(hours=2))[::97])
    truth = [compute("*/20 * * * *", "Europe/Berlin").next(question) for question in questions]

    def ask(seed: int) -> list[int | None]:
        order = Random(seed).sample(range(len(questions)), len(questions))
        answers = {at: schedule.next(questions[at]) for at in order}
        return [answers[at] for at in range(len(questions))]

    with ThreadPoolExecutor(8) as pool:
        assert all(answers == truth for answers in pool.map(ask, range(8)))


@given(
    slots=st.lists(st.integers(0, 60), min_size=1, max_size=60, unique=True).map(sorted),
    questions=st.lists(st.integers(-3, 63), max_size=150),
)
def test_the_memory_never_changes_an_answer(slots: list[int], questions: list[int]) -> None:
    """Whatever was asked before, a question gets the answer of the computation behind the memory."""

    def truth(after: int) -> int | None:
        at = bisect_right(slots, after)
        return slots[at] if at < len(slots) else None

    memo = SlotMemo(truth)
    assert [memo.next(question) for question in questions] == [truth(question) for question in questions]


def test_the_memory_knows_where_it_starts() -> None:
    """What was learnt by asking at a slot says nothing about an instant just before that slot."""
    memo = SlotMemo(lambda after: (after // 10 + 1) * 10)
    assert [memo.next(20), memo.next(19), memo.next(9), memo.next(10)] == [30, 20, 10, 20]


def test_the_memory_is_asked_and_stays_small() -> None:
    """Many questions about one slot cost one computation, and a long walk keeps a bounded number of slots."""
    asked = []

    def compute_hourly(after: int) -> int:
        asked.append(after)
        return (after // 3_600_000 + 1) * 3_600_000

    memo = SlotMemo(compute_hourly)
    assert {memo.next(1_000 + job) for job in range(5_000)} == {3_600_000}
    assert len(asked) == 1
    slot = 3_600_000
    for _ in range(500):
        slot = memo.next(slot) or 0
        assert memo.next(slot - 3_600_000) == slot
    assert len(asked) == 501
    assert len(memo._stretch.slots) == 32


def test_jobs_with_the_same_expression_share_one_computation() -> None:
    """Schedules that were made apart, and bound to different jobs, ask the same engine."""
    one = cron("7 3 * * *", timezone="Europe/Athens").for_job("a")
    two = cron("7  3 * * *").in_zone("Europe/Athens").for_job("b")
    assert one._bound_engine() is two._bound_engine()
    assert one._bound_engine() is not cron("7 3 * * *", timezone="Europe/Berlin")._bound_engine()


def test_every_is_pure_for_any_millisecond() -> None:
    """An interval gives the same next slot from each millisecond before it."""
    schedule = every("250ms", offset="30ms")
    assert {schedule.next(after) for after in range(30, 280)} == {280}
