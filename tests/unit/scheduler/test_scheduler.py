"""The scheduler's jobs and options."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.errors import ConfigError, UnknownJob
from anarchon_tasks.jobs import Job
from anarchon_tasks.reader import Reader
from anarchon_tasks.scheduler import Scheduler
from anarchon_tasks.schedules import at, cron, every
from anarchon_tasks.stores import MemoryBackend
from tests.unit.scheduler.kit import HOUR, START, RecordingPublisher, World, make_job

if TYPE_CHECKING:
    from collections.abc import ValuesView


@pytest.fixture
def scheduler(world: World) -> Scheduler:
    """A scheduler that is not started."""
    return world.instance().scheduler


def test_the_same_job_again_changes_nothing(scheduler: Scheduler) -> None:
    """Registering twice is registering once."""
    scheduler.add_job(make_job())
    first = scheduler.jobs()
    scheduler.add_job(make_job())
    assert scheduler.jobs() == first
    assert scheduler.jobs()[0] is first[0]


@pytest.mark.parametrize(
    "other",
    [make_job("20s"), make_job(cron("* * * * *")), Job(name="job", schedule=every("10s"), target="elsewhere")],
)
def test_two_jobs_of_one_name_are_refused(scheduler: Scheduler, other: Job) -> None:
    """Another schedule or task under the same name is an error that shows both, and the first stays."""
    scheduler.add_job(make_job())
    with pytest.raises(ConfigError, match="two jobs are named 'job'") as raised:
        scheduler.add_job(other)
    assert "every 10s" in str(raised.value) or "elsewhere" in str(raised.value)
    assert scheduler.jobs() == [make_job()]


def test_changed_options_are_taken_over(world: World) -> None:
    """The same schedule with other options is not another job."""
    instance = world.instance().add(make_job("10s", track=False, max_attempts=3))
    instance.add(make_job("10s", track=False, max_attempts=5))
    world.run(10)
    assert instance.publisher.sent[0].header.max_attempts == 5


def test_replace_takes_any_definition(world: World) -> None:
    """A job may be replaced by one with another schedule while everything runs."""
    instance = world.instance().add(make_job("1h", track=False))
    instance.scheduler.replace_job(make_job("10s", track=False))
    world.run(20)
    assert instance.publisher.slots == [START + 10_000, START + 20_000]


def test_celery_3493_jobs_come_and_go_at_run_time(world: World) -> None:
    """A job added later runs from its next slot on; a removed one does not; the others notice nothing."""
    instance = world.instance().add(make_job("10s", name="a", track=False))
    world.run(10)
    instance.scheduler.add_job(make_job("10s", name="b", track=False))
    world.run(10)
    instance.scheduler.remove("a")
    world.run(10)
    ran = [(envelope.ref.job, (envelope.ref.slot - START) // 10_000) for envelope in instance.publisher.sent]
    assert sorted(ran) == [("a", 1), ("a", 2), ("b", 2), ("b", 3)]


def test_adding_a_job_does_not_cost_what_all_the_others_do(scheduler: Scheduler) -> None:
    """The list of jobs is made when somebody asks for it: a hundred thousand jobs are added in seconds."""
    copies = 0

    class Counted(dict[str, Job]):
        def values(self) -> ValuesView[Job]:  # type: ignore[override]
            nonlocal copies
            copies += 1
            return super().values()

    scheduler._jobs = Counted()
    for number in range(100):
        scheduler.add_job(make_job(name=f"job-{number}"))
    for number in range(50):
        scheduler.remove(f"job-{number}")
    assert copies == 0
    assert [job.name for job in scheduler.jobs()] == [f"job-{number}" for number in range(50, 100)]


def test_a_disabled_job_does_not_run(world: World) -> None:
    """`enabled=False` keeps the job known here and asks for none of its slots, until it is enabled."""
    instance = world.instance().add(make_job("10s", track=False, enabled=False))
    world.run(20)
    assert instance.publisher.sent == []
    instance.add(make_job("10s", track=False))
    world.run(10)
    assert instance.publisher.slots == [START + 30_000]


@pytest.mark.parametrize("call", ["remove", "next_run"])
def test_an_unknown_job_is_an_error(scheduler: Scheduler, call: str) -> None:
    """Asking for a job that is not registered here is told so."""
    with pytest.raises(UnknownJob, match="'nothing'"):
        getattr(scheduler, call)("nothing")


def test_redbeat_192_schedules_take_the_schedulers_zone(world: World) -> None:
    """A cron expression without a zone is read on the wall clock of the scheduler's zone, others keep theirs."""
    scheduler = world.instance(timezone="Asia/Tokyo").scheduler
    for name, zone in (("here", None), ("there", "UTC")):
        scheduler.add_job(make_job(cron("0 8 * * *", timezone=zone), name=name))
    here, there = scheduler.next_run("here"), scheduler.next_run("there")
    assert here is not None
    assert there is not None
    assert (here.hour, there.hour) == (23, 8)


