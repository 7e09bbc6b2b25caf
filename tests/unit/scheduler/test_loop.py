"""Starting and stopping, once for every loop; and the scheduler as a whole, in threads."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks import events
from anarchon_tasks._loops.loop import Loop
from anarchon_tasks.clock import SystemClock
from anarchon_tasks.errors import StoreFormatError, StoreUnavailable
from anarchon_tasks.runs import Keeper
from anarchon_tasks.testing import ManualClock
from tests.unit.scheduler.kit import PATIENCE_S, World, make_job, until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

AT_ONCE_S = 0.05


class Steps:
    """A stepper that counts, and does what the test says."""

    def __init__(self) -> None:
        self.steps = 0
        self.finished = 0
        self.alone = threading.Lock()
        self.together = 0
        self.do: Callable[[], float] = lambda: 0.01
        self.at_end: Callable[[], None] = lambda: None

    def step(self) -> float:
        """Count."""
        if not self.alone.acquire(blocking=False):
            self.together += 1
            return 0.01
        try:
            self.steps += 1
            return self.do()
        finally:
            self.alone.release()

    def finish(self) -> None:
        """Count."""
        self.finished += 1
        self.at_end()


@pytest.fixture
def steps() -> Steps:
    """A stepper."""
    return Steps()


@pytest.fixture
def loop(steps: Steps) -> Iterator[Loop]:
    """A loop that is ended with the test."""
    made = Loop("test", steps, clock=SystemClock())
    yield made
    made.ask_to_stop()
    made.join(PATIENCE_S)


def test_a_loop_steps_until_it_is_stopped(loop: Loop, steps: Steps) -> None:
    """It goes on by itself, and finishes once."""
    assert not loop.running
    loop.start()
    assert until(lambda: steps.steps > 3)
    loop.ask_to_stop()
    assert loop.join(PATIENCE_S)
    assert (loop.running, steps.finished) == (False, 1)


def test_double_start_is_one_thread(loop: Loop, steps: Steps) -> None:
    """However many ask at once, one thread steps."""
    threads = [threading.Thread(target=loop.start) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert until(lambda: steps.steps > 20)
    assert sum(thread.name == "anarchon-test" for thread in threading.enumerate()) == 1
    assert steps.together == 0


def test_double_stop_and_stop_before_start_are_fine(loop: Loop, steps: Steps) -> None:
    """Stopping what does not run succeeds; starting afterwards works."""
    loop.ask_to_stop()
    assert loop.join(0)
    loop.start()
    assert until(lambda: steps.steps)
    for _ in range(2):
        loop.ask_to_stop()
        assert loop.join(PATIENCE_S)
    assert steps.finished == 1
    loop.start()
    seen = steps.steps
    assert until(lambda: steps.steps > seen)


def test_stop_with_a_hanging_step_is_bounded(loop: Loop, steps: Steps) -> None:
    """A step that hangs does not hold up who stops; it ends when it can."""
    go_on = threading.Event()
    steps.do = lambda: float(go_on.wait(PATIENCE_S))
    loop.start()
    assert until(lambda: steps.steps)
    loop.ask_to_stop()
    assert not loop.join(AT_ONCE_S)
    go_on.set()
    assert loop.join(PATIENCE_S)


def test_a_start_while_the_old_thread_hangs_takes_effect(loop: Loop, steps: Steps) -> None:
    """Started again before the old thread has ended: the loop runs on, and never in two threads at once."""
    go_on = threading.Event()
    steps.do = lambda: 0.001 if go_on.wait(PATIENCE_S) else 0.0
    loop.start()
    assert until(lambda: steps.steps)
    loop.ask_to_stop()
    assert not loop.join(AT_ONCE_S)
    loop.start()
    go_on.set()
    assert until(lambda: steps.steps > 5)
    assert (loop.running, steps.finished, steps.together) == (True, 1, 0)


@pytest.mark.parametrize("error", [StoreUnavailable(), RuntimeError("a bug"), KeyError("x")])
def test_sqla_29_a_loop_never_dies_of_an_error(
    loop: Loop, steps: Steps, error: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    """A step that raises is taken again; only what nobody foresaw is logged here."""

    def fail_twice() -> float:
        if steps.steps <= 2:
            raise error
        return 0.01

    steps.do = fail_twice
    loop.start()
    assert until(lambda: steps.steps > 4)
    assert (caplog.records == []) is isinstance(error, StoreUnavailable)


def test_a_store_that_refuses_is_told_once(loop: Loop, steps: Steps, caplog: pytest.LogCaptureFixture) -> None:
    """A wrong password does not fill the log with the same traceback; when it is right again, the loop goes on."""

    def refused() -> float:
        if steps.steps <= 3:
            raise StoreFormatError("redis://host:6379/0 has the format 9")
        return 0.01

    steps.do = refused
    loop.start()
    assert until(lambda: steps.steps > 4)
    (told,) = caplog.records
    assert (told.levelname, told.exc_info) == ("ERROR", None)
    assert "has the format 9" in told.getMessage()


@pytest.mark.parametrize("error", [StoreUnavailable(), RuntimeError("a bug")])
def test_an_error_at_the_end_ends_the_loop(loop: Loop, steps: Steps, error: Exception) -> None:
    """What is held then runs out by itself; the stop succeeds."""

    def fail() -> None:
        raise error

    steps.at_end = fail
    loop.start()
    loop.ask_to_stop()
    assert loop.join(PATIENCE_S)


def test_wake_ends_a_pause(steps: Steps) -> None:
    """A loop that waits for an hour takes its next step as soon as it is woken."""
    clock = ManualClock()
    loop = Loop("test", steps, clock=clock)
    steps.do = lambda: 3_600.0
    loop.start()
    assert until(lambda: clock.waiting)
    loop.wake()
    assert until(lambda: steps.steps == 2)
    loop.ask_to_stop()
    assert loop.join(PATIENCE_S)


# --- the scheduler in threads ----------------------------------------------------------------------------------------


@pytest.fixture
def live() -> Iterator[World]:
    """A world on the host's clocks, whose schedulers are ended with the test."""
    world = World()
    yield world
    for instance in world.instances:
        instance.store.hang = None
        instance.scheduler.stop(PATIENCE_S)


