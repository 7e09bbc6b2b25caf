"""Jobs: their options, and what a reader can make of a stored definition."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.jobs import Job, JobOptions, check_name, check_timezone
from anarchon_tasks.reader import StoredJob
from anarchon_tasks.schedules import Schedule, at, cron, every, from_sets, upcoming
from anarchon_tasks.stores.base import Delivery, Overlap

EXPRESSIONS = ["0 8 * * 1-5", "*/15 * * * *", "H H * * *", "H/15 * * * *", "30 0 8 * * *", "@daily", "0 0 L * *"]
ZONES = [None, "UTC", "Europe/Athens", "America/New_York"]
moments = st.datetimes(datetime(2020, 1, 1), datetime(2030, 1, 1), timezones=st.just(UTC)).map(  # noqa: DTZ001
    lambda moment: moment.replace(microsecond=0)
)
bounds = st.tuples(st.none() | moments, st.none() | moments).map(
    lambda pair: dict(zip(("start", "end"), sorted(pair) if None not in pair else pair, strict=True))
)
crons = st.builds(
    lambda text, zone, day_or, gap, fold, ends: cron(text, timezone=zone, day_or=day_or, gap=gap, fold=fold, **ends),
    st.sampled_from(EXPRESSIONS),
    st.sampled_from(ZONES),
    st.booleans(),
    st.sampled_from([None, "shift", "skip"]),
    st.sampled_from([None, "first", "both"]),
    bounds,
)
intervals = st.builds(
    lambda ms, offset, ends: every(timedelta(milliseconds=ms), offset=offset, **ends),
    st.integers(1, 10**10),
    st.integers(-(10**6), 10**6),
    bounds,
)
crontabs = st.builds(
    lambda minutes, hours, days, weekdays, fixed, zone, ends: from_sets(
        minutes, hours, days, set(range(1, 13)), weekdays, fixed=fixed, timezone=zone, **ends
    ),
    st.sets(st.integers(0, 59), min_size=1),
    st.sets(st.integers(0, 23), min_size=1),
    st.sets(st.integers(1, 28), min_size=1),
    st.sets(st.integers(0, 6), min_size=1),
    st.booleans(),
    st.sampled_from(ZONES),
    bounds,
)
schedules = st.one_of(crons, intervals, crontabs, moments.map(at))


def stored(schedule: Schedule, name: str = "digest") -> StoredJob:
    """Return the job as a reader finds it in a store."""
    return StoredJob.parse(Job(name=name, schedule=schedule.for_job(name), target="t").definition())


@given(schedules, st.text(st.characters(codec="utf-8"), min_size=1, max_size=20))
def test_a_stored_definition_gives_back_the_schedule(schedule: Schedule, name: str) -> None:
    """Interval, cron, crontab and one-off come back with the same fingerprint, text, zone and slots."""
    bound = schedule.for_job(name)
    rebuilt = stored(schedule, name).rebuild()
    assert rebuilt is not None
    assert (rebuilt.fingerprint, rebuilt.text) == (bound.fingerprint, bound.text)
    assert upcoming(rebuilt, 1_750_000_000_000, 3) == upcoming(bound, 1_750_000_000_000, 3)


def test_a_plain_definition_carries_nothing_more_than_its_text() -> None:
    """Only a schedule with bounds or an asked-for rule makes the stored text longer."""
    assert "details" not in json.loads(Job(name="j", schedule=every("10s"), target="t").definition().document)


class Solar:
    """A schedule of somebody else's, whose text happens to be readable."""

    kind, timezone = "solar", None

    def __init__(self, text: str) -> None:
        self.text = text
        self.fingerprint = f"solar {text}"

    def next(self, after_ms: int) -> int | None:
        """Return noon, say."""
        return after_ms + 1

    def describe(self) -> str:
        """Say something."""
        return "At sunrise"

    def note(self, slot_ms: int) -> str | None:
        """Return nothing."""
        del slot_ms

    def for_job(self, name: str) -> Solar:
        """Return itself."""
        del name
        return self

    def in_zone(self, default_zone: str) -> Solar:
        """Return itself."""
        del default_zone
        return self


@pytest.mark.parametrize("text", ["solar sunrise 38 24", "every 10s", "0 8 * * *"])
def test_a_schedule_of_other_code_is_not_guessed(text: str) -> None:
    """What cannot be rebuilt exactly is not rebuilt, even where its text can be read as something else."""
    assert stored(Solar(text)).rebuild() is None


def test_a_definition_of_a_newer_version_is_read() -> None:
    """Keys that this version does not know are left out, missing ones take their default."""
    definition = Job(name="j", schedule=every("10s"), target="t").definition()
    document = json.dumps({"schedule": "every 10s", "kind": "every", "moon": 1})
    job = StoredJob.parse(type(definition)(name="j", fingerprint=definition.fingerprint, document=document))
    assert (job.schedule, job.queue, job.rebuild()) == ("every 10s", "", every("10s"))


# --- options ---------------------------------------------------------------------------------------------------------


