"""Every way in which a task ends, on every pool: what becomes of its run."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.celery.worker_desk import Desk, open_desk

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module", params=["prefork", "threads", "solo"])
def desk(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A worker of this pool that serves all tests of the module."""
    with open_desk(tmp_path_factory.mktemp(request.param)) as desk:
        desk.start_worker(request.param)
        yield desk


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


@pytest.mark.parametrize("countdown", [0, 1])
def test_a_retry_of_the_tasks_own_runs_and_ends_the_run(desk: Desk, countdown: int) -> None:
    """Each retry is admitted once, within the same attempt, and only its last try ends the run."""
    sent = desk.run("retries", 2, countdown)
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 1, 2)
    tries = desk.evidence("body", sent)
    assert [line["retries"] for line in tries] == [0, 1, 2]
    tokens = [line["run"]["token"] for line in tries]
    assert tokens == sorted(set(tokens))


def test_copies_of_a_message_never_run_beside_it_or_after_it(desk: Desk) -> None:
    """Of three messages with one id, and one with an older token, one runs."""
    sent = desk.claim("ok")
    desk.publish(sent)
    desk.copy(sent)
    desk.copy(sent)
    assert desk.ended(sent).status == "succeeded"
    desk.settled()
    assert len(desk.evidence("body", sent)) == 1
    assert desk.result(sent) == "SUCCESS"
