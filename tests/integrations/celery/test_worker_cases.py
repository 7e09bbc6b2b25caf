"""Every way in which a task ends, on every pool: what becomes of its run."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import ClaimKind
from tests.integrations.celery.worker_desk import Desk, older, open_desk
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A worker of this pool that serves all tests of the module."""
    with open_desk(tmp_path_factory.mktemp(request.param)) as desk:
        desk.listen()
        desk.start_worker(request.param, env={"HEARTBEAT_MS": "300"})
        yield desk


@pytest.fixture(autouse=True)
def _gates(desk: Desk) -> Iterator[None]:
    """Leave no task waiting for the next test."""
    yield
    desk.open_gates()


def test_a_task_that_returns_ends_its_run_as_succeeded(desk: Desk) -> None:
    """The run is begun by the worker, and ends with the task."""
    sent = desk.run("ok", 3)
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.reason, run.error) == ("succeeded", 1, None, None)
    assert desk.result(sent) == "SUCCESS"
    assert run.worker is not None
    assert run.worker.endswith("@desk")


def test_a_task_that_raises_ends_its_run_as_failed_with_a_bounded_text(desk: Desk) -> None:
    """The history names the exception's type and the beginning of its text."""
    run = desk.ended(desk.run("fails"))
    assert run.status == "failed"
    assert run.error is not None
    assert run.error.startswith("ValueError: no such thing: xxx")
    assert len(run.error) <= 500


@pytest.mark.parametrize("countdown", [0, 0.5])
def test_a_retry_of_the_tasks_own_runs_and_ends_the_run(desk: Desk, countdown: float) -> None:
    """Each retry is admitted once, within the same attempt, and only its last try ends the run."""
    sent = desk.run("retries", 2, countdown)
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 1, 2)
    tries = desk.evidence("body", sent)
    assert [line["retries"] for line in tries] == [0, 1, 2]
    tokens = [line["run"]["token"] for line in tries]
    assert tokens == sorted(set(tokens))


def test_a_task_that_gives_up_retrying_ends_its_run_as_failed(desk: Desk) -> None:
    """The last try's own exception ends the run."""
    sent = desk.run("gives-up")
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("failed", 1, 1)
    assert "KeyError" in (run.error or "")
    assert len(desk.evidence("body", sent)) == 2


def test_autoretry_is_a_retry_like_any_other(desk: Desk) -> None:
    """A retry that Celery itself asks for is admitted, and nothing of the run ends before."""
    sent = desk.run("autoretries")
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 1, 1)
    assert [line["retries"] for line in desk.evidence("body", sent)] == [0, 1]


def test_ignore_ends_the_run_as_succeeded_and_says_so(desk: Desk) -> None:
    """A task that raises Ignore has decided; the run does not stay open."""
    run = desk.ended(desk.run("ignores"))
    assert (run.status, run.reason) == ("succeeded", "ignored")


def test_reject_ends_the_run_as_failed(desk: Desk) -> None:
    """A message that is rejected for good never comes again."""
    run = desk.ended(desk.run("rejects"))
    assert (run.status, run.reason) == ("failed", "rejected")


def test_a_message_put_back_into_its_queue_runs_as_the_next_attempt(desk: Desk) -> None:
    """Nothing tells the message from a copy of it, so its next start is a new attempt, and no copy is needed."""
    sent = desk.run("requeues")
    run = desk.ended(sent)
    assert [(entry.attempt, entry.status, entry.reason) for entry in desk.entries(sent)] == [
        (2, "succeeded", None),
        (1, "interrupted", "rejected"),
    ]
    assert [line["run"]["attempt"] for line in desk.evidence("body", sent)] == [1, 2]
    assert run.task_id == sent.id


def test_a_retry_of_an_attempt_that_began_in_an_older_message_is_of_that_attempt(desk: Desk) -> None:
    """The retry's header carries the attempt and the token that the worker was given, not those of the message."""
    sent = desk.run("requeues-then-retries")
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 2, 1)
    seen = desk.evidence("body", sent)
    assert [(line["retries"], line["run"]["attempt"]) for line in seen] == [(0, 1), (0, 2), (1, 2)]


