"""Fixed intervals, counted from the epoch: deploys and restarts do not move them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING

from anarchon_tasks._durations import Duration, to_ms, to_text
from anarchon_tasks.errors import ConfigError, ScheduleError
from anarchon_tasks.schedules.base import UNBOUNDED, Bounds

if TYPE_CHECKING:
    from datetime import datetime

_WORDS = {"d": "day", "h": "hour", "m": "minute", "s": "second", "ms": "millisecond"}
_UNITS_MS = (("d", 86_400_000), ("h", 3_600_000), ("m", 60_000), ("s", 1_000), ("ms", 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class EverySchedule:
    """A slot each time the clock, counted from the epoch, passes a multiple of the period."""

    period_ms: int
    offset_ms: int = 0
    bounds: Bounds = UNBOUNDED

    @property
    def kind(self) -> str:
        """Say `every`."""
        return "every"

    @property
    def text(self) -> str:
        """Give the canonical text, such as `every 1h offset 5m`."""
        offset = f" offset {to_text(self.offset_ms)}" if self.offset_ms else ""
        return f"every {to_text(self.period_ms)}{offset}"

    @property
    def timezone(self) -> str | None:
        """Return None: elapsed time needs no zone."""
        return None

    @property
    def fingerprint(self) -> str:
        """Give a text that changes if, and only if, the slots may change."""
        return f"every {self.period_ms} offset={self.offset_ms} {self.bounds.mark()}"

    def next(self, after_ms: int) -> int | None:
        """Return the first slot strictly after an instant, or None past the end."""
        return self.bounds.next(self._next, after_ms)

    def _next(self, after_ms: int) -> int:
        return ((after_ms - self.offset_ms) // self.period_ms + 1) * self.period_ms + self.offset_ms

    def describe(self) -> str:
        """Say the interval in words."""
        offset = f", {_length(self.offset_ms)} after the full interval" if self.offset_ms else ""
        return f"Every {_length(self.period_ms, single=True)}{offset}{self.bounds.words()}"

    def note(self, slot_ms: int) -> str | None:  # noqa: ARG002 - clock changes do not touch elapsed time
        """Return None: clock changes do not touch elapsed time."""
        return None

    def for_job(self, name: str) -> EverySchedule:  # noqa: ARG002 - nothing depends on the name
        """Return the schedule itself."""
        return self

    def in_zone(self, default_zone: str) -> EverySchedule:  # noqa: ARG002 - nothing depends on the zone
        """Return the schedule itself."""
        return self


def every(
    period: Duration,
    *,
    offset: Duration = 0,
    start: datetime | None = None,
    end: datetime | None = None,
) -> EverySchedule:
    """Make a schedule with a slot every `period`, aligned to the Unix epoch.

    Args:
        period: A `timedelta`, seconds as a number, or text such as `"10s"` or `"250ms"`; at least one millisecond.
        offset: Moves all slots; taken modulo the period, and may be negative as a number or a `timedelta`.
        start: No slots before this aware datetime.
        end: No slots after this aware datetime.

    Raises:
        ScheduleError: The period or the offset is no duration, the period is below 1 ms, or the bounds are not valid.

    """
    try:
        period_ms = to_ms(period, option="every", minimum_ms=1)
        offset_ms = _offset_ms(offset)
    except ConfigError as error:
        raise ScheduleError(str(error)) from error
    return EverySchedule(period_ms=period_ms, offset_ms=offset_ms % period_ms, bounds=Bounds.between(start, end))


def _offset_ms(offset: Duration) -> int:
    if isinstance(offset, timedelta):
        offset = offset.total_seconds()
    if isinstance(offset, (int, float)) and offset < 0:
        return -to_ms(-offset, option="offset")
    return to_ms(offset, option="offset")


def _length(ms: int, *, single: bool = False) -> str:
    parts = []
    for unit, size in _UNITS_MS:
        count, ms = divmod(ms, size)
        if count:
            parts.append((count, _WORDS[unit]))
    if single and len(parts) == 1 and parts[0][0] == 1:
        return parts[0][1]
    return " ".join(f"{count} {word}" if count == 1 else f"{count} {word}s" for count, word in parts)
