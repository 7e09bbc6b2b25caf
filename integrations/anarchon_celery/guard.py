"""In the process that executes: who may start, what a retry leaves behind, and how a run ends.

A receiver of `task_prerun` cannot stop a task, since Celery catches what it raises. `before_start` can: it runs right
before the body, on every pool, and an `Ignore` from it acknowledges the message and leaves no result.
"""

# ruff: noqa: ANN401 - Celery's tasks and requests have no types
from __future__ import annotations

import logging
import os
import sys
from dataclasses import dataclass, replace
from datetime import datetime
from typing import TYPE_CHECKING, Any

from celery import states
from celery.exceptions import Reject, WorkerShutdown, WorkerTerminate
from celery.utils.imports import symbol_by_name
from celery.utils.time import maybe_make_aware

from anarchon_celery.errors import LeaseLost, StaleRun
from anarchon_celery.installation import installation_of
from anarchon_celery.request import RunRequest
from anarchon_tasks.current import enter, leave
from anarchon_tasks.header import HEADER
from anarchon_tasks.model import Reason, Status
from anarchon_tasks.stores.base import BeginKind, Delivered

if TYPE_CHECKING:
    from collections.abc import Callable
    from contextvars import Token

    from anarchon_celery.installation import Installation
    from anarchon_tasks.current import CurrentRun
    from anarchon_tasks.runs import Admission

logger = logging.getLogger("anarchon_celery.worker")

_EXECUTION = "anarchon_execution"
_ASKED = "anarchon_asked"
_GUARDED = "__anarchon_guarded__"
REPLACED = "Replaced by new task"


@dataclass(slots=True)
class Execution:
    """One admitted execution of a message. It is kept by the request object: an id may have several."""

    run: CurrentRun
    entered: Token[CurrentRun | None]


# --- patching --------------------------------------------------------------------------------------------------------


def guard_tasks(tasks: list[Any]) -> None:
    """Put the guard before each task's own `before_start`, and our part into its request class.

    Done when a worker initialises: then the task modules are imported, and no tracer, which looks `before_start` up
    once, is built.
    """
    classes = {type(task): bool(type(task).track_started) for task in tasks}
    for cls, track_started in classes.items():
        if _GUARDED in vars(cls):
            continue
        cls.before_start = _guarded(cls.before_start, track_started=track_started)
        # Celery stores STARTED before `before_start`: a refused duplicate would write it over the run's result.
        cls.track_started = False
        base = symbol_by_name(cls.Request)
        if not issubclass(base, RunRequest):
            cls.Request = type("AnarchonRequest", (RunRequest, base), {})
        setattr(cls, _GUARDED, True)


def _guarded(original: Callable[..., Any], *, track_started: bool) -> Callable[..., Any]:
    def before_start(self: Any, task_id: str, args: Any, kwargs: Any) -> Any:
        request = self.request
        # A class and its base may both be guarded, and the one may call the other.
        if _ASKED not in vars(request) and not request.is_eager:
            vars(request)[_ASKED] = True
            admit(self, task_id)
            if track_started:
                _store_started(self, task_id)
        return original(self, task_id, args, kwargs)

    return before_start


def _store_started(task: Any, task_id: str) -> None:
    """Do what Celery does for `track_started`, after the message was admitted."""
    request = task.request
    ignore = request.ignore_result if request.ignore_result is not None else task.ignore_result
    if not ignore:
        note = {"pid": os.getpid(), "hostname": request.hostname}
        task.backend.store_result(task_id, note, states.STARTED, request=request)


# --- begin -----------------------------------------------------------------------------------------------------------


def admit(task: Any, task_id: str) -> None:
    """Begin the run of the message that the task executes, or refuse it. A message that is no run passes.

    Raises:
        StaleRun: The body must not run.

    """
    installation = installation_of(task.app)
    if installation is None:
        return
    request = task.request
    try:
        admission = _ask(installation, request, task_id)
    except Exception:
        logger.exception("message %s not started: asking the store failed", task_id)
        raise StaleRun(BeginKind.ERROR.value) from None
    if admission is None or admission.kind is BeginKind.UNTRACKED:
        return
    if admission.run is not None:
        vars(request)[_EXECUTION] = Execution(admission.run, enter(admission.run))
        request.expires = None  # bounds the first start only: its retries travel without
        return
    raise _refusal(request, admission)


def _ask(installation: Installation, request: Any, task_id: str) -> Admission | None:
    header = installation.header(request.get, task_id, executing=True)
    if header is None:
        return None
    delivered = Delivered(
        message_id=task_id, retries=request.retries or 0, worker=request.hostname or "", pid=os.getpid()
    )
    return installation.keeper.begin(header, delivered)


