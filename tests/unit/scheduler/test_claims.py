"""Instances that compete for slots: who wins, what the answers mean, and what a failing store or job does."""

from __future__ import annotations

import logging
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from anarchon_tasks import events
from anarchon_tasks.errors import StoreError
from anarchon_tasks.model import Reason, RunRef, Status
from anarchon_tasks.schedules import cron, every
from anarchon_tasks.stores.base import Claim, ClaimAnswer, ClaimKind, Reply
from anarchon_tasks.stores.memory import MemoryStore
from tests.unit.scheduler.kit import DAY, HOUR, MINUTE, SECOND, START, Instance, World, make_job

if TYPE_CHECKING:
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.publishing import Envelope
    from anarchon_tasks.stores.base import BeginAnswer


class Broken:
    """A schedule that raises."""

    kind, text, timezone, fingerprint = "custom", "broken", None, "broken"

    def next(self, after_ms: int) -> int | None:
        """Raise from the second question on."""
        raise RuntimeError(f"no slot after {after_ms}")

    def describe(self) -> str:
        """Say something."""
        return "Never"

    def note(self, slot_ms: int) -> str | None:
        """Return nothing."""
        del slot_ms

    def for_job(self, name: str) -> Broken:
        """Return itself."""
        del name
        return self

    def in_zone(self, default_zone: str) -> Broken:
        """Return itself."""
        del default_zone
        return self


# --- winning and losing ----------------------------------------------------------------------------------------------


