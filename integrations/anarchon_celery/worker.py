"""The worker's side of the integration: what is connected to Celery's signals, and the announcement of queues."""

# ruff: noqa: ANN401 - what signals carry has no types
from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from celery import bootsteps, signals

from anarchon_celery import guard
from anarchon_celery.installation import Installation, installation_of, keep
from anarchon_tasks.errors import AnarchonError
from anarchon_tasks.model import Reason, Status

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from anarchon_tasks.events import Events
    from anarchon_tasks.stores.base import LeaseStore

logger = logging.getLogger("anarchon_celery.worker")

AGAIN_S = 5.0
"""After this time an announcement that the store did not hear is made again."""


def install(
    app: Celery,
    open_store: Callable[[], LeaseStore],
    *,
    open_reporter: Callable[[], LeaseStore] | None = None,
    lease_ms: int = 30_000,
    heartbeat_ms: int = 10_000,
    patience_s: float = 20.0,
    announce_s: float = 60.0,
    tell: Events | None = None,
) -> Installation:
    """Make workers of this app begin, beat and end the runs they execute.

    Nothing connects and no thread starts here. Installing twice on one app changes nothing.

    Args:
        app: The Celery app.
        open_store: Makes a client of the store; called once in each process that executes runs.
        open_reporter: Makes the client of the worker's main process, whose event loop waits for each call: give it a
            short timeout. By default the same as `open_store`.
        lease_ms: How long a run is believed alive after a beat.
        heartbeat_ms: How often to beat.
        patience_s: How long a begin waits for a store that does not answer. After that the message is dropped; the
            run stays open and is published again.
        announce_s: How often a worker says which queues it consumes.
        tell: Who hears of events.

    """
    present = installation_of(app)
    if present is not None:
        return present
    installation = Installation(
        app,
        open_store,
        open_reporter=open_reporter,
        lease_ms=lease_ms,
        heartbeat_ms=heartbeat_ms,
        patience_s=patience_s,
        announce_s=announce_s,
        tell=tell,
    )
    keep(app, installation)
    app.steps["consumer"].add(Announce)
    _connect(installation)
    return installation


def _connect(installation: Installation) -> None:
    """Connect the receivers. They are called for every app of the process, so each looks whose task it is about."""
    app = installation.app

    def worker_init(sender: Any = None, **_: object) -> None:
        if sender is not None and sender.app is app:
            on_worker_init(installation)

    def task_postrun(sender: Any = None, task: Any = None, state: Any = None, retval: Any = None, **_: object) -> None:
        if sender is not None and sender.app is app:
            guard.conclude(installation, task, state, retval)

    def task_unknown(sender: Any = None, message: Any = None, name: Any = None, id: Any = None, **_: object) -> None:  # noqa: A002
        if sender is not None and sender.app is app:
            installation.report(
                (message.headers or {}).get,
                id,
                Status.FAILED,
                reason=Reason.UNREGISTERED,
                error=f"the worker {sender.hostname} has no task {name!r}",
            )

    def stopping(**_: object) -> None:
        installation.stop()

    for signal, receiver in (
        (signals.worker_init, worker_init),
        (signals.task_postrun, task_postrun),
        (signals.task_unknown, task_unknown),
        (signals.worker_process_shutdown, stopping),
        (signals.worker_shutdown, stopping),
    ):
        signal.connect(receiver, weak=False)


def on_worker_init(installation: Installation) -> None:
    """Prepare a worker: its task modules are imported, its pool does not exist yet."""
    first = not installation.main_pid
    installation.main_pid = os.getpid()
    guard.guard_tasks(list(installation.app.tasks.values()))
    if first:  # only a worker has retries to park; others publish without us

        def before_task_publish(headers: Any = None, body: Any = None, **_: object) -> None:
            if headers is not None:
                guard.park(installation, headers, body)

        signals.before_task_publish.connect(before_task_publish, weak=False, dispatch_uid=park_uid(installation.app))


def park_uid(app: Celery) -> str:
    """Return what our receiver of `before_task_publish` is registered under, for those who count receivers."""
    return f"anarchon-park-{id(app)}"


class Announce(bootsteps.StartStopStep):
    """Says in the store which queues a worker with the integration consumes: at its start and each minute.

    It hangs on the worker's own timer: no thread beside a pool that forks. A step of the consumer, since that drops
    timers when it loses the broker, and starts its steps again.
    """

    requires = ("celery.worker.consumer.tasks:Tasks",)

    def __init__(self, parent: Any, **options: Any) -> None:
        super().__init__(parent, **options)
        self._entries: list[Any] = []

    def start(self, parent: Any) -> None:
        """Announce now and from now on."""
        installation = installation_of(parent.app)
        if installation is None:
            return

        def tell() -> None:
            if not announce(installation, parent.hostname):
                self._entries.append(parent.timer.call_after(AGAIN_S, tell))

        self._entries = [
            parent.timer.call_after(0.0, tell),
            parent.timer.call_repeatedly(installation.announce_s, tell),
        ]

    def stop(self, parent: Any) -> None:
        """Announce no more."""
        entries, self._entries = self._entries, []
        for entry in entries:
            parent.timer.cancel(entry)


def announce(installation: Installation, hostname: str) -> bool:
    """Say which queues this worker consumes; return whether the store heard it. Never raises."""
    queues = dict.fromkeys(installation.app.amqp.queues.consume_from, 0)
    try:
        installation.reporter.store.announce(hostname, queues)
    except AnarchonError as error:
        logger.warning("could not announce the queues of %s, it is tried again soon: %s", hostname, error)
    except Exception:
        logger.exception("could not announce the queues of %s", hostname)
    else:
        return True
    return False
