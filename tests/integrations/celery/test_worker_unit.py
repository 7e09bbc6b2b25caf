"""The worker's decisions, without a worker."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
import threading
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from celery.exceptions import Ignore, Reject, WorkerLostError, WorkerShutdown

from anarchon_celery.errors import LeaseLost, StaleRun
from anarchon_celery.guard import End, describe, judge
from anarchon_celery.installation import PerProcess, installation_of
from anarchon_celery.request import RunRequest
from anarchon_celery.worker import install
from anarchon_tasks.errors import LeaseLost as CoreLeaseLost
from anarchon_tasks.model import Reason, Status

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore

BOOM = ValueError("boom")


@pytest.mark.parametrize(
    ("state", "outcome", "end"),
    [
        ("SUCCESS", 1, End(Status.SUCCEEDED)),
        ("FAILURE", BOOM, End(Status.FAILED, None, "ValueError: boom")),
        ("IGNORED", Ignore("no"), End(Status.SUCCEEDED, Reason.IGNORED)),
        ("IGNORED", Ignore("Replaced by new task"), End(Status.SUCCEEDED, Reason.REPLACED)),
        ("IGNORED", LeaseLost("gone"), None),
        ("REJECTED", Reject(BOOM, requeue=False), End(Status.FAILED, Reason.REJECTED, f"Reject: ({BOOM!r}, False)")),
        ("REJECTED", Reject(BOOM, requeue=True), End(Status.INTERRUPTED, Reason.REJECTED, f"Reject: ({BOOM!r}, True)")),
        ("RETRY", BOOM, None),
        (None, None, None),
    ],
)
def test_each_state_of_celery_has_one_meaning(state: str | None, outcome: object, end: End | None) -> None:
    """A run ends by a real state only; a retry and a killed task end nothing."""
    assert judge(state, outcome, problem=SystemExit(1), acks_late=True, parent_tells=True) == end


def test_a_rejected_message_that_was_acknowledged_before_cannot_come_again() -> None:
    """Without late acknowledgement, `requeue=True` is only a wish."""
    end = judge("REJECTED", Reject("no", requeue=True), problem=None, acks_late=False, parent_tells=True)
    assert end is not None
    assert end.status is Status.FAILED


@pytest.mark.parametrize(
    ("problem", "end"),
    [
        (SystemExit(3), End(Status.FAILED, None, "SystemExit: 3")),
        (KeyboardInterrupt(), End(Status.FAILED, None, "KeyboardInterrupt")),
        (WorkerShutdown(0), End(Status.INTERRUPTED, Reason.WORKER_LOST, "WorkerShutdown: 0")),
        (GeneratorExit(), None),
        (None, None),
    ],
)
def test_the_only_process_tells_of_its_exit(problem: BaseException | None, end: End | None) -> None:
    """An exit is the task's own doing, unless the worker stops."""
    assert judge(None, None, problem=problem, acks_late=False, parent_tells=False) == end


@pytest.mark.parametrize(
    ("error", "told"),
    [
        (SystemExit(3), (Status.FAILED, None)),
        (SystemExit(None), (Status.FAILED, None)),
        (SystemExit(15 - 256), (Status.INTERRUPTED, Reason.WORKER_LOST)),
        (WorkerLostError("signal 9"), (Status.INTERRUPTED, Reason.WORKER_LOST)),
        (ValueError("told by the child"), None),
    ],
)
def test_the_main_process_tells_of_lost_children_and_exits_only(
    error: BaseException, told: tuple[Status, Reason | None] | None
) -> None:
    """A child that exits on a signal was killed; any other exit is the task's own doing."""
    reports: list[tuple[Status, Reason | None]] = []

    class Spied(RunRequest):
        def _report(self, status: Status, reason: Reason | None = None, error: str | None = None) -> None:
            del error
            reports.append((status, reason))

    Spied.__new__(Spied)._report_exit(error)
    assert reports == ([told] if told else [])


def test_an_exception_that_cannot_be_written_is_named() -> None:
    """The user's `__str__` may raise."""

    class Rude(Exception):
        def __str__(self) -> str:
            raise RuntimeError

    assert describe(Rude()) == "Rude"


def test_what_the_guard_raises_crosses_a_pipe() -> None:
    """Both are kinds of Ignore and keep what they know."""
    refusal = pickle.loads(pickle.dumps(StaleRun("done", "succeeded", "the run of message 1")))
    assert (refusal.answer, refusal.status, refusal.run) == ("done", "succeeded", "the run of message 1")
    assert str(refusal) == "the run of message 1 not started: done (succeeded)"
    lost = pickle.loads(pickle.dumps(LeaseLost("gone")))
    assert isinstance(lost, CoreLeaseLost)
    assert isinstance(lost, Ignore)
    assert isinstance(refusal, Ignore)
    assert (str(lost), lost.code) == ("gone", "ANARCHON_LEASE_LOST")


def test_installing_opens_nothing_and_is_done_once_per_app() -> None:
    """A web process that imports the app has no thread, no connection and no receiver of publishes."""

    def never() -> LeaseStore:
        raise AssertionError("opened at import")

    before = threading.active_count()
    app = Celery("one", set_as_current=False)
    installation = install(app, never)
    assert install(app, never, lease_ms=1) is installation
    assert installation_of(app) is installation
    assert installation_of(Celery("other", set_as_current=False)) is None
    assert threading.active_count() == before
    assert not installation.begins_here
    app.close()


def test_importing_the_worker_side_connects_no_receiver_of_publishes() -> None:
    """Only an initialised worker has one: a scheduler may count receivers to see whether a short cut is safe."""
    code = (
        "from celery import Celery, signals; from anarchon_celery.worker import install; "
        "install(Celery('x'), lambda: None); print(len(signals.before_task_publish.receivers or []))"
    )
    answer = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=30)
    assert answer.stdout.strip() == "0"


def test_what_one_process_made_another_makes_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing that came through a fork is used."""
    made = PerProcess(object)
    assert made.existing() is None
    first = made.get()
    assert made.get() is first
    monkeypatch.setattr("os.getpid", lambda: -1)
    assert made.existing() is None
    assert made.get() is not first


def test_threads_that_come_first_together_share_what_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    """On the pool of threads a run is begun, beaten for and ended by one and the same object."""
    made, pid = PerProcess(object), os.getpid()
    looked, go_on = threading.Event(), threading.Event()
    got: list[object] = []

    def getpid() -> int:
        if threading.current_thread() is slow and not looked.is_set():
            looked.set()
            go_on.wait(10)
        return pid

    slow = threading.Thread(target=lambda: got.append(made.get()))
    monkeypatch.setattr("os.getpid", getpid)
    slow.start()
    assert looked.wait(10)
    first = made.get()
    go_on.set()
    slow.join(10)
    assert got == [first]
    assert made.get() is first


def test_the_moment_of_a_retry_is_read_in_every_form() -> None:
    """Celery writes an aware instant; a naive one is meant in the app's zone."""
    from anarchon_celery.guard import _ms

    at = datetime(2026, 1, 2, 3, 4, 5, tzinfo=UTC)
    ms = int(at.timestamp() * 1000)
    assert _ms(None, UTC) == 0
    assert _ms(at.isoformat(), UTC) == ms
    assert _ms("2026-01-02T03:04:05", UTC) == ms
    assert _ms(at, UTC) == ms