def test_replace_ends_the_run_and_the_replacement_is_a_plain_call(desk: Desk) -> None:
    """The replacement keeps the task id and not the header."""
    sent = desk.run("replaces")
    run = desk.ended(sent)
    assert (run.status, run.reason) == ("succeeded", "replaced")
    first, second = desk.seen("body", sent, 2)
    assert (first["task"], second["task"]) == ("replaces", "ok")
    assert second["run"] is None


def test_current_run_tells_the_task_what_it_executes(desk: Desk) -> None:
    """Job, slot, planned instant, attempt, trigger, and a token that is the store's newest."""
    sent = desk.run("ok")
    run = desk.ended(sent)
    (seen,) = desk.evidence("body", sent)
    assert seen["run"] == {
        "job": sent.ref.job,
        "slot": sent.ref.slot,
        "attempt": 1,
        "token": run.token,
        "trigger": "schedule",
        "scheduled_for": run.scheduled_for.isoformat(),
        "lost": False,
    }
    assert seen["run"]["token"] > sent.header.token
    assert run.pid == seen["pid"]


def test_a_call_by_hand_is_no_run(desk: Desk) -> None:
    """Neither a call from outside nor one out of a run has a run; a run before it in the same process leaves none."""
    desk.ended(sent := desk.run("calls"))
    (outer,) = desk.evidence("body", sent)
    assert outer["run"]["job"] == sent.ref.job
    (by_hand,) = desk.seen("body", desk.by_hand("ok"))
    assert by_hand["run"] is None


def test_members_of_a_group_and_a_chord_inherit_the_header_and_are_no_runs(desk: Desk) -> None:
    """The header names the message that is the run, so of what carries it only that one is."""
    sent = desk.claim("spreads")
    before = len(desk.evidence("body", "ok"))
    desk.publish(type(sent)(sent.task, sent.ref, sent.header, (sent.header.to_text(),)))
    assert desk.ended(sent).status == "succeeded"
    inherited = desk.seen("body", "ok", before + 5)[before:]
    assert [line["run"] for line in inherited] == [None] * 5


@pytest.mark.parametrize(
    ("task", "hooks"),
    [
        ("own", {"own-before-start": 1, "own-request": 2}),
        ("class-task", {"class-before-start": 1, "own-before-start": 1, "own-request": 2, "own-call": 1}),
        ("derived-task", {"class-before-start": 1, "own-before-start": 1, "own-request": 2, "own-call": 1}),
        ("shared", {}),
    ],
)
def test_the_users_own_hooks_and_request_class_stay(desk: Desk, task: str, hooks: dict[str, int]) -> None:
    """Every kind of task is guarded; each hook is called once per start, and the request class sees the copy too."""
    sent = desk.claim(task)
    desk.publish(sent)
    desk.copy(sent)
    assert desk.ended(sent).status == "succeeded"
    desk.refused(sent)
    assert len(desk.evidence("body", sent)) == 1
    for hook, count in hooks.items():
        assert len(desk.seen(hook, sent, count)) == count
    if "own-before-start" in hooks:
        assert desk.evidence("own-before-start", sent)[0]["run"]["job"] == sent.ref.job


def test_copies_of_a_message_never_run_beside_it_or_after_it(desk: Desk) -> None:
    """celery#4426, #4671, #3802: of three messages with one id, and one with an older token, one runs."""
    gate = desk.gate()
    sent = desk.claim("waits", str(gate))
    desk.publish(sent)
    desk.seen("body", sent)
    desk.copy(sent)
    desk.copy(sent, header=older(sent.header))
    if desk.pool != "solo":
        desk.refused(sent, 2)  # beside it
    gate.touch()
    assert desk.ended(sent).status == "succeeded"
    desk.copy(sent)
    desk.refused(sent, 3)  # after it
    assert len(desk.evidence("body", sent)) == 1
    poll_until(lambda: desk.result(sent) == "SUCCESS")
    desk.event("task-succeeded", sent)
    assert not {"task-failed", "task-revoked", "task-rejected", "task-retried"} & set(desk.events(sent))


def test_a_stale_message_is_closed_for_monitors_and_leaves_no_result(desk: Desk) -> None:
    """The message of a run that was decided otherwise ends as revoked, not as failed, and stores nothing."""
    sent = desk.claim("ok")
    desk.end(sent, Status.CANCELLED)
    desk.copy(sent)
    desk.refused(sent)
    desk.event("task-revoked", sent)
    assert "task-failed" not in desk.events(sent)
    assert desk.result(sent) is None
    assert not desk.evidence("body", sent)


