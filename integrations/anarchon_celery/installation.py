"""What one Celery app has of us in a worker: who asks the store, in which process, and which messages are runs."""

from __future__ import annotations

import logging
import os
import threading
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from anarchon_celery.errors import LeaseLost
from anarchon_tasks.header import HEADER, Header
from anarchon_tasks.runs import Keeper
from anarchon_tasks.stores.base import Delivered

if TYPE_CHECKING:
    from collections.abc import Callable

    from celery import Celery

    from anarchon_tasks.events import Events
    from anarchon_tasks.model import Reason, Status
    from anarchon_tasks.stores.base import LeaseStore

logger = logging.getLogger("anarchon_celery.worker")

T = TypeVar("T")
_KEY = "anarchon_installation"


class PerProcess(Generic[T]):
    """One object per process, made at its first use there.

    What came through a fork is forgotten, not closed: it is the other process's.
    """

    def __init__(self, make: Callable[[], T]) -> None:
        self._make = make
        self._pid = os.getpid()  # not 0: threads that come first together would each begin anew
        self._made: T | None = None
        self._lock = threading.Lock()

    def get(self) -> T:
        """Return this process's object."""
        if self._pid != os.getpid():
            self._pid, self._made, self._lock = os.getpid(), None, threading.Lock()
        with self._lock:
            if self._made is None:
                self._made = self._make()
            return self._made

    def existing(self) -> T | None:
        """Return this process's object if it was made."""
        return self._made if self._pid == os.getpid() else None


class Installation:
    """The worker's side of one app. Nothing connects, and no thread starts, before the first run.

    Args:
        app: The Celery app.
        open_store: Makes a client of the store; called once in each process that executes runs.
        open_reporter: Makes the client of the worker's main process, whose event loop waits for each call: give it a
            short timeout. By default the same as `open_store`.
        lease_ms: How long a run is believed alive after a beat.
        heartbeat_ms: How often to beat.
        patience_s: How long a begin waits for a store that does not answer.
        announce_s: How often a worker says which queues it consumes.
        tell: Who hears of events.

    """

    def __init__(
        self,
        app: Celery,
        open_store: Callable[[], LeaseStore],
        *,
        open_reporter: Callable[[], LeaseStore] | None = None,
        lease_ms: int = 30_000,
        heartbeat_ms: int = 10_000,
        patience_s: float = 20.0,
        announce_s: float = 60.0,
        tell: Events | None = None,
    ) -> None:
        self.app = app
        self.lease_ms = lease_ms
        self.heartbeat_ms = heartbeat_ms
        self.patience_s = patience_s
        self.announce_s = announce_s
        self.main_pid = 0
        """The worker's main process, once one was initialised here."""
        self._tell = tell
        self._keeper = PerProcess(lambda: self._make(open_store))
        self._reporter = PerProcess(lambda: self._make(open_reporter or open_store))
        self._foreign: set[str] = set()

    def _make(self, open_store: Callable[[], LeaseStore]) -> Keeper:
        store = open_store()  # first: what opens it may read settings, and set the lease here
        return Keeper(
            store,
            lease_ms=self.lease_ms,
            heartbeat_ms=self.heartbeat_ms,
            patience_s=self.patience_s,
            lost_error=LeaseLost,
            tell=self._tell,
        )

    @property
    def keeper(self) -> Keeper:
        """Begins, beats and ends the runs that this process executes."""
        return self._keeper.get()

    @property
    def reporter(self) -> Keeper:
        """Reports from the worker's main process what the executing process cannot."""
        return self._reporter.get()

    @property
    def begins_here(self) -> bool:
        """Whether this very process executes runs: a child of the prefork pool, or the one process of other pools."""
        return self._keeper.existing() is not None

    @property
    def in_main_process(self) -> bool:
        """Whether this is the worker's main process."""
        return self.main_pid == os.getpid()

    def header(self, get: Callable[[str], object], message_id: object, *, executing: bool) -> Header | None:
        """Return the header of a message that is a tracked run of this store; None for any other message."""
        header = Header.parse(get(HEADER), message_id)
        if header is None or not header.tracked:
            return None
        store = (self.keeper if executing else self.reporter).store
        if header.namespace == store.namespace:
            return header
        if header.namespace not in self._foreign:
            self._foreign.add(header.namespace)
            logger.warning(
                "a message of job %r belongs to the namespace %r, this worker's store is %r in %s: its runs execute as "
                "plain calls, without lease and history",
                header.ref.job,
                header.namespace,
                store.namespace,
                store.location,
                extra={"anarchon": {"event": "foreign-namespace", "namespace": header.namespace}},
            )
        return None

    def report(
        self,
        get: Callable[[str], Any],
        message_id: str,
        status: Status,
        *,
        worker: str = "",
        pid: int = 0,
        reason: Reason | None = None,
        error: str | None = None,
    ) -> None:
        """Tell the store, from the worker's main process, how a run or an attempt ended. Never raises.

        Args:
            get: Looks a header of the message up.
            message_id: The message's id.
            status: How it ended.
            worker: The worker's node name.
            pid: The process that executed it; 0 when none did.
            reason: Why.
            error: More of that.

        """
        try:
            header = self.header(get, message_id, executing=False)
            if header is not None:
                delivered = Delivered(message_id=message_id, retries=get("retries") or 0, worker=worker, pid=pid)
                self.reporter.report(header, delivered, status, reason=reason, error=error)
        except Exception:
            logger.exception("the end of the run of message %s could not be reported", message_id)

    def stop(self) -> None:
        """Write what is unwritten and end the heartbeat thread of this process."""
        keeper = self._keeper.existing()
        if keeper is not None:
            keeper.stop()


def installation_of(app: object) -> Installation | None:
    """Return what is installed on the app."""
    found = getattr(app, "__dict__", {}).get(_KEY)
    return found if isinstance(found, Installation) else None


def keep(app: Celery, installation: Installation) -> None:
    """Remember what is installed on the app."""
    vars(app)[_KEY] = installation
