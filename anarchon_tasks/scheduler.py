"""The scheduler: one instance among equals. Run as many as you like, on every host."""

from __future__ import annotations

import logging
import os
import socket
import threading
import uuid
from dataclasses import replace
from datetime import UTC, datetime
from typing import TYPE_CHECKING

from anarchon_tasks import events
from anarchon_tasks._loops.claimer import Claimer
from anarchon_tasks._loops.dispatch import Dispatch
from anarchon_tasks._loops.holding import Holding
from anarchon_tasks._loops.loop import Loop
from anarchon_tasks._loops.upkeep import Upkeep
from anarchon_tasks.clock import Clock, SystemClock
from anarchon_tasks.errors import ConfigError, UnknownJob
from anarchon_tasks.jobs import check_name, check_timezone, lease_and_heartbeat
from anarchon_tasks.link import StoreLink
from anarchon_tasks.publishing import NoPublisher
from anarchon_tasks.reader import Reader
from anarchon_tasks.stores import open_store
from anarchon_tasks.stores.base import Policy
from anarchon_tasks.tracking import Tracking

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anarchon_tasks._durations import Duration
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.model import Run, RunRef
    from anarchon_tasks.publishing import Publisher
    from anarchon_tasks.stores import Backend
    from anarchon_tasks.stores.base import LeaseStore

logger = logging.getLogger("anarchon_tasks.scheduler")


