"""What `celery beat` does with its scheduler, call by call, without a server."""

from __future__ import annotations

import logging
import signal
import threading
import time
from datetime import timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, beat, signals
from celery.schedules import crontab

from anarchon_celery import Anarchon, AnarchonScheduler
from anarchon_celery.publisher import CeleryPublisher
from anarchon_tasks.errors import ConfigError, StoreUnavailable
from anarchon_tasks.header import Header
from anarchon_tasks.model import RunRef, Trigger
from anarchon_tasks.publishing import Envelope, Sent
from anarchon_tasks.stores import from_url
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_celery.entries import Found
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.scheduler import Scheduler
    from anarchon_tasks.stores.base import LeaseStore

SECRET = "s3cret-pass"


def make_app(*, store: object = "memory://", extension: bool = True, **entries: dict[str, object]) -> Celery:
    """Return an app with entries."""
    app = Celery("shop", broker=f"redis://:{SECRET}@127.0.0.1:1/0", set_as_current=False)
    app.conf.beat_schedule = {name: {"task": "shop.sync", "schedule": 10, **entry} for name, entry in entries.items()}
    app.conf.anarchon_store = store
    app.conf.result_expires = None
    if extension:
        Anarchon(app)
    return app


@pytest.fixture
def beats() -> Iterator[list[AnarchonScheduler]]:
    """Schedulers that are closed when the test is over."""
    made: list[AnarchonScheduler] = []
    yield made
    for scheduler in made:
        scheduler.close()


def ours(scheduler: AnarchonScheduler) -> Scheduler:
    """Return the scheduler behind the one of beat, once it runs."""
    runner = scheduler._runner
    assert runner is not None
    poll_until(lambda: runner._scheduler is not None and runner._scheduler.running)
    assert runner._scheduler is not None
    return runner._scheduler


def names(scheduler: AnarchonScheduler) -> set[str]:
    """Return the names of the jobs that run."""
    return {job.name for job in ours(scheduler).jobs()}


def test_the_banner_shows_the_store_without_its_password() -> None:
    """A lazy instance connects nothing, starts nothing and prints the lines that Celery prints verbatim."""
    app = make_app(store=f"redis://:{SECRET}@cache:6379/1", one={}, two={})
    before = threading.active_count()
    scheduler = AnarchonScheduler(app=app, schedule_filename="celerybeat-schedule", max_interval=0, lazy=True)
    lines = scheduler.info.splitlines()
    assert lines[0] == "    . store -> redis://:***@cache:6379/1 (lease 30s)"
    assert lines[1].startswith("    . jobs -> 2")
    assert lines[2].startswith("    . instance -> ")
    assert SECRET not in scheduler.info
    assert scheduler.max_interval == 5
    assert threading.active_count() == before
    scheduler.close()


def test_the_banner_of_an_app_without_a_store_is_no_crash() -> None:
    """What is wrong stands in its place; the start says it again."""
    app = Celery("shop", broker="amqp://guest:s3cret-pass@host//", set_as_current=False)
    info = AnarchonScheduler(app=app, lazy=True).info
    assert "there is no store" in info
    assert SECRET not in info
    with pytest.raises(ConfigError, match="anarchon_store"):
        AnarchonScheduler(app=app)


def test_a_real_beat_service_starts_ticks_and_stops(beats: list[AnarchonScheduler]) -> None:
    """celery.beat.Service uses it as it uses its own: max_interval, tick, should_sync, close."""
    app = make_app(one={})
    service = beat.Service(app, max_interval=0, schedule_filename="s", scheduler_cls="anarchon")
    seen: list[float] = []
    scheduler: Any = service.get_scheduler()
    beats.append(scheduler)
    service.__dict__["scheduler"] = scheduler
    original = scheduler.tick

    def tick() -> float:
        seen.append(original())
        if len(seen) == 3:
            service._is_shutdown.set()
            service._is_stopped.set()
            raise KeyboardInterrupt
        return 0.01

    scheduler.tick = tick
    started: list[object] = []

    def on_start(sender: object, **_: object) -> None:
        started.append(sender)

    signals.beat_init.connect(on_start)
    try:
        service.start()
    finally:
        signals.beat_init.disconnect(on_start)
    assert started == [service]
    assert all(0 < seconds <= 1 for seconds in seen)
    assert scheduler._runner.ended


