"""Celery's schedule objects as pure schedules."""

from __future__ import annotations

import copy
import itertools
import zoneinfo
from datetime import UTC, datetime, timedelta, timezone
from typing import Any

import pytest
from celery import Celery
from celery.schedules import BaseSchedule, crontab, schedule

from anarchon_celery.adapters import TextSchedule, to_celery
from anarchon_celery.asked import AskedSchedule
from anarchon_celery.schedules import convert, zone_of
from anarchon_tasks.errors import ConfigError, ScheduleError
from anarchon_tasks.schedules import cron, every, upcoming
from anarchon_tasks.schedules.base import Bounds, to_instant_ms, to_utc

ZONES = ["UTC", "Europe/Athens", "America/New_York", "Asia/Kolkata"]
CRONTABS: list[dict[str, Any]] = [
    {},
    {"minute": "*/15"},
    {"minute": 0, "hour": 8},
    {"minute": "1,13,30-45,50-59/2"},
    {"minute": 30, "hour": "0,8-17/2"},
    {"minute": 0, "hour": 0, "day_of_week": "mon-fri"},
    {"minute": 0, "hour": 0, "day_of_week": "monday"},
    {"minute": 0, "hour": 0, "day_of_week": "fri-mon"},
    {"minute": 0, "hour": "22-2"},
    {"minute": "50-10/5", "hour": "*/6"},
    {"minute": 0, "hour": 0, "day_of_month": "13", "day_of_week": "5"},
    {"minute": 0, "hour": 0, "day_of_month": "1-7", "day_of_week": "mon"},
    {"minute": 0, "hour": 0, "day_of_month": "*/2", "day_of_week": "1"},
    {"minute": 0, "hour": 0, "day_of_month": "2-30/3"},
    {"minute": 0, "hour": 12, "month_of_year": "Sept,january"},
    {"minute": 0, "hour": 12, "day_of_week": "mar"},
    {"minute": [0, 20, 40], "hour": {1, 2, 3}},
    {"minute": range(0, 60, 7), "hour": (6, 18)},
    {"minute": 59, "hour": 23, "day_of_month": 31},
    {"minute": 0, "hour": 0, "day_of_month": 29, "month_of_year": 2},
]
INSTANTS = [
    datetime(2026, 1, 5, 7, 59, 59, tzinfo=UTC),
    datetime(2026, 2, 27, 23, 58, 30, tzinfo=UTC),
    datetime(2026, 5, 31, 12, 0, tzinfo=UTC),
    datetime(2026, 8, 13, 3, 14, 15, tzinfo=UTC),
    datetime(2026, 12, 11, 21, 45, tzinfo=UTC),
]


def make_app(zone: str = "UTC") -> Celery:
    """Return an app in a time zone."""
    app = Celery("schedules", broker="memory://", set_as_current=False)
    app.conf.timezone = zone
    return app


def celery_says(value: BaseSchedule, app: Celery, after: datetime) -> int:
    """Ask Celery itself for the slot that follows an instant."""
    asked: Any = copy.copy(value)
    asked.app, asked.nowfun = app, lambda: after
    return to_instant_ms(after.astimezone(UTC) + asked.remaining_estimate(after))


@pytest.mark.parametrize("zone", ZONES)
@pytest.mark.parametrize("fields", CRONTABS, ids=str)
def test_a_crontab_has_the_slots_that_celery_computes(fields: dict[str, Any], zone: str) -> None:
    """Away from clock changes, whatever the fields are written with, in every zone."""
    app = make_app(zone)
    value = crontab(**fields)
    made = convert(value, app=app)
    for instant in INSTANTS:
        local = instant.astimezone(app.timezone)
        assert made.next(to_instant_ms(instant)) == celery_says(value, app, local), instant


def test_celery_4307_both_day_fields_have_to_match() -> None:
    """A `crontab` with a weekday and a day of the month keeps Celery's meaning; text keeps that of cron."""
    app = make_app()
    friday_13th = convert(crontab(0, 0, day_of_month="13", day_of_week="5"), app=app)
    start = to_instant_ms(datetime(2026, 1, 1, tzinfo=UTC))
    days = [to_utc(slot).date() for slot in upcoming(friday_13th, start, 2)]
    assert [(day.day, day.isoweekday()) for day in days] == [(13, 5), (13, 5)]
    text = convert("0 0 13 * 5", app=app)
    assert to_utc(text.next(start) or 0).date().isoformat() == "2026-01-02"


