"""Rows of the SQLite store: how states, accounts and entries of the history are written down."""

from __future__ import annotations

from typing import Any, TypeAlias

from anarchon_tasks.model import Reason, Run, RunRef, Status, Trigger
from anarchon_tasks.stores.base import Delivered
from anarchon_tasks.stores.rules import JobState, RunState

Row: TypeAlias = tuple[Any, ...]

# Found faster than by calling the classes.
_TRIGGERS = {str(trigger): trigger for trigger in Trigger}
_STATUSES = {str(status): status for status in Status}
_REASONS: dict[str | None, Reason | None] = {None: None, **{str(reason): reason for reason in Reason}}

STATUS = 4
WAKE = -1
"""Where a row of a state says when its lease is over; None for an ended run."""


def state_row(state: RunState) -> Row:
    """Write a state down."""
    ref, delivered = state.ref, state.delivered
    message = (
        (delivered.message_id, delivered.retries, delivered.worker, delivered.pid)
        if delivered is not None
        else (None, None, None, None)
    )
    return (
        ref.job,
        ref.slot,
        ref.key,
        state.trigger.value,
        state.status.value,
        state.attempt,
        state.token,
        state.lease_until,
        state.not_before,
        state.grant_id,
        state.due,
        state.latest,
        state.instance,
        int(state.tracked),  # the driver takes longer for a bool
        int(state.exclusive),
        state.releases,
        state.publishes,
        state.task_id,
        int(state.parked),
        state.retries,
        *message,
        state.deadline,
        state.claimed_at,
        state.enqueued_at,
        state.first_enqueued_at,
        state.started_at,
        state.finished_at,
        state.reason.value if state.reason is not None else None,
        state.error,
        max(state.lease_until, state.not_before) if state.open else None,
    )


def row_state(row: Row) -> RunState:
    """Read a state back."""
    return RunState(
        ref=RunRef(row[0], row[1], row[2]),
        trigger=_TRIGGERS[row[3]],
        status=_STATUSES[row[4]],
        attempt=row[5],
        token=row[6],
        lease_until=row[7],
        not_before=row[8],
        grant_id=row[9],
        due=row[10],
        latest=row[11],
        instance=row[12],
        tracked=bool(row[13]),
        exclusive=bool(row[14]),
        releases=row[15],
        publishes=row[16],
        task_id=row[17],
        parked=bool(row[18]),
        retries=row[19],
        delivered=_delivered(row) if row[20] is not None else None,
        deadline=row[24],
        claimed_at=row[25],
        enqueued_at=row[26],
        first_enqueued_at=row[27],
        started_at=row[28],
        finished_at=row[29],
        reason=_REASONS[row[30]],
        error=row[31],
    )


def _delivered(row: Row) -> Delivered:
    return Delivered(message_id=row[20], retries=row[21], worker=row[22], pid=row[23])


def job_row(name: str, job: JobState, entries: int) -> Row:
    """Write an account down, with the number of its entries in the history."""
    return (
        name,
        job.floor,
        job.trimmed,
        job.token,
        job.doublings,
        job.fingerprint,
        job.registered_at,
        job.changed_at,
        entries,
    )


def row_job(row: Row) -> JobState:
    """Read an account back."""
    return JobState(
        floor=row[1],
        trimmed=row[2],
        token=row[3],
        doublings=row[4],
        fingerprint=row[5],
        registered_at=row[6],
        changed_at=row[7],
    )


def entry_row(entry: Run) -> Row:
    """Write an entry of the history down."""
    return (
        entry.job,
        entry.slot,
        entry.key,
        entry.attempt,
        entry.trigger.value,
        entry.token,
        entry.status.value,
        str(entry.reason) if entry.reason is not None else None,
        entry.count,
        entry.first_slot,
        int(entry.tracked),
        entry.due,
        entry.instance,
        entry.worker,
        entry.pid,
        entry.claimed_at,
        entry.enqueued_at,
        entry.started_at,
        entry.finished_at,
        entry.publishes,
        entry.retries,
        entry.refused,
        entry.task_id,
        entry.error,
    )


def row_entry(row: Row) -> Run:
    """Read an entry of the history back."""
    return Run(
        job=row[0],
        slot=row[1],
        key=row[2],
        attempt=row[3],
        trigger=_TRIGGERS[row[4]],
        token=row[5],
        status=_STATUSES[row[6]],
        reason=row[7],
        count=row[8],
        first_slot=row[9],
        tracked=bool(row[10]),
        due=row[11],
        instance=row[12],
        worker=row[13],
        pid=row[14],
        claimed_at=row[15],
        enqueued_at=row[16],
        started_at=row[17],
        finished_at=row[18],
        publishes=row[19],
        retries=row[20],
        refused=row[21],
        task_id=row[22],
        error=row[23],
    )
