"""The scheduler that `celery beat -S anarchon` runs.

Beat's own thread only looks: whether its entries changed, and whether it has to end. All the rest happens in threads
of ours, started at the first tick: one that starts, changes and stops the scheduler, and those of the scheduler.
So a tick never waits for a server, and the signal handler that calls `close()` in the middle of a tick meets no lock.
"""

from __future__ import annotations

import logging
import time
from difflib import get_close_matches
from typing import TYPE_CHECKING, Any

from celery import beat

from anarchon_celery.adapters import to_celery
from anarchon_celery.app import extension_of, settings_of
from anarchon_celery.entries import Entry, Found, jobs_of
from anarchon_celery.publisher import CeleryPublisher
from anarchon_celery.runner import STOP_S, Runner, label
from anarchon_celery.schedules import app_zone
from anarchon_tasks.errors import AnarchonError, ConfigError
from anarchon_tasks.stores._urls import without_password

if TYPE_CHECKING:
    from collections.abc import Mapping

    from celery import Celery
    from kombu import Producer

    from anarchon_celery.options import Call
    from anarchon_celery.settings import Settings
    from anarchon_tasks.jobs import Job

logger = logging.getLogger("anarchon_celery.beat")

TICK_S = 1.0
CLEANUP = "celery.backend_cleanup"
"""The entry that Celery itself adds."""


NOTHING_SENT = object()