def test_nowfun_gives_the_zone_where_celery_lets_it() -> None:
    """A crontab with `nowfun` runs when Celery itself would run it."""
    tokyo = zoneinfo.ZoneInfo("Asia/Tokyo")
    app = make_app("Europe/Athens")
    made = convert(crontab(0, 8, nowfun=lambda: datetime.now(tokyo)), app=app)
    after = datetime(2026, 1, 5, 12, tzinfo=tokyo)
    assert made.next(to_instant_ms(after)) == celery_says(crontab(0, 8), app, after)


def test_a_zone_of_its_own_wins_over_the_apps() -> None:
    """The crontab of django-celery-beat carries its zone as `tz` and overrides `is_due`."""

    class TzAware(crontab):
        def __init__(self, *args: object, tz: zoneinfo.ZoneInfo, **kwargs: object) -> None:
            super().__init__(*args, **kwargs)
            self.tz = tz

        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            return bool(last_run_at), 1.0

    made = convert(TzAware(0, 8, tz=zoneinfo.ZoneInfo("Asia/Tokyo")), app=make_app("Europe/Athens"))
    assert to_utc(made.next(0) or 0).hour == 23
    assert made.timezone == "Asia/Tokyo"


@pytest.mark.parametrize("value", [10, 10.0, timedelta(seconds=10), schedule(10), "every 10s", "10s"])
def test_an_interval_is_counted_from_the_epoch(value: object) -> None:
    """Numbers, timedeltas, schedules and text mean one and the same grid (river#791: deploys do not move it)."""
    assert convert(value, app=make_app()) == every("10s")


def test_relative_intervals_follow_the_wall_clock() -> None:
    """`relative=True` rounds to the unit of the interval where the app lives."""
    athens = make_app("Europe/Athens")
    daily = convert(timedelta(days=1), app=athens, relative=True)
    noon = to_instant_ms(datetime(2026, 7, 1, 12, tzinfo=UTC))
    assert to_utc(daily.next(noon) or 0).hour == 21
    assert convert(schedule(timedelta(minutes=90), relative=True), app=athens) == every("1h")
    kolkata = convert(timedelta(hours=1), app=make_app("Asia/Kolkata"), relative=True)
    assert to_utc(kolkata.next(noon) or 0).minute == 30


def test_several_relative_days_are_midnights_of_an_app_everywhere_the_same() -> None:
    """Every n-th local midnight, across the changes of the clock, asked from anywhere."""
    athens = zoneinfo.ZoneInfo("Europe/Athens")
    made = convert(timedelta(days=3), app=make_app("Europe/Athens"), relative=True)
    start = to_instant_ms(datetime(2026, 3, 20, tzinfo=UTC))
    slots = upcoming(made, start, 80)
    local = [to_utc(slot).astimezone(athens) for slot in slots]
    assert {(slot.hour, slot.minute) for slot in local} == {(0, 0)}
    assert {(late.date() - early.date()).days for early, late in itertools.pairwise(local)} == {3}
    for slot in slots:
        assert made.next(slot - 1) == slot


