"""What users of other schedulers reported, and what happens here. Each test is named after the public issue."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from itertools import pairwise
from zoneinfo import ZoneInfo

import pytest

from anarchon_tasks.errors import ConfigError, ScheduleError
from anarchon_tasks.schedules import cron, every, from_sets, slots_between, upcoming
from tests.unit.schedules.oracle import CHANGES

MONTHS, DAYS, WEEK, HOURS = set(range(1, 13)), set(range(1, 32)), set(range(7)), set(range(24))


def ms(text: str, zone: str = "UTC") -> int:
    """Read an ISO time in a zone as milliseconds."""
    return int(datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()) * 1_000


def local(slots: list[int], zone: str) -> list[str]:
    """Write slots as local times with their offsets."""
    return [datetime.fromtimestamp(slot / 1_000, ZoneInfo(zone)).isoformat() for slot in slots]


def test_celery_6438_wildcards_run_in_the_repeated_hour() -> None:
    """No hour is silent when the clock goes back: `*/20` runs each twenty real minutes, as text and as sets."""
    sets = from_sets({0, 20, 40}, HOURS, DAYS, MONTHS, WEEK, timezone="Europe/Berlin", fixed=False)
    for schedule in (cron("*/20 * * * *", timezone="Europe/Berlin"), sets):
        slots = slots_between(schedule, ms("2025-10-25T22:00"), ms("2025-10-26T04:00"), 100)
        assert {later - slot for slot, later in pairwise(slots)} == {20 * 60_000}
        assert len(slots) == 18


def test_celery_1604_a_daily_job_runs_once_on_the_day_after_the_change() -> None:
    """Each of the days around a change has exactly one slot."""
    for day in ("2025-03-28", "2025-10-24"):
        slots = upcoming(cron("0 9 * * *", timezone="Europe/Berlin"), ms(day), 5)
        dates = [text[:10] for text in local(slots, "Europe/Berlin")]
        assert len(set(dates)) == 5


def test_celery_5174_a_monthly_job_has_one_slot_a_month() -> None:
    """A job for eight o'clock on the first never runs at nine as well."""
    slots = upcoming(cron("0 8 1 * *", timezone="Europe/London"), ms("2025-01-15"), 24)
    assert {text[11:16] for text in local(slots, "Europe/London")} == {"08:00"}
    assert len({text[:7] for text in local(slots, "Europe/London")}) == 24


@pytest.mark.parametrize("zone", ["Asia/Tokyo", "America/Los_Angeles", "Asia/Kathmandu"])
def test_celery_9715_a_job_in_another_zone_is_not_due_all_the_time(zone: str) -> None:
    """After a slot the next one is a day later, whatever the zone."""
    schedule = cron("0 9 * * *", timezone=zone)
    slot = schedule.next(ms("2025-06-01"))
    assert slot is not None
    assert schedule.next(slot) == slot + 86_400_000


def test_celery_4041_a_daily_task_has_few_slots() -> None:
    """A year of a daily job has as many slots as days, in strict order, through both changes."""
    slots = slots_between(cron("0 0 * * *", timezone="America/Santiago"), ms("2025-01-01"), ms("2026-01-01"), 40_000)
    assert len(slots) == 365
    assert slots == sorted(set(slots))


def test_dcb_604_285_the_end_of_summer_time_is_no_error() -> None:
    """Ambiguous times have an answer in every zone that has them."""
    for zone, day in CHANGES:
        for expression in ("30 2 * * *", "0 0 * * *", "*/30 * * * *"):
            assert len(upcoming(cron(expression, timezone=zone), ms(f"{day}T00:00") - 86_400_000, 4)) == 4


def test_dcb_194_134_on_the_day_of_the_change_the_hour_is_right() -> None:
    """A job for the morning keeps its local time on the day of a change and after it."""
    for day in ("2025-03-29T12:00", "2025-10-25T12:00"):
        slots = upcoming(cron("0 7 * * *", timezone="Europe/Berlin"), ms(day), 2)
        assert [text[11:19] for text in local(slots, "Europe/Berlin")] == ["07:00:00", "07:00:00"]


def test_dcb_875_885_894_902_a_job_with_a_zone_is_found_by_its_instant() -> None:
    """The hour of the host plays no part: the slot is the instant that the job's zone gives."""
    slot = cron("30 23 * * *", timezone="America/Los_Angeles").next(ms("2025-07-01T00:00"))
    assert slot == ms("2025-07-01T06:30")


