"""The place of the Dramatiq integration of anarchon-tasks, which is not available in 0.1.

Every public name of this package raises `ConfigError` until it is; the changelog says when.
"""

from __future__ import annotations

from typing import NoReturn

from anarchon_tasks.errors import ConfigError


def __getattr__(name: str) -> NoReturn:
    if name.startswith("__"):
        # Import machinery and tools ask for dunder names and expect the usual answer.
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    raise ConfigError(
        f"anarchon_dramatiq.{name}: the Dramatiq integration is not available in anarchon-tasks 0.1. "
        "Use Celery for now; CHANGELOG.md says which version brings it."
    )
