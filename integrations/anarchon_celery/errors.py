"""How the guard tells Celery that a task did not run, or should not go on.

Both are kinds of `Ignore`: the message is acknowledged, no result is stored and no failure is reported. They cross the
pipe to the worker's main process, so all they carry is in `args`.
"""

from __future__ import annotations

from typing import ClassVar

from celery.exceptions import Ignore

from anarchon_tasks.errors import LeaseLost as CoreLeaseLost


class LeaseLost(CoreLeaseLost, Ignore):
    """Another attempt holds the run now. Stop: what this attempt writes is no longer wanted."""


class StaleRun(Ignore):
    """This message may not start the run: it is stale, a duplicate, the run has ended, or the store is away."""

    code: ClassVar[str] = "ANARCHON_RUN_REFUSED"

    def __init__(self, answer: str, status: str | None = None, run: str = "") -> None:
        super().__init__(answer, status, run)
        self.answer = answer
        """What the store said: the value of a `BeginKind`."""
        self.status = status
        """Where the run stands, if the store said so."""
        self.run = run

    def __str__(self) -> str:
        """Name the run and why it was refused."""
        return f"{self.run} not started: {self.answer}" + (f" ({self.status})" if self.status else "")
