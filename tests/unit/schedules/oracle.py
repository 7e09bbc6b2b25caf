"""An independent judge of cron slots: it looks at each minute of the wall clock, and knows no cron engine.

It parses the fields by itself (lists, ranges, steps, names; both day fields ORed or ANDed), walks naive wall time from
a day before a window to a day after it, and writes down when each wall time exists.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
NAMES = {
    name: number
    for names in (
        ("sun", "mon", "tue", "wed", "thu", "fri", "sat"),
        ("", "jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"),
    )
    for number, name in enumerate(names)
    if name
}
LAST = {"minute": 59, "hour": 23, "day": 31, "month": 12, "weekday": 6, "second": 59}
LIMITS = {"minute": (0, 59), "hour": (0, 23), "day": (1, 31), "month": (1, 12), "weekday": (0, 7), "second": (0, 59)}

CHANGES = [
    ("Europe/Berlin", date(2025, 3, 30)),
    ("Europe/Berlin", date(2025, 10, 26)),
    ("Europe/Athens", date(2025, 3, 30)),
    ("Europe/Athens", date(2025, 10, 26)),
    ("Europe/Dublin", date(2025, 3, 30)),
    ("Europe/Dublin", date(2025, 10, 26)),
    ("America/New_York", date(2025, 3, 9)),
    ("America/New_York", date(2025, 11, 2)),
    ("America/Santiago", date(2025, 4, 6)),
    ("America/Santiago", date(2025, 9, 7)),
    ("Asia/Beirut", date(2024, 3, 31)),
    ("Asia/Beirut", date(2024, 10, 27)),
    ("Africa/Cairo", date(2025, 4, 25)),
    ("Africa/Cairo", date(2025, 10, 31)),
    ("Australia/Lord_Howe", date(2025, 4, 6)),
    ("Australia/Lord_Howe", date(2025, 10, 5)),
    ("Pacific/Apia", date(2011, 12, 30)),
    ("America/St_Johns", date(2006, 4, 2)),
    ("America/St_Johns", date(2006, 10, 29)),
    ("Africa/Casablanca", date(2025, 2, 23)),
    ("Africa/Casablanca", date(2025, 4, 6)),
    ("Antarctica/Troll", date(2025, 3, 30)),
    ("Antarctica/Troll", date(2025, 10, 26)),
    ("America/Sao_Paulo", date(2018, 11, 4)),
    ("America/Sao_Paulo", date(2019, 2, 17)),
    ("Europe/Moscow", date(2014, 10, 26)),
    ("Asia/Pyongyang", date(2018, 5, 5)),
    ("Asia/Kathmandu", date(2025, 3, 30)),
    ("UTC", date(2025, 3, 30)),
]
EXPRESSIONS = [
    *("30 2 * * *", "0 0 * * *", "*/15 * * * *", "0 * * * *", "30 */2 * * *", "0 */2 * * *", "15 1-3 * * *"),
    *("0 0,12 * * *", "45 23 * * *", "59 23 * * *", "*/20 2 * * *", "*/30 2 * * *", "0,30 2 * * *"),
    *("15,45 2 * * *", "0 2,3 * * *", "0 3 * * 0", "5 0 1 * *", "0 0 30 * *", "0 0 30 * 5", "0 0 31 12 *"),
    *("30 0-5 * * *", "1,31 0,2 * * *", "1-59/7 1 * * *", "*/5 0 * * *", "*/7 * * * *", "*/7 */3 * * *"),
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """A wall time, and the instants (in seconds) at which the clock shows it: none, one or two."""

    wall: datetime
    instants: tuple[int, ...]


def values(field: str, name: str) -> set[int]:
    """Return the numbers a field stands for."""
    low, high = LIMITS[name]
    found: set[int] = set()
    for item in field.lower().split(","):
        body, _, step = item.partition("/")
        first, dash, last = body.partition("-")
        if body == "*":
            start, end = low, min(high, 6) if name == "weekday" else high
        else:
            start = NAMES[first] if first in NAMES else int(first)
            end = (NAMES[last] if last in NAMES else int(last)) if dash else (min(high, LAST[name]) if step else start)
        found.update(range(start, end + 1, int(step or 1)))
    return {value % 7 for value in found} if name == "weekday" else found


class Matcher:
    """Tells which wall times an expression matches."""

    def __init__(self, expression: str, *, day_or: bool = True) -> None:
        fields = expression.split()
        self.seconds = values(fields.pop(0), "second") if len(fields) == 6 else {0}
        names = ("minute", "hour", "day", "month", "weekday")
        self.minutes, self.hours, self.days, self.months, self.weekdays = (
            values(field, name) for field, name in zip(fields, names, strict=True)
        )
        # A day field that takes everything counts as `*` if it is one, or if the other one is written with a star.
        whole_month = fields[2] == "*" or (len(self.days) == 31 and "*" in fields[4])
        whole_week = fields[4] == "*" or (len(self.weekdays) == 7 and "*" in fields[2])
        self.either = day_or and not whole_month and not whole_week
        self.fixed = not (fields[0].startswith("*") or fields[1].startswith("*"))

    def on(self, day: date) -> bool:
        """Tell whether a date matches."""
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return day.month in self.months and (in_month or in_week if self.either else in_month and in_week)

    def at(self, wall: datetime) -> bool:
        """Tell whether a wall time matches."""
        return (
            wall.minute in self.minutes
            and wall.hour in self.hours
            and wall.second in self.seconds
            and self.on(wall.date())
        )


@lru_cache(maxsize=64)
def moments(zone_name: str, start: datetime, end: datetime, step: timedelta) -> tuple[Moment, ...]:
    """Return each wall time between two naive datetimes, with its instants."""
    zone = ZoneInfo(zone_name)
    found = []
    wall = start
    while wall < end:
        shown = int((wall.replace(tzinfo=UTC) - EPOCH).total_seconds())
        first, second = (shown - _offset(wall, zone, fold) for fold in (0, 1))
        instants: tuple[int, ...] = (first,) if first == second else (first, second)
        if first != second and (EPOCH + timedelta(seconds=first)).astimezone(zone).replace(tzinfo=None, fold=0) != wall:
            instants = ()
        found.append(Moment(wall=wall, instants=instants))
        wall += step
    return tuple(found)


def _offset(wall: datetime, zone: ZoneInfo, fold: int) -> int:
    offset = wall.replace(tzinfo=zone, fold=fold).utcoffset()
    assert offset is not None
    return int(offset.total_seconds())


def judge(matcher: Matcher, walk: tuple[Moment, ...]) -> list[int]:
    """Return the slots, in seconds, that the rule of the product gives to a walk of wall times."""
    slots: list[int] = []
    owed = False
    for moment in walk:
        matches = matcher.at(moment.wall)
        if not moment.instants:
            owed = owed or (matches and matcher.fixed)
            continue
        if matches or owed:
            slots.append(moment.instants[0])
        if matches and not matcher.fixed:
            slots.extend(moment.instants[1:])
        owed = False
    return sorted(slots)


def expected(
    expression: str,
    zone: str,
    middle: date,
    *,
    around: timedelta = timedelta(hours=18),
    margin: timedelta = timedelta(hours=26),
    step: timedelta = timedelta(minutes=1),
    day_or: bool = True,
) -> tuple[list[int], int, int]:
    """Return the slots around noon of a date, in milliseconds, and the window: after its start, up to its end."""
    noon = datetime.combine(middle, datetime.min.time()) + timedelta(hours=12)
    walk = moments(zone, noon - around - margin, noon + around + margin, step)
    centre = int((noon.replace(tzinfo=ZoneInfo(zone)) - EPOCH).total_seconds())
    start, end = centre - int(around.total_seconds()), centre + int(around.total_seconds())
    slots = judge(Matcher(expression, day_or=day_or), walk)
    return [slot * 1_000 for slot in slots if start < slot <= end], start * 1_000, end * 1_000
