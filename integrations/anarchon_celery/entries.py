"""The entries of `beat_schedule` as jobs.

Everything that plain beat takes means the same here, but for what the scheduler does better by itself. An entry that
plain beat would refuse at its start, or crash on, is reported by its name and left out; the others run. Only when no
entry at all can be used does the start fail: one bad entry must not stop the good ones, and nothing but bad ones is a
mistake that somebody has to see at once.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, cast

from celery.beat import ScheduleEntry
from celery.schedules import BaseSchedule, crontab, maybe_schedule

from anarchon_celery.adapters import TextSchedule
from anarchon_celery.options import Call, sort
from anarchon_celery.schedules import app_zone, convert
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.jobs import OPTION_NAMES, Job, check_name
from anarchon_tasks.schedules import parse
from anarchon_tasks.schedules.base import Bounds

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from celery import Celery

    from anarchon_tasks.schedules import Schedule

logger = logging.getLogger("anarchon_celery.beat")

FOREIGN = {
    "description": "it is ignored",
    "enabled": "it is obeyed",
    "expire_seconds": "it counts as the option 'expires'",
    "expires": "it counts as the option 'expires'",
    "one_off": "it is ignored, the entry runs at every slot",
    "start_time": "it is obeyed: no slot before it",
}
"""Keys that other schedulers know in an entry, and what becomes of them here."""

NOT_SENT = {
    "connection": "the scheduler has a connection of its own",
    "producer": "the scheduler has a producer of its own",
    "publisher": "the scheduler has a producer of its own",
    "retry": "the scheduler itself tries again",
    "retry_policy": "the scheduler itself tries again",
    "task_id": "every run has an id of its own, made of the job and its slot",
}
"""Options of `apply_async` that an entry may have and that are not passed on, and why."""


class Entry(ScheduleEntry):
    """An entry as beat has it, which also takes cron text, and the keys of other schedulers.

    Raises:
        ConfigError: It has a key that nobody knows, or its text is no schedule.

    """

    relative: bool
    foreign: Mapping[str, Any]

    def __init__(
        self,
        name: str | None = None,
        task: str | None = None,
        last_run_at: datetime | None = None,
        total_run_count: int | None = None,
        schedule: Any = None,  # noqa: ANN401 - whatever the user wrote
        args: Sequence[Any] = (),
        kwargs: dict[str, Any] | None = None,
        options: dict[str, Any] | None = None,
        relative: bool = False,  # noqa: FBT001, FBT002 - beat's own signature
        app: Celery | None = None,
        foreign: Mapping[str, Any] | None = None,
        **others: Any,  # noqa: ANN401 - keys of other schedulers
    ) -> None:
        for key in others.keys() - FOREIGN.keys():
            raise ConfigError(
                f"unknown key {key}={others[key]!r}. Options of jobs have a place of their own: "
                f"app.conf.anarchon_jobs = {{{name!r}: {{{key!r}: ...}}}}"
            )
        self.app = app
        self.name = name
        self.task = task
        self.args = cast("Any", args)
        self.kwargs = kwargs or {}
        self.options = options or {}
        self.relative = relative
        self.foreign = {**(foreign or {}), **others}
        self.schedule = cast("Any", _of_celery(schedule, relative=relative, app=app))
        self.last_run_at = last_run_at or self.default_now()
        self.total_run_count = total_run_count or 0

    def update(self, other: ScheduleEntry) -> None:
        """Take over what the other defines; keep when this one last ran."""
        super().update(other)
        self.relative = getattr(other, "relative", False)
        self.foreign = getattr(other, "foreign", {})

    def editable_fields_equal(self, other: Any) -> bool:  # noqa: ANN401 - as its base has it
        """Tell whether the other defines the same."""
        mine = (self.relative, self.foreign)
        return bool(super().editable_fields_equal(other)) and mine == (
            getattr(other, "relative", False),
            getattr(other, "foreign", {}),
        )


def _of_celery(value: object, *, relative: bool, app: Celery | None) -> object:
    if value is None:
        raise ConfigError("there is no schedule: give seconds, a timedelta, crontab(...), or text such as '0 8 * * *'")
    if isinstance(value, str):
        return TextSchedule(parse(value), app=app)
    if isinstance(value, BaseSchedule) or (isinstance(value, (int, float, timedelta)) and not isinstance(value, bool)):
        try:
            return maybe_schedule(cast("Any", value), relative, app=app)
        except OverflowError as error:
            raise ConfigError(f"schedule={value!r} is no interval: {error}") from None
    if app is not None:
        convert(value, app=app)  # says what is wrong with it
    return value


@dataclass(slots=True)
class Found:
    """Jobs by name, and what is wrong with those that are none."""

    jobs: dict[str, Job] = field(default_factory=dict)
    errors: dict[str, ConfigError] = field(default_factory=dict)

    def report(self) -> str:
        """Return all that is wrong, one line each."""
        return "\n".join(f"  {name}: {error}" for name, error in self.errors.items())


def jobs_of(
    entries: Iterable[ScheduleEntry], *, app: Celery, options: Mapping[str, Mapping[str, Any]] | None = None
) -> Found:
    """Return the jobs that entries mean; those that mean none are among the errors.

    Args:
        entries: Beat's entries.
        app: Its tasks, routes and settings count.
        options: Options of jobs by the names of their entries: the setting `anarchon_jobs`.

    """
    found = Found()
    given = options or {}
    for entry in entries:
        name = str(entry.name)
        try:
            found.jobs[name] = job_of(entry, app=app, options=given.get(name, {}))
        except ConfigError as error:
            found.errors[name] = error
        except Exception as error:  # noqa: BLE001 - what a user's schedule or route raises spoils its own entry alone
            found.errors[name] = ConfigError(f"{type(error).__name__}: {error}")
    return found


def job_of(entry: ScheduleEntry, *, app: Celery, options: Mapping[str, Any]) -> Job:
    """Return the job that an entry means.

    Raises:
        ConfigError: It means none.

    """
    name = check_name(entry.name)
    task = task_name(entry.task)
    foreign: Mapping[str, Any] = getattr(entry, "foreign", {})
    send = _sendable(name, entry.options, foreign)
    ours = dict(options)
    if foreign.get("enabled") is not None:
        ours.setdefault("enabled", bool(foreign["enabled"]))
    if isinstance(entry.schedule, crontab) and app.conf.beat_cron_starting_deadline is not None:
        ours.setdefault("max_late", app.conf.beat_cron_starting_deadline)
    args, kwargs = _arguments(entry)
    defaults = task_options(app, task)
    placed = sort(name, ours, send, defaults=defaults)
    schedule = convert(
        entry.schedule,
        app=app,
        relative=bool(getattr(entry, "relative", False)),
        bounds=Bounds.between(_start(foreign, app), placed.expires),
    )
    return Job(
        name=name,
        schedule=bound(schedule, name, app_zone(app)),
        target=task,
        queue=queue_of(app, task, args, kwargs, {**defaults, **placed.send}),
        options=placed.job,
        payload=Call(
            name=name,
            task=task,
            args=args,
            kwargs=kwargs,
            options=placed.send,
            countdown_ms=placed.countdown_ms,
            expires=placed.expires,
            schedule=entry.schedule,
        ),
    )


def _sendable(name: str, options: object, foreign: Mapping[str, Any]) -> dict[str, Any]:
    if not isinstance(options, Mapping):
        raise ConfigError(f"options={options!r} must be a dict of options of apply_async")
    for key, value in foreign.items():
        logger.warning("entry %r has %s=%r, which plain beat does not know: %s", name, key, value, FOREIGN[key])
    send = {}
    for key, value in options.items():
        if key in OPTION_NAMES:
            raise ConfigError(
                f"{key}={value!r} is no option of apply_async: write app.conf.anarchon_jobs = "
                f"{{{name!r}: {{{key!r}: {value!r}}}}}"
            )
        if key in NOT_SENT:
            logger.warning("entry %r has the option %s, which is not used: %s", name, key, NOT_SENT[key])
        else:
            send[key] = value
    expires = foreign.get("expires") if foreign.get("expires") is not None else foreign.get("expire_seconds")
    if expires is not None:
        send.setdefault("expires", expires)
    return send


def _arguments(entry: ScheduleEntry) -> tuple[Sequence[Any], Mapping[str, Any]]:
    args, kwargs = entry.args or (), entry.kwargs or {}
    if not isinstance(args, (list, tuple)):
        raise ConfigError(f"args={args!r} must be a list or a tuple; a single argument is written ({args!r},)")
    if not isinstance(kwargs, Mapping):
        raise ConfigError(f"kwargs={kwargs!r} must be a dict")
    return args, kwargs


def _start(foreign: Mapping[str, Any], app: Celery) -> datetime | None:
    start = foreign.get("start_time")
    if isinstance(start, datetime) and start.tzinfo is None:
        return start.replace(tzinfo=app.timezone)
    return start


# --- shared with jobs that are declared in code ----------------------------------------------------------------------


def task_name(task: object) -> str:
    """Return the name of a task, given as its name or as itself.

    Raises:
        ConfigError: There is none.

    """
    name = getattr(task, "name", task)
    if not isinstance(name, str) or not name:
        raise ConfigError(f"task={task!r} is no task: give the name of one, such as 'shop.tasks.sync'")
    return name


def task_options(app: Celery, task: str) -> dict[str, Any]:
    """Return what a registered task says of how it is sent; nothing for one that is not registered here."""
    registered: Any = app.tasks.get(task)
    if registered is None:
        return {}
    return {key: value for key, value in registered._get_exec_options().items() if value is not None}  # noqa: SLF001


def bound(schedule: Schedule, name: str, zone: str) -> Schedule:
    """Return the schedule in its zone, with each `H` replaced for the job."""
    return schedule.in_zone(zone).for_job(name)


def queue_of(app: Celery, task: str, args: Sequence[Any], kwargs: Mapping[str, Any], options: Mapping[str, Any]) -> str:
    """Return the name of the queue that Celery routes the job's messages to; empty where there is no telling.

    Raises:
        ConfigError: The routes do not lead anywhere.

    """
    try:
        router: Any = app.amqp.router
        route = router.route(dict(options), task, args, kwargs, app.tasks.get(task))
    except Exception as error:
        raise ConfigError(f"task {task!r} has no route: {type(error).__name__}: {error}") from error
    exchange, key = route.get("exchange"), route.get("routing_key")
    if exchange and key:
        named = getattr(exchange, "name", exchange)
        queues = app.amqp.queues.values()
        found = [queue for queue in queues if (queue.exchange.name, queue.routing_key) == (named, key)]
        return str(found[0].name) if found else ""
    queue: Any = route.get("queue") or app.conf.task_default_queue
    return str(getattr(queue, "name", queue))
