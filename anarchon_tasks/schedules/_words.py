"""Cron expressions in English words."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from anarchon_tasks.schedules._fields import follows_elapsed_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

Values = list[int] | None
"""The values of a field, None when it takes all of them."""

_DAYS = ("Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday")
_MONTHS = (
    *("January", "February", "March", "April", "May", "June"),
    *("July", "August", "September", "October", "November", "December"),
)
_ORDINALS = {"1": "first", "2": "second", "3": "third", "4": "fourth", "5": "fifth"}
_MAX_TIMES = 6
_MINUTES = 60
_HOURS = 24
_RUN = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What the words are made from: the values of each field, and the text where values cannot say it."""

    second: Values
    minute: Values
    hour: Values
    day: Values
    month: Values
    weekday: Values
    last_day: bool
    nearest_day: int | None
    nth_weekdays: tuple[tuple[int, str], ...]
    minute_text: str
    hour_text: str
    day_or: bool


def describe(parts: Parts) -> str:
    """Say when an expression matches: `At 08:00, Monday to Friday`."""
    days = ", ".join(part for part in (_dates(parts), _months(parts)) if part)
    if not days and parts.hour is not None:
        days = "every day"
    return ", ".join(part for part in (_clock(parts), days) if part)


def _clock(parts: Parts) -> str:
    minute = _minutes_and_hours(parts)
    if parts.second == [0]:
        return minute
    seconds = _seconds(parts.second)
    if parts.minute is None and parts.hour is None:
        return seconds
    times = _times(parts)
    if times and parts.second is not None and len(parts.second) == 1:
        return "At " + join(f"{time}:{parts.second[0]:02}" for time in times)
    if times:
        return f"{seconds} during the minute{_s(times)} {join(times)}"
    return f"{seconds}, in these minutes: {minute[0].lower()}{minute[1:]}"


def _seconds(second: Values) -> str:
    if second is None:
        return "Every second"
    return _stepped(second, "second", "minute") or f"At second{_s(second)} {join(second)} of every minute"


def _minutes_and_hours(parts: Parts) -> str:
    if parts.hour is None:
        return _within_hour(parts.minute)
    often = _often(parts)
    if often:
        return f"{often} {_span(parts.hour)}"
    times = _times(parts)
    if times:
        return f"At {join(times)}"
    minute = parts.minute or []
    if len(minute) == 1:
        return _hourly(minute[0], parts.hour)
    return f"At minutes {join(minute)} {_in_hours(parts.hour)}"


def _within_hour(minute: Values) -> str:
    if minute is None:
        return "Every minute"
    if minute == [0]:
        return "Every hour, on the hour"
    return _stepped(minute, "minute", "hour") or f"At minute{_s(minute)} {join(minute)} of every hour"


def _often(parts: Parts) -> str | None:
    if parts.minute is None:
        return "Every minute"
    if not follows_elapsed_time(parts.minute_text):
        return None
    return _stepped(parts.minute, "minute", "hour")


def _stepped(values: Sequence[int], unit: str, cycle: str) -> str | None:
    """Say evenly spaced values as a step, or return None."""
    if len(values) < 2:  # noqa: PLR2004 - one value has no step
        return None
    step = values[1] - values[0]
    even = list(values) == list(range(values[0], values[0] + step * len(values), step))
    if not even or values[-1] + step < _MINUTES or step == 1:
        return None
    wraps = values[0] + _MINUTES == values[-1] + step
    if wraps and values[0] == 0:
        return f"Every {step} {unit}s"
    if len(values) < _RUN:
        return None
    return f"Every {step} {unit}s from {unit} {values[0]}" + ("" if wraps else f" of every {cycle}")


def _times(parts: Parts) -> list[str]:
    minutes, hours = parts.minute or [], parts.hour or []
    if not 0 < len(minutes) * len(hours) <= _MAX_TIMES:
        return []
    return [f"{hour:02}:{minute:02}" for hour in hours for minute in minutes]