def test_a_tick_is_short_and_never_raises(
    beats: list[AnarchonScheduler], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An exception would end beat; it is logged, and what ran before goes on."""
    scheduler = AnarchonScheduler(app=make_app(one={}))
    beats.append(scheduler)
    assert 0 < scheduler.tick() <= 1
    assert names(scheduler) == {"one"}
    monkeypatch.setattr(scheduler, "_find", lambda: 1 / 0)
    scheduler._changed = True
    assert 0 < scheduler.tick() <= 1
    assert "ZeroDivisionError" in caplog.text
    assert names(scheduler) == {"one"}
    assert not hasattr(scheduler, "lock_key")


@pytest.mark.parametrize(("given", "expected"), [(0, 5), (None, 5), (2, 2)])
def test_max_interval(given: int | None, expected: int, beats: list[AnarchonScheduler]) -> None:
    """`--max-interval` is shown as given; without it ours is short."""
    scheduler = AnarchonScheduler(app=make_app(one={}), max_interval=given)
    beats.append(scheduler)
    assert scheduler.max_interval == expected


def test_closing_twice_and_before_the_first_tick_is_fine() -> None:
    """Celery closes in the signal handler, and once more at the end."""
    scheduler = AnarchonScheduler(app=make_app(one={}))
    scheduler.close()
    other = AnarchonScheduler(app=make_app(one={}))
    other.tick()
    running = ours(other)
    other.close()
    other.close()
    assert not running.running
    assert other.tick() == 1
    assert not running.running


def test_a_signal_in_the_middle_of_a_tick_closes_without_a_deadlock(monkeypatch: pytest.MonkeyPatch) -> None:
    """The handler runs on the thread that ticks, at any bytecode, and may come twice."""
    scheduler = AnarchonScheduler(app=make_app(one={}))
    scheduler.tick()
    running = ours(scheduler)
    calls: list[float] = []
    find = scheduler._find

    def handler(*_: object) -> None:
        calls.append(time.monotonic())
        if len(calls) == 1:
            signal.raise_signal(signal.SIGUSR1)
        scheduler.close()

    def interrupted() -> Found:
        signal.raise_signal(signal.SIGUSR1)
        return find()

    monkeypatch.setattr(scheduler, "_find", interrupted)
    before = signal.signal(signal.SIGUSR1, handler)
    try:
        scheduler._changed = True
        scheduler.tick()
    finally:
        signal.signal(signal.SIGUSR1, before)
    scheduler.close()
    assert len(calls) == 2
    assert not running.running


def test_close_is_bounded_when_the_scheduler_hangs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Supervisors follow SIGTERM with SIGKILL, so all calls together wait for some seconds only."""
    scheduler = AnarchonScheduler(app=make_app(one={}))
    monkeypatch.setattr("anarchon_celery.beat.STOP_S", -0.7)
    scheduler.tick()
    running = ours(scheduler)
    release = threading.Event()
    stop = running.stop
    monkeypatch.setattr(running, "stop", lambda timeout: release.wait(20) and stop(timeout))
    started = time.monotonic()
    scheduler.close()
    scheduler.close()
    assert time.monotonic() - started < 2
    release.set()
    poll_until(lambda: not running.running)


def test_celery_3493_changes_at_run_time_reach_the_scheduler(beats: list[AnarchonScheduler]) -> None:
    """merge_inplace, update_from_dict, add and the mapping itself: added, changed, removed, with their arguments."""
    scheduler = AnarchonScheduler(app=make_app(one={}, two={}))
    beats.append(scheduler)
    scheduler.tick()
    assert names(scheduler) == {"one", "two"}

    scheduler.merge_inplace({
        "two": {"task": "shop.sync", "schedule": 20, "args": (1,)},
        "three": {"task": "shop.sync", "schedule": crontab(0, 8)},
    })  # fmt: skip
    scheduler.tick()
    poll_until(lambda: names(scheduler) == {"two", "three"})
    scheduler.update_from_dict({"four": {"task": "shop.sync", "schedule": timedelta(hours=1)}})
    scheduler.add(name="five", task="shop.sync", schedule=5)
    del scheduler.schedule["three"]
    scheduler.tick()
    poll_until(lambda: names(scheduler) == {"two", "four", "five"})

    scheduler.merge_inplace({"two": {"task": "shop.sync", "schedule": 20, "args": (2,)}})
    scheduler.tick()
    poll_until(lambda: names(scheduler) == {"two"})
    (job,) = (job for job in ours(scheduler).jobs() if job.name == "two")
    assert (job.schedule.text, job.payload.args) == ("every 20s", (2,))


def test_celery_7649_a_bad_entry_is_logged_by_name_and_the_others_run(
    beats: list[AnarchonScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """posthog#21392: jobs are isolated."""
    app = make_app(good={}, bad={"schedule": object()}, worse={"options": {"overlap": "allow"}}, odd={"colour": "red"})
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    scheduler.tick()
    assert names(scheduler) == {"good"}
    for name in ("bad", "worse", "odd"):
        assert caplog.text.count(f"{name!r} cannot be used") == 1


def test_nothing_but_bad_entries_is_an_error_at_the_start() -> None:
    """Somebody has to see it; the error names each and what to do."""
    app = make_app(bad={"schedule": object()}, odd={"colour": "red"})
    app.conf.result_expires = 3600  # so that Celery adds an entry of its own
    with pytest.raises(ConfigError, match=r"(?s)bad:.*odd: unknown key colour='red'"):
        AnarchonScheduler(app=app)


def test_one_name_in_code_and_in_beat_schedule(
    beats: list[AnarchonScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """The entry runs, and the error says that there are two."""
    app = make_app(one={}, extension=False)
    Anarchon(app).schedule("one", "1h", task="shop.other")
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    scheduler.tick()
    assert [job.target for job in ours(scheduler).jobs() if job.name == "one"] == ["shop.sync"]
    assert "in beat_schedule and declared in code" in caplog.text


def test_a_broker_that_serves_as_the_store_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    """The warning names the setting, and no password."""
    app = make_app(one={})
    app.conf.anarchon_store = None
    scheduler = AnarchonScheduler(app=app)
    scheduler.close()
    assert caplog.text.count("app.conf.anarchon_store") == 1
    assert SECRET not in caplog.text


def test_without_the_extension_every_run_is_enqueue_only(
    beats: list[AnarchonScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """Replacing `-S` alone must not run anything twice because silent workers look dead."""
    scheduler = AnarchonScheduler(app=make_app(one={}, extension=False))
    beats.append(scheduler)
    scheduler.tick()
    assert names(scheduler) == {"one"}
    assert scheduler._runner is not None
    assert not scheduler._runner._tracks
    assert "enqueued" in caplog.text


def test_a_store_that_cannot_be_opened_is_tried_again_and_told_once(
    beats: list[AnarchonScheduler], caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """redbeat#230: losing the store is a state, not an exit."""
    real: LeaseStore = from_url("memory://")
    tries: list[float] = []

    class Backend:
        def open(self) -> LeaseStore:
            tries.append(time.monotonic())
            if len(tries) < 3:
                raise StoreUnavailable("nobody home")
            return real

    monkeypatch.setattr("anarchon_celery.runner.RETRY_S", 0.01)
    scheduler = AnarchonScheduler(app=make_app(store=Backend(), one={}))
    beats.append(scheduler)
    scheduler.tick()
    assert names(scheduler) == {"one"}
    assert len(tries) == 3
    assert caplog.text.count("nobody home") == 1


def test_the_cleanup_of_results_is_there_as_in_plain_beat(beats: list[AnarchonScheduler]) -> None:
    """Where the backend does not expire results by itself."""
    app = make_app(one={})
    app.conf.result_backend = "db+sqlite:///results.db"
    app.conf.result_expires = 3600

    class Backend:
        supports_autoexpire = False

    app._local.backend = Backend()
    app.__dict__["_backend_cache"] = app._local.backend
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    entry = scheduler.schedule["celery.backend_cleanup"]
    assert entry.options == {"expires": 12 * 3600}
    scheduler.tick()
    jobs = {job.name: job for job in ours(scheduler).jobs()}
    assert jobs["celery.backend_cleanup"].options.start_deadline_ms == 12 * 3_600_000


def test_periodic_tasks_added_before_and_after_the_configuration(beats: list[AnarchonScheduler]) -> None:
    """All of Celery's own ways to add entries end in the same mapping."""
    app = make_app(one={})

    @app.task(shared=False, name="shop.add")
    def add(a: int, b: int) -> int:
        return a + b

    app.add_periodic_task(10.0, add.s(1, 2), name="ten")
    app.add_periodic_task(crontab(0, 8), add.s(3, 4), expires=30)
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    scheduler.tick()
    assert names(scheduler) == {"one", "ten", "shop.add(3, 4)"}


def test_logging_is_quiet_about_what_is_normal(
    beats: list[AnarchonScheduler], caplog: pytest.LogCaptureFixture
) -> None:
    """A good app starts without a warning."""
    with caplog.at_level(logging.WARNING):
        scheduler = AnarchonScheduler(app=make_app(one={}))
        beats.append(scheduler)
        scheduler.tick()
        names(scheduler)
    assert caplog.text == ""


def published(scheduler: AnarchonScheduler, app: Celery, name: str) -> tuple[Any, list[Any]]:
    """Publish a run of a job as the scheduler does, and return its outcome and what apply_entry was given."""
    seen: list[Any] = []

    def wrapper(*args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as Sentry does it
        _, entry = args
        entry.options.setdefault("headers", {})["sentry-monitor-slug"] = entry.name
        seen.append((entry, kwargs))
        return original(*args, **kwargs)

    original = beat.Scheduler.apply_entry
    beat.Scheduler.apply_entry = wrapper  # type: ignore[method-assign]
    publisher = CeleryPublisher(app, send=scheduler._send)
    try:
        (outcome,) = publisher.publish([envelope_of(scheduler._read().jobs[name])])
    finally:
        beat.Scheduler.apply_entry = original  # type: ignore[method-assign]
        publisher.close()
    return outcome, seen


def envelope_of(job: Job) -> Envelope:
    """Return a message to publish."""
    ref = RunRef(job.name, 1_893_456_000_000)
    header = Header(id="id", namespace="cron:", ref=ref, attempt=1, token=7)
    return Envelope(
        job=job,
        ref=ref,
        attempt=1,
        token=7,
        trigger=Trigger.SCHEDULE,
        message_id="id",
        header=header,
        due_ms=ref.slot,
    )


def test_what_wraps_apply_entry_sees_each_message(beats: list[AnarchonScheduler]) -> None:
    """Sentry replaces the method: two positional arguments, and an entry with a schedule of Celery's."""
    app = make_app(one={"schedule": crontab(0, 8), "options": {"headers": {"mine": "1"}}})
    app.conf.broker_url = "memory://"
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    outcome, seen = published(scheduler, app, "one")
    ((entry, kwargs),) = seen
    assert outcome.sent is Sent.CONFIRMED
    assert list(kwargs) == ["producer"]
    assert isinstance(entry.schedule, crontab)
    assert {"mine", "sentry-monitor-slug", "anarchon", "celery_beat_task"} <= entry.options["headers"].keys()
    assert scheduler.schedule["one"].options == {"headers": {"mine": "1"}}, "the entry of the schedule stays clean"
    assert scheduler.schedule["one"].total_run_count == 1


def test_jobs_declared_in_code_are_entries_for_those_who_look(beats: list[AnarchonScheduler]) -> None:
    """They have an object of Celery's, too."""
    app = make_app(extension=False)
    app.conf.broker_url = "memory://"
    anarchon = Anarchon(app)
    anarchon.schedule("declared", "0 8 * * 1-5", task="shop.sync", args=(1,))
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    scheduler.tick()
    outcome, seen = published(scheduler, app, "declared")
    assert outcome.sent is Sent.CONFIRMED
    assert isinstance(seen[0][0].schedule, crontab)
    assert seen[0][0].args == [1]


def test_an_error_that_apply_entry_swallows_is_found(
    beats: list[AnarchonScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain beat logs it and loses the run; here the claim is handed back."""
    app = make_app(one={})
    app.conf.broker_url = "memory://"
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)

    def lost(*_: object, **__: object) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(scheduler, "send_task", lost)
    outcome, _ = published(scheduler, app, "one")
    assert (outcome.sent, outcome.broker_down, outcome.error) == (
        Sent.UNKNOWN,
        True,
        "ConnectionResetError: gone",
    )


def test_a_replaced_apply_entry_that_sends_nothing_is_no_success(
    beats: list[AnarchonScheduler], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody may believe that a run is out when it is not."""
    app = make_app(one={})
    app.conf.broker_url = "memory://"
    scheduler = AnarchonScheduler(app=app)
    beats.append(scheduler)
    monkeypatch.setattr(scheduler, "apply_entry", lambda *_, **__: None)
    outcome, _ = published(scheduler, app, "one")
    assert outcome.sent is Sent.FAILED
    assert "sent nothing" in outcome.error


@pytest.mark.parametrize("store", ["mongodb://host/0", "redis://host/0?foo=1", "nonsense"])
def test_a_store_that_can_never_be_is_told_at_the_start(store: str) -> None:
    """A beat that waits for a store that nobody can open would look healthy and send nothing: it does not start."""
    app = Celery("beat", broker="memory://", set_as_current=False)
    Anarchon(app, store=store)
    with pytest.raises(ConfigError):
        AnarchonScheduler(app)
