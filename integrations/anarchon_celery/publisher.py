"""Sends the messages of runs through Celery, on a connection of its own, and says what became of each."""

from __future__ import annotations

import logging
import time
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from celery.beat import BeatLazyFunc
from kombu.common import Broadcast

from anarchon_celery.failures import judge, words
from anarchon_celery.options import Call
from anarchon_tasks.header import HEADER
from anarchon_tasks.publishing import Outcome, Sent

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from celery import Celery
    from kombu import Connection, Producer

    from anarchon_tasks.publishing import Envelope

    Send = Callable[[Call, Producer], object]

logger = logging.getLogger("anarchon_celery.publisher")

CONNECT_S = 2
REPLY_S = 2
IDLE_S = 5.0
"""A connection that was not used for longer is tried before it is trusted."""

_REDIS = {"socket_timeout": REPLY_S, "socket_connect_timeout": CONNECT_S, "retry_on_timeout": False}
_SAFE: dict[str, dict[str, Any]] = {
    "redis": _REDIS,
    "amqp": {"confirm_publish": True, "read_timeout": REPLY_S, "write_timeout": REPLY_S},
}
_TIMES = frozenset({"socket_timeout", "socket_connect_timeout", "read_timeout", "write_timeout"})


def safe_options(driver: str, users: Mapping[str, Any]) -> dict[str, Any]:
    """Return the user's transport options, with those that bound a publish in time and let it be confirmed.

    Args:
        driver: What Kombu calls the kind of the broker: `redis`, `amqp`, ...
        users: The app's `broker_transport_options`. Shorter timeouts of the user's stay.

    """
    safe = dict(_SAFE.get(driver, {}))
    for name in _TIMES & safe.keys():
        given = users.get(name)
        if isinstance(given, (int, float)) and 0 < given < safe[name]:
            safe[name] = given
    # Kombu connects once more by itself where a channel is opened: never for longer than this.
    return {**users, **safe, "max_retries": 0, "connect_retries_timeout": CONNECT_S}


