"""The extension: what an application has of us."""

from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any, TypeVar

from celery import bootsteps

from anarchon_celery import worker
from anarchon_celery.declarations import Declaration, Declarations
from anarchon_celery.settings import Settings, layered, resolve
from anarchon_tasks import schedules
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.events import Events

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from datetime import datetime
    from zoneinfo import ZoneInfo

    from celery import Celery

    from anarchon_celery.declarations import Target
    from anarchon_celery.installation import Installation
    from anarchon_tasks._durations import Duration
    from anarchon_tasks.schedules.cron import Fold, Gap
    from anarchon_tasks.stores import Backend
    from anarchon_tasks.stores.base import LeaseStore

logger = logging.getLogger("anarchon_celery")

F = TypeVar("F")
_KEY = "anarchon_extension"


class Anarchon:
    """Gives an app jobs of its own, and makes its workers report on the runs that they execute.

    Nothing connects when it is made. A setting that is not given here is taken from the environment (`ANARCHON_STORE`,
    `ANARCHON_PREFIX`, ...), then from Celery's settings (`anarchon_store`, `anarchon_prefix`, ...), when it is needed.

    Args:
        app: The app; or call `init_app` later.
        store: Where the account of runs lives: a URL, a backend, or a store.
        prefix: The namespace on stores that have prefixes: instances that share it share jobs.
        table: The namespace on stores that have tables.
        timezone: The zone of schedules that name none; by default the app's.
        lease: How long a run is believed alive after a heartbeat.
        heartbeat: How often to beat; by default a third of the lease.
        instance_id: What this scheduler is called; by default its host and process.
        jobs: Options of jobs by their names, as `anarchon_jobs`.

    Raises:
        ConfigError: The app has an extension already.

    """

    def __init__(
        self,
        app: Celery | None = None,
        *,
        store: str | Backend | LeaseStore | None = None,
        prefix: str | None = None,
        table: str | None = None,
        timezone: str | None = None,
        lease: Duration | None = None,
        heartbeat: Duration | None = None,
        instance_id: str | None = None,
        jobs: Mapping[str, Mapping[str, Any]] | None = None,
    ) -> None:
        self.app: Celery | None = None
        self.events = Events()
        """Tells of runs: subscribe before the worker or the scheduler starts."""
        self.declarations = Declarations()
        self._arguments = {
            "store": store,
            "prefix": prefix,
            "table": table,
            "timezone": timezone,
            "lease": lease,
            "heartbeat": heartbeat,
            "instance_id": instance_id,
            "jobs": jobs,
        }
        self._settings: Settings | None = None
        self._installation: Installation | None = None
        if app is not None:
            self.init_app(app)

    def init_app(self, app: Celery) -> None:
        """Join an app. Twice the same changes nothing.

        Raises:
            ConfigError: This extension belongs to another app, or the app has another extension.

        """
        if self.app is app:
            return
        if self.app is not None:
            raise ConfigError(f"this Anarchon belongs to the app {self.app.main!r}: make another one for {app.main!r}")
        if extension_of(app) is not None:
            raise ConfigError(f"the app {app.main!r} has an Anarchon already: use that one, or give the jobs to it")
        self.app = app
        setattr(app, _KEY, self)
        self._installation = worker.install(app, self._open_for_worker, tell=self.events)
        app.steps["worker"].add(CheckSettings)

    @property
    def settings(self) -> Settings:
        """The settings, read when first asked for.

        Raises:
            ConfigError: There is no app, a value makes no sense, or there is no store.

        """
        if self._settings is None:
            if self.app is None:
                raise ConfigError("this Anarchon has no app yet: call init_app(app) first")
            self._settings = settings_of(self.app, self._arguments)
        return self._settings

    def _open_for_worker(self) -> LeaseStore:
        settings = self.settings
        if self._installation is not None:
            self._installation.lease_ms = settings.lease_ms
            self._installation.heartbeat_ms = settings.heartbeat_ms
        return settings.open_store()

    # --- jobs --------------------------------------------------------------------------------------------------------

    def every(
        self,
        period: Duration,
        *,
        offset: Duration = 0,
        start: datetime | None = None,
        end: datetime | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: object,
    ) -> Callable[[F], F]:
        """Run the decorated task at a fixed interval, counted from the epoch.

        Args:
            period: The interval.
            offset: Moves all slots.
            start: No slots before this aware datetime.
            end: No slots after this aware datetime.
            name: The job's name; by default the task's.
            args: Arguments of the task.
            kwargs: Arguments of the task by name.
            options: Options of the job (`overlap`, `max_late`, ...), and of `apply_async` (`queue`, `priority`, ...).

        Raises:
            ConfigError: Something makes no sense, or another job has that name.

        """
        made = schedules.every(period, offset=offset, start=start, end=end)
        return self._decorator(made, name=name, args=args, kwargs=kwargs, options=options)

    def cron(
        self,
        text: str,
        *,
        timezone: str | ZoneInfo | None = None,
        start: datetime | None = None,
        end: datetime | None = None,
        day_or: bool = True,
        gap: Gap | None = None,
        fold: Fold | None = None,
        name: str | None = None,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: object,
    ) -> Callable[[F], F]:
        """Run the decorated task at the times of a cron expression.

        Args:
            text: Five fields, or six with seconds first.
            timezone: The zone of its clock.
            start: No slots before this aware datetime.
            end: No slots after this aware datetime.
            day_or: Whether one matching day field is enough where both are restricted.
            gap: What happens to times that a clock change removes.
            fold: What happens to times that a clock change repeats.
            name: The job's name; by default the task's.
            args: Arguments of the task.
            kwargs: Arguments of the task by name.
            options: Options of the job (`overlap`, `max_late`, ...), and of `apply_async` (`queue`, `priority`, ...).

        Raises:
            ConfigError: Something makes no sense, or another job has that name.

        """
        made = schedules.cron(text, timezone=timezone, start=start, end=end, day_or=day_or, gap=gap, fold=fold)
        return self._decorator(made, name=name, args=args, kwargs=kwargs, options=options)

    def schedule(
        self,
        name: str,
        schedule: object,
        *,
        task: Target,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: object,
    ) -> None:
        """Run a task, known by its name or as itself.

        Args:
            name: The job's name.
            schedule: `every(...)`, `cron(...)`, text, or what `beat_schedule` takes.
            task: The task, which need not be registered in this process.
            args: Arguments of the task.
            kwargs: Arguments of the task by name.
            options: As for `every`.

        Raises:
            ConfigError: Something makes no sense, or another job has that name.

        """
        made = schedules.parse(schedule) if isinstance(schedule, str) else schedule
        self.declarations.add(Declaration.build(made, task, name=name, args=args, kwargs=kwargs, options=options))

    def _decorator(
        self,
        made: schedules.Schedule,
        *,
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Callable[[F], F]:
        def declare(target: F) -> F:
            whose: Any = target
            self.declarations.add(Declaration.build(made, whose, name=name, args=args, kwargs=kwargs, options=options))
            return target

        return declare


class CheckSettings(bootsteps.Step):
    """Keeps a worker from starting with settings that make no sense. It connects nothing."""

    def __init__(self, parent: Any, **_: object) -> None:  # noqa: ANN401 - the worker
        extension = extension_of(parent.app)
        if extension is not None:
            store = extension.settings.open_store()
            if extension.settings.owns_store:
                store.close()


def extension_of(app: Celery) -> Anarchon | None:
    """Return the extension that joined an app."""
    found = vars(app).get(_KEY)
    return found if isinstance(found, Anarchon) else None


def settings_of(app: Celery, arguments: Mapping[str, Any]) -> Settings:
    """Read the settings of an app, with or without an extension.

    Raises:
        ConfigError: A value makes no sense, or there is no store.

    """
    given = layered(arguments=arguments, environment=os.environ, conf=app.conf)
    return resolve(given, broker_url=_broker_url(app))


def _broker_url(app: Celery) -> str | None:
    url: Any = app.conf.broker_write_url or app.conf.broker_url
    if isinstance(url, (list, tuple)):
        url = url[0] if url else None
    return str(url).split(";")[0] if url else None
