"""What only the worker's main process can tell: killed children, limits, exits, terminated runs. Prefork pool."""

from __future__ import annotations

import os
import signal
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.stores.base import ClaimKind
from tests.integrations.celery.worker_desk import Desk, open_desk
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.model import Run

pytestmark = pytest.mark.xdist_group("processes")

REPORTED_S = 15.0
"""A killed child is reported after 0.1 to 5 s; the lease in these tests is half a minute."""


@pytest.fixture(scope="module")
def desk(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A worker with children that serves all tests of the module."""
    with open_desk(tmp_path_factory.mktemp("prefork")) as desk:
        desk.listen()
        desk.start_worker("prefork", conf={"task_track_started": True})
        yield desk


@pytest.fixture(autouse=True)
def _gates(desk: Desk) -> Iterator[None]:
    """Leave no task waiting for the next test."""
    yield
    desk.open_gates()


def interrupted(run: Run) -> bool:
    """Whether the attempt was reported as ended by its worker's death."""
    return run.status == "running" and run.reason == "worker_lost"


def test_the_soft_time_limit_ends_the_run_as_failed(desk: Desk) -> None:
    """The task sees the limit, and its exception ends the run."""
    sent = desk.run("limited", 20, soft_time_limit=0.5)
    run = desk.ended(sent)
    assert run.status == "failed"
    assert "SoftTimeLimitExceeded" in (run.error or "")
    assert desk.evidence("soft-limit", sent)


def test_the_hard_time_limit_ends_the_run_as_failed(desk: Desk) -> None:
    """celery#6077, #4827, #2159: no signal tells it in the child, so the main process does, at once."""
    sent = desk.run("limited", 20, time_limit=0.5)
    run = desk.ended(sent)
    assert (run.status, run.reason, run.attempt) == ("failed", "time_limit", 1)
    assert run.pid == desk.body_pid(sent)


def test_an_exit_of_the_tasks_own_ends_the_run_as_failed(desk: Desk) -> None:
    """SystemExit is what the task did: it is not executed again."""
    run = desk.ended(desk.run("exits", 3))
    assert (run.status, run.reason, run.error) == ("failed", None, "SystemExit: 3")


@pytest.mark.parametrize("number", [signal.SIGKILL, pytest.param(signal.SIGTERM, marks=pytest.mark.slow)])
def test_a_killed_child_ends_the_attempt_and_the_next_one_starts_at_once(desk: Desk, number: signal.Signals) -> None:
    """celery#1628, #3541, #3053: a child killed by the kernel or by an operator leaves its run to the next attempt."""
    gate = desk.gate()
    sent = desk.run("waits", str(gate))
    os.kill(desk.body_pid(sent), number)
    desk.until(sent, interrupted, REPORTED_S)
    again = desk.publish(desk.take_over(sent, timeout=2.0))
    gate.touch()
    assert desk.ended(again).status == "succeeded"
    second, first = desk.entries(sent)
    assert (first.attempt, first.status, first.reason) == (1, "interrupted", "worker_lost")
    assert second.attempt == 2
    assert second.token > first.token


@pytest.mark.slow
def test_a_message_that_comes_again_after_its_child_was_killed_runs_as_the_next_attempt(desk: Desk) -> None:
    """With `reject_on_worker_lost` the broker's copy need not wait for the lease, nor for a scheduler."""
    sent = desk.run("comes-back")
    os.kill(desk.body_pid(sent), signal.SIGKILL)
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.task_id) == ("succeeded", 2, sent.id)
    assert [entry.reason for entry in desk.entries(sent)] == [None, "worker_lost"]


def test_a_terminated_run_ends_as_cancelled(desk: Desk) -> None:
    """`revoke(terminate=True)` ends the run, and nothing starts it again."""
    sent = desk.run("waits", str(desk.gate()))
    desk.seen("body", sent)
    desk.app.control.revoke(sent.id, terminate=True)
    run = desk.ended(sent)
    assert (run.status, run.reason) == ("cancelled", "revoked")


def test_a_refused_copy_does_not_hide_the_run_from_the_remote_control(desk: Desk) -> None:
    """After a copy with the same id was refused, the run that executes is still found, and can be terminated."""
    sent = desk.run("waits", str(desk.gate()))
    desk.seen("body", sent)
    desk.copy(sent)
    desk.refused(sent)
    marker = desk.by_hand("ok")  # the main process has heard of the refusal once it has heard of this
    poll_until(lambda: desk.result(marker) == "SUCCESS")
    inspect = desk.app.control.inspect(timeout=2.0, limit=1)
    poll_until(lambda: [state for node in (inspect.query_task(sent.id) or {}).values() for state in node.values()])
    desk.app.control.revoke(sent.id, terminate=True)
    assert desk.ended(sent).status == "cancelled"


def test_a_waiting_copy_does_not_protect_the_run_from_the_remote_control(desk: Desk) -> None:
    """While a copy waits for a free child, `revoke(terminate=True)` ends what executes under the id."""
    sent, other = desk.run("waits", str(desk.gate())), desk.run("waits", str(desk.gate()))
    desk.seen("body", sent)
    desk.seen("body", other)
    desk.copy(sent)
    desk.logged(f"Task waits[{sent.id}] received", 2)
    desk.app.control.revoke(sent.id, terminate=True)
    assert desk.ended(sent).status == "cancelled"
    desk.open_gates()
    assert desk.ended(other).status == "succeeded"
    assert len(desk.evidence("body", sent)) == 1


def test_a_refused_copy_does_not_overwrite_a_stored_failure(desk: Desk) -> None:
    """With `task_track_started`, STARTED is stored after the message was admitted, and not before."""
    sent = desk.run("fails")
    assert desk.ended(sent).status == "failed"
    poll_until(lambda: desk.result(sent) == "FAILURE")
    desk.copy(sent)
    desk.refused(sent)
    desk.event("task-started", sent)
    assert desk.result(sent) == "FAILURE"
    assert desk.events(sent).count("task-failed") == 1


def test_a_run_that_waits_for_its_own_retry_has_no_lease_to_lose(desk: Desk) -> None:
    """The run is back in its queue before the retry's message exists, for as long as the retry's countdown."""
    sent = desk.claim("retries", 1, 2.5)
    sent = replace(sent, header=replace(sent.header, lease_ms=1500))
    desk.publish(sent)
    desk.until(sent, lambda run: run.status == "queued" and run.started_at)
    over = desk.entry(sent).started_at + 2000
    poll_until(lambda: desk.store.time().now_ms > over)
    assert desk.take(sent.ref).kind is ClaimKind.RUNNING
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 1, 1)


def test_started_is_stored_for_runs_and_plain_calls(desk: Desk) -> None:
    """`task_track_started` does what it did before."""
    gate = desk.gate()
    run, plain = desk.run("waits", str(gate)), desk.by_hand("waits", str(gate))
    desk.seen("body", run)
    desk.seen("body", plain)
    assert [desk.result(run), desk.result(plain)] == ["STARTED", "STARTED"]
    gate.touch()
    assert desk.ended(run).status == "succeeded"
