"""The thread that starts, changes and stops the scheduler on behalf of beat's own."""

from __future__ import annotations

import logging
import os
import socket
import threading
from queue import Empty, SimpleQueue
from typing import TYPE_CHECKING

from anarchon_tasks.scheduler import Scheduler

if TYPE_CHECKING:
    from anarchon_celery.settings import Settings
    from anarchon_tasks.events import Events
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.publishing import Publisher
    from anarchon_tasks.stores.base import LeaseStore

logger = logging.getLogger("anarchon_celery.beat")

STOP_S = 8.0
"""How long the scheduler may take to stop; supervisors send SIGKILL ten seconds after SIGTERM."""
RETRY_S = 1.0


class Runner:
    """Starts, changes and stops the scheduler, in a thread of its own.

    Everything reaches the thread through a queue whose `put` may be interrupted by itself.
    """

    def __init__(
        self,
        settings: Settings,
        *,
        publisher: Publisher,
        timezone: str,
        tracks: bool,
        tell: Events | None,
    ) -> None:
        self.jobs: dict[str, Job] = {}
        self.ended = False
        self._settings = settings
        self._publisher = publisher
        self._timezone = timezone
        self._tracks = tracks
        self._tell = tell
        self._orders: SimpleQueue[dict[str, Job] | None] = SimpleQueue()
        self._scheduler: Scheduler | None = None
        self._store: LeaseStore | None = None
        self._failed: str | None = None

    def start(self) -> None:
        """Start the thread."""
        threading.Thread(target=self._run, name="anarchon-beat", daemon=True).start()

    def want(self, jobs: dict[str, Job]) -> None:
        """Let these be all the jobs there are."""
        self.jobs = jobs
        self._orders.put(jobs)

    def ask_to_stop(self) -> None:
        """Stop soon. Idempotent, and safe anywhere."""
        self._orders.put(None)

    def _run(self) -> None:
        try:
            wanted = self._orders.get()
            while wanted is not None:
                missing = wanted if self._apply(wanted) is False else None
                wanted = self._next(missing)
            self._stop()
        except BaseException:
            logger.exception("the scheduler's thread ended")
            raise
        finally:
            self.ended = True

    def _next(self, missing: dict[str, Job] | None) -> dict[str, Job] | None:
        """Return the next order; what is still missing again after a while."""
        try:
            return self._orders.get(timeout=None if missing is None else RETRY_S)
        except Empty:
            return missing

    def _apply(self, wanted: dict[str, Job]) -> bool:
        """Start if need be, and change what differs; return whether that worked. Nothing raises."""
        try:
            if self._scheduler is None:
                self._scheduler = self._open()
            _change(self._scheduler, wanted)
            self._scheduler.start()
        except Exception as error:  # noqa: BLE001 - beat must live, and try again
            text = f"{type(error).__name__}: {error}"
            if text != self._failed:
                logger.error("the scheduler does not start, trying again each second: %s", text)  # noqa: TRY400
            self._failed = text
            return False
        self._failed = None
        return True

    def _open(self) -> Scheduler:
        settings = self._settings
        self._store = settings.open_store()
        return Scheduler(
            backend=self._store,
            publisher=self._publisher,
            timezone=self._timezone,
            instance_id=label(settings),
            lease=settings.lease_ms / 1000,
            heartbeat=settings.heartbeat_ms / 1000,
            tracks=self._tracks,
            tell=self._tell,
        )

    def _stop(self) -> None:
        if self._scheduler is not None:
            self._scheduler.stop(timeout=STOP_S)
            if self._store is not None and self._settings.owns_store:
                self._store.close()


def _change(scheduler: Scheduler, wanted: dict[str, Job]) -> None:
    """Make the jobs of a scheduler these, touching only what differs."""
    present = {job.name: job for job in scheduler.jobs()}
    for name in present.keys() - wanted.keys():
        scheduler.remove(name)
    for job in wanted.values():
        scheduler.replace_job(job)


def label(settings: Settings) -> str:
    """Return what this process is called where instances are listed."""
    return settings.instance_id or f"{socket.gethostname()}:{os.getpid()}"
