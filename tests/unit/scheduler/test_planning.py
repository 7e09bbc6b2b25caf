"""Which slot is asked for, and what becomes of the older ones."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from hypothesis import given, settings
from hypothesis import strategies as st

from anarchon_tasks.jobs import Job, JobOptions
from anarchon_tasks.model import Reason, Status
from anarchon_tasks.planning import COUNT_LIMIT, Plan, next_due, plan
from anarchon_tasks.schedules import CronSchedule, Schedule, cron, every, slots_between
from tests.unit.scheduler.kit import DAY, HOUR, MINUTE, SECOND, START, make_job

if TYPE_CHECKING:
    import pytest

NAMESPACE = "cron:"
WINDOW = st.sampled_from([0, 1, 999, 5_000, 10_000, 60_000, HOUR, 3 * HOUR])
SCHEDULES = [
    every("7s"),
    every("1m", offset="13s"),
    every("1h", end=datetime(2025, 6, 15, 20, tzinfo=UTC)),
    every("20m", start=datetime(2025, 6, 15, 17, tzinfo=UTC)),
    cron("*/5 * * * *"),
    cron("0,1,2,30 * * * *"),
    cron("30 2,3 * * *", timezone="Europe/Athens"),
]
options = st.builds(
    JobOptions,
    jitter_ms=WINDOW,
    spread_ms=WINDOW,
    max_late_ms=st.none() | WINDOW.filter(bool),
    coalesce_after_ms=WINDOW,
)
jobs = st.builds(
    lambda name, schedule, given: Job(name=name, schedule=schedule, target="t", options=given),
    st.sampled_from(["job", "sync", "digest", "tenant-7"]),
    st.sampled_from(SCHEDULES),
    options,
)


def ask(job: Job, floor: int, now: int, reason: Reason = Reason.NO_INSTANCE) -> Plan | None:
    """Plan, with one reason for all that is late."""
    return plan(job, NAMESPACE, floor=floor, now=now, why_late=lambda _: reason)


def due_slots(job: Job, floor: int, now: int) -> list[int]:
    """Return the slots after the floor that are due, by trying each."""
    return [slot for slot in slots_between(job.schedule, floor, now, 100_000) if job.due_ms(slot, NAMESPACE) <= now]


@settings(max_examples=300)
@given(jobs, st.integers(START, START + DAY), st.integers(0, 5 * HOUR))
def test_the_oldest_recent_slot_or_the_newest_due_one_is_chosen(job: Job, floor: int, later: int) -> None:
    """The choice equals that of a plain walk over all due slots, with any spread and jitter."""
    now = floor + later
    due = due_slots(job, floor, now)
    recent = [slot for slot in due if job.due_ms(slot, NAMESPACE) >= now - job.options.coalesce_after_ms]
    chosen = ask(job, floor, now)
    if not due:
        assert chosen is None
        following = next_due(job, NAMESPACE, floor)
        assert following is None or following > now
        return
    assert chosen is not None
    assert chosen.slot == (recent[0] if recent else due[-1])
    assert chosen.due_ms == job.due_ms(chosen.slot, NAMESPACE)


@settings(max_examples=300)
@given(jobs, st.integers(START, START + DAY), st.integers(0, 5 * HOUR))
def test_ranges_and_chosen_slot_cover_exactly_what_is_due(job: Job, floor: int, later: int) -> None:
    """No slot after the floor up to the chosen one is left out, named twice, or counted wrongly."""
    found = ask(job, floor, floor + later)
    if found is None:
        return
    position = floor
    for item in found.ranges:
        inside = slots_between(job.schedule, position, item.last, 100_000)
        assert (inside[0], inside[-1], len(inside)) == (item.first, item.last, item.count)
        position = item.last
    assert job.schedule.next(position) == found.slot


@given(jobs, st.integers(START, START + DAY), st.integers(0, 5 * HOUR))
def test_asking_again_and_again_comes_to_an_end(job: Job, floor: int, later: int) -> None:
    """Every plan moves forward, and after the last nothing is due: a backlog never loops."""
    now, asked = floor + later, 0
    while (found := ask(job, floor, now)) is not None:
        assert found.slot > floor
        floor, asked = found.slot, asked + 1
        assert asked <= 1 + job.options.coalesce_after_ms // 1_000 + 10
    assert due_slots(job, floor, now) == []


@given(jobs, st.integers(START, START + DAY), st.integers(0, 5 * HOUR))
def test_a_recent_slot_is_never_superseded(job: Job, floor: int, later: int) -> None:
    """What is at most `coalesce_after` late runs: a short pause of a job with a short period drops nothing."""
    now = floor + later
    found = ask(job, floor, now)
    for item in found.ranges if found else ():
        assert job.due_ms(item.last, NAMESPACE) < now - job.options.coalesce_after_ms


@given(jobs, st.integers(START, START + DAY), st.integers(0, 5 * HOUR))
def test_a_slot_that_could_still_be_claimed_is_not_called_late(job: Job, floor: int, later: int) -> None:
    """Outages and absence are blamed only for slots past their `max_late`."""
    now = floor + later
    found = ask(job, floor, now)
    for item in found.ranges if found else ():
        if item.reason is Reason.NO_INSTANCE and job.options.max_late_ms is not None:
            assert job.due_ms(item.last, NAMESPACE) + (job.options.max_late_ms or 0) < now


def test_nothing_is_due_before_the_due_time() -> None:
    """At the slot itself it is due; one millisecond earlier it is not."""
    job = make_job("10s")
    assert ask(job, START, START + 9_999) is None
    found = ask(job, START, START + 10_000)
    assert found == Plan(slot=START + 10_000, due_ms=START + 10_000, latest_ms=START + 70_000, gap_ms=10_000)


def test_bull_747_a_slot_is_asked_for_once() -> None:
    """With the slot itself as floor the next one is strictly after it."""
    assert ask(make_job("10s"), START + 10_000, START + 10_000) is None


def test_sidekiq_6804_a_daily_slot_is_claimable_until_the_next_one() -> None:
    """Who comes 743 ms after a daily slot, or five hours, still asks for it."""
    job = make_job(cron("0 10 * * *"))
    slot = job.schedule.next(START) or 0
    for late in (743, 5 * HOUR, DAY - 1):
        found = ask(job, START, slot + late)
        assert found is not None
        assert (found.slot, found.latest_ms, found.ranges) == (slot, slot + DAY, ())


def test_jobrunr_940_a_restart_runs_the_newest_slot_alone() -> None:
    """Of a night of hourly slots the newest runs; the others are recorded with their reasons."""
    found = ask(make_job("1h"), START, START + 9 * HOUR + 30 * MINUTE)
    assert found is not None
    assert found.slot == START + 9 * HOUR
    assert [(item.status, item.reason) for item in found.ranges] == [(Status.MISSED, Reason.NO_INSTANCE)]
    assert sum(item.count for item in found.ranges) == 8


def test_older_slots_are_split_by_whether_they_could_still_start() -> None:
    """Past their `max_late`: the reason that is given for that instant. Others: superseded."""
    asked: list[int] = []

    def why(at: int) -> Reason:
        asked.append(at)
        return Reason.STORE_UNAVAILABLE

    job = make_job("1m", max_late="10m")
    found = plan(job, NAMESPACE, floor=START, now=START + 30 * MINUTE + 30_000, why_late=why)
    assert found is not None
    assert [(item.reason, item.count) for item in found.ranges] == [
        (Reason.STORE_UNAVAILABLE, 20),
        (Reason.SUPERSEDED, 9),
    ]
    assert asked[-1] <= START + 30 * MINUTE + 30_000


@given(
    st.sampled_from([make_job("7s"), make_job(cron("*/3 * * * *")), make_job(cron("0,1,2,30 * * * *"))]),
    st.lists(st.integers(0, 5 * HOUR), min_size=1, max_size=3).map(sorted),
)
def test_a_stretch_is_split_where_its_reason_changes(job: Job, changes: list[int]) -> None:
    """Absence, an outage, absence again: each late slot is under the reason that was true when it became too late."""
    reasons = [Reason.NO_INSTANCE, Reason.STORE_UNAVAILABLE, Reason.PUBLISH_FAILED, Reason.OVERLAP]

    def why(at: int) -> Reason:
        return reasons[sum(START + change <= at for change in changes)]

    floor, now = START, START + 6 * HOUR
    while (found := plan(job, NAMESPACE, floor=floor, now=now, why_late=why)) is not None:
        late_ms = job.max_late_ms(job.gap_ms(job.schedule.next(floor) or 0))
        for item in found.ranges:
            if item.reason is not Reason.SUPERSEDED:
                inside = slots_between(job.schedule, item.first - 1, item.last, 100_000)
                assert len(inside) == item.count
                assert {why(slot + late_ms) for slot in inside} == {item.reason}
        floor = found.slot


def test_a_pause_of_nine_seconds_drops_no_slot_of_an_every_second_job() -> None:
    """All slots within `coalesce_after` are asked for, oldest first."""
    job, floor, taken = make_job("1s"), START, []
    while (found := ask(job, floor, START + 9_000)) is not None:
        assert found.ranges == ()
        taken.append(found.slot)
        floor = found.slot
    assert taken == [START + n * SECOND for n in range(1, 10)]


def test_a_short_pause_drops_nothing_of_a_job_with_a_spread() -> None:
    """Spread moves the window of `coalesce_after` with the slots: they run oldest first."""
    for name in map(str, range(10)):
        job = make_job("1s", name=name, spread="1h")
        now = START + job.shift_ms(NAMESPACE) + 9_000
        found = ask(job, START, now)
        assert found is not None
        assert (found.slot, found.ranges) == (START + SECOND, ())


def test_a_year_of_an_every_second_job_is_planned_at_once() -> None:
    """31 million slots are settled in one range, in a time that does not depend on their number."""
    started = time.perf_counter()
    found = ask(make_job("1s"), START, START + 365 * DAY)
    assert time.perf_counter() - started < 0.5
    assert found is not None
    assert 1 + sum(item.count for item in found.ranges) == 365 * 86_400 - 10


def test_a_long_backlog_of_a_cron_job_takes_bounded_steps() -> None:
    """A long backlog of a cron job is settled in stretches of at most ten thousand slots, none left out."""
    job, floor, counted, steps = make_job(cron("* * * * *")), START, 0, 0
    now = START + 10 * DAY
    while (found := ask(job, floor, now)) is not None:
        assert all(item.count <= COUNT_LIMIT for item in found.ranges if item.reason is Reason.NO_INSTANCE)
        counted += 1 + sum(item.count for item in found.ranges)
        floor, steps = found.slot, steps + 1
    assert counted == 10 * 1_440
    assert steps < 5


def test_jobs_with_one_expression_share_the_count_of_a_backlog(monkeypatch: pytest.MonkeyPatch) -> None:
    """A night without schedulers is counted once for all jobs that missed the same slots, not once for each."""
    asked, real = 0, CronSchedule.next

    def counted(schedule: CronSchedule, after_ms: int) -> int | None:
        nonlocal asked
        asked += 1
        return real(schedule, after_ms)

    monkeypatch.setattr(CronSchedule, "next", counted)
    plans = [ask(make_job(cron("* * * * *"), name=f"job-{n}"), START, START + DAY + 1 + n) for n in range(50)]
    assert {tuple(item.count for item in found.ranges) for found in plans if found} == {(1_439,)}
    assert asked < 1_440 + 50 * 50


def test_a_job_with_a_spread_runs_one_slot_after_an_outage() -> None:
    """Spread moves the slots of a job; it does not make more of them run."""
    for name in map(str, range(20)):
        job, floor, taken = make_job("1m", name=name, spread="1h"), START, 0
        while (found := ask(job, floor, START + 4 * HOUR + 30_000)) is not None:
            floor, taken = found.slot, taken + 1
        assert taken <= 2


def test_a_schedule_that_is_over_has_no_plan() -> None:
    """Past the end there is nothing to ask for and nothing to wait for."""
    over: Schedule = every("10s", end=datetime(2025, 1, 1, tzinfo=UTC))
    assert ask(make_job(over), START, START + DAY) is None
    assert next_due(make_job(over), NAMESPACE, START) is None
