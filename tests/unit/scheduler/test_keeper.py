"""The worker's side: begin, beat, park, finish, and the loss of a lease."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks import events
from anarchon_tasks.current import current_run, enter, leave
from anarchon_tasks.errors import LeaseLost, StoreError
from anarchon_tasks.model import Status
from anarchon_tasks.runs import ANNOUNCE_S, ERROR_LIMIT, Keeper, shorten, trusted_s
from anarchon_tasks.stores.base import BeginKind
from tests.unit.scheduler.kit import DAY, FlakyStore, World, make_job, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.current import CurrentRun
    from anarchon_tasks.header import Header
    from anarchon_tasks.publishing import Envelope
    from anarchon_tasks.runs import Admission
    from anarchon_tasks.stores.base import Delivered


class Worker:
    """A process that executes runs, on a clock of its own that stands still."""

    def __init__(self, world: World, **options: float) -> None:
        self.world = world
        self.store = FlakyStore(world.store)
        self.told: list[events.Event] = []
        tell = events.Events()
        tell.subscribe(self.told.append)
        self.clock = world.instances[0].host
        self.keeper = Keeper(self.store, clock=self.clock, tell=tell, **options)  # type: ignore[arg-type]

    def begin(self, envelope: Envelope, retries: int = 0) -> Admission:
        """Ask to execute the run of a message."""
        return self.keeper.begin(envelope.header, self.world.delivery(envelope, retries))

    def admitted(self, envelope: Envelope) -> CurrentRun:
        """Begin, which must succeed."""
        run = self.begin(envelope).run
        assert run is not None
        return run

    def pass_time(self, seconds: float) -> None:
        """Let time pass, as soon as the thread waits for it."""
        assert until(lambda: self.clock.waiting)
        self.world.pass_time(seconds)

    def events(self, kind: type[events.Event]) -> list[events.Event]:
        """Return the events of one kind."""
        return [event for event in self.told if isinstance(event, kind)]


@pytest.fixture
def message(world: World) -> Envelope:
    """The message of a tracked run, in its queue."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(make_job("1h"))
    world.pass_time("1h")
    instance.tick()
    return instance.publisher.sent[0]


@pytest.fixture
def worker(world: World, message: Envelope) -> Iterator[Worker]:
    """A worker whose thread is ended with the test."""
    del message
    made = Worker(world)
    yield made
    made.store.hang = None
    made.keeper.stop()


# --- begin -----------------------------------------------------------------------------------------------------------


def test_a_run_is_begun_once(world: World, worker: Worker, message: Envelope) -> None:
    """The first delivery executes; a copy of the message is told that another does."""
    first, second = worker.begin(message), worker.begin(message)
    assert (first.kind, second.kind) == (BeginKind.OK, BeginKind.BUSY)
    assert first.run is not None
    assert (first.run.job, first.run.slot, first.run.attempt) == ("job", message.ref.slot, 1)
    assert first.run.token > message.token
    assert (len(worker.events(events.Began)), len(worker.events(events.Refused))) == (1, 1)
    assert world.account() == [("running", None, 1)]


def test_a_message_of_a_run_that_ended_is_dropped(worker: Worker, message: Envelope) -> None:
    """After its end a run is begun by no late copy."""
    assert worker.keeper.finish(worker.admitted(message), Status.SUCCEEDED) is True
    late = worker.begin(message)
    assert (late.kind, late.status) == (BeginKind.DONE, Status.SUCCEEDED)


def test_a_begin_is_tried_again_while_the_store_is_away(world: World, worker: Worker, message: Envelope) -> None:
    """A short outage makes a run late; every try is the same delivery."""
    worker.store.down = True
    answers: list[Admission] = []
    thread = threading.Thread(target=lambda: answers.append(worker.begin(message)))
    thread.start()
    for _ in range(3):
        worker.pass_time(2)
    worker.store.down = False
    worker.pass_time(2)
    assert until(lambda: answers)
    thread.join()
    assert answers[0].kind is BeginKind.OK
    assert len(worker.store.asked("begin")) >= 4
    assert len({ask.delivery_id for ask in worker.store.asked("begin")}) == 1
    assert world.history()[-1].status is Status.RUNNING


def test_a_begin_gives_up_in_time(worker: Worker, message: Envelope) -> None:
    """A store that stays away does not hold a worker for ever: the message is dropped and published again later."""
    worker.store.down = True
    answers: list[Admission] = []
    thread = threading.Thread(target=lambda: answers.append(worker.begin(message)))
    thread.start()
    assert until(lambda: answers or worker.clock.waiting == 0 or worker.world.pass_time(1) or answers)
    assert until(lambda: answers or worker.world.pass_time(1))
    thread.join()
    assert (answers[0].kind, answers[0].run) == (BeginKind.ERROR, None)
    assert worker.clock.monotonic() <= 3_600 + 25