def test_a_scheduler_runs_in_threads_of_its_own(live: World) -> None:
    """Between start and stop slots are enqueued; time is the store's."""
    instance = live.instance()
    instance.scheduler.add_job(make_job("10s", track=False))
    assert not instance.scheduler.running
    instance.scheduler.start()
    assert instance.scheduler.running
    assert until(lambda: live.pass_time("1s") or instance.store.asked("register"))
    assert until(lambda: live.pass_time("1s") or len(instance.publisher.sent) > 2)
    assert instance.scheduler.stop(PATIENCE_S)
    assert not instance.scheduler.running


def test_start_and_stop_of_a_scheduler_are_idempotent(live: World) -> None:
    """Twice is once, and each is told once; stop before start is fine, start after stop works."""
    instance = live.instance()
    scheduler = instance.scheduler
    assert scheduler.stop(PATIENCE_S)
    for _ in range(2):
        scheduler.start()
        scheduler.start()
        assert scheduler.stop(PATIENCE_S)
        assert scheduler.stop(PATIENCE_S)
    assert [type(event) for event in instance.told] == [events.Started, events.Stopped] * 2


def test_stop_with_a_hung_store_is_bounded(live: World) -> None:
    """A store that hangs does not hold up the end of the process; stop says that not everything ended."""
    instance = live.instance()
    instance.store.hang = threading.Event()
    instance.scheduler.add_job(make_job())
    instance.scheduler.start()
    assert until(instance.store.hanging.is_set)
    assert not instance.scheduler.stop(AT_ONCE_S)
    assert instance.publisher.closed == 0
    instance.store.hang.set()
    assert instance.scheduler.stop(PATIENCE_S)
    assert instance.publisher.closed == 1


def test_a_scheduler_starts_without_its_store(live: World) -> None:
    """A store that is away at the start is waited for."""
    instance = live.instance()
    instance.store.down = True
    instance.scheduler.add_job(make_job("10s", track=False))
    instance.scheduler.start()
    assert until(lambda: live.pass_time("1s") or instance.events(events.Down))
    instance.store.down = False
    assert until(lambda: live.pass_time("1s") or instance.publisher.sent)


def test_river_1161_a_failing_listener_leaves_no_half_started_scheduler(
    live: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever listens may raise: it is logged, and the scheduler works."""
    instance = live.instance()

    def fail(_: events.Event) -> None:
        raise RuntimeError("a listener")

    instance.scheduler.events.subscribe(fail)
    instance.scheduler.add_job(make_job("10s", track=False))
    instance.scheduler.start()
    assert until(lambda: live.pass_time("1s") or instance.publisher.sent)
    assert "listener-failed" in caplog.text


def test_only_what_was_opened_is_closed(live: World) -> None:
    """A store that was handed in stays open when the scheduler stops."""
    instance = live.instance()
    instance.scheduler.start()
    assert instance.scheduler.stop(PATIENCE_S)
    assert (instance.store.closed, instance.publisher.closed) == (0, 1)


def test_a_keeper_may_be_stopped_at_any_time() -> None:
    """Before it ran, twice, and again after it was used."""
    world = World()
    keeper = Keeper(world.store, clock=SystemClock())
    keeper.stop()
    keeper.stop()
