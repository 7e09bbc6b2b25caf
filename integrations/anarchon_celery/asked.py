"""Schedules that only Celery can compute, and every n-th midnight."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING
from zoneinfo import ZoneInfo

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules.base import UNBOUNDED, Bounds, to_instant_ms, to_utc, utc_text

if TYPE_CHECKING:
    from celery import Celery
    from celery.schedules import BaseSchedule

    from anarchon_tasks.schedules import CronSchedule

DAY_MS = 86_400_000
_LIMIT = 1_000
_MICROSECOND = timedelta(microseconds=1)
_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+")
_PLAIN = (str, int, float, bool, timedelta, datetime, type(None))


@dataclass(frozen=True, slots=True, eq=False)
class Ask:
    """Asks a schedule object of Celery's when it is next due after an instant.

    Two are equal when they describe themselves alike: Celery's own comparison looks at `nowfun` only.
    """

    value: BaseSchedule
    app: Celery

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ask) and self.words() == other.words()

    def __hash__(self) -> int:
        return hash(self.words())

    def next(self, after: datetime) -> int | None:
        """Return the answer in milliseconds, rounded up."""
        asked = copy.copy(self.value)
        asked._app, asked.nowfun = self.app, lambda: after  # type: ignore[attr-defined]  # noqa: SLF001 - copies lose it
        left: timedelta | None = asked.remaining_estimate(after)
        return None if left is None else to_instant_ms(after.astimezone(UTC) + left - _MICROSECOND) + 1

    @property
    def daily(self) -> bool:
        """Whether the answer depends, in its last digits, on when one asks (a position of the sun)."""
        return hasattr(self.value, "lat")

    def words(self) -> str:
        """Describe the schedule by what it was made of, alike in every process."""
        kind = type(self.value)
        text = repr(self.value)
        if not _ADDRESS.search(text):
            return f"{kind.__module__}.{kind.__qualname__} {text}"
        values = sorted((name, item) for name, item in vars(self.value).items() if isinstance(item, _PLAIN))
        return f"{kind.__module__}.{kind.__qualname__} {values}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedSchedule:
    """The slots of a schedule object that computes its own times."""

    ask: Ask
    bounds: Bounds = UNBOUNDED

    @property
    def kind(self) -> str:
        """Say `celery`."""
        return "celery"

    @property
    def text(self) -> str:
        """Give what the object says of itself."""
        return self.ask.words()

    @property
    def timezone(self) -> str | None:
        """Return None: the object knows its own."""
        return None

    @property
    def fingerprint(self) -> str:
        """Give a text that changes if, and only if, the slots may change."""
        return f"celery {self.ask.words()} {self.bounds.mark()}"

    def next(self, after_ms: int) -> int | None:
        """Return the first slot strictly after an instant.

        Raises:
            ScheduleError: The object does not get beyond this instant.

        """
        return self.bounds.next(self._next_daily if self.ask.daily else self._next, after_ms)

    def _next(self, after_ms: int) -> int | None:
        slot = self.ask.next(to_utc(after_ms))
        if slot is not None and slot <= after_ms:
            raise ScheduleError(
                f"{self.text} answers {utc_text(slot)} when asked for a time after {utc_text(after_ms)}: "
                "remaining_estimate(last_run_at) has to lead beyond last_run_at"
            )
        return slot

    def _next_daily(self, after_ms: int) -> int | None:
        """Ask from midnight, UTC, only, so that everybody gets the same milliseconds, whenever they ask."""
        midnight = after_ms // DAY_MS * DAY_MS
        asked_ms = midnight
        for _ in range(_LIMIT):
            slot = self._next(asked_ms)
            if slot is None or (midnight <= slot < midnight + DAY_MS and slot > after_ms):
                return slot
            if slot >= midnight + DAY_MS:
                midnight = asked_ms = max(slot // DAY_MS * DAY_MS, midnight + DAY_MS)
            else:
                asked_ms = slot
        raise ScheduleError(f"{self.text} has no time within {_LIMIT} steps after {utc_text(after_ms)}")

    def describe(self) -> str:
        """Say what computes the slots."""
        return f"As {self.text} computes{self.bounds.words()}"

    def note(self, slot_ms: int) -> str | None:  # noqa: ARG002 - what clock changes do is the object's business
        """Return None."""
        return None

    def for_job(self, name: str) -> AskedSchedule:  # noqa: ARG002 - nothing depends on the name
        """Return the schedule itself."""
        return self

    def in_zone(self, default_zone: str) -> AskedSchedule:  # noqa: ARG002 - the object knows its own
        """Return the schedule itself."""
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class EveryNth:
    """Midnight of each n-th day, counted from 1 January of the year 1, on the clock of a zone."""

    daily: CronSchedule
    days: int

    @property
    def kind(self) -> str:
        """Say `every`."""
        return "every"

    @property
    def text(self) -> str:
        """Give the canonical text."""
        return f"every {self.days}d at midnight"

    @property
    def timezone(self) -> str | None:
        """Name the zone of the midnights."""
        return self.daily.timezone

    @property
    def fingerprint(self) -> str:
        """Give a text that changes if, and only if, the slots may change."""
        return f"nth {self.days} {self.daily.fingerprint}"

    def next(self, after_ms: int) -> int | None:
        """Return the first slot strictly after an instant."""
        slot = self.daily.next(after_ms)
        while slot is not None and self._local_date(slot).toordinal() % self.days:
            skipped = self.days - self._local_date(slot).toordinal() % self.days
            slot = self.daily.next(slot + skipped * DAY_MS - DAY_MS // 4)
        return slot

    def _local_date(self, slot: int) -> datetime:
        return to_utc(slot).astimezone(ZoneInfo(self.daily.timezone or "UTC"))

    def describe(self) -> str:
        """Say in words when the slots are."""
        return f"At midnight of every {self.days}th day"

    def note(self, slot_ms: int) -> str | None:
        """Remark on what a clock change did to this slot."""
        return self.daily.note(slot_ms)

    def for_job(self, name: str) -> EveryNth:  # noqa: ARG002 - nothing depends on the name
        """Return the schedule itself."""
        return self

    def in_zone(self, default_zone: str) -> EveryNth:  # noqa: ARG002 - it has its own zone
        """Return the schedule itself."""
        return self