def test_a_begin_whose_reply_was_lost_is_admitted(worker: Worker, message: Envelope) -> None:
    """The store had admitted this delivery: asked again, it says so again."""
    worker.store.lost = ["begin"]
    answers: list[Admission] = []
    thread = threading.Thread(target=lambda: answers.append(worker.begin(message)))
    thread.start()
    assert until(lambda: answers or (worker.clock.waiting and worker.world.pass_time(1)))
    thread.join()
    assert answers[0].kind is BeginKind.OK


def test_nobody_is_taken_over_right_after_an_outage(worker: Worker, message: Envelope) -> None:
    """A worker that just found its store again lets the live ones beat first, also in the begin that noticed."""
    worker.store.down = True
    answers: list[Admission] = []
    thread = threading.Thread(target=lambda: answers.append(worker.begin(message)))
    thread.start()
    worker.pass_time(2)
    worker.store.down = False
    worker.pass_time(2)
    assert until(lambda: answers)
    thread.join()
    worker.begin(message)
    first, *others = (ask.takeover for ask in worker.store.asked("begin"))
    assert first
    assert len(others) >= 2
    assert not any(others)
    worker.pass_time(12)
    worker.begin(message)
    assert worker.store.asked("begin")[-1].takeover


def test_an_outage_as_long_as_the_lease_lets_no_copy_of_the_message_take_over(
    world: World, worker: Worker, message: Envelope
) -> None:
    """A copy that waited for the store asks before the live worker has beaten: it does not get the run."""
    assert world.begin(message).kind is BeginKind.OK
    worker.world.pass_time(25)
    worker.store.down = True
    answers: list[Admission] = []
    thread = threading.Thread(target=lambda: answers.append(worker.begin(message)))
    thread.start()
    for _ in range(4):
        worker.pass_time(2)
    worker.store.down = False
    worker.pass_time(2)
    assert until(lambda: answers)
    thread.join()
    assert answers[0].kind is BeginKind.BUSY
    assert world.history()[-1].attempt == 1


def test_nobody_is_taken_over_when_a_beat_found_the_stores_clock_moved(
    world: World, worker: Worker, message: Envelope
) -> None:
    """Leases that look over because the store's clock leaped are not: the live workers beat first."""
    worker.admitted(message)
    world.server.set_wall(world.now + 60_000)
    worker.pass_time(10)
    assert until(lambda: worker.store.asked("beat"))
    worker.begin(message)
    assert not worker.store.asked("begin")[-1].takeover


# --- beat ------------------------------------------------------------------------------------------------------------


def test_shedlock_1596_a_long_run_keeps_its_lease(world: World, worker: Worker, message: Envelope) -> None:
    """Ten leases later the run is still this worker's, with one call per heartbeat."""
    run = worker.admitted(message)
    for beats in range(1, 31):
        worker.pass_time(10)
        assert until(lambda beats=beats: len(worker.store.asked("beat")) >= beats)
    assert not run.lost
    assert len(worker.store.asked("beat")) <= 31
    assert world.history()[-1].attempt == 1


def test_a_job_with_a_lease_of_its_own_is_beaten_for_in_time(world: World, worker: Worker) -> None:
    """A lease shorter than the worker's heartbeat does not end under a live worker, with no heartbeat given for it."""
    instance = world.instances[0].add(make_job("1h", name="short", lease="6s"))
    world.pass_time("1h")
    instance.tick()
    run = worker.admitted(next(envelope for envelope in instance.publisher.sent if envelope.ref.job == "short"))
    for beats in range(1, 6):
        worker.pass_time(2)
        assert until(lambda beats=beats: len(worker.store.asked("beat")) >= beats)
    assert not run.lost
    assert world.history("short")[-1].attempt == 1


def test_dramatiq_691_one_call_beats_for_all_runs_of_a_process(world: World, worker: Worker) -> None:
    """However many runs a process executes, a heartbeat is one call."""
    instance = world.instances[0].add(*(make_job("1h", name=f"job-{n}") for n in range(5)))
    world.pass_time("1h")
    instance.tick()
    for envelope in instance.publisher.sent[-5:]:
        worker.admitted(envelope)
    worker.pass_time(10)
    assert until(lambda: worker.store.asked("beat"))
    assert len(worker.store.asked("beat")) == 5
    assert sum(name == "beat" for name, _ in worker.store.calls) == 1


