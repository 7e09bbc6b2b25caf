"""What the publisher says of messages when the broker is a RabbitMQ that refuses, drops or hangs."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING

import pytest
from celery import Celery
from kombu import Connection

from anarchon_celery.entries import Entry, job_of
from anarchon_celery.publisher import CeleryPublisher
from anarchon_tasks.header import Header
from anarchon_tasks.model import RunRef, Trigger
from anarchon_tasks.publishing import Envelope, Sent
from tests.servers import accepts_connections, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.publishing import Outcome
    from tests.servers import TcpProxy

pytestmark = pytest.mark.slow

SLOT = 1_893_456_000_000
PORT = 5672


@pytest.fixture
def port() -> int:
    """The port of a RabbitMQ that tests share: nobody stops it, and every queue is the test's own."""
    if not accepts_connections(PORT):
        missing("rabbitmq", f"start one on port {PORT} (Debian, Ubuntu: apt-get install rabbitmq-server)")
    return PORT


class Desk:
    """Publishes one message at a time."""

    def __init__(self, port: int) -> None:
        self.url = f"amqp://guest:guest@127.0.0.1:{port}//"
        self.queue = f"t-{uuid.uuid4().hex}"
        self.app = Celery("shop", broker=self.url, set_as_current=False)
        self.app.conf.task_default_queue = self.queue
        self.publisher = CeleryPublisher(self.app)
        self._slot = SLOT

    def publish(self, **options: object) -> Outcome:
        """Publish one message within seconds."""
        self._slot += 1
        job = job_of(Entry(name="j", task="t", schedule=1, options=options, app=self.app), app=self.app, options={})
        ref = RunRef("j", self._slot)
        header = Header(id=str(self._slot), namespace="cron:", ref=ref, attempt=1, token=1)
        envelope = Envelope(
            job=job,
            ref=ref,
            attempt=1,
            token=1,
            trigger=Trigger.SCHEDULE,
            message_id=header.id,
            header=header,
            due_ms=ref.slot,
        )
        started = time.monotonic()
        (outcome,) = self.publisher.publish([envelope])
        assert time.monotonic() - started < 9
        return outcome


@pytest.fixture
def proxy(port: int, tcp_proxy: Callable[[int], TcpProxy]) -> TcpProxy:
    """The way to the broker."""
    return tcp_proxy(port)


@pytest.fixture
def desk(port: int, proxy: TcpProxy) -> Iterator[Desk]:
    """Somebody who publishes there."""
    made = Desk(proxy.port)
    try:
        assert made.publish().sent is Sent.CONFIRMED
        yield made
    finally:
        made.publisher.close()
        with Connection(f"amqp://guest:guest@127.0.0.1:{port}//") as connection:
            for queue in (made.queue, f"{made.queue}-small"):
                connection.default_channel.queue_delete(queue)


def test_an_exchange_that_is_missing_is_a_certain_failure(desk: Desk) -> None:
    """The broker says so at once, and the next message does not suffer."""
    outcome = desk.publish(exchange="nowhere", routing_key="x")
    assert (outcome.sent, outcome.broker_down) == (Sent.FAILED, False)
    assert "NotFound" in (outcome.error or "")
    assert desk.publish().sent is Sent.CONFIRMED


def test_a_queue_that_was_deleted_is_noticed_and_declared_again(desk: Desk) -> None:
    """Without `mandatory` the message would be gone and called sent."""
    with Connection(desk.url) as connection:
        connection.default_channel.queue_delete(desk.queue)
    outcome = desk.publish()
    assert (outcome.sent, outcome.broker_down) == (Sent.FAILED, False)
    assert "NO_ROUTE" in (outcome.error or "")
    assert desk.publish().sent is Sent.CONFIRMED


def test_a_queue_that_is_full_refuses(desk: Desk) -> None:
    """A nack is no confirmation."""
    small = f"{desk.queue}-small"
    arguments = {"x-max-length": 1, "x-overflow": "reject-publish"}
    with Connection(desk.url) as connection:
        connection.default_channel.queue_declare(small, durable=True, auto_delete=False, arguments=arguments)
        connection.default_channel.queue_bind(small, "amq.direct", small)
    outcomes = [desk.publish(exchange="amq.direct", routing_key=small) for _ in range(4)]
    assert outcomes[0].sent is Sent.CONFIRMED
    assert (outcomes[-1].sent, outcomes[-1].broker_down) == (Sent.FAILED, False)
    assert desk.publish().sent is Sent.CONFIRMED


def test_celery_3409_a_silent_broker_takes_seconds_and_is_unclear(desk: Desk, proxy: TcpProxy) -> None:
    """An open connection that falls silent: nobody knows. A new one that does not come: certainly nothing was sent."""
    proxy.half_open()
    unclear, certain = desk.publish(), desk.publish()
    assert desk.publisher.probe()
    proxy.restore()
    assert (unclear.sent, unclear.broker_down) == (Sent.UNKNOWN, True)
    assert (certain.sent, certain.broker_down) == (Sent.FAILED, True)
    assert desk.publisher.probe() is None
    assert desk.publish().sent is Sent.CONFIRMED


def test_an_idle_connection_is_tried_first(desk: Desk, proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch) -> None:
    """Looking whether the broker closed it costs a moment, disturbs nothing, and spares an unclear publish."""
    monkeypatch.setattr("anarchon_celery.publisher.IDLE_S", -1.0)
    assert [desk.publish().sent for _ in range(3)] == [Sent.CONFIRMED] * 3
    proxy.drop()
    assert desk.publish().sent is Sent.CONFIRMED
