"""In the worker's main process: what the process that executed the task cannot tell any more.

The class is mixed into `Task.Request`. Celery's signals are no base for this: before 5.7 `task_failure` of a killed
child carries no header, and 5.7 sends it twice at a hard time limit.
"""

# ruff: noqa: ANN401 - Celery's tasks and requests have no types
from __future__ import annotations

import logging
import os
from typing import TYPE_CHECKING, Any

from celery.exceptions import WorkerLostError
from celery.utils.nodenames import gethostname
from celery.worker import state as worker_state

from anarchon_celery.errors import StaleRun
from anarchon_celery.installation import installation_of
from anarchon_tasks.header import HEADER
from anarchon_tasks.model import Reason, Status
from anarchon_tasks.stores.base import BeginKind

if TYPE_CHECKING:
    from celery.worker.request import Request as _Base
else:
    _Base = object

logger = logging.getLogger("anarchon_celery.worker")

SIGNAL_EXITS = range(-255, -191)
"""How a pool's child exits on a signal: minus 256 plus the number of the signal."""

_HAS_RESULT = frozenset({Status.SUCCEEDED.value, Status.FAILED.value})


class RunRequest(_Base):
    """The main process's part of a request. On pools without child processes it is the only process."""

    def on_failure(self, exc_info: Any, send_failed_event: bool = True, return_ok: bool = False) -> Any:  # noqa: FBT001, FBT002
        """Report a killed child and an exit; leave no trace of a refused message."""
        error = exc_info.exception
        error = getattr(error, "exc", error)  # Celery wraps it to keep its traceback
        refused = isinstance(error, StaleRun)
        if isinstance(error, StaleRun):
            self._close_for_monitors(error)
        elif not (self._is("revoked") or self._is("cancelled")):  # else killed on purpose, and told elsewhere
            self._report_exit(error)
        result = super().on_failure(exc_info, send_failed_event, return_ok)
        if refused:
            self._put_back()
        return result

    def maybe_expire(self) -> Any:
        """Say whether the message is past its expiry, and do not remember its id as revoked.

        The run that executes, and the retry it may ask for, have the same id.
        """
        known = self.id in worker_state.revoked
        expired = super().maybe_expire()
        if expired and not known and self.request_dict.get(HEADER):
            worker_state.revoked.discard(self.id)
        return expired

    def on_timeout(self, soft: bool, timeout: float) -> Any:  # noqa: FBT001 - Celery's own signature
        """Report a hard time limit."""
        if not soft:
            requeued = self.task.acks_late and not _acks_on_timeout(self.task)
            self._report(
                Status.INTERRUPTED if requeued else Status.FAILED,
                Reason.TIME_LIMIT,
                f"the hard time limit of {timeout:g} s is over",
            )
        return super().on_timeout(soft, timeout)

    def terminate(self, pool: Any, signal: Any = None) -> None:
        """End whatever executes under this id: Celery knows the newest message of an id only, which may be a copy."""
        for other in list(worker_state.active_requests):
            if other.id == self.id and other is not self and isinstance(other, RunRequest):
                super(RunRequest, other).terminate(pool, signal)
        super().terminate(pool, signal)

    def cancel(self, pool: Any, signal: Any = None, *args: Any, **options: Any) -> None:
        """Report a task that this worker ends because it stops, or because it lost the broker."""
        before = self._is("cancelled")
        super().cancel(pool, signal, *args, **options)
        if self._is("cancelled") and not before:
            self._report(Status.INTERRUPTED, Reason.WORKER_LOST, "the worker stopped while the task was running")

    def _announce_revoked(self, reason: str, terminated: bool, signum: Any, expired: bool) -> None:  # noqa: FBT001
        super()._announce_revoked(reason, terminated, signum, expired)  # type: ignore[misc]
        if expired:
            self._report(Status.EXPIRED, Reason.DEADLINE)
        else:
            self._report(Status.CANCELLED, Reason.REVOKED, "terminated" if terminated else None)

    def _is(self, what: str) -> bool:
        return bool(getattr(self, f"_already_{what}", False))

    def _report_exit(self, error: BaseException) -> None:
        if isinstance(error, SystemExit) and error.code not in SIGNAL_EXITS:
            self._report(Status.FAILED, error=f"SystemExit: {error.code}")
        elif isinstance(error, (SystemExit, WorkerLostError)):
            self._report(Status.INTERRUPTED, Reason.WORKER_LOST, str(error) or type(error).__name__)

    def _report(self, status: Status, reason: Reason | None = None, error: str | None = None) -> None:
        installation = installation_of(self.app)
        if installation is None:
            return
        pid = 0
        if self.time_start is not None:  # else the pool never had it
            # Green pools give the id of a greenlet for a process.
            pid = os.getpid() if installation.begins_here else int(self.worker_pid or 0)
        # The executing side knows the worker by another name where Celery does not use its fast path.
        worker = self.hostname if getattr(self.app, "use_fast_trace_task", False) else gethostname()
        installation.report(self.request_dict.get, self.id, status, worker=worker, pid=pid, reason=reason, error=error)

    def _close_for_monitors(self, refusal: StaleRun) -> None:
        """Let monitors see the end of a message that nothing else will end for them.

        Not when its id is that of a run that executes or waits, or that has a result: the row would lie.
        """
        if refusal.answer == BeginKind.DONE.value and refusal.status not in _HAS_RESULT:
            self.send_event("task-revoked", terminated=False, signum=None, expired=False)

    def _put_back(self) -> None:
        """Celery forgot the id of the refused message; the run that executes has the same, and must be found by it."""
        for other in list(worker_state.active_requests):
            if other.id == self.id and other is not self:
                worker_state.requests[self.id] = other


def _acks_on_timeout(task: Any) -> bool:
    old = getattr(task, "acks_on_failure_or_timeout", True)
    new = getattr(task, "acks_on_timeout", None)
    return bool(old if new is None else new)
