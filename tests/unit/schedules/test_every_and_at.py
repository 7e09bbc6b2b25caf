"""Intervals, one-offs, bounds, and the helpers that walk schedules."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules import Schedule, at, cron, every, latest, slots_between, upcoming

MAKERS = [lambda **bounds: every("6h", **bounds), lambda **bounds: cron("0 */6 * * *", **bounds)]
DAY_MS = 86_400_000
NOON = datetime(2026, 5, 1, 12, tzinfo=UTC)
NOON_MS = int(NOON.timestamp()) * 1_000


@pytest.mark.parametrize(
    ("period", "after", "slot"),
    [
        ("10s", 0, 10_000),
        ("10s", 9_999, 10_000),
        ("10s", 10_000, 20_000),
        ("10s", -1, 0),
        ("10s", -10_000, 0),
        ("250ms", 1, 250),
        ("7m", 420_000, 840_000),
        (timedelta(days=1), NOON_MS, NOON_MS + DAY_MS // 2),
        (0.5, 499, 500),
        (90, 1, 90_000),
    ],
)
def test_slots_are_multiples_of_the_period_since_the_epoch(period: str, after: int, slot: int) -> None:
    """The next slot is the next multiple, strictly after the question, below a second and before 1970 too."""
    assert every(period).next(after) == slot


@pytest.mark.parametrize(
    ("offset", "normal"), [("3s", 3_000), ("13s", 3_000), (-7, 3_000), (timedelta(seconds=-7), 3_000), ("20s", 0)]
)
def test_an_offset_is_taken_modulo_the_period(offset: str, normal: int) -> None:
    """Offsets beyond the period, and negative ones, are the same as their remainder."""
    schedule = every("10s", offset=offset)
    assert schedule.offset_ms == normal
    assert schedule.next(0) == (normal or 10_000)


@given(
    period=st.integers(1, 10**9),
    offset=st.integers(0, 10**9),
    after=st.integers(-(10**13), 10**13),
)
def test_the_next_slot_is_on_the_grid_and_within_one_period(period: int, offset: int, after: int) -> None:
    """For any numbers the slot is on the grid, later than the question, by at most a period."""
    slot = every(timedelta(milliseconds=period), offset=timedelta(milliseconds=offset)).next(after)
    assert slot is not None
    assert (slot - offset) % period == 0
    assert after < slot <= after + period


@pytest.mark.parametrize("period", [0, "0s", -5, "soon", "", None, True, float("nan"), timedelta(0), "0.1ms", [], "1y"])
def test_a_period_that_is_none_is_refused(period: object) -> None:
    """Zero, negative numbers and what is no duration are refused with the name of the option."""
    with pytest.raises(ScheduleError, match="every="):
        every(period)


def test_a_wrong_offset_is_refused() -> None:
    """An offset that is no duration is refused with its name."""
    with pytest.raises(ScheduleError, match="offset='x'"):
        every("10s", offset="x")


def test_intervals_read_well() -> None:
    """Text and words say period and offset; no clock change ever touches them."""
    schedule = every(timedelta(hours=1, minutes=30), offset="5m")
    assert (schedule.kind, schedule.text, schedule.timezone) == ("every", "every 1h30m offset 5m", None)
    assert schedule.describe() == "Every 1 hour 30 minutes, 5 minutes after the full interval"
    assert every("10s").describe() == "Every 10 seconds"
    assert every("1d").describe() == "Every day"
    assert every("1ms").describe() == "Every millisecond"
    assert schedule.note(0) is None
    assert schedule.for_job("a") is schedule
    assert schedule.in_zone("Europe/Berlin") is schedule


def test_a_one_off_has_one_slot() -> None:
    """`at` is there once, and then never again."""
    when = datetime(2026, 10, 25, 2, 30, 0, 999, tzinfo=ZoneInfo("Europe/Paris"))
    schedule = at(when)
    slot = int(datetime(2026, 10, 25, 0, 30, tzinfo=UTC).timestamp()) * 1_000
    assert upcoming(schedule, 0, 5) == [slot]
    assert schedule.next(slot - 1) == slot
    assert schedule.next(slot) is None
    assert (schedule.kind, schedule.text, schedule.timezone) == ("at", "at 2026-10-25T00:30:00Z", "Europe/Paris")
    assert schedule.describe() == "Once, at 2026-10-25T00:30:00Z"
    assert schedule.note(slot) is None
    assert schedule.for_job("a") is schedule
    assert schedule.in_zone("Asia/Tokyo") is schedule
    assert schedule.fingerprint != at(when + timedelta(hours=1)).fingerprint


@pytest.mark.parametrize("when", [datetime.fromisoformat("2026-10-25T02:30"), "2026-10-25T02:30Z", None])
def test_a_one_off_needs_an_aware_datetime(when: object) -> None:
    """A naive datetime means another instant on each host, so it is refused."""
    with pytest.raises(ScheduleError, match="aware datetime"):
        at(when)


@pytest.mark.parametrize("make", MAKERS, ids=["every", "cron"])
def test_slots_outside_the_bounds_do_not_exist(make: type) -> None:
    """Both bounds belong to the stretch; before it the first slot is waited for, after it there is none."""
    schedule = make(start=NOON, end=NOON + timedelta(hours=12))
    assert slots_between(schedule, 0, NOON_MS * 2, 100) == [NOON_MS, NOON_MS + DAY_MS // 4, NOON_MS + DAY_MS // 2]
    assert schedule.next(NOON_MS + DAY_MS // 2) is None
    assert schedule.next(NOON_MS + DAY_MS // 2 - 1) == NOON_MS + DAY_MS // 2
    assert make(start=NOON + timedelta(microseconds=1)).next(0) == NOON_MS + DAY_MS // 4
    assert make(end=NOON - timedelta(microseconds=1)).next(NOON_MS - 1) is None
    assert schedule.describe().endswith(", from 2026-05-01T12:00:00Z, until 2026-05-02T00:00:00Z")
    assert schedule.fingerprint != make().fingerprint


@pytest.mark.parametrize("make", MAKERS, ids=["every", "cron"])
def test_bounds_are_checked(make: type) -> None:
    """Bounds are aware, and in order; a stretch that is over is no error."""
    with pytest.raises(ScheduleError, match=r"end=.* is before start="):
        make(start=NOON, end=NOON - timedelta(seconds=1))
    with pytest.raises(ScheduleError, match=r"start=.* is not an aware datetime"):
        make(start=NOON.replace(tzinfo=None))
    with pytest.raises(ScheduleError, match=r"end=.* is not an aware datetime"):
        make(end="2026-05-01")
    assert make(end=datetime(2001, 1, 1, tzinfo=UTC)).next(NOON_MS) is None


def test_slots_between_is_open_below_and_closed_above() -> None:
    """The first instant is left out, the last one is in, and the limit keeps the oldest."""
    assert slots_between(every("10s"), 10_000, 40_000, 10) == [20_000, 30_000, 40_000]
    assert slots_between(every("10s"), 10_000, 39_999, 10) == [20_000, 30_000]
    assert slots_between(every("10s"), 10_000, 10**9, 2) == [20_000, 30_000]
    assert slots_between(every("10s"), 10_000, 10_000, 10) == []
    assert slots_between(every("10s"), 0, 10**9, 0) == []


def test_upcoming_gives_what_there_is() -> None:
    """It stops when the schedule does."""
    assert upcoming(every("10s"), 0, 3) == [10_000, 20_000, 30_000]
    assert upcoming(every("10s"), 0, 0) == []
    assert upcoming(every("10s", end=datetime(1970, 1, 1, 0, 0, 15, tzinfo=UTC)), 0, 3) == [10_000]


@given(
    slots=st.lists(st.integers(0, 10**7), max_size=40, unique=True).map(sorted),
    after=st.integers(-10, 10**7),
    length=st.integers(0, 10**7),
)
def test_latest_is_the_last_of_the_slots_between(slots: list[int], after: int, length: int) -> None:
    """Looking back finds the same slot as walking forward."""

    class Given:
        def next(self, after_ms: int) -> int | None:
            return next((slot for slot in slots if slot > after_ms), None)

    between = slots_between(Given(), after, after + length, 1_000)
    assert latest(Given(), after, after + length) == (between[-1] if between else None)


def test_latest_does_not_walk_a_long_outage() -> None:
    """After a year away, the newest slot of a frequent job takes few steps."""
    asked = []

    class Counting:
        def next(self, after_ms: int) -> int | None:
            asked.append(after_ms)
            return every("1s").next(after_ms)

    assert latest(Counting(), 0, 366 * DAY_MS + 500) == 366 * DAY_MS
    assert len(asked) < 10


@pytest.mark.parametrize("schedule", [every("10s"), cron("0 8 * * *"), at(NOON)], ids=["every", "cron", "at"])
def test_every_kind_is_a_schedule(schedule: object) -> None:
    """All kinds answer the protocol, and are values: equal, hashable."""
    assert isinstance(schedule, Schedule)
    assert len({schedule, schedule}) == 1


def test_fingerprints_change_with_the_slots_alone() -> None:
    """What moves a slot is in the fingerprint; how it was written is not."""
    base = cron("30 2 * * *", timezone="Europe/Berlin")
    same = [
        cron(" 30  2 * * *").in_zone("Europe/Berlin"),
        base.for_job("a"),
        cron("30 2 * * *", timezone="Europe/Berlin"),
    ]
    other = [
        cron("31 2 * * *", timezone="Europe/Berlin"),
        cron("30 2 * * *", timezone="Europe/Athens"),
        cron("30 2 * * *"),
        cron("30 2 * * *", timezone="Europe/Berlin", day_or=False),
        cron("30 2 * * *", timezone="Europe/Berlin", gap="skip"),
        cron("30 2 * * *", timezone="Europe/Berlin", fold="both"),
        cron("30 2 * * *", timezone="Europe/Berlin", start=NOON),
        cron("30 2 * * *", timezone="Europe/Berlin", end=NOON),
        cron("H 2 * * *", timezone="Europe/Berlin").for_job("a"),
        every("10s"),
        every("10s", offset="1s"),
        every("10s", end=NOON),
        at(NOON),
    ]
    assert {schedule.fingerprint for schedule in same} == {base.fingerprint}
    assert len({schedule.fingerprint for schedule in [base, *other]}) == len(other) + 1
    assert cron("H 2 * * *").for_job("a").fingerprint != cron("H 2 * * *").for_job("b").fingerprint
    assert cron("0 8 * * *").fingerprint == cron("0 8 * * *", timezone="UTC").fingerprint