def test_a_message_past_its_expiry_ends_its_run_as_expired(desk: Desk) -> None:
    """The main process tells of a message that no pool ever sees."""
    sent = desk.run("ok", expires=-5)
    run = desk.ended(sent)
    assert (run.status, run.reason) == ("expired", "deadline")
    assert not desk.evidence("body", sent)


def test_a_copy_past_its_expiry_ends_neither_the_run_that_executes_nor_its_retry(desk: Desk) -> None:
    """Celery remembers the id of an expired message as revoked; the run has the same id and goes on."""
    gate = desk.gate()
    sent = desk.claim("retries-at", str(gate))
    desk.publish(sent)
    desk.seen("body", sent)
    desk.copy(sent, expires=-5)
    if desk.pool != "solo":
        desk.logged(f"Discarding revoked task: retries-at[{sent.id}]")
    assert desk.entry(sent).status == "running"
    gate.touch()
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 1, 1)
    desk.logged(f"Discarding revoked task: retries-at[{sent.id}]")


def test_a_retry_does_not_expire_with_the_message_that_started_the_run(desk: Desk) -> None:
    """The expiry bounds the first start only."""
    sent = desk.run("retries", 1, 1.5, expires=1)
    assert desk.ended(sent).status == "succeeded"
    assert len(desk.evidence("body", sent)) == 2


def test_a_message_for_a_task_that_the_worker_does_not_know_ends_its_run(desk: Desk) -> None:
    """The history names the worker and the task."""
    run = desk.ended(desk.run("nowhere"))
    assert (run.status, run.reason) == ("failed", "unregistered")
    assert "'nowhere'" in (run.error or "")


def test_a_revoked_message_ends_its_run_as_cancelled(desk: Desk) -> None:
    """Celery's own revoke, given before the message comes, is the end of the run."""
    sent = desk.claim("ok")
    told = any(desk.app.control.revoke(sent.id, reply=True, timeout=5, limit=1) for _ in range(4))
    assert told, "the worker did not answer the revoke"
    desk.publish(sent)
    run = desk.ended(sent)
    assert (run.status, run.reason) == ("cancelled", "revoked")
    assert not desk.evidence("body", sent)


def test_a_message_of_an_untracked_run_is_no_business_of_the_guard(desk: Desk) -> None:
    """It runs as a plain call: nothing is asked and nothing is written."""
    sent = desk.claim("ok")
    desk.copy(sent, header=replace(sent.header, tracked=False))
    (seen,) = desk.seen("body", sent)
    assert seen["run"] is None
    assert desk.entry(sent).status == "claimed"


def test_a_message_of_another_namespace_runs_as_a_plain_call_with_one_warning(desk: Desk) -> None:
    """A worker reports to its own store only."""
    for _ in range(3):
        sent = desk.claim("ok")
        desk.copy(sent, header=replace(sent.header, namespace="others"))
        (seen,) = desk.seen("body", sent)
        assert seen["run"] is None
    assert desk.worker is not None
    warned = desk.worker.output().count("belongs to the namespace 'others'")
    assert 1 <= warned <= 2  # once in each process


def test_the_worker_announces_the_queues_that_it_consumes(desk: Desk) -> None:
    """So schedulers know that runs in this queue are reported on."""
    queues = poll_until(lambda: dict(desk.store.queues().answers))
    assert list(queues) == ["work"]


def test_a_run_longer_than_its_lease_keeps_it(desk: Desk) -> None:
    """celery-singleton#40, aps#864: the lease is carried on for as long as the task runs."""
    gate = desk.gate()
    sent = desk.claim("waits", str(gate))
    sent = replace(sent, header=replace(sent.header, lease_ms=1500, heartbeat_ms=300))
    desk.publish(sent)
    desk.seen("body", sent)
    outlived = desk.store.time().now_ms + 2000
    poll_until(lambda: desk.store.time().now_ms > outlived or desk.take(sent.ref).kind is ClaimKind.WON)
    assert desk.take(sent.ref).kind is ClaimKind.RUNNING
    gate.touch()
    assert desk.ended(sent).status == "succeeded"
