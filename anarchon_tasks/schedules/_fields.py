"""Reading cron text: fields, aliases, and what is refused before the engine sees it."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING

from anarchon_tasks.errors import ScheduleError

if TYPE_CHECKING:
    from collections.abc import Collection

FIELDS = ("second", "minute", "hour", "day-of-month", "month", "day-of-week")
RANGES = {
    "second": (0, 59),
    "minute": (0, 59),
    "hour": (0, 23),
    "day-of-month": (1, 31),
    "month": (1, 12),
    "day-of-week": (0, 6),
}
HINTS = {
    "second": "use 0-59, lists, ranges and steps",
    "minute": "use 0-59, lists, ranges and steps",
    "hour": "use 0-23, lists, ranges and steps",
    "day-of-month": "use 1-31, lists, ranges and steps, L for the last day, 15W for the weekday nearest to the 15th",
    "month": "use 1-12 or names of exactly three letters (jan to dec)",
    "day-of-week": "use 0-7 (0 and 7 are Sunday) or names of exactly three letters (sun to sat), "
    "5#2 for the second Friday, L5 for the last one",
}
ALIASES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_FIVE = 5
_SIX = 6
_SEVEN = 7
_MAX_LENGTH = 1_000
_RANDOM = re.compile(r"r(\(.*|/.*)?", re.ASCII | re.DOTALL)
_HASH = re.compile(r"h(?:\((\d+)-(\d+)\))?(?:/(\d+))?", re.ASCII)
_HASH_SHIFT = {"minute": 0, "hour": 1, "day-of-month": 2, "month": 3, "day-of-week": 4, "second": 5}
_EVERY_MONTH_HAS = 28
_HASH_STEP = re.compile(r"h/\d+", re.ASCII)
_NTH = re.compile(r"[^,]+#\d+|l\d+", re.ASCII)
_ANY_DAY = frozenset({"*", "?"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Expression:
    """The fields of a cron expression as they were written."""

    fields: tuple[str, ...]

    @property
    def text(self) -> str:
        """Return the expression with single blanks."""
        return " ".join(self.fields)

    def field(self, name: str) -> str | None:
        """Return one field in small letters, or None when there are no seconds."""
        names = self.names
        return self.fields[names.index(name)].lower() if name in names else None

    @property
    def names(self) -> tuple[str, ...]:
        """Return the names of the fields, in order."""
        return FIELDS[-len(self.fields) :]

    @property
    def hashed(self) -> bool:
        """Tell whether a field depends on the job's name."""
        return any(_HASH.fullmatch(field.lower()) for field in self.fields)

    @property
    def fixed(self) -> bool:
        """Tell whether this names times of the day: neither minute nor hour starts with a star (or is `H/15`)."""
        return not any(follows_elapsed_time(self.field(name) or "") for name in ("minute", "hour"))


def follows_elapsed_time(field: str) -> bool:
    """Tell whether a minute or hour field means "every so often" rather than times of the day."""
    return field.startswith("*") or _HASH_STEP.fullmatch(field) is not None


def hashed_for(expression: Expression, job: str) -> str:
    """Write an expression in small letters, each `H` replaced by its value for a job.

    The value is the CRC-32 of the job's name, shifted by the place of the field, modulo the range: what croniter and
    the tools before it compute, but for a bare `H` as the day of the month, which stays within 1 to 28.
    """
    crc = zlib.crc32(job.encode(errors="surrogatepass"))
    return " ".join(_hashed_field(expression.field(name) or "*", name, crc) for name in expression.names)


def _hashed_field(field: str, name: str, crc: int) -> str:
    match = _HASH.fullmatch(field)
    if match is None:
        return field
    low, high = RANGES[name]
    if field == "h" and name == "day-of-month":
        high = _EVERY_MONTH_HAS
    low, high = int(match[1] or low), int(match[2] or high)
    step = int(match[3] or 0)
    last = min(high, low + step - 1) if step else high
    value = (crc >> _HASH_SHIFT[name]) % (last - low + 1) + low
    return f"{value}-{high}/{step}" if step and value < high else str(value)


