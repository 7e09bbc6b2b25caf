"""Leaderless scheduling: any number of schedulers, each slot of each job enqueued once.

Every public name is loaded when it is first asked for: importing the package loads no driver and starts nothing.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anarchon_tasks.current import CurrentRun, current_run
    from anarchon_tasks.errors import (
        AnarchonError,
        ConfigError,
        LeaseLost,
        PublishError,
        RunRefused,
        ScheduleError,
        StoreError,
        StoreFormatError,
        StoreUnavailable,
        TooFewReplicas,
        UnknownJob,
    )
    from anarchon_tasks.jobs import Job, JobOptions
    from anarchon_tasks.model import Reason, Run, RunRef, Status, Trigger
    from anarchon_tasks.reader import Reader, StoredJob
    from anarchon_tasks.scheduler import Scheduler
    from anarchon_tasks.schedules import Schedule, at, cron, every, explain
    from anarchon_tasks.stores import MemoryBackend, PostgresBackend, RedisBackend, SqliteBackend, ValkeyBackend

    __version__: str

__all__ = [
    "AnarchonError",
    "ConfigError",
    "CurrentRun",
    "Job",
    "JobOptions",
    "LeaseLost",
    "MemoryBackend",
    "PostgresBackend",
    "PublishError",
    "Reader",
    "Reason",
    "RedisBackend",
    "Run",
    "RunRef",
    "RunRefused",
    "Schedule",
    "ScheduleError",
    "Scheduler",
    "SqliteBackend",
    "Status",
    "StoreError",
    "StoreFormatError",
    "StoreUnavailable",
    "StoredJob",
    "TooFewReplicas",
    "Trigger",
    "UnknownJob",
    "ValkeyBackend",
    "__version__",
    "at",
    "cron",
    "current_run",
    "every",
    "explain",
]

_HOMES = {
    "errors": (
        *("AnarchonError", "ConfigError", "LeaseLost", "PublishError", "RunRefused", "ScheduleError", "StoreError"),
        *("StoreFormatError", "StoreUnavailable", "TooFewReplicas", "UnknownJob"),
    ),
    "jobs": ("Job", "JobOptions"),
    "model": ("Reason", "Run", "RunRef", "Status", "Trigger"),
    "reader": ("Reader", "StoredJob"),
    "current": ("CurrentRun", "current_run"),
    "scheduler": ("Scheduler",),
    "schedules": ("Schedule", "at", "cron", "every", "explain"),
    "stores": ("MemoryBackend", "PostgresBackend", "RedisBackend", "SqliteBackend", "ValkeyBackend"),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}

if not TYPE_CHECKING:  # a name that does not exist is an error for type checkers

    def __getattr__(name: str) -> object:
        """Load a public name."""
        if name == "__version__":
            from importlib.metadata import version  # noqa: PLC0415 - costs time, and few ask

            return version("anarchon-tasks")
        if name not in _HOME:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        value: object = getattr(import_module(f"{__name__}.{_HOME[name]}"), name)
        globals()[name] = value
        return value


def __dir__() -> list[str]:
    """List the public names beside what is loaded."""
    return sorted({*globals(), *__all__})
