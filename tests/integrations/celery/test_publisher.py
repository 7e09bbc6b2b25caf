"""What the publisher sends, and what it says became of it, with a real broker that may fail."""

from __future__ import annotations

import json
import socket
import time
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
import redis
from celery import Celery
from celery.beat import BeatLazyFunc, ScheduleEntry, Scheduler, SchedulingError

from anarchon_celery.entries import Entry, job_of
from anarchon_celery.failures import judge
from anarchon_celery.publisher import CeleryPublisher, message_of, safe_options
from anarchon_tasks.header import Header
from anarchon_tasks.model import RunRef, Trigger, message_id
from anarchon_tasks.publishing import Envelope, Sent
from tests.servers import free_port

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.jobs import Job
    from anarchon_tasks.publishing import Outcome
    from tests.servers import RedisServer, TcpProxy

SLOT = 1_893_456_000_000  # 2030
BOUND_S = 9.0


def make_app(url: str, **conf: object) -> Celery:
    """Return an app with a registered task."""
    app = Celery("shop", broker=url, set_as_current=False)
    app.conf.update(conf)

    @app.task(shared=False, name="shop.add", expires=77, time_limit=99)
    def add(a: int, b: int = 0) -> int:
        return a + b

    return app


def make_job(app: Celery, **entry: Any) -> Job:  # noqa: ANN401 - parts of an entry
    """Return a job as beat's entry makes it."""
    name = entry.pop("name", "nightly")
    given = {"task": "shop.add", "schedule": 10, "args": (1,), **entry}
    return job_of(Entry(name=name, app=app, **given), app=app, options={})


def envelope(job: Job, *, attempt: int = 1, expires_ms: int | None = None, slot: int = SLOT) -> Envelope:
    """Return a message to publish."""
    ref = RunRef(job.name, slot)
    identity = message_id("cron:", ref, attempt)
    return Envelope(
        job=job,
        ref=ref,
        attempt=attempt,
        token=7,
        trigger=Trigger.SCHEDULE,
        message_id=identity,
        header=Header(id=identity, namespace="cron:", ref=ref, attempt=attempt, token=7),
        due_ms=slot,
        expires_ms=expires_ms,
    )


def publish(publisher: CeleryPublisher, *envelopes: Envelope) -> list[Outcome]:
    """Publish, and measure that it did not take too long."""
    started = time.monotonic()
    outcomes = list(publisher.publish(envelopes))
    assert time.monotonic() - started < BOUND_S
    return outcomes


def messages(url: str, queue: str = "celery") -> list[dict[str, Any]]:
    """Return the messages that wait in a queue, oldest first."""
    client = redis.Redis.from_url(url)
    try:
        return [json.loads(raw) for raw in reversed(client.lrange(queue, 0, -1))]
    finally:
        client.close()


@pytest.fixture
def publishers() -> Iterator[Callable[[Celery], CeleryPublisher]]:
    """A maker of publishers that are closed when the test is over."""
    made: list[CeleryPublisher] = []

    def make(app: Celery, **options: Any) -> CeleryPublisher:  # noqa: ANN401
        made.append(CeleryPublisher(app, **options))
        return made[-1]

    yield make
    for publisher in made:
        publisher.close()
        publisher.close()