class CeleryPublisher:
    """Publishes runs. One envelope takes seconds at most, also when the broker hangs, and nothing raises.

    Args:
        app: The Celery app.
        send: Sends one message with a producer; by default as `apply_async` or `send_task` would.

    """

    def __init__(self, app: Celery, *, send: Send | None = None) -> None:
        self._app = app
        self._send: Send = send or self._apply
        self._connection: Connection | None = None
        self._producer: Producer | None = None
        self._driver = ""
        self._used_at = 0.0

    def publish(self, envelopes: Iterable[Envelope]) -> Iterator[Outcome]:
        """Send each envelope when it is drawn, and yield its outcome before the next one is drawn."""
        for envelope in envelopes:
            yield self._publish(envelope)

    def _publish(self, envelope: Envelope) -> Outcome:
        try:
            call, eta_ms = message_of(envelope)
        except Exception as error:  # noqa: BLE001 - a lazy argument's own
            return Outcome(envelope=envelope, sent=Sent.FAILED, error=words(error))
        try:
            producer = self._connected()
        except Exception as error:  # noqa: BLE001 - whatever a transport raises, nothing was sent
            self._drop()
            return Outcome(envelope=envelope, sent=Sent.FAILED, error=words(error), broker_down=True)
        try:
            self._send(self._insisting(call, envelope.job.queue), producer)
        except Exception as error:  # noqa: BLE001 - judged here
            verdict = judge(error)
            if verdict.connection_lost:
                self._drop()
            return Outcome(
                envelope=envelope,
                sent=verdict.sent,
                task_id=envelope.message_id,
                error=words(error),
                broker_down=verdict.broker_down,
            )
        self._used_at = time.monotonic()
        return Outcome(envelope=envelope, sent=Sent.CONFIRMED, task_id=envelope.message_id, eta_ms=eta_ms)

    def _insisting(self, call: Call, queue: str) -> Call:
        """Let RabbitMQ refuse a message that reaches no queue; it would drop it without a word."""
        if self._driver != "amqp" or not queue or isinstance(self._app.amqp.queues.get(queue), Broadcast):
            return call
        return replace(call, options={"mandatory": True, **call.options})

    def probe(self) -> str | None:
        """Try to reach a broker that did not answer, on a fresh connection."""
        self._drop()
        try:
            self._connected()
        except Exception as error:  # noqa: BLE001 - whatever a transport raises
            self._drop()
            return words(error)
        return None

    def close(self) -> None:
        """Close the connection. Idempotent."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is not None:
            with suppress(Exception):
                connection.release()

    def _connected(self) -> Producer:
        if self._producer is not None and time.monotonic() - self._used_at > IDLE_S and not self._alive():
            self._drop()
        if self._producer is None:
            self._connection = connection = self._open()
            self._driver = connection.transport.driver_type
            connection.ensure_connection(max_retries=0, timeout=CONNECT_S)
            self._check()
            producer: Any = self._app.amqp.Producer(connection, auto_declare=False)
            if self._driver == "redis":
                _keep_client(producer.channel)
            self._producer = producer
        self._used_at = time.monotonic()
        return self._producer

    def _alive(self) -> bool:
        """Tell whether an idle connection still leads to the broker, as far as a moment can tell."""
        try:
            self._check()
        except Exception:  # noqa: BLE001 - whatever a transport raises
            return False
        return True

    def _open(self) -> Connection:
        app = self._app
        plain: Any = app.connection_for_write()  # only to ask it what it is
        driver = plain.transport.driver_type
        timeout = min(app.conf.broker_connection_timeout or CONNECT_S, CONNECT_S)
        options = safe_options(driver, app.conf.broker_transport_options or {})
        return app.connection_for_write(transport_options=options, connect_timeout=timeout)

    def _check(self) -> None:
        """Raise unless the broker is there: a connection object alone says little about that."""
        connection: Any = self._connection
        channel = connection.default_channel
        if self._driver == "redis":
            channel.client.ping()
        elif self._driver == "amqp":
            with suppress(TimeoutError):
                connection.drain_events(timeout=0.01)

    def _drop(self) -> None:
        """Forget the connection without a word to a broker that may not listen."""
        connection, self._connection, self._producer = self._connection, None, None
        if connection is None:
            return
        with suppress(Exception):
            collapse = getattr(getattr(connection, "_connection", None), "collapse", None)
            if collapse is not None:
                collapse()
        with suppress(Exception):
            connection.release()

    def _apply(self, call: Call, producer: Producer) -> object:
        return apply(self._app, call, producer)


def _keep_client(channel: Any) -> None:  # noqa: ANN401 - Kombu's channels have no types
    """Let a channel of ours use one client: Kombu makes one for each message, a sixth of what a publish costs."""
    make = getattr(channel, "_create_client", None)
    if make is not None and hasattr(channel, "conn_or_acquire"):
        client = make()
        channel.conn_or_acquire = lambda own=None: nullcontext(own or client)


def apply(app: Celery, call: Call, producer: Producer) -> object:
    """Send a message as beat does: tasks that are not registered here are sent by name."""
    task: Any = app.tasks.get(call.task)
    options: dict[str, Any] = dict(call.options)
    args, kwargs = list(call.args), dict(call.kwargs)
    if task is not None:
        return task.apply_async(args, kwargs, producer=producer, **options)
    return app.send_task(call.task, args, kwargs, producer=producer, **options)


def message_of(envelope: Envelope, *, now_ms: int | None = None) -> tuple[Call, int]:
    """Return what is to be sent for an envelope, and when workers will see it if later than now.

    Lazy arguments are computed here, and only here: by the one instance that holds the run. The options and headers
    are fresh ones, since Celery and others write into them.
    """
    call = envelope.job.payload
    if not isinstance(call, Call):
        call = Call(name=envelope.job.name, task=envelope.job.target, options=_queue(envelope.job.queue))
    options = dict(call.options)
    options["headers"] = {
        **(options.get("headers") or {}),
        "celery_beat_task": True,
        "periodic_task_name": envelope.job.name,
        HEADER: envelope.header.to_text(),
    }
    options |= {"task_id": envelope.message_id, "retry": False, "expires": _expires(envelope, call)}
    eta_ms = envelope.due_ms + call.countdown_ms if call.countdown_ms else 0
    if eta_ms > (envelope.now_ms if now_ms is None else now_ms):
        options["eta"] = _instant(eta_ms)
    else:
        eta_ms = 0
    args = [_evaluated(value) for value in call.args]
    kwargs = {name: _evaluated(value) for name, value in call.kwargs.items()}
    return replace(call, args=args, kwargs=kwargs, options=options), eta_ms


def _evaluated(value: Any) -> Any:  # noqa: ANN401 - whatever the user wrote
    return value() if isinstance(value, BeatLazyFunc) else value


def _expires(envelope: Envelope, call: Call) -> datetime | None:
    """Return the earlier of the run's own limit and the job's. None clears what the task's class says."""
    limits = [call.expires] if call.expires is not None else []
    if envelope.expires_ms is not None:
        limits.append(_instant(envelope.expires_ms))
    return min(limits) if limits and envelope.attempt == 1 else None


def _instant(ms: int) -> datetime:
    return datetime.fromtimestamp(ms / 1_000, UTC)


def _queue(name: str) -> dict[str, Any]:
    return {"queue": name} if name else {}
