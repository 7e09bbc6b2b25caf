"""The mapping of wall time to instants, zones by name, and what a fingerprint is compared with."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone
from importlib import metadata
from zoneinfo import ZoneInfo

import pytest

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules import cron, engine_versions
from anarchon_tasks.schedules.dst import Rule, change_at, change_into, changes, next_instant, wall_at
from anarchon_tasks.schedules.zones import zone_name, zone_of

BERLIN = ZoneInfo("Europe/Berlin")


def wall(text: str) -> datetime:
    """Read a naive wall time."""
    return datetime.fromisoformat(text)


def test_a_time_that_exists_once_has_no_change() -> None:
    """Just before a gap and just after a repetition nothing is special."""
    for text in ("2025-03-30T01:59:59", "2025-03-30T03:00", "2025-10-26T01:59:59", "2025-10-26T03:00"):
        assert change_at(wall(text), BERLIN) is None


def test_a_missing_time_knows_its_gap() -> None:
    """The gap is found to the second, from any wall time within it."""
    for text in ("2025-03-30T02:00", "2025-03-30T02:30", "2025-03-30T02:59:59"):
        change = change_at(wall(text), BERLIN)
        assert change is not None
        assert not change.repeats
        assert change.instant == datetime(2025, 3, 30, 1, tzinfo=UTC)
        assert (change.first_wall, change.end_wall) == (wall("2025-03-30T02:00"), wall("2025-03-30T03:00"))


def test_a_repeated_time_knows_its_repetition() -> None:
    """The repetition is found to the second, from any wall time within it."""
    for text in ("2025-10-26T02:00", "2025-10-26T02:59:59"):
        change = change_at(wall(text), BERLIN)
        assert change is not None
        assert change.repeats
        assert change.instant == datetime(2025, 10, 26, 1, tzinfo=UTC)
        assert (change.first_wall, change.end_wall) == (wall("2025-10-26T02:00"), wall("2025-10-26T03:00"))


def test_a_change_takes_effect_at_one_instant() -> None:
    """One second before or after it there is no change."""
    instant = datetime(2025, 3, 30, 1, tzinfo=UTC)
    assert change_into(instant, BERLIN) is not None
    assert change_into(instant - timedelta(seconds=1), BERLIN) is None
    assert change_into(instant + timedelta(seconds=1), BERLIN) is None


def test_the_changes_of_a_year_are_found() -> None:
    """Two in Berlin, also the short ones of Ramadan in Morocco, none in UTC."""
    year = {"since": datetime(2025, 1, 1, tzinfo=UTC), "until": datetime(2026, 1, 1, tzinfo=UTC)}
    assert [change.instant.isoformat() for change in changes(BERLIN, **year)] == [
        "2025-03-30T01:00:00+00:00",
        "2025-10-26T01:00:00+00:00",
    ]
    assert [change.repeats for change in changes(ZoneInfo("Africa/Casablanca"), **year)] == [True, False]
    assert changes(UTC, **year) == []


def test_the_clock_on_the_wall() -> None:
    """Both passes of a repeated time look the same on the wall."""
    first = datetime(2025, 10, 26, 0, 30, tzinfo=UTC)
    assert wall_at(first, BERLIN) == wall_at(first + timedelta(hours=1), BERLIN) == wall("2025-10-26T02:30")


def test_a_search_that_finds_only_gaps_ends_with_an_error() -> None:
    """The steps are bounded: an engine that repeats itself is an error, not an endless loop."""
    rule = Rule(shift=False, twice=True)
    with pytest.raises(ScheduleError, match="clock changes"):
        next_instant(lambda _: wall("2025-03-30T02:30"), zone=BERLIN, rule=rule, after=datetime(2025, 1, 1, tzinfo=UTC))


def test_a_bounded_search_names_the_expression(monkeypatch: pytest.MonkeyPatch) -> None:
    """The error that ends a search says which schedule it was."""
    schedule = cron("*/30 2 30 3 *", timezone="Europe/Berlin")
    monkeypatch.setattr(
        type(schedule._bound_engine()), "walls", lambda _self, _after: wall("2025-03-30T02:30"), raising=True
    )
    with pytest.raises(ScheduleError, match=r"cron='\*/30 2 30 3 \*': no slot within"):
        schedule._bound_engine()._next(0)


def test_a_job_that_meets_only_gaps_goes_on_to_the_next_year() -> None:
    """A starred minute on a date that may be a day of change skips that year and is found in another."""
    schedule = cron("*/30 2 30 3 *", timezone="Europe/Berlin")
    after = int(datetime(2025, 1, 1, tzinfo=UTC).timestamp()) * 1_000
    assert schedule.next(after) == int(datetime(2026, 3, 30, 0, tzinfo=UTC).timestamp()) * 1_000


@pytest.mark.parametrize("after", [-(10**17), -(10**14), 0, 2 * 10**14, 10**17])
def test_any_instant_has_an_answer(after: int) -> None:
    """Instants beyond the calendar are no error: there is a first slot, or none any more."""
    slot = cron("* * * * * *", timezone="Pacific/Kiritimati").next(after)
    assert slot is None if after >= 2 * 10**14 * 2 else slot is None or slot > after


def test_the_default_zone_is_taken_by_those_without_one() -> None:
    """A zone of its own wins over the default; without either it is UTC."""
    assert cron("0 8 * * *").in_zone("Asia/Tokyo").timezone == "Asia/Tokyo"
    assert cron("0 8 * * *", timezone="Europe/Athens").in_zone("Asia/Tokyo").timezone == "Europe/Athens"
    assert cron("0 8 * * *").timezone is None
    assert cron("0 8 * * *").next(0) == cron("0 8 * * *", timezone="UTC").next(0) == 8 * 3_600_000
    assert cron("0 8 * * *").in_zone("Asia/Tokyo").next(0) == 23 * 3_600_000


@pytest.mark.parametrize(("zone", "name"), [(ZoneInfo("Asia/Tokyo"), "Asia/Tokyo"), (UTC, "UTC"), (None, None)])
def test_zones_are_known_by_name(zone: object, name: str | None) -> None:
    """A ZoneInfo and datetime.UTC are taken by their names."""
    assert zone_name(zone) == name


@pytest.mark.parametrize("zone", ["Europe/Berln", "", "../etc/passwd", "Europe", "/etc/localtime", "a\0b", "Mars"])
def test_an_unknown_zone_is_named(zone: str) -> None:
    """The error holds the name that is not known, whatever the system made of it."""
    with pytest.raises(ScheduleError) as caught:
        cron("0 8 * * *", timezone=zone)
    assert f"timezone={zone!r} is not a known time zone" in str(caught.value)
    with pytest.raises(ScheduleError):
        cron("0 8 * * *").in_zone(zone)


@pytest.mark.parametrize(("wrong", "right"), [("Europe/Berln", "Europe/Berlin"), ("europe/athens", "Europe/Athens")])
def test_a_misspelt_zone_gets_a_suggestion(wrong: str, right: str) -> None:
    """The nearest name is proposed."""
    with pytest.raises(ScheduleError, match=f"did you mean '{right}'"):
        zone_of(wrong)


@pytest.mark.parametrize("zone", [5, timezone(timedelta(hours=2)), "localtime", "posixrules"])
def test_a_zone_that_differs_from_host_to_host_is_refused(zone: object) -> None:
    """Only names that mean the same everywhere let instances agree."""
    with pytest.raises(ScheduleError, match="on every host"):
        zone_name(zone)


def test_utc_needs_no_zone_data() -> None:
    """The zone of containers without zone data works."""
    assert zone_of("UTC") is UTC


def test_the_engine_versions_are_told_apart() -> None:
    """Engine and zone data have a version each, and they are not part of the fingerprint."""
    versions = engine_versions()
    assert versions.croniter == metadata.version("croniter")
    assert versions.tzdata
    assert versions.croniter not in cron("0 8 * * *").fingerprint