def test_a_message_has_our_id_and_headers_and_the_users(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """The id is that of the run; the headers are beat's, ours and the user's; other options stay the user's."""
    app = make_app(own_redis.redis_url)
    options = {"headers": {"mine": "1"}, "priority": 0, "queue": "mail", "shadow": "shown", "time_limit": 5}
    job = make_job(app, kwargs={"b": 2}, options=options)
    sent = envelope(job)
    (outcome,) = publish(publishers(app), sent)
    assert (outcome.sent, outcome.task_id, outcome.error) == (Sent.CONFIRMED, sent.message_id, None)
    (message,) = messages(own_redis.redis_url, "mail")
    headers = message["headers"]
    assert headers["id"] == message["properties"]["correlation_id"] == sent.message_id
    assert headers["celery_beat_task"] is True
    assert headers["periodic_task_name"] == "nightly"
    assert headers["mine"] == "1"
    assert (headers["shadow"], headers["timelimit"]) == ("shown", [5, None])
    assert Header.parse(headers["anarchon"], sent.message_id) == sent.header
    assert options["headers"] == {"mine": "1"}, "the entry stays as it was"


def test_expires_travels_with_the_first_attempt_only(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """paperless#13942: absolute, in UTC. A second attempt has none, whatever the class of the task says."""
    app = make_app(own_redis.redis_url, timezone="Asia/Tokyo")
    job = make_job(app)
    first = envelope(job, expires_ms=SLOT + 60_000)
    second = envelope(job, attempt=2)
    publish(publishers(app), first, second)
    expires = [message["headers"]["expires"] for message in messages(own_redis.redis_url)]
    assert expires == ["2030-01-01T00:01:00+00:00", None]


def test_a_countdown_becomes_an_instant_counted_from_the_slot() -> None:
    """Published late or again, the task starts when it would have started."""
    app = make_app("memory://")
    job = make_job(app, options={"countdown": 30})
    call, eta_ms = message_of(envelope(job), now_ms=SLOT + 10_000)
    assert (call.options["eta"], eta_ms) == (datetime(2030, 1, 1, 0, 0, 30, tzinfo=UTC), SLOT + 30_000)
    call, eta_ms = message_of(envelope(job), now_ms=SLOT + 40_000)
    assert ("eta" in call.options, eta_ms) == (False, 0)


def test_an_instant_to_expire_at_travels_too() -> None:
    """The earlier of the job's end and the run's own limit."""
    app = make_app("memory://")
    end = datetime(2030, 1, 1, 0, 0, 20, tzinfo=UTC)
    job = make_job(app, options={"expires": end})
    assert message_of(envelope(job))[0].options["expires"] == end
    assert message_of(envelope(job, expires_ms=SLOT + 10_000))[0].options["expires"] == datetime(
        2030, 1, 1, 0, 0, 10, tzinfo=UTC
    )


def test_unregistered_tasks_are_sent_by_name(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """The scheduler's process need not have the code of the task."""
    app = make_app(own_redis.redis_url)
    (outcome,) = publish(publishers(app), envelope(make_job(app, task="elsewhere.task")))
    assert outcome.sent is Sent.CONFIRMED
    assert messages(own_redis.redis_url)[0]["headers"]["task"] == "elsewhere.task"


def test_lazy_arguments_are_computed_when_the_run_is_published() -> None:
    """Once, by the instance that holds the run; one that raises fails that run and no other."""
    app = make_app("memory://")
    calls: list[str] = []
    good = make_job(app, args=(BeatLazyFunc(lambda: calls.append("x") or 5),))
    bad = make_job(app, name="bad", kwargs={"b": BeatLazyFunc(lambda: 1 / 0)})
    assert calls == []
    publisher = CeleryPublisher(app)
    first, second = publish(publisher, envelope(bad), envelope(good))
    publisher.close()
    assert (first.sent, first.broker_down, first.error) == (Sent.FAILED, False, "ZeroDivisionError: division by zero")
    assert second.sent is Sent.CONFIRMED
    assert calls == ["x"]


def test_what_cannot_be_written_fails_alone(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """Arguments that the serializer refuses are certain: nothing was sent, and the broker is fine."""
    app = make_app(own_redis.redis_url)
    bad = make_job(app, name="bad", args=(object(),))
    wrong = make_job(app, name="wrong", args=(1, 2, 3))
    outcomes = publish(publishers(app), envelope(bad), envelope(wrong), envelope(make_job(app)))
    assert [(outcome.sent, outcome.broker_down) for outcome in outcomes] == [
        (Sent.FAILED, False),
        (Sent.FAILED, False),
        (Sent.CONFIRMED, False),
    ]
    assert len(messages(own_redis.redis_url)) == 1


def test_celery_8845_a_closed_port_is_a_certain_failure(publishers: Callable[[Celery], CeleryPublisher]) -> None:
    """Nothing can have been sent; probing says the same, quickly."""
    app = make_app(f"redis://127.0.0.1:{free_port()}/0")
    publisher = publishers(app)
    started = time.monotonic()
    (outcome,) = publish(publisher, envelope(make_job(app)))
    assert (outcome.sent, outcome.broker_down) == (Sent.FAILED, True)
    assert outcome.error
    assert publisher.probe()
    assert time.monotonic() - started < 4


@pytest.fixture
def beats_default_timeout() -> Iterator[None]:
    """What `celery beat` sets for its whole process."""
    before = socket.getdefaulttimeout()
    socket.setdefaulttimeout(30)
    yield
    socket.setdefaulttimeout(before)


@pytest.mark.usefixtures("beats_default_timeout")
def test_redbeat_201_a_broker_that_hangs_takes_seconds_only(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """A silent connection is given up, whether it was open before or not: the timeouts are ours, not the process's."""
    app = make_app(own_redis.redis_url)
    publisher = publishers(app)
    (first,) = publish(publisher, envelope(make_job(app)))
    assert first.sent is Sent.CONFIRMED
    own_redis.pause()
    try:
        (unclear,) = publish(publisher, envelope(make_job(app), slot=SLOT + 1))
        (certain,) = publish(publisher, envelope(make_job(app), slot=SLOT + 2))
    finally:
        own_redis.resume()
    assert (unclear.sent, unclear.broker_down) == (Sent.UNKNOWN, True)
    assert (certain.sent, certain.broker_down) == (Sent.FAILED, True)
    assert publisher.probe() is None
    (again,) = publish(publisher, envelope(make_job(app), slot=SLOT + 3))
    assert again.sent is Sent.CONFIRMED


def test_celery_3409_a_restarted_broker_gets_a_new_connection(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """A lost connection is replaced at the next probe, and no other publish suffers."""
    app = make_app(own_redis.redis_url)
    publisher = publishers(app)
    publish(publisher, envelope(make_job(app)))
    own_redis.kill()
    (lost,) = publish(publisher, envelope(make_job(app), slot=SLOT + 1))
    assert lost.sent is not Sent.CONFIRMED
    assert lost.broker_down
    assert publisher.probe()
    own_redis.start()
    assert publisher.probe() is None
    (again,) = publish(publisher, envelope(make_job(app), slot=SLOT + 2))
    assert again.sent is Sent.CONFIRMED


def test_django_dramatiq_44_an_idle_connection_is_tried_before_it_is_trusted(
    own_redis: RedisServer,
    publishers: Callable[[Celery], CeleryPublisher],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The broker may have closed it long ago: publish then connects anew, and nothing is unclear."""
    monkeypatch.setattr("anarchon_celery.publisher.IDLE_S", -1.0)
    app = make_app(own_redis.redis_url)
    publisher = publishers(app)
    publish(publisher, envelope(make_job(app)))
    own_redis.restart()
    (outcome,) = publish(publisher, envelope(make_job(app), slot=SLOT + 1))
    assert outcome.sent is Sent.CONFIRMED


def test_a_lost_reply_is_unclear_and_sent_once(
    own_redis: RedisServer,
    tcp_proxy: Callable[[int], TcpProxy],
    publishers: Callable[[Celery], CeleryPublisher],
) -> None:
    """The broker has the message, we do not know: no driver repeats it behind our back."""
    proxy = tcp_proxy(own_redis.port)
    app = make_app(f"redis://127.0.0.1:{proxy.port}/0")
    publisher = publishers(app)
    publish(publisher, envelope(make_job(app)))
    proxy.lose_replies(1)
    (outcome,) = publish(publisher, envelope(make_job(app), slot=SLOT + 1))
    assert outcome.sent is Sent.UNKNOWN
    assert len(messages(own_redis.redis_url)) == 2


def test_a_broker_that_refuses_is_certain(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """Redis without memory answers with an error: it has not taken the message, and takes no other."""
    app = make_app(own_redis.redis_url)
    publisher = publishers(app)
    publish(publisher, envelope(make_job(app)))
    client = redis.Redis.from_url(own_redis.redis_url)
    client.config_set("maxmemory", "1")
    (outcome,) = publish(publisher, envelope(make_job(app), slot=SLOT + 1))
    client.config_set("maxmemory", "0")
    client.close()
    assert (outcome.sent, outcome.broker_down) == (Sent.FAILED, True)
    assert "memory" in (outcome.error or "")


def test_one_connection_serves_many_messages(
    own_redis: RedisServer, publishers: Callable[[Celery], CeleryPublisher]
) -> None:
    """It is kept; the app's own pool is left alone."""
    app = make_app(own_redis.redis_url)
    publisher = publishers(app)
    publish(publisher, *(envelope(make_job(app), slot=SLOT + n) for n in range(3)))
    client = redis.Redis.from_url(own_redis.redis_url)
    before = client.info("stats")["total_connections_received"]
    publish(publisher, *(envelope(make_job(app), slot=SLOT + n) for n in range(3, 50)))
    assert client.info("stats")["total_connections_received"] == before
    client.close()
    assert len(messages(own_redis.redis_url)) == 50


def test_transport_options_are_the_users_within_our_bounds() -> None:
    """Longer timeouts become ours, shorter ones stay; RabbitMQ confirms."""
    users = {"socket_timeout": 60, "socket_connect_timeout": 0.5, "global_keyprefix": "k:", "retry_on_timeout": True}
    assert safe_options("redis", users) == {
        "socket_timeout": 2,
        "socket_connect_timeout": 0.5,
        "global_keyprefix": "k:",
        "retry_on_timeout": False,
        "max_retries": 0,
        "connect_retries_timeout": 2,
    }
    rabbit = safe_options("amqp", {})
    assert (rabbit["confirm_publish"], rabbit["read_timeout"], rabbit["write_timeout"]) == (True, 2, 2)


def test_a_hook_of_beat_sees_each_message_with_fresh_options() -> None:
    """Sentry and others write into the options and headers of what they are given."""
    app = make_app("memory://")
    job = make_job(app, options={"headers": {"mine": "1"}})
    seen: list[Any] = []

    def send(call: Any, producer: object) -> None:  # noqa: ANN401
        call.options["headers"]["sentry"] = "written"
        seen.append((call, producer))

    publisher = CeleryPublisher(app, send=send)
    publish(publisher, envelope(job), envelope(job, slot=SLOT + 1))
    publisher.close()
    assert seen[0][0].options["headers"] is not seen[1][0].options["headers"]
    assert job.payload.options == {"headers": {"mine": "1"}}


@pytest.mark.parametrize(
    ("name", "code", "sent", "down"),
    [
        ("MessageNacked", None, Sent.FAILED, False),
        ("NotFound", 404, Sent.FAILED, False),
        ("ChannelError", 312, Sent.FAILED, False),
        ("RecoverableConnectionError", 0, Sent.UNKNOWN, True),
        ("TimeoutError", None, Sent.UNKNOWN, True),
        ("EncodeError", None, Sent.FAILED, False),
        ("TypeError", None, Sent.FAILED, False),
    ],
)
def test_errors_are_told_apart_by_what_they_say(*, name: str, code: int | None, sent: Sent, down: bool) -> None:
    """Refused by the broker, lost on the way, or never sent; also when Celery and Kombu have wrapped it."""
    cause = type(name, (Exception,), {"reply_code": code} if code is not None else {})("text")
    wrapped = RuntimeError("wrapped")
    wrapped.__cause__ = cause
    for error in (cause, wrapped):
        verdict = judge(error)
        assert (verdict.sent, verdict.broker_down) == (sent, down)


def test_beats_own_wrapping_of_errors_is_seen_through(monkeypatch: pytest.MonkeyPatch) -> None:
    """`apply_async` turns every error into a SchedulingError; what it was decides."""
    app = make_app("memory://")
    scheduler = Scheduler(app, lazy=True)
    entry = ScheduleEntry(name="e", task="t", schedule=10, app=app)

    def refused(*_: object, **__: object) -> None:
        raise ConnectionRefusedError("nobody")

    monkeypatch.setattr(app, "send_task", refused)
    with pytest.raises(SchedulingError) as caught:
        scheduler.apply_async(entry, advance=False)
    assert judge(caught.value).broker_down


def test_a_foreign_payload_is_sent_by_the_jobs_own_target() -> None:
    """A job that was made by hand has a target and a queue, and that is enough."""
    app = make_app("memory://")
    job = replace(make_job(app), payload=None, target="by.hand", queue="q")
    call, _ = message_of(envelope(job))
    assert (call.task, call.options["queue"]) == ("by.hand", "q")
