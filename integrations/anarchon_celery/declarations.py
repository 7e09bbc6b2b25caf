"""Jobs that are declared in code, on tasks that may not exist yet."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from celery.app.task import Task
from celery.local import Proxy

from anarchon_celery.entries import Found, bound, queue_of, task_name, task_options
from anarchon_celery.options import Call, sort, split
from anarchon_celery.schedules import convert
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.jobs import Job, check_name
from anarchon_tasks.schedules import CronSchedule, EverySchedule, Schedule
from anarchon_tasks.schedules.base import UNBOUNDED, Bounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from celery import Celery

    Target = str | Task[Any, Any] | Callable[..., Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Declaration:
    """A schedule on a task, as it was written."""

    schedule: object
    target: Target = field(compare=False)
    name: str | None = None
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def build(
        cls,
        schedule: object,
        target: Target,
        *,
        name: str | None,
        args: Sequence[Any],
        kwargs: Mapping[str, Any] | None,
        options: Mapping[str, Any],
    ) -> Declaration:
        """Check everything that can be checked before the task exists.

        Raises:
            ConfigError: The name, the target, the arguments or an option makes no sense.

        """
        made = cls(
            schedule=schedule,
            target=_checked_target(target),
            name=name,
            args=args,
            kwargs=kwargs or {},
            options=options,
        )
        if name is not None:
            check_name(name)
        label = made.label
        if isinstance(args, str) or not isinstance(args, (list, tuple)):
            raise ConfigError(f"job {label!r}: args={args!r} must be a list or a tuple, such as ({args!r},)")
        if not isinstance(made.kwargs, Mapping):
            raise ConfigError(f"job {label!r}: kwargs={kwargs!r} must be a dict")
        ours, send = split(label, options)
        sort(label, ours, send)
        return made

    @property
    def key(self) -> object:
        """What the job is called before its task has a name."""
        return self.name or (self.target if type(self.target) is str else id(self.target))

    @property
    def label(self) -> str:
        """How to speak of the job before its task has a name. Nothing lazy is evaluated for it."""
        if self.name is not None:
            return self.name
        # isinstance() would ask a lazy task for its class, and make it exist now: type() does not.
        if type(self.target) is str:
            return self.target
        if issubclass(type(self.target), Proxy):
            return "of this task"
        return str(getattr(self.target, "name", None) or getattr(self.target, "__qualname__", self.target))

    @property
    def text(self) -> str:
        """The schedule, for people."""
        return self.schedule.text if isinstance(self.schedule, Schedule) else repr(self.schedule)


def _checked_target(target: object) -> Any:  # noqa: ANN401 - what it was
    if issubclass(type(target), (Proxy, Task, str)) or inspect.isfunction(target):
        return target
    raise ConfigError(f"{target!r} is no task: decorate a function or a task, or give the name of a task")


class Declarations:
    """All that was declared for one app, in order."""

    def __init__(self) -> None:
        self._all: dict[object, Declaration] = {}
        self._again: list[Declaration] = []
        """Declared again under a name, alike but for the task, of which nothing lazy may be asked yet."""

    def add(self, made: Declaration) -> None:
        """Remember a declaration. The same one again, as when a module is imported twice, changes nothing.

        Raises:
            ConfigError: Another job has that name.

        """
        other = self._all.setdefault(made.key, made)
        if other != made:
            raise conflict(made.label, other.text, made.text)
        if other.target is not made.target:
            self._again.append(made)

    def __len__(self) -> int:
        return len(self._all)

    def jobs(self, app: Celery, *, zone: str, options: Mapping[str, Mapping[str, Any]]) -> Found:
        """Return the jobs that were declared; those that cannot be are among the errors.

        Args:
            app: The app, whose tasks are all there by now.
            zone: The zone of schedules that name none.
            options: Options of jobs by their names: the setting `anarchon_jobs`. Those in the code come first.

        """
        found = Found()
        names = Names(app)
        for made in (*self._all.values(), *self._again):
            name = made.label
            try:
                task = names.of(made.target)
                name = made.name or task
                job = _job(made, name, task, app=app, zone=zone, options=options.get(name, {}))
                other = found.jobs.setdefault(name, job)
                if other != job:
                    first, second = (f"{each.target} {each.schedule.text}" for each in (other, job))
                    found.errors[name] = conflict(name, first, second)
            except ConfigError as error:
                found.errors[name] = error
            except Exception as error:  # noqa: BLE001 - what a user's task or schedule raises spoils its own job alone
                found.errors[name] = ConfigError(f"{type(error).__name__}: {error}")
        return found


def conflict(name: str, first: str, second: str) -> ConfigError:
    """Return the error of two jobs with one name."""
    return ConfigError(
        f"two jobs are named {name!r}, one {first!r} and one {second!r} (or with other arguments or options): give one "
        "of them another name, name='...'"
    )


class Names:
    """The names of the tasks of an app, also by the functions that they were made of."""

    def __init__(self, app: Celery) -> None:
        self._app = app
        self._by_function: dict[tuple[str, str], str] | None = None

    def of(self, target: Target) -> str:
        """Return the name of a task.

        Raises:
            ConfigError: It is a function that is no task.

        """
        if not inspect.isfunction(target):
            return task_name(target)
        if self._by_function is None:
            self._by_function = {
                _identity(task): name for name, task in self._app.tasks.items() if hasattr(task, "__wrapped__")
            }
        name = self._by_function.get(_identity(target))
        if name is None:
            raise ConfigError(
                f"the function {target.__module__}.{target.__qualname__} has a schedule and is no task of this app: "
                "put @app.task or @shared_task on it"
            )
        return name


def _identity(target: Any) -> tuple[str, str]:  # noqa: ANN401 - a task or a function
    function = inspect.unwrap(getattr(target, "__wrapped__", target))
    function = getattr(function, "__func__", function)
    return str(getattr(function, "__module__", "")), str(getattr(function, "__qualname__", ""))


def _job(made: Declaration, name: str, task: str, *, app: Celery, zone: str, options: Mapping[str, Any]) -> Job:
    ours, send = split(name, made.options)
    defaults = task_options(app, task)
    placed = sort(name, {**options, **ours}, send, defaults=defaults)
    schedule = made.schedule if isinstance(made.schedule, Schedule) else convert(made.schedule, app=app)
    if placed.expires is not None:
        schedule = _ending(schedule, Bounds.between(None, placed.expires))
    return Job(
        name=name,
        schedule=bound(schedule, name, zone),
        target=task,
        queue=queue_of(app, task, made.args, made.kwargs, {**defaults, **placed.send}),
        options=placed.job,
        payload=Call(
            name=name,
            task=task,
            args=made.args,
            kwargs=made.kwargs,
            options=placed.send,
            countdown_ms=placed.countdown_ms,
            expires=placed.expires,
        ),
    )


def _ending(schedule: Schedule, bounds: Bounds) -> Schedule:
    if isinstance(schedule, (EverySchedule, CronSchedule)) and schedule.bounds == UNBOUNDED:
        return replace(schedule, bounds=bounds)
    return schedule