def _hourly(minute: int, hours: list[int]) -> str:
    if _is_run(hours):
        return f"Every hour from {hours[0]:02}:{minute:02} to {hours[-1]:02}:{minute:02}"
    step = hours[1] - hours[0]
    if hours == list(range(0, _HOURS, step)) and _HOURS % step == 0:
        return f"Every {step} hours from 00:{minute:02}"
    return "At " + join(f"{hour:02}:{minute:02}" for hour in hours)


def _span(hours: list[int]) -> str:
    if _is_run(hours) or len(hours) == 1:
        return f"from {hours[0]:02}:00 to {hours[-1]:02}:59"
    return _in_hours(hours)


def _in_hours(hours: list[int]) -> str:
    return f"in the hour{_s(hours)} {join(hours)}"


def _dates(parts: Parts) -> str:
    day = _day_of_month(parts)
    weekday = _weekday(parts, bare=not day)
    if not (day and weekday):
        return day or weekday
    return f"{day} or {weekday}" if parts.day_or else f"{day}, only if that is {weekday.removeprefix('on ')}"


def _day_of_month(parts: Parts) -> str:
    if parts.nearest_day is not None:
        return f"on the weekday nearest to day {parts.nearest_day} of the month"
    last = "the last day of the month" if parts.last_day else ""
    if parts.day is None or not parts.day:
        return f"on {last}" if last else ""
    if parts.month is not None and len(parts.month) == len(parts.day) == 1 and not last:
        return f"on {parts.day[0]} {_MONTHS[parts.month[0] - 1]}"
    days = f"day{_s(parts.day)} {_runs(parts.day)}"
    return f"on {days} and {last}" if last else f"on {days} of the month"


def _weekday(parts: Parts, *, bare: bool) -> str:
    if parts.nth_weekdays:
        return "on " + join(f"the {which} {_DAYS[day]} of the month" for day, which in parts.nth_weekdays)
    if parts.weekday is None:
        return ""
    days = parts.weekday
    if len(days) == len(_DAYS):
        return "on any day of the week"
    days = _around_the_week(days)
    if _is_run([day if day >= days[0] else day + len(_DAYS) for day in days]):
        run = f"{_DAYS[days[0]]} to {_DAYS[days[-1]]}"
        return run if bare else f"on a day from {run}"
    return f"on {join((_DAYS[day] for day in days), last='and' if bare else 'or')}"


def _around_the_week(days: list[int]) -> list[int]:
    """Start a stretch of days that crosses the end of the week at its first day: Friday to Monday."""
    if days[0] != 0 or days[-1] != len(_DAYS) - 1:
        return days
    first = next(at for at in range(len(days) - 1, -1, -1) if days[at - 1] != days[at] - 1)
    return days[first:] + days[:first]


def _months(parts: Parts) -> str:
    if parts.month is None:
        return ""
    single_date = parts.day and len(parts.day) == len(parts.month) == 1 and not parts.last_day
    if single_date and parts.nearest_day is None:
        return ""
    if _is_run(parts.month):
        return f"{_MONTHS[parts.month[0] - 1]} to {_MONTHS[parts.month[-1] - 1]}"
    return f"in {join(_MONTHS[month - 1] for month in parts.month)}"


def _is_run(values: list[int]) -> bool:
    return len(values) >= _RUN and values[-1] - values[0] == len(values) - 1


def _runs(values: list[int]) -> str:
    return f"{values[0]} to {values[-1]}" if _is_run(values) else join(values)


def _s(values: Sequence[object]) -> str:
    return "" if len(values) == 1 else "s"


def join(items: Iterable[object], *, last: str = "and") -> str:
    """Write items as people list them: `a, b and c`."""
    words = [str(item) for item in items]
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} {last} {words[-1]}"


def nth_words(which: object) -> str:
    """Name the n of an n-th weekday: `first`, or `last`."""
    return _ORDINALS.get(str(which), "last")
