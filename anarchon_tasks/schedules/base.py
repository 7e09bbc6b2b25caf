"""What every schedule can answer, and the small helpers built on it.

A slot is an instant: integer milliseconds since the Unix epoch, UTC. The slots of a schedule are a pure function of the
schedule, so that every instance computes the same ones, whenever and wherever it asks.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from itertools import islice
from typing import TYPE_CHECKING, Protocol, runtime_checkable

from anarchon_tasks.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Iterator

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
_MS = timedelta(milliseconds=1)

CALENDAR_MS = range(
    (datetime(1, 1, 3, tzinfo=UTC) - EPOCH) // _MS,
    (datetime(9999, 12, 29, tzinfo=UTC) - EPOCH) // _MS,
)
"""The instants that have a date in every zone."""

NextSlot = Callable[[int], "int | None"]


@runtime_checkable
class Schedule(Protocol):
    """A plan of slots: pure, comparable, and safe to share between threads."""

    @property
    def kind(self) -> str:
        """Say which sort of schedule this is: `every`, `cron` or `at`."""

    @property
    def text(self) -> str:
        """Give the canonical text, such as `every 10s` or `cron 0 8 * * 1-5`."""

    @property
    def timezone(self) -> str | None:
        """Name the zone the schedule was given, or None when it takes the default or needs none."""

    @property
    def fingerprint(self) -> str:
        """Give a text that changes if, and only if, the slots may change."""

    def next(self, after_ms: int) -> int | None:
        """Return the first slot strictly after an instant, or None when there is none any more.

        The answer depends on the argument alone, and takes a bounded number of steps.

        Raises:
            ScheduleError: The bound was reached, or the schedule has to be bound with `for_job` first.

        """

    def describe(self) -> str:
        """Say in English words when the slots are."""

    def note(self, slot_ms: int) -> str | None:
        """Remark on what a clock change did to this slot, or return None."""

    def for_job(self, name: str) -> Schedule:
        """Bind what depends on the job's name (`H` in a cron expression)."""

    def in_zone(self, default_zone: str) -> Schedule:
        """Take the default zone if the schedule was given none of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """The stretch of time outside of which a schedule has no slots; both ends belong to it."""

    start_ms: int | None = None
    end_ms: int | None = None

    @classmethod
    def between(cls, start: datetime | None, end: datetime | None) -> Bounds:
        """Make bounds from aware datetimes.

        Raises:
            ScheduleError: A datetime is naive, or the end comes before the start.

        """
        start_ms = None if start is None else -((EPOCH - aware(start, option="start")) // _MS)
        end_ms = None if end is None else (aware(end, option="end") - EPOCH) // _MS
        if start_ms is not None and end_ms is not None and end_ms < start_ms:
            message = f"end={end.isoformat() if end else end} is before start={start.isoformat() if start else start}"
            raise ScheduleError(message)
        return cls(start_ms=start_ms, end_ms=end_ms)

    def next(self, compute: NextSlot, after_ms: int) -> int | None:
        """Return the first slot after an instant that lies inside the bounds."""
        if self.start_ms is not None:
            after_ms = max(after_ms, self.start_ms - 1)
        if self.end_ms is not None and after_ms >= self.end_ms:
            return None
        slot = compute(after_ms)
        if slot is None or (self.end_ms is not None and slot > self.end_ms):
            return None
        return slot

    def words(self) -> str:
        """Say the bounds in words, starting with a comma, or nothing when there are none."""
        start = "" if self.start_ms is None else f", from {utc_text(self.start_ms)}"
        end = "" if self.end_ms is None else f", until {utc_text(self.end_ms)}"
        return start + end

    def mark(self) -> str:
        """Give the part of the fingerprint that stands for the bounds."""
        return f"start={self.start_ms} end={self.end_ms}"


UNBOUNDED = Bounds()


def slots_between(schedule: Schedule, after_ms: int, until_ms: int, limit: int) -> list[int]:
    """Return the first `limit` slots after one instant, up to and including the other."""
    slots: list[int] = []
    for slot in _walk(schedule, after_ms):
        if slot > until_ms or len(slots) >= limit:
            break
        slots.append(slot)
    return slots


def upcoming(schedule: Schedule, after_ms: int, n: int) -> list[int]:
    """Return the next `n` slots after an instant, fewer when the schedule ends before."""
    return list(islice(_walk(schedule, after_ms), max(n, 0)))


def latest(schedule: Schedule, after_ms: int, until_ms: int) -> int | None:
    """Return the newest slot after one instant, up to and including the other, or None.

    It looks back in doubling steps, so that its cost does not grow with the length of the stretch.
    """
    back_ms = 1_000
    while True:
        since = max(after_ms, until_ms - back_ms)
        slot = schedule.next(since)
        if slot is not None and slot <= until_ms:
            return _last_of(schedule, slot, until_ms)
        if since <= after_ms:
            return None
        back_ms *= 2


def _last_of(schedule: Schedule, slot: int, until_ms: int) -> int:
    for later in _walk(schedule, slot):
        if later > until_ms:
            break
        slot = later
    return slot


def _walk(schedule: Schedule, after_ms: int) -> Iterator[int]:
    slot = schedule.next(after_ms)
    while slot is not None:
        yield slot
        slot = schedule.next(slot)


def aware(value: object, *, option: str) -> datetime:
    """Return a datetime that has a zone.

    Raises:
        ScheduleError: The value is no datetime, or a naive one.

    """
    if not isinstance(value, datetime) or value.utcoffset() is None:
        message = f"{option}={value!r} is not an aware datetime: give it a time zone, such as tzinfo=datetime.UTC"
        raise ScheduleError(message)
    return value


def to_instant_ms(value: datetime) -> int:
    """Return an aware datetime as milliseconds since the epoch, rounded down."""
    return (value - EPOCH) // _MS


def to_utc(ms: int) -> datetime:
    """Return milliseconds since the epoch as a datetime in UTC."""
    return EPOCH + ms * _MS


def utc_text(ms: int) -> str:
    """Write an instant in ISO 8601 with `Z`; milliseconds only where there are any."""
    precision = "milliseconds" if ms % 1_000 else "seconds"
    return to_utc(ms).isoformat(timespec=precision).replace("+00:00", "Z")