class AnarchonScheduler(beat.Scheduler):
    """Beat without a leader: any number of them may run, and each slot of each entry is sent once.

    An entry that cannot be used is logged as an error, by its name, and left out: the others run. When there are
    entries and none can be used, or no store is known, beat does not start, and says what to write where.
    """

    Entry = Entry
    max_interval = 5

    def __init__(
        self,
        app: Celery,
        schedule: Any = None,  # noqa: ANN401 - as its base has it
        max_interval: int | None = None,
        Producer: Any = None,  # noqa: ANN401, N803 - as its base has it
        lazy: bool = False,  # noqa: FBT001, FBT002 - as its base has it
        sync_every_tasks: int | None = None,
        **kwargs: Any,  # noqa: ANN401 - as its base has it
    ) -> None:
        self.lazy = lazy
        self._errors: dict[str, ConfigError] = {}
        self._changed = True
        self._seen: dict[str, beat.ScheduleEntry] = {}
        self._news: Found | None = None
        self._runner: Runner | None = None
        self._closed = False
        self._give_up_at = 0.0
        self._sent: object = None
        super().__init__(app, schedule, max_interval, Producer, lazy, sync_every_tasks, **kwargs)

    # --- entries -----------------------------------------------------------------------------------------------------

    def setup_schedule(self) -> None:
        """Read the settings and the entries; connect nothing.

        Raises:
            ConfigError: There is no store, or none that can be (its URL, its driver), a setting makes no sense, or no
                entry can be used.

        """
        self._settings = _settings(self.app)
        self._settings.check_store()
        self.merge_inplace(self.app.conf.beat_schedule)
        self.install_default_entries(self.schedule)
        self._news = found = self._read()
        if found.errors and not found.jobs.keys() - {CLEANUP}:
            raise ConfigError(f"no entry of the schedule can be used:\n{found.report()}")
        if self._settings.from_broker:
            logger.warning(
                "no store is set, so the broker serves as one. Say so, app.conf.anarchon_store = "
                "'redis://...', or name another; a database of its own, such as /1, keeps the two apart"
            )
        if extension_of(self.app) is None:
            logger.warning(
                "this app has no Anarchon(app): runs end as 'enqueued', nobody notices when one dies. For leases, "
                "overlap and takeover write: from anarchon_celery import Anarchon; anarchon = Anarchon(app)"
            )

    def merge_inplace(self, b: Mapping[str, Any]) -> None:
        """Make the schedule what `b` says. What cannot be used is logged, and leaves an entry as it was."""
        schedule = self.schedule
        for name in schedule.keys() - b.keys():
            schedule.pop(name, None)
            self._errors.pop(name, None)
        for name, entry in self._usable(b).items():
            if schedule.get(name):
                schedule[name].update(entry)
            else:
                schedule[name] = entry
        self._changed = True

    def update_from_dict(self, dict_: Mapping[str, Any]) -> None:
        """Add entries, and replace those of the same names."""
        self.schedule.update(self._usable(dict_))
        self._changed = True

    def _usable(self, given: Mapping[str, Any]) -> dict[str, beat.ScheduleEntry]:
        usable = {}
        for name, value in given.items():
            try:
                usable[name] = self._made(name, value)
                self._errors.pop(name, None)
            except (AnarchonError, TypeError, ValueError) as error:
                wrong = error if isinstance(error, ConfigError) else ConfigError(f"{type(error).__name__}: {error}")
                self._errors[name] = wrong
                if not self.lazy:
                    logger.error("entry %r cannot be used and is left out: %s", name, wrong)  # noqa: TRY400 - no bug
        return usable

    def _made(self, name: str, value: Any) -> beat.ScheduleEntry:  # noqa: ANN401 - whatever the user wrote
        if isinstance(value, beat.ScheduleEntry):
            value.app = self.app
            return value
        return self.Entry(**dict(value, name=name, app=self.app))

    def _find(self) -> Found:
        """Return all jobs there are, those declared in code included, and log what is wrong with the rest."""
        extension, settings = extension_of(self.app), self._settings
        found = jobs_of(self.schedule.values(), app=self.app, options=settings.jobs)
        if extension is not None:
            zone = settings.timezone or app_zone(self.app)
            declared = extension.declarations.jobs(self.app, zone=zone, options=settings.jobs)
            found.errors |= declared.errors
            for name, job in declared.jobs.items():
                if found.jobs.setdefault(name, job) != job:
                    found.errors[name] = ConfigError(
                        "it is in beat_schedule and declared in code, and the two differ: the entry runs, the "
                        "declaration does not. Remove one, or give one another name"
                    )
        for name, error in found.errors.items():
            logger.error("job %r cannot be used and is left out: %s", name, error)
        found.errors = {**self._errors, **found.errors}
        return found

    # --- beat's loop -------------------------------------------------------------------------------------------------

    def tick(self, *_: Any, **__: Any) -> float:  # noqa: ANN401 - as its base has it
        """Pass on what changed. Never raises, never waits, and returns how long beat may sleep: a second at most."""
        try:
            if not self._closed:
                self._look()
        except Exception:
            logger.exception("reading the schedule failed; what was read before goes on")
        return min(TICK_S, self.max_interval or TICK_S)

    def _look(self) -> None:
        if self._changed or self.schedule != self._seen:
            self._news = self._read()
        if self._news is not None:
            self._pass_on(self._news.jobs)
            self._news = None

    def _read(self) -> Found:
        self._changed, self._seen = False, dict(self.schedule)
        found = self._find()
        for name in self._settings.jobs.keys() - found.jobs.keys() - found.errors.keys():
            near = get_close_matches(name, found.jobs, n=1)
            hint = f": did you mean {near[0]!r}?" if near else ", so they count for nothing"
            logger.warning("anarchon_jobs has options for %r, and there is no job of that name%s", name, hint)
        return found

    def _pass_on(self, jobs: dict[str, Job]) -> None:
        if self._runner is None:
            extension = extension_of(self.app)
            self._runner = Runner(
                self._settings,
                publisher=CeleryPublisher(self.app, send=self._send),
                timezone=self._settings.timezone or app_zone(self.app),
                tracks=extension is not None,
                tell=None if extension is None else extension.events,
            )
            self._runner.start()
        self._runner.want(jobs)

    def sync(self) -> None:
        """Do nothing: there is no local file."""

    def close(self) -> None:
        """Stop, and wait for it for some seconds at most, in all calls together.

        It may be called in a signal handler, at any point of a tick or of itself: it takes no lock.
        """
        if not self._closed:
            self._closed = True
            self._give_up_at = time.monotonic() + STOP_S + 1.0
        runner = self._runner
        if runner is not None:
            runner.ask_to_stop()
            while not runner.ended and time.monotonic() < self._give_up_at:
                time.sleep(0.02)
        super().close()

    @property
    def info(self) -> str:
        """The lines of the banner: the store without its password, and how many jobs there are."""
        try:
            settings = _settings(self.app)
            self._settings = settings
            if self.lazy and not self.schedule:
                self.merge_inplace(self.app.conf.beat_schedule)
                self.install_default_entries(self.schedule)
            extension = extension_of(self.app)
            declared = len(extension.declarations) if extension is not None else 0
        except Exception as error:  # noqa: BLE001 - the start says it again, and then it counts
            return f"    . store -> {str(error).splitlines()[0] if str(error) else type(error).__name__}"
        of_broker = ", the broker: set anarchon_store" if settings.from_broker else ""
        lines = [
            f"    . store -> {_location(settings)} (lease {settings.lease_ms / 1000:g}s{of_broker})",
            f"    . jobs -> {len(self.schedule) + declared}",
            f"    . instance -> {label(settings)}{'' if extension else ' (enqueue only: no Anarchon(app))'}",
        ]
        return "\n".join(lines)

    # --- sending -----------------------------------------------------------------------------------------------------

    def _send(self, call: Call, producer: Producer) -> object:
        """Send one message as beat does, so that whoever wraps `apply_entry` sees it.

        Raises:
            Exception: Whatever the broker's client raised; `apply_entry` itself keeps errors to itself.

        """
        entry = self.Entry(
            name=call.name,
            task=call.task,
            schedule=call.schedule or self._celery_schedule(call.name),
            args=list(call.args),
            kwargs=dict(call.kwargs),
            options=dict(call.options),
            app=self.app,
        )
        self._sent = NOTHING_SENT
        self.apply_entry(entry, producer=producer)
        outcome, self._sent = self._sent, None
        if isinstance(outcome, BaseException):
            raise outcome
        if outcome is NOTHING_SENT:
            raise ConfigError("apply_entry sent nothing: something replaced it and does not call apply_async")
        known = self.schedule.get(call.name)
        if known is not None:
            known.last_run_at, known.total_run_count = entry.last_run_at, (known.total_run_count or 0) + 1
        return outcome

    def _celery_schedule(self, name: str) -> object:
        job = self._runner.jobs.get(name) if self._runner is not None else None
        return self.max_interval if job is None else to_celery(job.schedule, app=self.app)

    def apply_async(self, entry: Any, producer: Any = None, advance: bool = True, **kwargs: Any) -> Any:  # noqa: ANN401, FBT001, FBT002 - as its base has it
        """Send one message, and note what became of it. An error is noted, and told once by who tries again."""
        try:
            result = super().apply_async(entry, producer=producer, advance=advance, **kwargs)
        except Exception as error:  # noqa: BLE001 - `apply_entry` would log it with a traceback, at each try
            self._sent = error
            return None
        self._sent = result
        return result


def _settings(app: Celery) -> Settings:
    extension = extension_of(app)
    return settings_of(app, {}) if extension is None else extension.settings


def _location(settings: Settings) -> str:
    if isinstance(settings.store, str):
        return without_password(settings.store)
    location = getattr(settings.store, "location", None) or getattr(settings.open_store(), "location", "")
    return without_password(str(location))
