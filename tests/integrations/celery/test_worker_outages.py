"""A store that does not answer for a while, seen from a worker whose broker is well."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.integrations.celery.worker_desk import Desk, Sent, open_desk
from tests.servers import RedisServer

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.xdist_group("processes")


@pytest.fixture(scope="module")
def store_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A Redis that is nothing but the store, and remembers all when it is killed."""
    server = RedisServer(tmp_path_factory.mktemp("store"), persistence=True)
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture(scope="module")
def desk(store_server: RedisServer, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Desk]:
    """A worker with one child, a lease of two seconds, and little patience."""
    url = f"{store_server.redis_url}?socket_timeout=0.3&socket_connect_timeout=0.3"
    with open_desk(tmp_path_factory.mktemp("outage"), store_url=url) as desk:
        desk.listen()
        desk.start_worker("prefork", concurrency=1, env={"LEASE_MS": "2500", "HEARTBEAT_MS": "300", "PATIENCE_S": "1"})
        yield desk


@pytest.fixture(autouse=True)
def _back_to_normal(desk: Desk, store_server: RedisServer) -> Iterator[None]:
    """Leave the store answering, and no task waiting."""
    yield
    store_server.start()
    store_server.resume()
    desk.open_gates()


def outages(desk: Desk) -> int:
    """Count how often the worker said that the store does not answer."""
    assert desk.worker is not None
    return desk.worker.output().count("store does not answer")


def begun(desk: Desk, *, watch: bool = False) -> Sent:
    """Return a run that waits at its gate."""
    sent = desk.claim("waits", str(desk.gate()), watch)
    desk.publish(sent)
    desk.seen("body", sent)
    return sent


def test_an_outage_shorter_than_the_lease_costs_nothing(desk: Desk, store_server: RedisServer) -> None:
    """The run keeps its lease and its first attempt ends it."""
    before = outages(desk)
    sent = begun(desk)
    store_server.pause()
    desk.waits_for(lambda: outages(desk) > before)
    store_server.resume()
    desk.waits_for(lambda: desk.worker and "store answers again" in desk.worker.output())
    desk.open_gates()
    run = desk.ended(sent)
    assert (run.status, run.attempt) == ("succeeded", 1)
    assert desk.evidence("end", sent)[0]["run"]["lost"] is False


def test_an_outage_longer_than_the_lease_tells_the_task(desk: Desk, store_server: RedisServer) -> None:
    """The task can no longer know that it is alone: the flag is set by the monotonic clock, and it stops quietly."""
    sent = begun(desk, watch=True)
    store_server.pause()
    (lost,) = desk.seen("lost", sent)
    assert lost["run"]["lost"] is True
    store_server.resume()
    again = desk.take_over(sent)
    desk.open_gates()
    run = desk.ended(desk.publish(again))
    assert (run.status, run.attempt) == ("succeeded", 2)
    assert desk.result(sent) is None
    assert "task-failed" not in desk.events(sent)


def test_an_end_that_the_store_could_not_take_is_written_later(desk: Desk, store_server: RedisServer) -> None:
    """The task does not fail and does not wait; the process goes on trying."""
    sent = begun(desk)
    store_server.pause()
    desk.open_gates()
    desk.seen("end", sent)
    desk.event("task-succeeded", sent)
    store_server.resume()
    run = desk.ended(sent)
    assert (run.status, run.attempt) == ("succeeded", 1)


def test_a_retry_asked_for_while_the_store_is_away_runs_when_it_is_back(desk: Desk, store_server: RedisServer) -> None:
    """The run could not be parked; the retry carries the token of the try that asked for it, and is admitted."""
    sent = desk.claim("retries-at", str(desk.gate()))
    desk.publish(sent)
    desk.seen("body", sent)
    store_server.pause()
    desk.open_gates()
    desk.event("task-retried", sent)
    store_server.resume()
    run = desk.ended(sent)
    assert (run.status, run.attempt, run.retries) == ("succeeded", 1, 1)


def test_without_an_answer_the_task_does_not_start_and_the_run_stays_open(
    desk: Desk, store_server: RedisServer
) -> None:
    """After its patience is over the worker drops the message; published again, the run starts."""
    sent = desk.claim("ok")
    store_server.kill()
    desk.copy(sent)
    desk.refused(sent)
    assert not desk.evidence("body", sent)
    store_server.start()
    assert desk.entry(sent).status == "claimed"
    desk.copy(sent)
    run = desk.ended(sent)
    assert (run.status, run.attempt) == ("succeeded", 1)
    assert "task-failed" not in desk.events(sent)
    assert desk.worker is not None
    assert "it stays open and is published again" in desk.worker.output()