def read(text: object) -> Expression:
    """Split cron text into its fields and refuse what would not mean what it seems to mean.

    Raises:
        ScheduleError: The text is no cron expression that every instance would read the same way.

    """
    if not isinstance(text, str) or len(text) > _MAX_LENGTH:
        message = f"cron={text!r:.60} is not a cron expression: give text such as '0 8 * * 1-5'"
        raise ScheduleError(message)
    expression = Expression(fields=_split(text))
    for name, field in zip(expression.names, expression.fields, strict=True):
        _check(name, field, text)
    return expression


def wrong(text: object, reason: str) -> ScheduleError:
    """Return the error that names the expression and says what is wrong with it."""
    return ScheduleError(f"cron={text!r}: {reason}")


def wrong_field(text: object, name: str, field: str, reason: str) -> ScheduleError:
    """Return the error that names the wrong field of an expression."""
    return wrong(text, f"the {name} field {field!r} is not valid: {reason}")


def _split(text: str) -> tuple[str, ...]:
    word = text.strip().lower()
    if word.startswith("@"):
        return _alias(word, text)
    fields = tuple(text.split())
    if len(fields) == _SEVEN:
        raise wrong(text, "seven fields are not supported: leave the year out and use start= and end= instead")
    if len(fields) not in (_FIVE, _SIX):
        raise wrong(
            text,
            f"{len(fields)} fields: give five (minute hour day-of-month month day-of-week), or six with seconds first",
        )
    return fields


def _alias(word: str, text: str) -> tuple[str, ...]:
    if word == "@reboot":
        raise wrong(text, "@reboot has no slots: start the work when the process starts")
    if word not in ALIASES:
        hint = " (for an interval write 'every 10s')" if word.startswith("@every") else ""
        raise wrong(text, f"unknown alias, use one of {', '.join(sorted(ALIASES))}{hint}")
    return tuple(ALIASES[word].split())


def _check(name: str, field: str, text: str) -> None:
    items = field.lower().split(",")
    for item in items:
        if _RANDOM.fullmatch(item):
            raise wrong_field(
                text, name, field, "R is drawn anew by each process; write H, hashed with the job's name, instead"
            )
        if len(items) > 1 and _HASH.fullmatch(item):
            raise wrong_field(text, name, field, "H stands alone in its field")
        low, dash, high = item.partition("/")[0].partition("-")
        if dash and low == high:
            raise wrong_field(
                text, name, field, f"{low}-{high} could mean {low} alone or the whole cycle; write {low} or *"
            )


def check_days(expression: Expression, *, day_or: bool) -> None:
    """Refuse the pairs of day fields of which the engine ignores one without a word.

    Raises:
        ScheduleError: `#`, `L5` or `W` is combined with a restriction in the other day field.

    """
    weekday, _, day = (field.lower() for field in expression.fields[:-4:-1])
    if not day_or or day in _ANY_DAY or weekday in _ANY_DAY:
        return
    nth = any(_NTH.fullmatch(item) for item in weekday.split(","))
    if nth or "w" in day:
        name, other = ("day-of-week", "day-of-month") if nth else ("day-of-month", "day-of-week")
        field = expression.fields[-1 if nth else -3]
        raise wrong_field(
            expression.text, name, field, f"it can't be combined with a {other}; set {other} to * or use two schedules"
        )


def set_text(values: Collection[int], name: str, *, starred: bool) -> str:
    """Write a set of values as one field: `*`, `*/15` (only if `starred`), `1-5` or `0,30`.

    Raises:
        ScheduleError: The set is empty or holds a value outside the field's range.

    """
    low, high = RANGES[name]
    ordered = sorted(set(values))
    if not ordered or ordered[0] < low or ordered[-1] > high:
        message = f"crontab: the {name} set {ordered!r} is not valid: give whole numbers from {low} to {high}"
        raise ScheduleError(message)
    listed = ",".join(map(str, ordered))
    if not starred:
        return listed
    if len(ordered) == high - low + 1:
        return "*"
    step = ordered[1] - ordered[0] if len(ordered) > 1 else high - low + 1
    return f"*/{step}" if ordered == list(range(low, high + 1, step)) and len(ordered) > 1 else listed