def test_dbs_402_a_refused_beat_tells_the_run(world: World, worker: Worker, message: Envelope) -> None:
    """Another attempt has the run: it is lost, it can find out, and it is told once."""
    run = worker.admitted(message)
    run.raise_if_lost()
    world.store._accounts["job"].states[message.ref].token += 1
    worker.pass_time(10)
    assert until(lambda: worker.events(events.LeaseLost))
    assert run.lost
    with pytest.raises(LeaseLost, match="no longer this worker's"):
        run.raise_if_lost()
    worker.pass_time(30)
    assert len(worker.events(events.LeaseLost)) == 1


def test_silence_of_the_store_ends_the_trust_before_the_lease(worker: Worker, message: Envelope) -> None:
    """With no beat answered, the run is lost a second before its lease is over, and not much earlier."""
    run = worker.admitted(message)
    worker.store.down = True
    for _ in range(28):
        worker.pass_time(1)
    assert not run.lost
    worker.pass_time(1)
    assert until(lambda: run.lost)
    assert until(lambda: worker.events(events.LeaseLost))


def test_an_outage_longer_than_the_lease_costs_a_live_worker_nothing(
    world: World, worker: Worker, message: Envelope
) -> None:
    """The run learns that it may be lost; when the store is back its worker speaks first, and keeps it."""
    run, instance = worker.admitted(message), world.instances[0]
    worker.store.down = instance.store.down = True
    for _ in range(60):
        worker.pass_time(1)
        instance.tick()
    assert run.lost
    assert len(worker.events(events.LeaseLost)) == 1
    worker.store.down = instance.store.down = False
    for _ in range(60):
        worker.pass_time(1)
        instance.tick()
    assert not run.lost
    assert len(instance.publisher.sent) == 1
    assert worker.keeper.finish(run, Status.SUCCEEDED) is True
    assert [(entry.status, entry.attempt) for entry in world.history()] == [(Status.SUCCEEDED, 1)]


def test_a_run_that_may_be_lost_is_waited_for_with_pauses(worker: Worker, message: Envelope) -> None:
    """While the store is away the thread tries once per heartbeat, and sleeps in between."""
    worker.admitted(message)
    worker.store.down = True
    for _ in range(10):
        worker.pass_time(10)
    assert until(lambda: worker.clock.waiting)
    assert len(worker.store.asked("beat")) <= 11


def test_a_beat_that_hangs_does_not_hide_the_loss(worker: Worker, message: Envelope) -> None:
    """While the call of the heartbeat itself hangs, the run still learns in time that its trust is over."""
    run = worker.admitted(message)
    assert until(lambda: any(name == "announce" for name, _ in worker.store.calls) and worker.clock.waiting)
    worker.store.hang = threading.Event()
    worker.pass_time(10)
    assert until(worker.store.hanging.is_set)
    worker.world.pass_time(18)
    assert not run.lost
    worker.world.pass_time(2)
    assert run.lost
    worker.store.hang.set()


def test_trust_counts_from_when_a_beat_was_sent(worker: Worker, message: Envelope) -> None:
    """A beat that took twenty seconds to be answered extends the trust to what is left of the lease."""
    run = worker.admitted(message)
    before = worker.clock.monotonic()

    def slow(name: str) -> None:
        if name == "beat":
            worker.store.during = None
            worker.clock.advance("20s")

    worker.store.during = slow
    worker.pass_time(10)
    assert until(lambda: run.deadline > before + 30)
    assert run.deadline == pytest.approx(before + 10 + 29)


@pytest.mark.parametrize(("lease_s", "trusted"), [(30.0, 29.0), (5.0, 4.5), (100.0, 99.0)])
def test_the_margin_of_trust(lease_s: float, trusted: float) -> None:
    """A second, or a tenth of a short lease."""
    assert trusted_s(lease_s) == trusted


def test_dbs_365_beats_go_on_until_the_end_is_written(worker: Worker, message: Envelope) -> None:
    """A run that is not finished is beaten for, and one that is finished is not."""
    run = worker.admitted(message)
    worker.pass_time(10)
    assert until(lambda: worker.store.asked("beat"))
    worker.keeper.finish(run, Status.SUCCEEDED)
    beats = len(worker.store.asked("beat"))
    for _ in range(3):
        worker.pass_time(10)
    assert len(worker.store.asked("beat")) == beats
    assert not worker.events(events.LeaseLost)


# --- finish and park -------------------------------------------------------------------------------------------------


