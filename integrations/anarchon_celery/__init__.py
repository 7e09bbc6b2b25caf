"""The Celery integration of anarchon-tasks.

`Anarchon` gives an app its jobs and makes its workers report; `AnarchonScheduler` is what `celery beat -S anarchon`
runs.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_celery.app import Anarchon

if TYPE_CHECKING:
    from anarchon_celery.beat import AnarchonScheduler

__all__ = ["Anarchon", "AnarchonScheduler"]


def __getattr__(name: str) -> object:
    """Load beat's scheduler when it is asked for: workers do not need it."""
    if name == "AnarchonScheduler":
        from anarchon_celery.beat import AnarchonScheduler  # noqa: PLC0415

        return AnarchonScheduler
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
