"""Which slot of a job to ask for next, and what becomes of the older ones: a pure decision."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from anarchon_tasks.model import Reason, Status
from anarchon_tasks.schedules.base import latest
from anarchon_tasks.schedules.cron import CronSchedule
from anarchon_tasks.schedules.every import EverySchedule
from anarchon_tasks.stores.base import SlotRange

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.jobs import Job
    from anarchon_tasks.schedules import Schedule

COUNT_LIMIT = 10_000
"""So many slots of a backlog are settled in one step; a longer one takes several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The slot to claim, and the fate of the slots before it if the claim settles them."""

    slot: int
    due_ms: int
    latest_ms: int
    gap_ms: int
    ranges: tuple[SlotRange, ...] = ()


def next_due(job: Job, namespace: str, floor: int) -> int | None:
    """Return when the first slot after the floor is to be enqueued, or None when there is none any more."""
    slot = job.schedule.next(floor)
    return None if slot is None else job.due_ms(slot, namespace)


def plan(job: Job, namespace: str, *, floor: int, now: int, why_late: Callable[[int], Reason]) -> Plan | None:
    """Choose the slot to ask for.

    The oldest slot that is at most `coalesce_after` late, or else the newest one that is due. The slots before it are
    settled with it: those past their `max_late` for the reason that `why_late` gives for that instant, the others as
    superseded.

    Returns:
        The plan, or None when nothing is due.

    """
    first = job.schedule.next(floor)
    if first is None or job.due_ms(first, namespace) > now:
        return None
    second = job.schedule.next(first)
    if second is None or job.due_ms(second, namespace) > now:
        return _plan(job, namespace, first)
    chosen = _choose(job, namespace, first, now)
    if chosen == first:
        return _plan(job, namespace, first)
    return _plan_backlog(job, namespace, first=first, chosen=chosen, now=now, why_late=why_late)


def _plan(job: Job, namespace: str, slot: int, ranges: tuple[SlotRange, ...] = ()) -> Plan:
    gap, due = job.gap_ms(slot), job.due_ms(slot, namespace)
    return Plan(slot=slot, due_ms=due, latest_ms=due + job.max_late_ms(gap), gap_ms=gap, ranges=ranges)


def _choose(job: Job, namespace: str, first: int, now: int) -> int:
    """Return the oldest slot within the coalesce window, or the newest due one; at least two are due."""
    undelayed = now - job.shift_ms(namespace)
    slot = job.schedule.next(max(first - 1, undelayed - job.options.coalesce_after_ms - job.options.jitter_ms - 1))
    while slot is not None and job.due_ms(slot, namespace) < now - job.options.coalesce_after_ms:
        slot = job.schedule.next(slot)
    if slot is not None and job.due_ms(slot, namespace) <= now:
        return slot
    newest = latest(job.schedule, first - 1, undelayed)
    if newest is not None and job.due_ms(newest, namespace) > now:
        newest = latest(job.schedule, first - 1, newest - 1)
    return first if newest is None else newest


def _plan_backlog(
    job: Job, namespace: str, *, first: int, chosen: int, now: int, why_late: Callable[[int], Reason]
) -> Plan:
    max_late = job.max_late_ms(job.gap_ms(first))
    boundary = now - max_late - job.shift_ms(namespace) - job.options.jitter_ms
    ranges: list[SlotRange] = []
    if first < boundary:
        late = _stretch(job.schedule, first, min(boundary, chosen), limit=COUNT_LIMIT)
        ranges += _by_reason(job.schedule, first, late, lambda slot: why_late(slot + max_late))
        if late.following < min(boundary, chosen):
            return _plan(job, namespace, late.following, tuple(ranges))
        first = late.following
    if first < chosen:
        older = _stretch(job.schedule, first, chosen)
        ranges.append(
            SlotRange(first=first, last=older.last, count=older.count, status=Status.MISSED, reason=Reason.SUPERSEDED)
        )
    return _plan(job, namespace, chosen, tuple(ranges))


def _by_reason(schedule: Schedule, first: int, late: _Stretch, why: Callable[[int], Reason]) -> Iterator[SlotRange]:
    """Split a stretch of late slots where their reason changes, for instance from absence to an outage."""
    left = late.count
    while left:
        reason, last = why(first), late.last
        count, following = left, late.following
        if why(last) is not reason:
            last, following = _change(schedule, first, last, why)
            count = _stretch(schedule, first, following).count
        yield SlotRange(first=first, last=last, count=count, status=Status.MISSED, reason=reason)
        first, left = following, left - count


def _change(schedule: Schedule, low: int, high: int, why: Callable[[int], Reason]) -> tuple[int, int]:
    """Return two slots in a row between two others: one that has the reason of `low`, and one that has not."""
    reason = why(low)
    while True:
        middle = schedule.next((low + high) // 2)
        if middle is None or middle >= high:
            middle = schedule.next(low)
        if middle is None or middle >= high:
            return low, high
        if why(middle) is reason:
            low = middle
        else:
            high = middle


@dataclass(frozen=True, slots=True, kw_only=True)
class _Stretch:
    count: int
    last: int
    following: int


def _stretch(schedule: Schedule, first: int, end: int, *, limit: int | None = None) -> _Stretch:
    """Count the slots from `first` (which is one) up to but not including `end`, at most `limit` of them."""
    if isinstance(schedule, EverySchedule):
        steps = (end - 1 - first) // schedule.period_ms
        last = first + steps * schedule.period_ms
        return _Stretch(count=steps + 1, last=last, following=last + schedule.period_ms)
    newest = latest(schedule, first - 1, end - 1)
    newest = first if newest is None else newest
    if isinstance(schedule, CronSchedule):
        counted, last = _count_shared(schedule, first, newest, limit)
    else:
        counted, last = _count(schedule, first, newest, limit)
    following = schedule.next(last)
    return _Stretch(count=counted, last=last, following=end if following is None else following)


def _count(schedule: Schedule, first: int, newest: int, limit: int | None) -> tuple[int, int]:
    """Count the slots from one to another, at most `limit` of them; return the last one counted as well."""
    counted, last = 1, first
    while last < newest and (limit is None or counted < limit):
        slot = schedule.next(last)
        if slot is None:
            break
        counted, last = counted + 1, slot
    return counted, last


@lru_cache(maxsize=4_096)
def _count_shared(schedule: CronSchedule, first: int, newest: int, limit: int | None) -> tuple[int, int]:
    """Count once for all jobs with the same expression: after a day without schedulers each of them has 1,440 slots."""
    return _count(schedule, first, newest, limit)
