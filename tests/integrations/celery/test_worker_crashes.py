"""Workers that die, freeze, stop or get a message twice: the lease decides, and one attempt counts."""

from __future__ import annotations

import signal
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.stores.base import ClaimKind
from tests.integrations.celery.worker_desk import Desk, open_desk
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.xdist_group("processes")

SHORT = {"LEASE_MS": "2000", "HEARTBEAT_MS": "300"}


@pytest.fixture
def desk(tmp_path: Path) -> Iterator[Desk]:
    """A desk without a worker yet."""
    with open_desk(tmp_path / "desk") as desk:
        yield desk


def test_a_killed_worker_is_taken_over_by_the_next_attempt(desk: Desk) -> None:
    """celery#1628, celery-singleton#40: nobody is left to tell, so the lease runs out and attempt 2 starts."""
    gate = desk.gate()
    worker = desk.start_worker("prefork", concurrency=1, env=SHORT)
    sent = desk.run("waits", str(gate))
    desk.seen("body", sent)
    worker.signal(signal.SIGKILL)
    worker.wait()
    assert desk.take(sent.ref).kind is ClaimKind.RUNNING
    again = desk.publish(desk.take_over(sent))
    gate.touch()
    desk.start_worker("solo", env=SHORT)
    assert desk.ended(again).status == "succeeded"
    second, first = desk.entries(sent)
    assert (first.attempt, first.status, first.reason) == (1, "interrupted", "taken_over")
    assert (second.attempt, second.token > first.token) == (2, True)
    assert len(desk.evidence("end", sent)) == 0


@pytest.mark.parametrize("pool", ["prefork", pytest.param("threads", marks=pytest.mark.slow)])
def test_a_worker_frozen_for_longer_than_its_lease_cannot_end_the_run(desk: Desk, pool: str) -> None:
    """It wakes up, is told that the lease is lost, and its late end is refused; the new attempt's counts."""
    old, new = desk.gate(), desk.gate()
    frozen = desk.start_worker(pool, concurrency=1, env=SHORT)
    sent = desk.run("waits", str(old))
    desk.seen("body", sent)
    frozen.pause()
    again = desk.take_over(sent)
    again = type(again)(again.task, again.ref, again.header, (str(new),))
    desk.start_worker("solo", env=SHORT)
    desk.publish(again)
    (body,) = desk.seen("body", again)
    assert body["run"]["attempt"] == 2
    frozen.resume()
    frozen.wait_for_output("lease lost")
    old.touch()
    (end,) = desk.seen("end", sent)
    assert end["run"]["lost"] is True
    frozen.wait_for_output("was refused: another attempt has the run")
    assert desk.entry(sent).status == "running"
    new.touch()
    assert desk.ended(again).status == "succeeded"
    second, first = desk.entries(sent)
    assert (first.status, second.status) == ("interrupted", "succeeded")
    assert first.refused >= 1


def test_a_task_longer_than_the_visibility_timeout_runs_once(desk: Desk) -> None:
    """celery#5935, #5306, #3270, pretix#2058: the broker delivers a late-acknowledged message again and again."""
    gate = desk.gate()
    desk.start_worker(
        "prefork",
        concurrency=2,
        conf={
            "broker_transport_options": {
                "visibility_timeout": 1,
                "unacked_restore_interval": 1,
                "unacked_restore_throttle": 1,
            }
        },
    )
    sent = desk.run("waits-late", str(gate))
    desk.refused(sent, timeout=30)
    gate.touch()
    assert desk.ended(sent).status == "succeeded"
    assert len(desk.evidence("body", sent)) == 1


@pytest.mark.slow
def test_every_new_child_beats_for_its_runs(desk: Desk) -> None:
    """See celery PR #10339: connection and thread are made in the child, also when children are replaced often."""
    desk.start_worker(
        "prefork", "--max-tasks-per-child", "1", concurrency=1, env={"LEASE_MS": "1500", "HEARTBEAT_MS": "300"}
    )
    pids = set()
    for _ in range(3):
        gate = desk.gate()
        sent = desk.run("waits", str(gate))
        pids.add(desk.body_pid(sent))
        outlived = desk.store.time().now_ms + 2200
        poll_until(lambda end=outlived: desk.store.time().now_ms > end)
        assert desk.take(sent.ref).kind is ClaimKind.RUNNING
        gate.touch()
        run = desk.ended(sent)
        assert (run.status, run.attempt) == ("succeeded", 1)
    assert len(pids) == 3


