"""Two apps in one process, both with the integration. The worker is that of the one installed last."""

# ruff: noqa: ANN401 - Celery's tasks and requests have no types
from __future__ import annotations

import os
from typing import Any

from celery import Celery

from anarchon_celery.worker import install

other = Celery("other", broker=os.environ["BROKER"], set_as_current=False)


def open_their_store() -> Any:
    """Tell that the other app's side was asked about a run that is not its own."""
    note("asked-the-other", theirs)
    raise AssertionError("the run is of another app")


install(other, open_their_store)

from tests.integrations.celery.apps.worker_app import app, note  # noqa: E402 - its receivers come second


@other.task(bind=True, name="theirs")
def theirs(self: Any) -> None:
    """Run inside a task of the first app, by hand."""
    note("body", self)


@app.task(bind=True, name="visits")
def visits(self: Any) -> None:
    """Execute a task of the other app inside this one."""
    note("body", self)
    theirs.apply()


__all__ = ["app"]
