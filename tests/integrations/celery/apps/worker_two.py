"""Two apps in one process, both with the integration. The worker is the first one's."""

# ruff: noqa: ANN401 - Celery's tasks and requests have no types
from __future__ import annotations

from typing import Any

from celery import Celery

from anarchon_celery.worker import install
from tests.integrations.celery.apps.worker_app import BROKER, app, note

other = Celery("other", broker=BROKER, set_as_current=False)


@other.task(bind=True, name="theirs")
def theirs(self: Any) -> None:
    """Run inside a task of the first app, by hand."""
    note("body", self)


def open_their_store() -> Any:
    """Tell that the other app's side was asked about a run that is not its own."""
    note("asked-the-other", theirs)
    raise AssertionError("the run is of another app")


install(other, open_their_store)


@app.task(bind=True, name="visits")
def visits(self: Any) -> None:
    """Execute a task of the other app inside this one."""
    note("body", self)
    theirs.apply()


__all__ = ["app"]