class Scheduler:
    """Competes with its equals for each slot of each job, and publishes the runs that it wins.

    Nothing connects and no thread starts before `start()`; reading the history connects by itself.

    Args:
        backend: Where the claims and the account are: a URL, a backend, or an open store. What is opened here is closed
            at stop; a store that was given stays open.
        publisher: Sends the runs to the engine. Without one the scheduler reads, and cannot be started.
        timezone: The zone of schedules that name none.
        instance_id: A readable label of this instance; default host and pid. Its identity is a fresh one per start.
        lease: How long workers are believed alive after a heartbeat, `"30s"` by default.
        heartbeat: How often workers beat, a third of the lease by default. After an outage of the store nothing is
            taken over for one heartbeat and a second.
        tracks: Whether workers may report on runs; False makes being enqueued the end of every run.
        clock: Tests give their own.
        tell: Who hears of events.

    Raises:
        ConfigError: An option makes no sense.

    """

    def __init__(
        self,
        *,
        backend: str | Backend | LeaseStore,
        publisher: Publisher | None = None,
        timezone: str = "UTC",
        instance_id: str | None = None,
        lease: Duration | None = None,
        heartbeat: Duration | None = None,
        tracks: bool = True,
        clock: Clock | None = None,
        tell: events.Events | None = None,
    ) -> None:
        lease_ms, heartbeat_ms = lease_and_heartbeat(lease, heartbeat)
        self.timezone = check_timezone(timezone)
        self.store = open_store(backend)
        self.events = tell or events.Events()
        self.instance = _instance(instance_id)
        self._owns_store = self.store is not backend
        self._publisher = publisher or NoPublisher()
        self._clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._jobs: dict[str, Job] = {}
        self._job_list: tuple[Job, ...] | None = ()
        self._link = StoreLink(
            self.store, clock=self._clock, tell=self.events, lease_ms=lease_ms, heartbeat_ms=heartbeat_ms
        )
        self._reader = Reader(self.store)
        self._build(tracks=tracks)

    def _build(self, *, tracks: bool) -> None:
        claim_lease_ms = Policy().claim_lease_ms
        holding = Holding(clock=self._clock, lease_s=claim_lease_ms / 1000)
        tracking = Tracking(enabled=tracks)
        self._dispatch = Dispatch(
            link=self._link,
            publisher=self._publisher,
            holding=holding,
            clock=self._clock,
            tell=self.events,
            claim_lease_s=claim_lease_ms / 1000,
            stopping=lambda: self._claims.stopping,
        )
        self._keep = Upkeep(
            link=self._link,
            holding=holding,
            tracking=tracking,
            clock=self._clock,
            claim_lease_ms=claim_lease_ms,
            jobs=self._all_jobs,
            registered=self._registered,
            recover=self._recover,
        )
        self._claimer = Claimer(
            link=self._link,
            dispatch=self._dispatch,
            tracking=tracking,
            instance=self.instance,
            clock=self._clock,
            tell=self.events,
            register=self._register,
        )
        self._claims = Loop("claims", self._claimer, clock=self._clock)
        self._upkeep = Loop("upkeep", self._keep, clock=self._clock)

    def _register(self, job: Job, floor: int | None) -> None:
        """Have a job registered, unless it was removed or replaced since the claimer heard of it."""
        with self._lock:
            if self._jobs.get(job.name) is job:
                self._keep.register(job, floor)

    def _registered(self, job: Job, floor: int) -> None:
        self._claimer.registered(job, floor)
        self._claims.wake()

    def _recover(self, refs: Sequence[RunRef]) -> None:
        self._claimer.recover(refs)
        self._claims.wake()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def add_job(self, job: Job) -> None:
        """Take a job on, before or after `start()`. The same definition again changes nothing.

        Raises:
            ConfigError: A job of that name with another schedule or target is registered here.

        """
        job = self._bound(job)
        with self._lock:
            old = self._jobs.get(job.name)
            if old is not None:
                _check_same(old, job)
                if old == job:
                    return
            self._put(job)

    def replace_job(self, job: Job) -> None:
        """Take a job on in place of the one of that name, if there is one."""
        job = self._bound(job)
        with self._lock:
            if self._jobs.get(job.name) != job:
                self._put(job)

    def _bound(self, job: Job) -> Job:
        """Return the job with a schedule that knows its zone and the job's name."""
        check_name(job.name)
        schedule = job.schedule.in_zone(self.timezone).for_job(job.name)
        return job if schedule == job.schedule else replace(job, schedule=schedule)

    def _put(self, job: Job) -> None:
        self._jobs[job.name] = job
        self._job_list = None
        if job.options.enabled:
            self._claimer.add(job)
        else:
            self._claimer.remove(job.name)
        self._claims.wake()

    def remove(self, name: str) -> None:
        """Ask for no more slots of a job. Its history stays; its open runs go on.

        Raises:
            UnknownJob: No job of that name is registered here.

        """
        with self._lock:
            self._known(name)
            del self._jobs[name]
            self._job_list = None
            self._claimer.remove(name)
            self._keep.forget(name)

    def jobs(self) -> list[Job]:
        """Return the jobs that are registered on this instance."""
        return list(self._all_jobs())

    def _all_jobs(self) -> tuple[Job, ...]:
        """Return the jobs. The copy is made when somebody asks, not once for each job that is added."""
        with self._lock:
            if self._job_list is None:
                self._job_list = tuple(self._jobs.values())
            return self._job_list

    def _known(self, name: str) -> Job:
        job = self._jobs.get(name)
        if job is None:
            message = f"no job named {name!r} is registered here"
            raise UnknownJob(message)
        return job

    # --- start and stop ----------------------------------------------------------------------------------------------

    @property
    def running(self) -> bool:
        """Whether the scheduler works."""
        return self._claims.running

    def start(self) -> None:
        """Start working, in threads of its own. Idempotent. A store that does not answer is waited for.

        Raises:
            ConfigError: It was made without a publisher.

        """
        if isinstance(self._publisher, NoPublisher):
            message = (
                "this scheduler has no publisher and only reads: let `celery beat -S anarchon` run the jobs, or make "
                "one with publisher=..."
            )
            raise ConfigError(message)
        started = self._upkeep.start()
        if not self._claims.start() and not started:
            return
        logger.info("started %s on %s", self.instance, self.store.location, extra={"anarchon": {"event": "started"}})
        self.events.emit(events.Started(who=self.instance))

    def stop(self, timeout: float = 25.0) -> bool:
        """Stop claiming, hand back what is not published, and end the threads. Idempotent.

        Args:
            timeout: The longest it may take, in seconds.

        Returns:
            Whether everything ended in time. What did not runs out by itself, and another instance takes it.

        """
        was_running = self.running
        give_up = self._clock.monotonic() + timeout
        self._claims.ask_to_stop()
        ended = self._claims.join(give_up - self._clock.monotonic())
        self._upkeep.ask_to_stop()
        ended = self._upkeep.join(give_up - self._clock.monotonic()) and ended
        if ended:
            self._publisher.close()
            if self._owns_store:
                self.store.close()
        if was_running:
            logger.info("stopped %s", self.instance, extra={"anarchon": {"event": "stopped"}})
            self.events.emit(events.Stopped(who=self.instance))
        return ended

    # --- reading -----------------------------------------------------------------------------------------------------

    def next_run(self, name: str) -> datetime | None:
        """Return the next slot of a job, on the store's clock; None when there is none any more.

        Raises:
            UnknownJob: No job of that name is registered here.

        """
        slot = self._known(name).schedule.next(self._link.time.now_ms())
        return None if slot is None else datetime.fromtimestamp(slot / 1000, UTC)

    def history(self, name: str, limit: int = 20) -> list[Run]:
        """Return the newest attempts of a job, newest first, from any process that ran it."""
        return self._reader.history(name, limit=limit)

    def last_run(self, name: str) -> Run | None:
        """Return the newest attempt of a job."""
        return self._reader.last_run(name)


def _instance(label: str | None) -> str:
    return f"{label or f'{socket.gethostname()}:{os.getpid()}'}/{uuid.uuid4().hex[:8]}"


def _check_same(old: Job, new: Job) -> None:
    for what, first, second in (
        ("schedule", old.schedule.text, new.schedule.text),
        ("schedule", old.schedule.fingerprint, new.schedule.fingerprint),
        ("task", old.target, new.target),
    ):
        if first != second:
            message = (
                f"two jobs are named {new.name!r}: one with {what} {first!r}, one with {second!r}. "
                "Give one of them another name"
            )
            raise ConfigError(message)