def test_custom_schedules_are_asked() -> None:
    """A class of the user's that computes its own times is a pure schedule, and ends when it answers None."""

    class Half(BaseSchedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta | None:
            following = last_run_at.replace(second=30, microsecond=0)
            if following <= last_run_at:
                following += timedelta(minutes=1)
            return None if following.year > 2026 else following - self.now()

    made = convert(Half(), app=make_app())
    start = to_instant_ms(datetime(2026, 12, 31, 23, 58, tzinfo=UTC))
    assert isinstance(made, AskedSchedule)
    assert [to_utc(slot).isoformat() for slot in upcoming(made, start, 5)] == [
        "2026-12-31T23:58:30+00:00",
        "2026-12-31T23:59:30+00:00",
    ]
    assert "0x" not in made.fingerprint


def test_custom_schedules_differ_by_what_they_are_made_of() -> None:
    """A change at run time is seen; Celery's own comparison would call all of them equal."""

    class Nth(BaseSchedule):
        def __init__(self, seconds: int) -> None:
            super().__init__()
            self.seconds = seconds

        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return last_run_at + timedelta(seconds=self.seconds) - self.now()

    app = make_app()
    assert convert(Nth(1), app=app) == convert(Nth(1), app=app)
    assert convert(Nth(1), app=app) != convert(Nth(2), app=app)
    assert convert(Nth(1), app=app).fingerprint != convert(Nth(2), app=app).fingerprint


def test_positions_of_the_sun_are_the_same_whenever_one_asks() -> None:
    """A schedule with a latitude is asked from midnight only, so its last digits do not depend on the question."""

    class Sun(BaseSchedule):
        lat = 52.0

        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            rise = last_run_at.replace(hour=6, minute=0, second=0, microsecond=last_run_at.second * 1000 + 500)
            return (rise if rise > last_run_at else rise + timedelta(days=1)) - self.now()

    made = convert(Sun(), app=make_app())
    answers = set()
    for minute in range(360, 360 + 1440):
        asked = datetime(2026, 5, 1, tzinfo=UTC) + timedelta(minutes=minute, seconds=minute % 60 + 1)
        answers.add(made.next(to_instant_ms(asked)))
    assert len(answers) == 1


def test_clocked_is_a_single_slot() -> None:
    """An object with a `clocked_time` (django-celery-beat) runs once."""

    class Clocked(BaseSchedule):
        clocked_time = datetime(2027, 1, 1, tzinfo=UTC)

    made = convert(Clocked(), app=make_app())
    assert upcoming(made, 0, 5) == [to_instant_ms(Clocked.clocked_time)]


def test_a_schedule_that_only_says_whether_it_is_due_is_refused_by_name() -> None:
    """Nobody can plan with such a class; the error names it and what it lacks."""

    class Moody(schedule):
        def is_due(self, last_run_at: datetime) -> tuple[bool, float]:
            return bool(last_run_at), 1.0

    class Mute(BaseSchedule):
        pass

    for value in (Moody(10), Mute()):
        with pytest.raises(ConfigError, match=rf"{type(value).__qualname__}.*remaining_estimate"):
            convert(value, app=make_app())


def test_a_schedule_that_stands_still_is_an_error_and_no_endless_loop() -> None:
    """An answer that does not lead beyond the question is reported (celery#9715: sent continuously)."""

    class Stuck(BaseSchedule):
        def remaining_estimate(self, last_run_at: datetime) -> timedelta:
            return last_run_at - self.now() - timedelta(seconds=1)

    with pytest.raises(ScheduleError, match="has to lead beyond"):
        convert(Stuck(), app=make_app()).next(1_000_000)


@pytest.mark.parametrize("value", [None, True, 0, -5, 0.0001, object(), "0 8 * *", "every", float("inf"), 1e300])
def test_what_is_no_schedule_is_refused(value: object) -> None:
    """Nothing that beat could not run is taken."""
    with pytest.raises(ConfigError):
        convert(value, app=make_app())


def test_zones_need_a_name_that_means_the_same_everywhere() -> None:
    """Whole-hour offsets have one; others do not."""
    assert zone_of(UTC) == "UTC"
    assert zone_of(timezone(timedelta(hours=2))) == "Etc/GMT-2"
    assert zone_of(zoneinfo.ZoneInfo("Asia/Tokyo")) == "Asia/Tokyo"
    with pytest.raises(ConfigError, match=r"app\.conf\.timezone"):
        zone_of(timezone(timedelta(hours=5, minutes=45)))


def test_bounds_cut_every_kind_of_schedule() -> None:
    """dcb#912, dcb#381: no slot before the start, none after the end."""
    bounds = Bounds.between(datetime(2026, 1, 1, tzinfo=UTC), datetime(2026, 1, 3, tzinfo=UTC))
    app = make_app()
    for value in (timedelta(days=1), crontab(0, 0), "0 0 * * *"):
        slots = upcoming(convert(value, app=app, bounds=bounds), 0, 9)
        assert [to_utc(slot).day for slot in slots] == [1, 2, 3]


def test_celery_gets_an_object_of_its_own_where_there_is_one() -> None:
    """Sentry and the log read Celery's objects; where none is exact they get an adapter."""
    app = make_app()
    assert to_celery(every("10s"), app=app) == schedule(10)
    zoned: Any = to_celery(cron("0 8 * * 1-5", timezone="Asia/Tokyo"), app=app)
    assert zoned == crontab("0", "8", day_of_week="1-5")
    assert str(zoned.tz) == "Asia/Tokyo"
    for text in ("0 0 13 * 5", "0 0 * * 7", "*/5 * * * * *", "0 0 L * *"):
        adapter: Any = to_celery(cron(text), app=app)
        assert isinstance(adapter, TextSchedule)
        assert adapter.is_due(datetime(2020, 1, 1, tzinfo=UTC)) == (True, 0.0)
        assert convert(adapter, app=app) == cron(text).in_zone("UTC")
