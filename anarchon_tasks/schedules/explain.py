"""Schedules from text, and what they mean."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import TYPE_CHECKING

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules.at import at
from anarchon_tasks.schedules.base import CALENDAR_MS, aware, to_instant_ms, to_utc, upcoming, utc_text
from anarchon_tasks.schedules.cron import CronSchedule, cron
from anarchon_tasks.schedules.every import every
from anarchon_tasks.schedules.zones import zone_name, zone_of

if TYPE_CHECKING:
    from datetime import tzinfo

    from anarchon_tasks.schedules.base import Schedule

_MAX_COUNT = 10_000
_LOOKED_AT_MS = timedelta(days=800) // timedelta(milliseconds=1)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExplainedSlot:
    """One slot as people read it."""

    slot_ms: int
    utc: str
    local: str
    note: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """What a schedule means: words, the next slots, and what clock changes do to it."""

    text: str
    kind: str
    words: str
    timezone: str
    slots: tuple[ExplainedSlot, ...]
    remarks: tuple[str, ...]

    def as_dict(self) -> dict[str, object]:
        """Return plain data, ready for JSON."""
        return {
            "schedule": self.text,
            "kind": self.kind,
            "words": self.words,
            "timezone": self.timezone,
            "slots": [{"utc": slot.utc, "local": slot.local, "note": slot.note} for slot in self.slots],
            "remarks": list(self.remarks),
        }


def parse(text: str, *, timezone: str | tzinfo | None = None) -> Schedule:
    """Make a schedule from text: a cron expression, `every 10s`, a bare duration, or `at 2026-10-24T00:00:00Z`.

    The canonical text of a schedule reads back as that schedule, but for bounds and options, which it does not show.

    Raises:
        ScheduleError: The text is no schedule.

    """
    zone = zone_name(timezone)
    kind, _, rest = _stripped(text).partition(" ")
    match kind.lower():
        case "every":
            return _every(rest)
        case "at":
            return at(_datetime(rest))
        case "cron":
            return cron(rest, timezone=zone)
        case "crontab":
            return cron(rest, timezone=zone, day_or=False)
    if rest or kind.startswith("@"):
        return cron(text, timezone=zone)
    return every(kind)


def explain(
    text: str,
    *,
    after: datetime | int,
    timezone: str | tzinfo | None = None,
    count: int = 5,
    job: str | None = None,
) -> Explanation:
    """Say what a schedule text means, and list the slots after an instant.

    Args:
        text: Anything `parse` reads.
        after: An aware datetime, or milliseconds since the epoch; a slot at this very instant is not listed.
        timezone: The zone of the wall clock; UTC by default.
        count: How many slots to list, at most 10,000.
        job: The job's name, for expressions with `H`.

    Raises:
        ScheduleError: The text, the zone, the instant or the count is not valid.

    """
    if not 0 <= count <= _MAX_COUNT:
        message = f"count={count!r} is not valid: give a number from 0 to {_MAX_COUNT}"
        raise ScheduleError(message)
    after_ms = _instant_ms(after)
    schedule = parse(text, timezone=timezone)
    if job is not None:
        schedule = schedule.for_job(job)
    zone = zone_name(timezone) or schedule.timezone or "UTC"
    slots = explain_slots(schedule, after_ms=after_ms, count=count, zone=zone)
    return Explanation(
        text=schedule.text,
        kind=schedule.kind,
        words=schedule.describe(),
        timezone=zone,
        slots=slots,
        remarks=_remarks(schedule, after_ms, [slot.slot_ms for slot in slots]),
    )


def explain_slots(schedule: Schedule, *, after_ms: int, count: int, zone: str) -> tuple[ExplainedSlot, ...]:
    """Return the next slots of a schedule as people read them, on the clock of a zone."""
    slots = (slot for slot in upcoming(schedule, after_ms, count) if slot in CALENDAR_MS)
    return tuple(_explained(schedule, slot, zone) for slot in slots)


def _instant_ms(after: datetime | int) -> int:
    after_ms = after if isinstance(after, int) else to_instant_ms(aware(after, option="after"))
    if after_ms not in CALENDAR_MS:
        message = f"after={after!r} is not valid: give an instant of the years 1 to 9999"
        raise ScheduleError(message)
    return after_ms


def _explained(schedule: Schedule, slot_ms: int, zone: str) -> ExplainedSlot:
    local = to_utc(slot_ms).astimezone(zone_of(zone))
    precision = "milliseconds" if slot_ms % 1_000 else "seconds"
    return ExplainedSlot(
        slot_ms=slot_ms,
        utc=utc_text(slot_ms),
        local=local.isoformat(timespec=precision),
        note=schedule.note(slot_ms),
    )


def _remarks(schedule: Schedule, after_ms: int, slots: list[int]) -> tuple[str, ...]:
    if not isinstance(schedule, CronSchedule) or not slots:
        return ()
    return schedule.gaps(after_ms, min(slots[-1], after_ms + _LOOKED_AT_MS))


def _stripped(text: object) -> str:
    if isinstance(text, str) and text.strip():
        return text.strip()
    message = f"schedule={text!r} is not valid: give a cron expression, 'every 10s', or 'at 2026-10-24T00:00:00Z'"
    raise ScheduleError(message)


def _every(text: str) -> Schedule:
    period, _, offset = text.strip().partition(" offset ")
    return every(period.strip(), offset=offset.strip() or 0)


def _datetime(text: str) -> datetime:
    try:
        return datetime.fromisoformat(text.strip())
    except ValueError as error:
        message = f"at={text.strip()!r} is not a date and time in ISO 8601, such as 2026-10-24T00:00:00Z"
        raise ScheduleError(message) from error
