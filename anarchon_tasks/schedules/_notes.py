"""Remarks on what a clock change does to the slots of a cron expression."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache

from anarchon_tasks.schedules._words import join
from anarchon_tasks.schedules.dst import Change, Rule, Walls, change_at, change_into, changes, wall_at

_SECOND = timedelta(seconds=1)
_DAY = timedelta(days=1)
_NAMED = 3
_REFERENCE = (datetime(2025, 1, 1, tzinfo=UTC), datetime(2028, 1, 1, tzinfo=UTC))


def slot_note(walls: Walls, *, zone: tzinfo, rule: Rule, instant: datetime) -> str | None:
    """Say what a clock change did to one slot, or return None."""
    change = change_into(instant, zone) if rule.shift else None
    missing = [] if change is None or change.repeats else matches_within(walls, change)
    if change is not None and missing:
        names = _names(missing, change.after)
        verb = "does" if len(missing) == 1 else "do"
        if walls(change.after - _SECOND) == change.after:
            return f"also runs for {names}, which {verb} not exist that day"
        return f"shifted: {names} {verb} not exist that day"
    return _repeated(wall_at(instant, zone), zone=zone, rule=rule, instant=instant)


def _repeated(wall: datetime, *, zone: tzinfo, rule: Rule, instant: datetime) -> str | None:
    change = change_at(wall, zone)
    if change is None or not change.repeats:
        return None
    if not rule.twice:
        return f"{_time(wall)} occurs twice; runs the first time only"
    which = "first" if instant < change.instant else "second"
    return f"{which} pass of a repeated {_length(change.before - change.after)}"


def gap_notes(walls: Walls, *, zone: tzinfo, since: datetime, until: datetime) -> tuple[str, ...]:
    """Name the matching times that do not exist between two instants, one remark for each change."""
    found = []
    for change in changes(zone, since=since, until=until):
        missing = [] if change.repeats else matches_within(walls, change)
        if missing:
            names = _names(missing, missing[0])
            found.append(f"no slot at {names} on {missing[0]:%Y-%m-%d}: the clock goes forward and skips it")
    return tuple(found)


def touched_by_changes(walls: Walls, zone: tzinfo) -> bool:
    """Tell whether clock changes of the zone, as known for 2025 to 2027, remove or repeat a matching time."""
    return any(matches_within(walls, change) for change in _reference_changes(zone))


@lru_cache(maxsize=256)
def _reference_changes(zone: tzinfo) -> tuple[Change, ...]:
    since, until = _REFERENCE
    return tuple(changes(zone, since=since, until=until))


def matches_within(walls: Walls, change: Change) -> list[datetime]:
    """Return the first few matching wall times that a change removes or repeats, one more than are named."""
    found: list[datetime] = []
    wall = walls(change.first_wall - _SECOND)
    while wall is not None and wall < change.end_wall and len(found) <= _NAMED:
        found.append(wall)
        wall = walls(wall)
    return found


def _names(walls: list[datetime], beside: datetime) -> str:
    names = [_time(wall) if wall.date() == beside.date() else f"{wall:%Y-%m-%d} {_time(wall)}" for wall in walls]
    return join([*names[:_NAMED], "more"] if len(names) > _NAMED else names)


def _time(wall: datetime) -> str:
    return f"{wall:%H:%M:%S}" if wall.second else f"{wall:%H:%M}"


def _length(length: timedelta) -> str:
    for unit, size in (("day", _DAY), ("hour", timedelta(hours=1)), ("minute", timedelta(minutes=1))):
        if length % size == timedelta(0):
            count = length // size
            return unit if count == 1 else f"stretch of {count} {unit}s"
    return f"stretch of {length.total_seconds():.0f} seconds"
