"""From wall time to instants: what a clock change does to a schedule.

A cron expression is about the clock on the wall. That clock skips some times and shows others twice. This module takes
the matching wall times in ascending order, and a rule, and answers with instants. It never asks a cron engine about
zones: engines that walk zoned time lose or double slots around a change.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta, tzinfo
from typing import NamedTuple

from anarchon_tasks.errors import ScheduleError

Walls = Callable[[datetime], "datetime | None"]
"""The first matching naive wall time strictly after another, in whole seconds, or None."""

_SECOND = timedelta(seconds=1)
_SCAN = timedelta(hours=12)
_MAX_JUMPS = 500


class Rule(NamedTuple):
    """What happens to a wall time that a clock change removes or repeats."""

    shift: bool
    """A missing time runs once, at the first instant after the gap (else not at all)."""
    twice: bool
    """A repeated time runs in both passes (else in the first only)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Change:
    """One change of a zone's offset: the instant, and the wall clock just before and after it."""

    instant: datetime
    before: datetime
    after: datetime

    @property
    def repeats(self) -> bool:
        """Tell whether wall times occur twice (the clock goes back) instead of never."""
        return self.after < self.before

    @property
    def first_wall(self) -> datetime:
        """Return the first wall time that is missing or repeated."""
        return min(self.before, self.after)

    @property
    def end_wall(self) -> datetime:
        """Return the first wall time past the missing or repeated ones."""
        return max(self.before, self.after)


def next_instant(walls: Walls, *, zone: tzinfo, rule: Rule, after: datetime) -> datetime | None:
    """Return the first instant strictly after another, or None when no wall time is left.

    Args:
        walls: The matching wall times.
        zone: The zone of the wall clock.
        rule: What a clock change does.
        after: An aware datetime in whole seconds.

    Raises:
        ScheduleError: More clock changes than expected removed every match: the schedule practically never fires.

    """
    wall = wall_at(after, zone)
    found = _onward(walls, zone, rule, after, wall)
    if not rule.twice:
        return found
    again = _in_second_pass(walls, zone, after, wall)
    return min((instant for instant in (found, again) if instant is not None), default=None)


def _onward(walls: Walls, zone: tzinfo, rule: Rule, after: datetime, wall: datetime) -> datetime | None:
    """Go on from a wall time; a change that yields nothing is jumped over in one step."""
    for _ in range(_MAX_JUMPS):
        match = walls(wall)
        if match is None:
            return None
        change = change_at(match, zone)
        if change is None:
            return first_pass(match, zone)
        instant = _through(change, match, rule, after)
        if instant is not None:
            return instant
        wall = change.end_wall - _SECOND
    message = f"no slot within {_MAX_JUMPS} clock changes of {zone} after {after.isoformat()}"
    raise ScheduleError(message)


def _through(change: Change, wall: datetime, rule: Rule, after: datetime) -> datetime | None:
    """Return the instant of a wall time that the change removes or repeats, if it has one after `after`."""
    if not change.repeats:
        return change.instant if rule.shift and change.instant > after else None
    first = change.instant - (change.before - wall)
    if first > after:
        return first
    return change.instant + (wall - change.after) if rule.twice else None


def _in_second_pass(walls: Walls, zone: tzinfo, after: datetime, wall: datetime) -> datetime | None:
    """Return the first slot of the second pass while the first one is still going on."""
    change = change_at(wall, zone)
    if change is None or not change.repeats or after >= change.instant:
        return None
    match = walls(change.first_wall - _SECOND)
    if match is None or match >= change.end_wall:
        return None
    return change.instant + (match - change.after)


def wall_at(instant: datetime, zone: tzinfo) -> datetime:
    """Return what the clock on the wall shows at an instant."""
    return instant.astimezone(zone).replace(tzinfo=None, fold=0)


def first_pass(wall: datetime, zone: tzinfo) -> datetime:
    """Return the first instant at which the clock shows a wall time."""
    return wall.replace(tzinfo=zone, fold=0).astimezone(UTC)


def change_at(wall: datetime, zone: tzinfo) -> Change | None:
    """Return the change that removes or repeats a wall time, or None for a time that exists exactly once."""
    first = first_pass(wall, zone)
    second = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)
    if first == second:
        return None
    return _locate(min(first, second), max(first, second), zone)


def change_into(instant: datetime, zone: tzinfo) -> Change | None:
    """Return the change that takes effect exactly at an instant, or None."""
    early = instant - _SECOND
    if early.astimezone(zone).utcoffset() == instant.astimezone(zone).utcoffset():
        return None
    return _locate(early, instant, zone)


def changes(zone: tzinfo, *, since: datetime, until: datetime) -> list[Change]:
    """Return the offset changes of a zone after one instant, up to and including another."""
    found = []
    early = since
    while early < until:
        late = min(early + _SCAN, until)
        if early.astimezone(zone).utcoffset() != late.astimezone(zone).utcoffset():
            found.append(_locate(early, late, zone))
        early = late
    return found


def _locate(early: datetime, late: datetime, zone: tzinfo) -> Change:
    """Find the change between two instants with different offsets by halving."""
    old = early.astimezone(zone).utcoffset() or timedelta(0)
    while late - early > _SECOND:
        middle = early + (late - early) // (2 * _SECOND) * _SECOND
        if middle.astimezone(zone).utcoffset() == old:
            early = middle
        else:
            late = middle
    return Change(instant=late, before=late.replace(tzinfo=None) + old, after=wall_at(late, zone))