def test_options_are_read_as_people_write_them() -> None:
    """Durations are text, numbers or timedeltas; policies are words."""
    given: dict[str, Any] = {
        "jitter": "5s",
        "max_late": timedelta(minutes=30),
        "start_timeout": 90,
        "overlap": "allow",
        "delivery": "at_most_once",
        "tags": ["a", "b"],
        "track": False,
        "spread": None,
    }
    options = JobOptions.build("digest", given)
    assert options == JobOptions(
        jitter_ms=5_000,
        max_late_ms=1_800_000,
        start_timeout_ms=90_000,
        overlap=Overlap.ALLOW,
        delivery=Delivery.AT_MOST_ONCE,
        tags=("a", "b"),
        track=False,
    )


@pytest.mark.parametrize(
    ("option", "value"),
    [
        ("jitter", "soon"),
        ("jitter", -1),
        ("max_late", 0),
        ("overlap", "buffer"),
        ("delivery", "twice"),
        ("max_attempts", 0),
        ("max_attempts", True),
        ("history_size", 1.5),
        ("tags", "a"),
        ("track", "no"),
        ("enabled", 1),
        ("start_timeout", "10ms"),
        ("catch_up", "7d"),
        ("misfire_grace_time", 1),
    ],
)
def test_aps_292_a_wrong_option_is_refused_by_name(option: str, value: object) -> None:
    """The message names the job, the option and its value; nothing is ignored."""
    with pytest.raises(ConfigError) as raised:
        JobOptions.build("digest", {option: value})
    assert all(part in str(raised.value) for part in ("'digest'", f"{option}={value!r}"))


@pytest.mark.parametrize("given", [{"lease": "5s", "heartbeat": "2s"}, {"lease": 1, "heartbeat": 1}])
def test_a_heartbeat_slower_than_a_third_of_the_lease_is_refused(given: dict[str, Any]) -> None:
    """The message says which lease would do."""
    with pytest.raises(ConfigError, match="at least three heartbeats"):
        JobOptions.build("digest", given)


@pytest.mark.parametrize("name", ["", 5, None, "x" * 1_001, "\ud800"])
def test_a_name_that_no_store_can_hold_is_refused(name: object) -> None:
    """A job's name is a text of 1 to 1000 characters that UTF-8 can write."""
    with pytest.raises(ConfigError, match="not a job's name"):
        check_name(name)


@pytest.mark.parametrize("zone", ["Europe/Atlantis", "", "../etc/passwd", None, 5])
def test_taskiq_669_a_bad_zone_is_refused_at_once(zone: object) -> None:
    """An unknown zone is a configuration error, never a failure of the loop."""
    with pytest.raises(ConfigError, match="timezone="):
        check_timezone(zone)


# --- what follows from the options -----------------------------------------------------------------------------------

HOUR = 3_600_000
DAY = 24 * HOUR


@pytest.mark.parametrize(
    ("period", "late_ms"), [("1s", 60_000), ("60s", 60_000), ("1h", HOUR), ("1d", DAY), ("7d", DAY)]
)
def test_oban_892_a_slot_may_start_until_the_next_one(period: str, late_ms: int) -> None:
    """Without a `max_late` it is the job's period, at least a minute and at most a day."""
    job = Job(name="j", schedule=every(period), target="t")
    assert job.max_late_ms(job.gap_ms(0)) == late_ms


@given(st.integers(0, 2**41), st.sampled_from(["10s", "1h"]), st.sampled_from(["1s", "5m", "3h"]))
def test_jitter_and_spread_are_the_same_on_every_instance(slot: int, period: str, most: str) -> None:
    """Due times depend on namespace, job and slot alone, and jitter never reaches the next slot."""
    schedule = every(period)
    slot = schedule.next(slot) or 0
    jobs = [Job(name="j", schedule=schedule, target="t", options=JobOptions.build("j", {"jitter": most}))] * 2
    due = {job.due_ms(slot, "cron:") for job in jobs}
    assert len(due) == 1
    assert slot <= due.pop() < (schedule.next(slot) or 0)


def test_tenants_are_spread_by_name() -> None:
    """A thousand jobs with the same schedule and a spread of an hour do not start together."""
    options = JobOptions.build("tenant", {"spread": "1h"})
    due = {
        Job(name=f"tenant-{n}", schedule=cron("0 0 * * *"), target="t", options=options).due_ms(0, "cron:") // 60_000
        for n in range(1_000)
    }
    assert len(due) > 55


def test_at_most_once_has_one_attempt() -> None:
    """A job that would rather skip than double is never tried a second time."""
    options = JobOptions.build("j", {"delivery": "at_most_once", "max_attempts": 5})
    assert Job(name="j", schedule=every("1h"), target="t", options=options).policy(HOUR).max_attempts == 1


def test_a_run_leaves_the_state_only_when_no_late_claim_can_ask_for_it() -> None:
    """How long a run is kept covers max_late, jitter and spread, whatever they are."""
    options = JobOptions.build("j", {"max_late": "2h", "jitter": "30m", "spread": "1h"})
    assert Job(name="j", schedule=every("3h"), target="t", options=options).policy(3 * HOUR).keep_ms > 3.5 * HOUR