def test_the_end_of_a_run_is_on_the_account(world: World, worker: Worker, message: Envelope) -> None:
    """Status, error, times and worker are there; a long error is shortened."""
    run = worker.admitted(message)
    world.pass_time(3)
    assert worker.keeper.finish(run, Status.FAILED, error="x" * 10_000) is True
    entry = world.history()[-1]
    assert (entry.status, entry.duration_ms, entry.worker, entry.pid) == (Status.FAILED, 3_000, "w1@host", 7)
    assert len(entry.error or "") == ERROR_LIMIT


def test_an_end_that_could_not_be_written_is_written_later(world: World, worker: Worker, message: Envelope) -> None:
    """A store that is away at the end of a run learns of it when it is back."""
    run = worker.admitted(message)
    worker.store.down = True
    assert worker.keeper.finish(run, Status.SUCCEEDED) is None
    worker.pass_time(2)
    worker.store.down = False
    worker.pass_time(2)
    assert until(lambda: worker.events(events.Ended))
    assert world.account() == [("succeeded", None, 1)]
    assert worker.keeper._unwritten == []


def test_an_end_that_the_store_refused_to_take_is_written_later(
    world: World, worker: Worker, message: Envelope, caplog: pytest.LogCaptureFixture
) -> None:
    """Credentials that were changed under a running task cost it nothing once they are right again."""
    run = worker.admitted(message)

    def denied(name: str) -> None:
        if name == "finish":
            raise StoreError("NOPERM")

    worker.store.during = denied
    assert worker.keeper.finish(run, Status.SUCCEEDED) is None
    for _ in range(3):
        worker.pass_time(2)
    worker.store.during = None
    worker.pass_time(2)
    assert until(lambda: worker.events(events.Ended))
    assert world.account() == [("succeeded", None, 1)]
    assert [record.levelname for record in caplog.records if "NOPERM" in record.getMessage()] == ["ERROR"]
    assert "heartbeat-failed" not in caplog.text


def test_a_store_that_refuses_heartbeats_is_told_once(
    worker: Worker, message: Envelope, caplog: pytest.LogCaptureFixture
) -> None:
    """What keeps a live worker from beating is in its log, once, and not as a traceback; then it beats again."""
    run = worker.admitted(message)

    def newer(_: str) -> None:
        raise StoreError("format 9")

    worker.store.during = newer
    for _ in range(6):
        worker.pass_time(10)
    assert until(lambda: run.lost)
    worker.store.during = None
    for _ in range(2):
        worker.pass_time(10)
    assert until(lambda: not run.lost)
    assert [record.levelname for record in caplog.records if "format 9" in record.getMessage()] == ["ERROR"]
    assert "heartbeat-failed" not in caplog.text


def test_an_end_whose_reply_was_lost_is_accepted(world: World, worker: Worker, message: Envelope) -> None:
    """Written twice, it counts once."""
    run = worker.admitted(message)
    worker.store.lost = ["finish"]
    assert worker.keeper.finish(run, Status.SUCCEEDED) is None
    worker.pass_time(2)
    assert until(lambda: worker.events(events.Ended))
    assert [event.accepted for event in worker.events(events.Ended)] == [True]  # type: ignore[attr-defined]
    assert world.account() == [("succeeded", None, 1)]


def test_a_stop_writes_the_ends_that_wait(world: World, worker: Worker, message: Envelope) -> None:
    """A worker that shuts down does not forget what it owes the store."""
    run = worker.admitted(message)
    worker.store.refused = {"finish"}
    assert worker.keeper.finish(run, Status.SUCCEEDED) is None
    worker.store.refused = set()
    worker.keeper.stop()
    assert world.account() == [("succeeded", None, 1)]


def test_a_dead_worker_can_no_longer_write(world: World, worker: Worker, message: Envelope) -> None:
    """A worker that was stopped past its lease is refused, and the refusal is on the account."""
    run = worker.admitted(message)
    worker.store.refused = {"beat"}
    world.run(35)
    second = world.begin(world.instances[0].publisher.sent[1])
    assert second.attempt == 2
    assert worker.keeper.finish(run, Status.SUCCEEDED) is False
    assert worker.events(events.Ended)[-1].accepted is False  # type: ignore[attr-defined]
    assert [(entry.status, entry.refused) for entry in world.history()] == [
        (Status.INTERRUPTED, 1),
        (Status.RUNNING, 0),
    ]