def _refusal(request: Any, admission: Admission) -> StaleRun:
    failed = admission.kind is BeginKind.ERROR
    refusal = StaleRun(
        admission.kind.value, admission.status.value if admission.status else None, f"the run of message {request.id}"
    )
    logger.log(
        logging.ERROR if failed else logging.INFO,
        "%s%s",
        refusal,
        f": {admission.error}; it stays open and is published again" if failed else "",
        extra={"anarchon": {"event": "begin-failed" if failed else "refused", "message": request.id}},
    )
    return refusal


# --- retries ---------------------------------------------------------------------------------------------------------


def park(installation: Installation, headers: dict[str, Any], body: object) -> None:
    """Before the message of a task's own retry exists: put the run back into its queue.

    This try's token goes into the retry's header. By it the retry is admitted, also when the store could not be told.
    """
    fields = headers if "id" in headers else body  # task protocol 1 has them in the body
    if not isinstance(fields, dict) or not fields.get("retries"):
        return
    task: Any = installation.app.current_worker_task
    if task is None or task.app is not installation.app:
        return
    request = task.request
    execution: Execution | None = vars(request).get(_EXECUTION)
    if execution is None or fields.get("id") != request.id or fields["retries"] != (request.retries or 0) + 1:
        return
    run = execution.run
    headers[HEADER] = replace(run.header, attempt=run.attempt, token=run.token).to_text()
    installation.keeper.park(run, eta_ms=_ms(fields.get("eta"), installation.app.timezone))


def _ms(eta: str | datetime | None, zone: Any) -> int:
    if eta is None:
        return 0
    at = datetime.fromisoformat(eta) if isinstance(eta, str) else eta
    return int(maybe_make_aware(at, zone).timestamp() * 1000)


# --- the end ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class End:
    """How a run, or an attempt, ended."""

    status: Status
    reason: Reason | None = None
    error: str | None = None


def conclude(installation: Installation, task: Any, state: str | None, outcome: object) -> None:
    """After the task: report how its run ended, or only stop beating when that is for others to tell."""
    execution: Execution | None = vars(task.request).pop(_EXECUTION, None)
    if execution is None:
        return
    problem = sys.exc_info()[1] if state is None else None  # Celery sends the signal while it unwinds
    try:
        end = judge(
            state,
            outcome,
            problem=problem,
            acks_late=bool(task.acks_late),
            parent_tells=not installation.in_main_process,
        )
        if end is None:
            installation.keeper.let_go(execution.run)
        else:
            installation.keeper.finish(execution.run, end.status, reason=end.reason, error=end.error)
    finally:
        leave(execution.entered)


def judge(
    state: str | None, outcome: object, *, problem: BaseException | None, acks_late: bool, parent_tells: bool
) -> End | None:
    """Decide what becomes of the run. None: nothing is reported from here.

    Args:
        state: Celery's state of the task; None when it was killed or exits.
        outcome: The value returned or the exception raised.
        problem: What passes through when there is no state.
        acks_late: Whether a rejected message can come again.
        parent_tells: Whether the worker's main process is another one, and tells of killed children.

    """
    match state:
        case states.SUCCESS:
            return End(Status.SUCCEEDED)
        case states.FAILURE:
            return End(Status.FAILED, error=describe(outcome))
        case states.IGNORED:
            if isinstance(outcome, LeaseLost):
                return None  # the lease is over, and says so itself
            replaced = isinstance(outcome, Exception) and outcome.args[:1] == (REPLACED,)
            return End(Status.SUCCEEDED, Reason.REPLACED if replaced else Reason.IGNORED)
        case states.REJECTED:
            if acks_late and isinstance(outcome, Reject) and getattr(outcome, "requeue", False):
                # The same message comes again, with nothing that tells it from a copy: as the next attempt it may.
                return End(Status.INTERRUPTED, Reason.REJECTED, describe(outcome))
            return End(Status.FAILED, Reason.REJECTED, describe(outcome))
        case None if not parent_tells:
            return _exit(problem)
    return None


def _exit(problem: BaseException | None) -> End | None:
    """Judge an exit in the one process of a worker, which nobody outlives to tell."""
    if isinstance(problem, (WorkerShutdown, WorkerTerminate)):
        return End(Status.INTERRUPTED, Reason.WORKER_LOST, describe(problem))
    if isinstance(problem, (SystemExit, KeyboardInterrupt)):
        return End(Status.FAILED, error=describe(problem))
    return None


def describe(error: object) -> str:
    """Name an exception by its type and text, whatever its `__str__` does."""
    name = type(error).__name__
    try:
        text = str(error)
    except Exception:  # noqa: BLE001 - the user's own __str__
        return name
    return f"{name}: {text}" if text else name