def test_each_slot_is_published_once_by_one_of_five(world: World) -> None:
    """However many instances run, each slot of each job is published once, and all slots are."""
    five = [world.instance().add(make_job(track=False), make_job("7s", name="other", track=False)) for _ in range(5)]
    world.run(60)
    published = sorted(envelope.ref for instance in five for envelope in instance.publisher.sent)
    assert len(published) == len(set(published)) == 6 + len(range(START // 7_000 + 1, (START + 60_000) // 7_000 + 1))


def test_solid_queue_731_losing_instance_logs_no_enqueue(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """Who loses a claim publishes nothing, tells nobody of an enqueue, and logs nothing above DEBUG."""
    first, second = (world.instance().add(make_job(track=False)) for _ in range(2))
    world.pass_time("10s")
    first.tick()
    caplog.set_level(logging.INFO)
    caplog.clear()
    second.tick()
    assert (len(first.publisher.sent), second.publisher.sent) == (1, [])
    assert second.events(events.Enqueued) == second.events(events.Won) == []
    assert caplog.records == []
    assert second.store.asked("claim")


def test_oban_892_a_killed_winner_delays_the_slot_by_its_claim_alone(world: World) -> None:
    """A claim that nobody publishes runs out after five seconds, and another instance publishes the slot."""
    first, second = (world.instance().add(make_job("1m", track=False)) for _ in range(2))
    first.publisher.during = lambda _: world.kill(first)
    first.publisher.down = True
    first.store.refused = {"release", "beat"}
    world.pass_time("60s")
    first.tick()
    world.run(7)
    assert second.publisher.slots == [START + MINUTE]
    assert second.events(events.TookOver)[0].attempt == 1


def test_proc_1464_thousands_of_jobs_are_all_enqueued(world: World) -> None:
    """Two thousand jobs due in one second: every one is enqueued, and one call asks for a hundred."""
    instance = world.instance()
    names = [f"tenant-{n}" for n in range(2_000)]
    for name in names:
        instance.scheduler.add_job(make_job("1h", name=name, track=False))
    for _ in range(30):
        instance.scheduler._keep.step()
        instance.scheduler._claimer.step()
    world.pass_time("1h")
    instance.scheduler._dispatch._publish_s = 0
    while instance.scheduler._claimer.step() == 0:
        pass
    assert sorted({envelope.ref.job for envelope in instance.publisher.sent}) == sorted(names)
    assert sum(1 for name, _ in instance.store.calls if name == "claim") <= 25


# --- restarts and deploys --------------------------------------------------------------------------------------------


def restart(world: World, instance: Instance, *jobs: Job) -> Instance:
    """Kill an instance and start another with the same jobs."""
    world.kill(instance)
    return world.instance().add(*jobs)


def test_sidekiq_6804_a_slot_between_two_instances_runs_late(world: World) -> None:
    """Nobody was there at 10:00:00; who comes 743 ms later enqueues the daily slot."""
    job = make_job("1d", track=False)
    instance = world.instance().add(job)
    slot = (START // DAY + 1) * DAY
    world.pass_time((slot - START) / 1000 - 2.6)
    world.kill(instance)
    world.pass_time(3.343)
    successor = world.instance().add(job)
    assert successor.publisher.slots == [slot]
    assert successor.events(events.Enqueued)[0].lateness_ms == 743


def test_river_791_a_weekly_job_runs_though_nobody_lives_a_week(world: World) -> None:
    """Slots belong to the calendar, not to the start of a process: restarts each hour move nothing."""
    job = make_job(cron("0 8 * * 1"), track=False)
    instance = world.instance().add(job)
    published: list[int] = []
    for _ in range(14 * 24):
        world.pass_time("1h")
        instance.tick()
        published += instance.publisher.slots
        instance = restart(world, instance, job)
    assert published == [job.schedule.next(START), job.schedule.next(job.schedule.next(START) or 0)]


def test_dcron_97_a_deploy_makes_a_run_late_and_not_lost(world: World) -> None:
    """All instances are away from 15:59:59 to 16:00:16; the 16:00 slot is enqueued by the next one."""
    job = make_job("1h", track=False)
    instance = world.instance().add(job)
    world.pass_time("59m59s")
    instance.tick()
    world.kill(instance)
    world.pass_time("17s")
    successor = world.instance().add(job)
    assert successor.publisher.slots == [START + HOUR]
    assert world.account() == [("enqueued", None, 1)]


def test_celery_4806_a_new_job_never_catches_up(world: World) -> None:
    """The first slot of a job is strictly after its registration, however old the schedule is."""
    instance = world.instance().add(make_job("1d", track=False))
    assert instance.publisher.sent == []
    world.run(60, step=10)
    assert instance.publisher.sent == world.history() == []


def test_jobrunr_1534_a_changed_schedule_never_replays(world: World) -> None:
    """A job that becomes more frequent starts with the first new slot after its change."""
    instance = world.instance().add(make_job("1h", track=False))
    world.pass_time("55m")
    instance.scheduler.replace_job(make_job("1m", track=False))
    instance.tick()
    assert instance.publisher.sent == []
    world.pass_time("1m")
    instance.tick()
    assert instance.publisher.slots == [START + 56 * MINUTE]


def test_jobrunr_940_a_restart_after_a_night_runs_one_slot(world: World) -> None:
    """The newest slot runs, and the account names the reason of the others as one entry."""
    job = make_job("1h", track=False)
    instance = world.instance().add(job)
    world.kill(instance)
    world.pass_time(9.5 * 3600)
    successor = world.instance().add(job)
    assert successor.publisher.slots == [START + 9 * HOUR]
    assert world.account() == [("missed", "no_instance", 8), ("enqueued", None, 1)]


@settings(max_examples=15, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["work", "restart", "sleep", "outage"]), st.integers(1, 200)), max_size=12))
def test_jobrunr_1377_every_slot_ends_on_the_account_exactly_once(steps: list[tuple[str, int]]) -> None:
    """Whatever happens to instances and store, no slot is missing from the account and none is there twice."""
    world, job = World(), make_job("13s", track=False)
    instance = world.instance().add(job)
    for what, seconds in [*steps, ("work", 30)]:
        match what:
            case "restart":
                world.kill(instance)
                world.pass_time(seconds)
                instance = world.instance().add(job)
            case "sleep":
                world.pass_time(seconds)
            case "outage":
                instance.store.down = True
                world.run(seconds, step=1)
                instance.store.down = False
        world.run(seconds, step=1)
    account = world.history()
    slots = [run.slot for run in account]
    assert slots == sorted(set(slots))
    assert sum(run.count for run in account) == (world.now // 13_000) - (START // 13_000)
    position = START
    for run in account:
        first = run.slot if run.first_slot is None else run.first_slot
        assert job.schedule.next(position) == first
        position = run.slot


# --- answers ---------------------------------------------------------------------------------------------------------


def test_a_slot_that_overlaps_is_skipped_and_said_so(world: World) -> None:
    """A run that is still under way when the next slot is due: that slot is on the account as an overlap."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(make_job("1m"))
    world.pass_time("60s")
    instance.tick()
    assert world.begin(instance.publisher.sent[0], lease_ms=600_000).kind.value == "ok"
    world.pass_time("60s")
    instance.tick()
    assert world.account() == [("running", None, 1), ("skipped", "overlap", 1)]
    (settled,) = instance.events(events.Settled)
    assert (settled.status, settled.reason, settled.first) == ("skipped", "overlap", START + 2 * MINUTE)


def test_paperless_2604_workers_that_are_away_find_one_message(world: World) -> None:
    """A night without workers leaves one message in the queue, not four hundred."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(make_job("1m", start_timeout="1d"))
    for _ in range(8 * 60):
        world.pass_time("1m")
        instance.tick()
    assert len({envelope.message_id for envelope in instance.publisher.sent}) == 1
    assert {run.reason for run in world.history()[1:]} == {"overlap"}


def test_a_slot_behind_a_delayed_one_waits(world: World) -> None:
    """A slot whose predecessor was held up by a killed scheduler is asked for again, not skipped."""
    world.store.announce("w", {"celery": 0})
    first = world.instance().add(make_job("10s"))
    first.publisher.down = True
    first.store.refused = {"release", "beat"}
    world.pass_time("10s")
    first.tick()
    world.kill(first)
    second = world.instance().add(make_job("10s"))
    published: list[int] = []
    for _ in range(100):
        world.run(1)
        for envelope in second.publisher.sent[len(published) :]:
            published.append(envelope.ref.slot)
            world.finish(envelope, world.begin(envelope), Status.SUCCEEDED)
    assert published[:3] == [START + n * 10_000 for n in (1, 2, 3)]


def test_celery_3685_clock_set_back(world: World) -> None:
    """A host clock that is set back by three days, or forward by one, changes nothing: the store's clock decides."""
    instance = world.instance().add(make_job(track=False))
    world.run(30, step=1)
    instance.host.set_wall(world.now - 3 * DAY)
    world.run(30, step=1)
    instance.host.set_wall(world.now + DAY)
    world.run(30, step=1)
    assert instance.publisher.slots == [START + n * 10 * SECOND for n in range(1, 10)]


@pytest.mark.parametrize("ahead_ms", [3 * DAY, -3 * DAY, 5 * MINUTE, -1_500])
def test_celery_1980_a_host_with_a_wrong_clock_schedules_correctly(world: World, ahead_ms: int) -> None:
    """An instance whose host is days off publishes each slot at its time, neither early nor late."""
    wrong, right = world.instance(ahead_ms=ahead_ms), world.instance()
    for instance in (wrong, right):
        instance.add(make_job(track=False))
    world.kill(right)
    world.run(30)
    assert wrong.publisher.slots == [START + n * 10 * SECOND for n in (1, 2, 3)]
    assert all(0 <= event.lateness_ms <= 250 for event in wrong.events(events.Enqueued))


def test_a_claim_ahead_of_the_store_is_asked_again_at_its_time(world: World) -> None:
    """`early` is an answer, not an error: the slot runs when the store says so."""
    instance = world.instance().add(make_job(track=False))
    world.pass_time("10s")
    instance.host.advance("5s")
    world.server.set_wall(START + 9_000)
    instance.tick()
    assert instance.publisher.sent == []
    world.run(2)
    assert instance.publisher.slots == [START + 10_000]


def test_sidekiq_cron_111_an_empty_store_is_filled_again(world: World) -> None:
    """A store that lost everything gets the jobs and their floors back, and no slot is lost or repeated."""
    instance = world.instance().add(make_job(track=False))
    world.run(30)
    instance.store.real = world.store = MemoryStore(clock=world.server)
    world.run(30)
    assert instance.publisher.slots == [START + n * 10 * SECOND for n in range(1, 7)]
    assert [d.name for d in world.store.definitions().answers] == ["job"]


def lose_the_last_writes(world: World) -> None:
    """Let the store forget slot 10 and its floor, as a failover or an old snapshot may; slot 20 runs and is known."""
    account = world.store._accounts["job"]
    account.job.floor = START
    account.drop(RunRef("job", START + 10 * SECOND))
    account.history.clear()


def test_taking_over_a_run_above_the_floor_leaves_no_slot_unaccounted(world: World) -> None:
    """A failover lost a slot, and a worker brought the next one back and died: both end up on the account."""
    world.store.announce("w", {"celery": 0})
    job = make_job(coalesce_after="5m", max_late="5m")
    first = world.instance().add(job)
    world.run(10)
    world.finish(first.publisher.sent[0], world.begin(first.publisher.sent[0]), Status.SUCCEEDED)
    world.run(10)
    world.begin(first.publisher.sent[1])
    world.instances.remove(first)
    lose_the_last_writes(world)
    heir = world.instance().add(job)
    world.run(35)
    again = heir.publisher.sent[0]
    assert (again.ref.slot, again.attempt) == (START + 20 * SECOND, 2)
    world.finish(again, world.begin(again), Status.SUCCEEDED)
    world.run(2)
    assert [run.slot for run in world.history()][:1] == [START + 10 * SECOND]


def test_a_store_that_came_back_older_runs_no_settled_slot_again(world: World) -> None:
    """A store restored from an old snapshot learns from a live instance what was settled since: nothing runs twice."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(make_job(coalesce_after="5m", max_late="5m"))
    for place in range(2):
        world.run(10)
        envelope = instance.publisher.sent[place]
        world.finish(envelope, world.begin(envelope), Status.SUCCEEDED)
    lose_the_last_writes(world)
    world.run(15)
    assert instance.publisher.slots == [START + n * 10 * SECOND for n in (1, 2, 3)]
    assert world.store._accounts["job"].job.floor == START + 30 * SECOND


def test_a_claim_that_fails_alone_is_asked_again_with_pauses(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """An error in one job's account does not stop the others, and is not asked for in a hot loop."""
    instance = world.instance().add(make_job(track=False), make_job(name="good", track=False))
    real = world.store.claim

    def claim(claims: list[Claim]) -> Reply[ClaimAnswer]:
        answers = [
            ClaimAnswer(kind=ClaimKind.ERROR, error="damaged") if ask.ref.job == "job" else real([ask]).answers[0]
            for ask in claims
        ]
        return Reply(now_ms=world.now, answers=answers)

    instance.store.real.claim = claim  # type: ignore[method-assign,assignment]
    world.run(60)
    assert [envelope.ref.slot for envelope in instance.publisher.sent] == [START + n * 10_000 for n in range(1, 7)]
    asked = [ask for ask in instance.store.asked("claim") if ask.ref.job == "job"]
    assert 3 <= len(asked) <= 12
    assert "damaged" in caplog.text


# --- a store that fails ----------------------------------------------------------------------------------------------


def test_a_claim_whose_reply_was_lost_is_repeated_with_its_id(world: World) -> None:
    """The store had granted it: the repeated claim wins again, and the slot is published once."""
    instance = world.instance().add(make_job(track=False))
    world.pass_time("10s")
    instance.store.lost = ["claim"]
    assert not instance.tick()
    world.run(3)
    first, second = instance.store.asked("claim")[:2]
    assert (first.claim_id, first.ref) == (second.claim_id, second.ref)
    assert instance.publisher.slots == [START + 10_000]
    assert world.account() == [("enqueued", None, 1)]


def test_a_claim_whose_reply_was_lost_is_trusted_from_when_it_was_granted(world: World) -> None:
    """Repeated four seconds later it has one second left, as the store sees it: then it may be another's."""
    instance = world.instance().add(make_job(name="a", track=False), make_job(name="b", track=False))
    world.pass_time("10s")
    instance.store.lost = ["claim"]
    instance.tick()
    world.pass_time("4s")
    instance.publisher.during = lambda _: world.pass_time("1s")
    instance.tick()
    assert [envelope.ref.job for envelope in instance.publisher.sent] == ["a"]


def test_without_the_store_nothing_is_published(world: World) -> None:
    """Fail closed: an outage publishes nothing, and is told once when it begins and once when it ends."""
    instance = world.instance().add(make_job(track=False))
    instance.store.down = True
    world.run(60)
    assert instance.publisher.sent == []
    instance.store.down = False
    world.run(5)
    assert len(instance.events(events.Down)) == len(instance.events(events.Up)) == 1


def test_what_an_outage_cost_is_on_the_account_with_its_reason(world: World) -> None:
    """Slots that could not be claimed while the store was away are missed for that reason, the newest one runs."""
    instance = world.instance().add(make_job("10s", max_late="20s", track=False))
    world.run(10)
    instance.store.down = True
    world.run(300)
    instance.store.down = False
    world.run(10)
    missed = [run for run in world.history() if run.reason not in (None, "superseded")]
    assert missed
    assert {run.reason for run in missed} == {"store_unavailable"}


def test_the_slot_that_was_asked_for_when_the_store_went_away_has_that_reason_too(world: World) -> None:
    """The claim that is repeated after a long outage is late because of the outage, not because nobody was there."""
    instance = world.instance().add(make_job("1h", max_late="20s", track=False))
    world.pass_time("59m59s")
    instance.tick()
    instance.store.down = True
    world.run(120)
    instance.store.down = False
    world.run(5)
    assert world.account() == [("missed", "store_unavailable", 1)]


def test_absence_and_outage_are_told_apart(world: World) -> None:
    """Nobody was there for a while, then somebody without a store: the account has both, each with its slots."""
    world.kill(world.instance().add(make_job("10s", track=False)))
    world.pass_time(600)
    instance = world.instance()
    instance.store.down = True
    instance.add(make_job("10s", track=False))
    world.run(300, step=1)
    instance.store.down = False
    world.run(1)
    reasons = [(run.reason, run.count) for run in world.history() if run.status is Status.MISSED]
    assert [reason for reason, _ in reasons] == ["no_instance", "store_unavailable", "superseded"]
    assert 50 <= reasons[0][1] <= 60
    assert 20 <= reasons[1][1] <= 31


def test_an_outage_that_only_the_records_met_is_a_reason_too(world: World) -> None:
    """A store that stopped answering while records were being written is away for the claims as well."""
    instance = world.instance().add(make_job("10s", max_late="5s", track=False))
    world.pass_time("10s")
    instance.publisher.during = lambda _: setattr(instance.store, "down", True)
    instance.tick()
    world.run(60)
    instance.publisher.during = None
    instance.store.down = False
    world.run(5)
    assert {run.reason for run in world.history() if run.status is Status.MISSED} == {"store_unavailable"}


@pytest.mark.parametrize("ahead_ms", [3 * DAY, -3 * DAY])
def test_reasons_are_true_on_a_host_with_a_wrong_clock(world: World, ahead_ms: int) -> None:
    """What this instance saw is kept on a clock that does not jump: an outage is not mistaken for absence."""
    instance = world.instance(ahead_ms=ahead_ms)
    instance.store.down = True
    instance.add(make_job("10s", max_late="5s", track=False))
    world.run(5)
    instance.store.down = False
    world.run(5)
    instance.store.down = True
    world.run(60)
    instance.store.down = False
    world.run(5)
    assert {run.reason for run in world.history() if run.status is Status.MISSED} == {"store_unavailable"}


# --- a job that fails ------------------------------------------------------------------------------------------------


def test_posthog_21392_a_schedule_that_raises_stops_no_other(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A broken job is logged and rests; all others run on time."""
    instance = world.instance().add(make_job(Broken(), name="broken"), make_job(track=False))
    world.run(30)
    assert instance.publisher.slots == [START + n * 10 * SECOND for n in (1, 2, 3)]
    assert "the schedule of job 'broken' failed" in caplog.text


def test_a_broken_schedule_with_an_open_run_stops_no_other(world: World) -> None:
    """A run to take over whose schedule raises does not hold up the claims of other jobs."""
    world.store.announce("w", {"celery": 0})
    first = world.instance().add(make_job("1h", name="broken"))
    world.pass_time("1h")
    first.tick()
    world.begin(first.publisher.sent[0])
    world.kill(first)
    second = world.instance().add(make_job(Broken(), name="broken"), make_job(track=False))
    world.run(60)
    own = [envelope.ref.slot for envelope in second.publisher.sent if envelope.ref.job == "job"]
    assert own == [START + HOUR + n * 10 * SECOND for n in range(1, 7)]
    assert [(e.attempt, e.ref.slot) for e in second.publisher.sent if e.ref.job == "broken"] == [(2, START + HOUR)]


def test_a_job_that_is_over_is_quiet(world: World) -> None:
    """Past its end a job asks the store for nothing."""
    over = every("10s", end=datetime.fromtimestamp(START / 1000 + 25, UTC))
    instance = world.instance().add(make_job(over, track=False))
    world.run(120, step=1)
    assert instance.publisher.slots == [START + 10_000, START + 20_000]
    assert len(instance.store.asked("claim")) == 2


def test_reasons_name_absence_and_overlap(world: World) -> None:
    """Before an instance had the job it was absent; a slot that waited for a run to its end is an overlap."""
    instance = world.instance().add(make_job(track=False))
    row = instance.scheduler._claimer._rows["job"]
    assert instance.scheduler._claimer._why_late(row, START - 1) is Reason.NO_INSTANCE
    row.waiting = True
    assert instance.scheduler._claimer._why_late(row, START + 1) is Reason.OVERLAP


@pytest.mark.parametrize("error", [StoreError("NOAUTH Authentication required."), RuntimeError("a defect")])
def test_a_store_that_refuses_for_a_while_ends_no_job(world: World, error: Exception) -> None:
    """An error that is no outage, met by the claims of a few seconds, does not silence the jobs that were due then."""
    instance = world.instance().add(make_job(track=False))
    world.run(10)
    real = world.store.claim

    def refuse(_: object) -> Reply[ClaimAnswer]:
        raise error

    world.store.claim = refuse  # type: ignore[method-assign, assignment]
    for _ in range(48):
        with suppress(type(error)):  # the loop logs it and comes again
            world.run(0.25)
    world.store.claim = real  # type: ignore[method-assign]
    world.run(40)
    assert instance.publisher.slots == [START + n * 10 * SECOND for n in range(1, 7)]


@pytest.mark.parametrize("body_ms", [2_000, 900])
def test_a_job_that_is_busy_most_of_the_time_does_not_stay_late(world: World, body_ms: int) -> None:
    """After a pause of ours it skips what it has no time to catch up with, and is on time again."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(make_job("1s"))
    world.run(1)
    world.pass_time("6s")  # nobody schedules
    late: list[int] = []
    running: tuple[Envelope, BeginAnswer, int] | None = None
    for _ in range(120):
        world.run(0.25)
        if running is not None and world.now - running[2] >= body_ms:
            assert world.finish(running[0], running[1], Status.SUCCEEDED)
            running = None
        if running is None and len(instance.publisher.sent) > len(late):
            envelope = instance.publisher.sent[len(late)]
            running = envelope, world.begin(envelope), world.now
            late.append(world.now - envelope.ref.slot)
    assert max(late) > 4_000, "the pause made runs late"
    assert max(late[-5:]) <= 1_000


def test_quick_runs_catch_up_after_a_pause_of_ours(world: World) -> None:
    """A short pause of an every-second job drops nothing: its quick runs are made up for, oldest first."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(make_job("1s"))
    world.run(1)
    done = 1
    [first] = instance.publisher.sent
    world.finish(first, world.begin(first), Status.SUCCEEDED)
    world.pass_time("6s")
    for _ in range(240):
        world.run(0.05, step=0.05)
        for envelope in instance.publisher.sent[done:]:
            assert world.finish(envelope, world.begin(envelope), Status.SUCCEEDED)
            done += 1
    assert {status for status, _, _ in world.account()} == {"succeeded"}
    assert instance.publisher.slots == [START + n * SECOND for n in range(1, len(instance.publisher.slots) + 1)]


def test_a_job_first_seen_while_the_store_is_away_owes_what_was_due_since(world: World) -> None:
    """A scheduler that starts before its store loses no slot of a new job within `max_late`."""
    instance = world.instance()
    instance.store.down = True
    instance.add(make_job(track=False, max_late="10m", coalesce_after="5m"))
    world.run(35)
    instance.store.down = False
    world.run(12)
    assert instance.publisher.slots == [START + n * 10 * SECOND for n in (1, 2, 3, 4)]