def test_redbeat_192_taskiq_201_each_job_has_its_zone() -> None:
    """Two jobs with the same expression and different zones have different slots; one without takes the default."""
    tokyo, athens = (cron("0 8 * * *", timezone=zone) for zone in ("Asia/Tokyo", "Europe/Athens"))
    assert tokyo.next(0) != athens.next(0)
    assert cron("0 8 * * *").in_zone("Asia/Tokyo").next(0) == tokyo.next(0)


def test_dcb_748_celery_2714_the_31st_of_february_is_refused() -> None:
    """A date that does not exist is refused when the job is made, as text and as sets."""
    with pytest.raises(ScheduleError, match="never fires"):
        cron("0 0 31 2 *")
    with pytest.raises(ScheduleError, match="never fires"):
        from_sets({0}, {0}, {31}, {2}, WEEK, fixed=True)


def test_dcb_381_955_past_the_end_there_are_no_slots() -> None:
    """A job that has expired has nothing left to enqueue, in any zone."""
    end = datetime(2025, 6, 1, 12, tzinfo=ZoneInfo("Asia/Tokyo"))
    for schedule in (cron("* * * * *", timezone="America/New_York", end=end), every("1s", end=end)):
        assert schedule.next(ms("2025-06-01T03:00")) is None
        assert schedule.next(ms("2025-06-01T02:59:59") - 1) is not None


def test_jobrunr_1145_no_hot_loop_around_a_change() -> None:
    """Each answer is later than its question, so that a loop over slots always moves on."""
    for zone, day in CHANGES:
        schedule = cron("30 */2 * * *", timezone=zone)
        after = ms(f"{day}T00:00") - 86_400_000
        for _ in range(30):
            slot = schedule.next(after)
            assert slot is not None
            assert slot > after
            after = slot


def test_temporal_8205_no_duplicates_and_no_gaps_at_a_change() -> None:
    """A fixed time runs once on each date: shifted out of the gap, the first time of two."""
    for zone in ("Europe/Berlin", "Africa/Cairo"):
        for expression in ("30 2 * * *", "0 0 * * *", "30 1 * * *"):
            slots = slots_between(cron(expression, timezone=zone), ms("2025-01-02"), ms("2025-12-30"), 1_000)
            dates = [text[:10] for text in local(slots, zone)]
            assert len(dates) == len(set(dates)) >= 362


def test_sentry_66868_croniter_25_the_engine_finds_its_way_out_of_every_change() -> None:
    """Steps that do not divide the hour are answered around half-hour changes too."""
    slots = upcoming(cron("*/7 * * * *", timezone="Australia/Lord_Howe"), ms("2025-04-05T14:00"), 20)
    assert len(set(slots)) == 20


def test_aiocron_39_seconds_come_first() -> None:
    """`*/10 * * * * *` means every ten seconds."""
    assert upcoming(cron("*/10 * * * * *"), 0, 3) == [10_000, 20_000, 30_000]


def test_taskiq_669_a_bad_zone_is_an_error_of_that_job() -> None:
    """A misspelt zone is a configuration error when the job is made, not a crash of the scheduler later."""
    with pytest.raises(ConfigError, match="Europe/Nowhere"):
        cron("* * * * *", timezone="Europe/Nowhere")


def test_celery_4307_the_day_fields_or_in_text_and_and_in_sets() -> None:
    """Text is standard cron, the sets of a crontab keep Celery's meaning."""
    start, end = ms("2026-01-01"), ms("2027-01-01") - 1
    text = slots_between(cron("0 0 13 * 5"), start, end, 1_000)
    sets = slots_between(from_sets({0}, {0}, {13}, MONTHS, {5}, fixed=True), start, end, 1_000)
    assert (len(text), len(sets)) == (61, 3)
    assert set(sets) < set(text)


def test_k8s_47202_the_winter_change_does_not_repeat_a_nightly_job() -> None:
    """A fixed time in the repeated hour runs in its first pass only."""
    slots = upcoming(cron("30 1 * * *", timezone="America/New_York"), ms("2025-11-02T00:00"), 2)
    assert local(slots, "America/New_York") == ["2025-11-02T01:30:00-04:00", "2025-11-03T01:30:00-05:00"]


def test_a_deploy_does_not_reset_an_interval() -> None:
    """Two instances that start at different times plan the same slots (celery beat counts from its own start)."""
    schedule = every("7m")
    assert schedule.next(ms("2025-06-01T10:01:00")) == schedule.next(ms("2025-06-01T10:07:59"))
    assert every(timedelta(minutes=7)) == schedule
    assert datetime.fromtimestamp((schedule.next(0) or 0) / 1_000, UTC).minute == 7