def test_a_retry_of_the_task_is_the_same_attempt(world: World, worker: Worker, message: Envelope) -> None:
    """Parked before its retry is published, the run goes on with the retry's delivery."""
    run = worker.admitted(message)
    assert worker.keeper.park(run, eta_ms=world.now + 60_000)
    assert world.history()[-1].status is Status.QUEUED
    header = _with_token(message.header, run.token)
    retry = worker.keeper.begin(header, world.delivery(message, retries=1))
    assert retry.run is not None
    assert retry.run.attempt == 1
    assert retry.run.token > run.token


def test_a_retry_that_could_not_be_parked_is_admitted(world: World, worker: Worker, message: Envelope) -> None:
    """When the store is away at the retry, the token in the retry's header lets it in."""
    run = worker.admitted(message)
    worker.store.refused = {"park"}
    assert not worker.keeper.park(run, eta_ms=world.now + 1_000)
    retry = worker.keeper.begin(_with_token(message.header, run.token), world.delivery(message, retries=1))
    assert retry.kind is BeginKind.OK


def _with_token(header: Header, token: int) -> Header:
    from dataclasses import replace

    return replace(header, token=token)


def test_the_parent_reports_what_the_child_cannot(world: World, worker: Worker, message: Envelope) -> None:
    """An end told from outside is taken when it is about this very delivery, and refused otherwise."""
    worker.admitted(message)
    other: Delivered = world.delivery(message, retries=3)
    assert not worker.keeper.report(message.header, other, Status.FAILED)
    assert worker.keeper.report(message.header, world.delivery(message), Status.FAILED, error="SIGKILL")
    assert world.account() == [("failed", None, 1)]
    worker.store.down = True
    assert worker.keeper.report(message.header, world.delivery(message), Status.FAILED) is False


def test_queues_are_announced_while_runs_begin(world: World, worker: Worker, message: Envelope) -> None:
    """Schedulers learn when a run of a queue last began: at once from a process's first run, then once a minute."""

    def announced() -> int:
        return sum(name == "announce" for name, _ in worker.store.calls)

    run = worker.admitted(message)
    assert until(announced)
    assert dict(world.store.queues().answers)["celery"].begun_ms == world.now
    instance = world.instances[0]
    worker.keeper.finish(run, Status.SUCCEEDED)
    instance.add(make_job("1m", name="other"))
    for minutes in range(1, 4):
        worker.pass_time(60)
        instance.tick()
        worker.admitted(instance.publisher.sent[-1])
        worker.keeper.finish(worker.keeper._runs.popitem()[1], Status.SUCCEEDED)
        assert announced() <= 1 + minutes
    assert until(lambda: announced() >= 3)
    assert ANNOUNCE_S == 60


@pytest.mark.parametrize("ahead_ms", [3 * DAY, -3 * DAY])
def test_when_a_run_began_is_told_in_the_stores_time(world: World, message: Envelope, ahead_ms: int) -> None:
    """It is compared with when messages were published: a worker whose clock is wrong would make them lost."""
    worker = Worker(world)
    worker.clock.set_wall(world.now + ahead_ms)
    worker.admitted(message)
    for _ in range(7):
        worker.pass_time(10)
    assert until(lambda: dict(world.store.queues().answers)["celery"].begun_ms)
    worker.keeper.stop()
    assert dict(world.store.queues().answers)["celery"].begun_ms == message.due_ms


def test_the_keeper_beats_again_after_a_stop(world: World, worker: Worker, message: Envelope) -> None:
    """Stopped, stopped again and used again: the thread is back."""
    worker.keeper.stop()
    worker.keeper.stop()
    worker.admitted(message)
    worker.pass_time(10)
    assert until(lambda: worker.store.asked("beat"))
    assert world.history()[-1].status is Status.RUNNING


# --- current_run -----------------------------------------------------------------------------------------------------


def test_current_run_is_that_of_the_task(worker: Worker, message: Envelope) -> None:
    """Inside it is the run, outside it is None, in other threads it is None as well."""
    run = worker.admitted(message)
    assert current_run() is None
    token = enter(run)
    assert current_run() is run
    seen: list[object] = []
    thread = threading.Thread(target=lambda: seen.append(current_run()))
    thread.start()
    thread.join()
    assert seen == [None]
    leave(token)
    assert current_run() is None
    assert run.scheduled_for.timestamp() * 1_000 == run.slot


@pytest.mark.parametrize("length", [0, 1, ERROR_LIMIT, ERROR_LIMIT + 1, 10_000])
def test_errors_are_kept_within_bounds(length: int) -> None:
    """A short error is kept as it is."""
    text = shorten("x" * length) or ""
    assert len(text) == min(length, ERROR_LIMIT)
    assert shorten(None) is None