def test_a_hashed_expression_is_bound_to_its_job(world: World) -> None:
    """`H` is a value of the job's name, the same on every instance."""
    first, second = (world.instance().add(make_job(cron("H H * * *"), name="digest")) for _ in range(2))
    assert first.scheduler.next_run("digest") == second.scheduler.next_run("digest")
    assert len(world.store.definitions().answers) == 1


def test_the_next_run_is_on_the_stores_clock(world: World) -> None:
    """A host that is a day ahead tells the same next slot."""
    instance = world.instance(ahead_ms=24 * HOUR).add(make_job("1h"))
    assert instance.scheduler.next_run("job") == datetime.fromtimestamp((START + HOUR) / 1000, UTC)
    instance.add(make_job(at(datetime(2020, 1, 1, tzinfo=UTC)), name="over"))
    assert instance.scheduler.next_run("over") is None


def test_history_is_that_of_all_instances(world: World) -> None:
    """Whoever asks sees what any instance did."""
    first, second = (world.instance().add(make_job("10s", track=False)) for _ in range(2))
    world.run(30)
    assert [run.slot for run in first.scheduler.history("job")] == [START + n * 10_000 for n in (3, 2, 1)]
    assert first.scheduler.history("job") == second.scheduler.history("job")
    assert second.scheduler.last_run("job") == first.scheduler.history("job", limit=1)[0]
    assert {run.instance for run in first.scheduler.history("job")} <= {
        first.scheduler.instance,
        second.scheduler.instance,
    }


@pytest.mark.parametrize("limit", [0, -1, 100_001])
def test_a_limit_that_makes_no_sense_is_refused(scheduler: Scheduler, limit: int) -> None:
    """A history has from 1 to 100000 entries."""
    with pytest.raises(ConfigError, match=f"limit={limit}"):
        scheduler.history("job", limit=limit)


def test_oban_py_32_identity_is_fresh_per_process(world: World) -> None:
    """Two instances with the same label are two."""
    one, two = (world.instance(instance_id="pod-1").scheduler for _ in range(2))
    assert one.instance != two.instance
    assert one.instance.startswith("pod-1/")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"timezone": "Europe/Atlantis"}, "timezone='Europe/Atlantis'"),
        ({"lease": "20s", "heartbeat": "10s"}, "at least three heartbeats"),
    ],
)
def test_options_are_checked_together_at_once(world: World, options: dict[str, object], message: str) -> None:
    """What makes no sense is refused when the scheduler is made."""
    with pytest.raises(ConfigError, match=message):
        world.instance(**options)


def test_making_a_scheduler_connects_nothing(world: World) -> None:
    """Before `start()` no call goes to the store."""
    instance = world.instance()
    instance.scheduler.add_job(make_job())
    assert instance.store.calls == []


def test_sidekiq_4078_namespaces_do_not_meet(world: World) -> None:
    """An instance touches nothing of a job that it does not have."""
    one = world.instance().add(make_job("10s", name="a", track=False))
    two = world.instance().add(make_job("10s", name="b", track=False))
    world.run(10)
    assert [definition.name for definition in world.store.definitions().answers] == ["a", "b"]
    assert {envelope.ref.job for envelope in one.publisher.sent} == {"a"}
    assert {envelope.ref.job for envelope in two.publisher.sent} == {"b"}


def test_a_reader_needs_no_jobs(world: World) -> None:
    """Jobs, history and last runs come from the store alone."""
    backend = MemoryBackend(clock=world.server)
    world.store = backend.open()  # type: ignore[assignment]
    world.instance().add(make_job("10s", track=False), make_job("1h", name="rare"))
    world.run(20)
    reader = Reader(backend)
    assert [(job.name, job.schedule) for job in reader.jobs()] == [("job", "every 10s"), ("rare", "every 1h")]
    assert [run.slot for run in reader.history("job")] == [START + 20_000, START + 10_000]
    newest, none = reader.last_runs(["job", "rare"])
    assert (newest, none) == (reader.last_run("job"), None)
    assert reader.last_runs([]) == []
    assert reader.now_ms() == world.now


def test_what_a_scheduler_opened_it_closes() -> None:
    """A store made from a backend is closed at stop, and a second stop is fine."""
    scheduler = Scheduler(backend=MemoryBackend(), publisher=RecordingPublisher())
    assert scheduler.stop()
    assert scheduler.stop()


def test_a_scheduler_without_a_publisher_reads_and_does_not_start() -> None:
    """What only reads needs no publisher; starting it says what is missing, and starts nothing."""
    scheduler = Scheduler(backend=MemoryBackend())
    assert scheduler.history("sync") == []
    assert scheduler.last_run("sync") is None
    with pytest.raises(ConfigError, match="no publisher"):
        scheduler.start()
    assert not scheduler.running