def test_a_lost_lease_stops_the_task_without_a_failure(desk: Desk) -> None:
    """dbs#402: `raise_if_lost()` ends the task quietly: acknowledged, no result, no failure event."""
    desk.listen()
    desk.start_worker("threads", concurrency=1, env=SHORT)
    sent = desk.claim("waits", str(desk.gate()))
    sent = type(sent)(sent.task, sent.ref, sent.header, (*sent.args, True))
    desk.publish(sent)
    desk.seen("body", sent)
    desk.cancel(sent)
    desk.seen("lost", sent)
    next_one = desk.run("ok")  # the slot of the pool is free again
    assert desk.ended(next_one).status == "succeeded"
    desk.event("task-succeeded", next_one)
    assert desk.entry(sent).status == "cancelled"
    assert desk.result(sent) is None
    assert "task-failed" not in desk.events(sent)


@pytest.mark.slow
def test_a_warm_shutdown_lets_the_run_end_and_keeps_its_lease(desk: Desk) -> None:
    """dbs#365: beats go on until the end is written, also while the worker stops."""
    gate = desk.gate()
    worker = desk.start_worker("prefork", concurrency=1, env={"LEASE_MS": "1500", "HEARTBEAT_MS": "300"})
    sent = desk.run("waits", str(gate))
    desk.seen("body", sent)
    worker.signal(signal.SIGTERM)
    outlived = desk.store.time().now_ms + 2200
    poll_until(lambda: desk.store.time().now_ms > outlived)
    assert desk.take(sent.ref).kind is ClaimKind.RUNNING
    gate.touch()
    assert worker.wait() == 0
    assert desk.entry(sent).status == "succeeded"


@pytest.mark.slow
@pytest.mark.parametrize("task", ["waits", "waits-late"])
def test_a_cold_shutdown_hands_the_run_to_the_next_attempt_at_once(desk: Desk, task: str) -> None:
    """Acknowledged early, the message is gone, whatever Celery's RETRY says; acknowledged late, it comes again."""
    gate = desk.gate()
    worker = desk.start_worker("prefork", concurrency=1)
    sent = desk.run(task, str(gate))
    desk.seen("body", sent)
    worker.signal(signal.SIGQUIT)
    worker.wait(timeout=20)
    run = desk.entry(sent)
    assert (run.status, run.reason, run.attempt) == ("running", "worker_lost", 1)
    gate.touch()
    desk.start_worker("solo")
    again = sent if task == "waits-late" else desk.publish(desk.take_over(sent, timeout=2.0))
    run = desk.ended(again)
    assert (run.status, run.attempt) == ("succeeded", 2)
    assert [entry.reason for entry in desk.entries(sent)] == [None, "worker_lost"]


@pytest.mark.slow
@pytest.mark.parametrize("pool", ["threads", "solo"])
def test_an_exit_in_the_workers_only_process_ends_the_run_as_failed(desk: Desk, pool: str) -> None:
    """Nothing outlives the process to tell, so it tells before it goes."""
    desk.start_worker(pool, concurrency=1)
    run = desk.ended(desk.run("exits", 3))
    assert (run.status, run.error) == ("failed", "SystemExit: 3")


def test_two_apps_in_one_process_do_not_touch_each_others_runs(desk: Desk) -> None:
    """Signals are the process's; each app's part looks whose task it is about."""
    desk.start_worker("solo", app="tests.integrations.celery.apps.worker_two")
    sent = desk.run("visits")
    run = desk.ended(sent)
    assert (run.status, run.refused) == ("succeeded", 0)
    assert desk.seen("body", "theirs")
    assert not desk.evidence("asked-the-other", "theirs")
