"""One slot, once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from anarchon_tasks.schedules.base import aware, to_instant_ms, utc_text

if TYPE_CHECKING:
    from datetime import datetime


@dataclass(frozen=True, slots=True, kw_only=True)
class AtSchedule:
    """A single slot."""

    slot_ms: int
    timezone: str | None = None

    @property
    def kind(self) -> str:
        """Say `at`."""
        return "at"

    @property
    def text(self) -> str:
        """Give the canonical text, such as `at 2026-10-24T00:00:00Z`."""
        return f"at {utc_text(self.slot_ms)}"

    @property
    def fingerprint(self) -> str:
        """Give a text that changes if, and only if, the slot changes."""
        return f"at {self.slot_ms}"

    def next(self, after_ms: int) -> int | None:
        """Return the slot if it is still to come, else None."""
        return self.slot_ms if self.slot_ms > after_ms else None

    def describe(self) -> str:
        """Say the instant in words."""
        return f"Once, at {utc_text(self.slot_ms)}"

    def note(self, slot_ms: int) -> str | None:  # noqa: ARG002 - an instant exists exactly once
        """Return None: an instant exists exactly once."""
        return None

    def for_job(self, name: str) -> AtSchedule:  # noqa: ARG002 - nothing depends on the name
        """Return the schedule itself."""
        return self

    def in_zone(self, default_zone: str) -> AtSchedule:  # noqa: ARG002 - the instant has its own zone
        """Return the schedule itself."""
        return self


def at(when: datetime) -> AtSchedule:
    """Make a schedule with a single slot at an aware datetime, rounded down to the millisecond.

    Raises:
        ScheduleError: The value is no datetime, or a naive one.

    """
    zone = aware(when, option="at").tzinfo
    return AtSchedule(slot_ms=to_instant_ms(when), timezone=zone.key if isinstance(zone, ZoneInfo) else None)
