"""Cron schedules. This is the only module that knows the cron engine.

The engine walks naive wall time only; `dst.py` turns wall times into instants. Computing a slot costs 0.1 to 0.2 ms.
All jobs that share expression, zone and options share one memory of recent slots: about 2 µs per question.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple

from croniter import CroniterBadDateError, croniter

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules import _notes, _words
from anarchon_tasks.schedules._fields import (
    FIELDS,
    HINTS,
    Expression,
    check_days,
    follows_elapsed_time,
    hashed_for,
    read,
    set_text,
    wrong,
    wrong_field,
)
from anarchon_tasks.schedules._memo import SlotMemo
from anarchon_tasks.schedules.base import UNBOUNDED, Bounds, to_instant_ms, to_utc
from anarchon_tasks.schedules.dst import Rule, next_instant
from anarchon_tasks.schedules.zones import zone_name, zone_of

if TYPE_CHECKING:
    from collections.abc import Collection

Gap = Literal["shift", "skip"]
Fold = Literal["first", "both"]

_FIRST_MS = to_instant_ms(datetime(1, 6, 1, tzinfo=UTC))
_LAST_MS = to_instant_ms(datetime(9_900, 1, 1, tzinfo=UTC))
_PROBE = datetime(2000, 1, 1)  # noqa: DTZ001 - wall time
_ENGINES = 4_096
_ENGINE_ORDER = (*FIELDS[1:], FIELDS[0])
_HOURS = 24
_MAX_LISTED = 6


class Pattern(NamedTuple):
    """Everything the slots of a cron schedule depend on, but for its bounds."""

    expression: str
    zone: str
    day_or: bool
    rule: Rule


class _Engine:
    """Computes the slots of one pattern."""

    __slots__ = ("memo", "pattern", "template", "zone")

    def __init__(self, pattern: Pattern) -> None:
        self.template = croniter(
            pattern.expression, _PROBE, ret_type=datetime, day_or=pattern.day_or, second_at_beginning=True
        )
        self.zone = zone_of(pattern.zone)
        self.pattern = pattern
        self.memo = SlotMemo(self._next)

    def walls(self, after: datetime) -> datetime | None:
        """Return the first matching wall time strictly after another, or None."""
        try:
            found: datetime = copy.copy(self.template).get_next(datetime, start_time=after)
        except CroniterBadDateError:
            return None
        return found

    def _next(self, after_ms: int) -> int | None:
        if after_ms > _LAST_MS:
            return None
        after = to_utc(max(after_ms, _FIRST_MS) // 1_000 * 1_000)
        try:
            instant = next_instant(self.walls, zone=self.zone, rule=self.pattern.rule, after=after)
        except ScheduleError as error:
            raise wrong(self.pattern.expression, str(error)) from error
        return None if instant is None else to_instant_ms(instant)


@lru_cache(maxsize=_ENGINES)
def _engine(pattern: Pattern) -> _Engine:
    return _Engine(pattern)


@dataclass(frozen=True, slots=True, kw_only=True)
class CronSchedule:
    """The slots of a cron expression on the wall clock of a zone."""

    expression: Expression
    plain: str | None
    """What the engine computes with; None as long as an `H` waits for the job's name."""
    timezone: str | None
    day_or: bool
    rule: Rule
    bounds: Bounds = UNBOUNDED

    @property
    def kind(self) -> str:
        """Say `cron`."""
        return "cron"

    @property
    def text(self) -> str:
        """Give the expression, aliases spelled out; it starts with `crontab` where both day fields have to match."""
        return f"{'cron' if self.day_or else 'crontab'} {self.expression.text}"

    @property
    def fingerprint(self) -> str:
        """Give a text that changes if, and only if, the slots may change."""
        days = "or" if self.day_or else "and"
        expression = self.expression.text.lower() if self.plain is None else self.plain
        gap, fold = "shift" if self.rule.shift else "skip", "both" if self.rule.twice else "first"
        return f"cron {expression} zone={self._zone} days={days} gap={gap} fold={fold} {self.bounds.mark()}"

    @property
    def _zone(self) -> str:
        return self.timezone or "UTC"

    def next(self, after_ms: int) -> int | None:
        """Return the first slot strictly after an instant, or None when there is none any more.

        Raises:
            ScheduleError: An `H` waits for the job's name: bind the schedule with `for_job` first.

        """
        return self.bounds.next(self._bound_engine().memo.next, after_ms)

    def _bound_engine(self) -> _Engine:
        if self.plain is None:
            raise wrong(self.expression.text, "H is hashed with the job's name: bind the schedule with for_job() first")
        return _engine(Pattern(self.plain, self._zone, self.day_or, self.rule))

    def for_job(self, name: str) -> CronSchedule:
        """Return the schedule with each `H` replaced by its value for a job.

        Raises:
            ScheduleError: With the values of this job the expression never fires.

        """
        if not self.expression.hashed:
            return self
        plain = hashed_for(self.expression, name)
        _check_fires(plain, self.expression.text, day_or=self.day_or)
        return replace(self, plain=plain)

    def in_zone(self, default_zone: str) -> CronSchedule:
        """Return the schedule in the default zone if it was given none of its own.

        Raises:
            ScheduleError: There is no such zone.

        """
        return self if self.timezone is not None else replace(self, timezone=zone_name(default_zone))

    def describe(self) -> str:
        """Say in words when the slots are, with the advice for a star that meets a clock change."""
        if self.plain is None:
            return f"By the expression {self.expression.text}, each H being a value hashed from the job's name"
        engine = self._bound_engine()
        words = _words.describe(_parts(engine, self.expression, day_or=self.day_or))
        return f"{words}{self.bounds.words()}{self._advice(engine)}"

    def _advice(self, engine: _Engine) -> str:
        if not self._star_in_fixed_hour or not _notes.touched_by_changes(engine.walls, engine.zone):
            return ""
        return (
            ". A star in the minute field follows elapsed time: on the day the clock goes forward the times it leaves"
            " out do not run, on the day it goes back the repeated times run twice; for once per day write"
            f" '{self._once_per_day(engine)}'"
        )

    @property
    def _star_in_fixed_hour(self) -> bool:
        hour = self.expression.field("hour") or "*"
        return self.rule == Rule(shift=False, twice=True) and not follows_elapsed_time(hour)

    def _once_per_day(self, engine: _Engine) -> str:
        minutes = _values(engine, "minute")
        listed = "0-59" if minutes is None else ",".join(map(str, minutes))
        if minutes is not None and len(minutes) > _MAX_LISTED:
            listed = (self.expression.field("minute") or "").replace("*", "0-59", 1)
        at = self.expression.names.index("minute")
        return " ".join((*self.expression.fields[:at], listed, *self.expression.fields[at + 1 :]))

    def note(self, slot_ms: int) -> str | None:
        """Say what a clock change did to a slot, or return None."""
        engine = self._bound_engine()
        return _notes.slot_note(engine.walls, zone=engine.zone, rule=self.rule, instant=to_utc(slot_ms))

    def gaps(self, after_ms: int, until_ms: int) -> tuple[str, ...]:
        """Remark on named times that a clock change removes between two instants, none being run for them."""
        engine = self._bound_engine()
        if self.rule.shift or follows_elapsed_time(self.expression.field("hour") or "*"):
            return ()
        return _notes.gap_notes(engine.walls, zone=engine.zone, since=to_utc(after_ms), until=to_utc(until_ms))


def cron(
    text: str,
    *,
    timezone: str | tzinfo | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    day_or: bool = True,
    gap: Gap | None = None,
    fold: Fold | None = None,
) -> CronSchedule:
    """Make a schedule from a cron expression.

    Five fields (minute hour day-of-month month day-of-week), or six with seconds first; `@daily` and the other
    aliases, `L`, `#`, `W`, and `H`, a value hashed from the job's name. An expression that names times of the day
    (neither minute nor hour starts with `*`) runs a time that a clock change removes once, right after the gap, and a
    repeated time the first time only. Any other follows elapsed time: nothing in the gap, both passes of a repetition.

    Args:
        text: The expression.
        timezone: An IANA name; without it the default zone of whoever registers the schedule.
        start: No slots before this aware datetime.
        end: No slots after this aware datetime.
        day_or: When both day fields are restricted, either of them matches (standard cron); False asks for both.
        gap: `"shift"` or `"skip"` a time that does not exist; the default follows the expression.
        fold: Run a repeated time in its `"first"` pass or in `"both"`; the default follows the expression.

    Raises:
        ScheduleError: The expression, the zone or the bounds are not valid, or the expression never fires.

    """
    expression = read(text)
    check_days(expression, day_or=day_or)
    plain = _checked(expression, day_or=day_or)
    return CronSchedule(
        expression=expression,
        plain=plain,
        timezone=zone_name(timezone),
        day_or=day_or,
        rule=_rule(fixed=expression.fixed, gap=gap, fold=fold),
        bounds=Bounds.between(start, end),
    )


def from_sets(
    minute: Collection[int],
    hour: Collection[int],
    day_of_month: Collection[int],
    month_of_year: Collection[int],
    day_of_week: Collection[int],
    *,
    fixed: bool,
    timezone: str | tzinfo | None = None,
    start: datetime | None = None,
    end: datetime | None = None,
    gap: Gap | None = None,
    fold: Fold | None = None,
) -> CronSchedule:
    """Make a schedule from the expanded sets of a Celery `crontab`: both day sets have to match.

    Args:
        minute: Minutes, 0 to 59.
        hour: Hours, 0 to 23.
        day_of_month: Days, 1 to 31.
        month_of_year: Months, 1 to 12.
        day_of_week: Weekdays, 0 (Sunday) to 6.
        fixed: Whether this names times of the day, so that neither minute nor hour was written with a star.
        timezone: An IANA name; without it the default zone of whoever registers the schedule.
        start: No slots before this aware datetime.
        end: No slots after this aware datetime.
        gap: As for `cron`.
        fold: As for `cron`.

    Raises:
        ScheduleError: A set is empty or out of range, the zone or the bounds are not valid, or no date ever matches.

    """
    minutes = set_text(minute, "minute", starred=not fixed)
    fields = (
        minutes,
        set_text(hour, "hour", starred=not fixed and ("*" not in minutes or len(set(hour)) == _HOURS)),
        set_text(day_of_month, "day-of-month", starred=True),
        set_text(month_of_year, "month", starred=True),
        set_text(day_of_week, "day-of-week", starred=True),
    )
    expression = Expression(fields=fields)
    _check_fires(expression.text, expression.text, day_or=False)
    return CronSchedule(
        expression=expression,
        plain=expression.text,
        timezone=zone_name(timezone),
        day_or=False,
        rule=_rule(fixed=fixed, gap=gap, fold=fold),
        bounds=Bounds.between(start, end),
    )


def _rule(*, fixed: bool, gap: object, fold: object) -> Rule:
    if gap not in (None, "shift", "skip"):
        message = f"gap={gap!r} is not valid: give 'shift' or 'skip'"
        raise ScheduleError(message)
    if fold not in (None, "first", "both"):
        message = f"fold={fold!r} is not valid: give 'first' or 'both'"
        raise ScheduleError(message)
    return Rule(
        shift=fixed if gap is None else gap == "shift",
        twice=not fixed if fold is None else fold == "both",
    )


@lru_cache(maxsize=_ENGINES)
def _checked(expression: Expression, *, day_or: bool) -> str | None:
    """Let the engine check the expression; return what it computes with, None if that depends on the job's name."""
    text = expression.text
    try:
        _refuse(expression)
    except ValueError as error:
        raise _blame(expression, error) from error
    if expression.hashed:
        return None
    _check_fires(text.lower(), text, day_or=day_or)
    return text.lower()


def _blame(expression: Expression, error: ValueError) -> ScheduleError:
    """Find the field that the engine refuses on its own."""
    for at, (name, field) in enumerate(zip(expression.names, expression.fields, strict=True)):
        fields = ["*"] * len(expression.fields)
        fields[at] = field
        try:
            _refuse(Expression(fields=tuple(fields)))
        except ValueError:
            return wrong_field(expression.text, name, field, HINTS[name])
    return wrong(expression.text, str(error))


@lru_cache(maxsize=_ENGINES)
def _check_fires(plain: str, text: str, *, day_or: bool) -> None:
    walker = croniter(plain, _PROBE, ret_type=datetime, day_or=day_or, second_at_beginning=True)
    try:
        walker.get_next()
    except CroniterBadDateError as error:
        raise wrong(text, "it never fires: no date matches the day and month fields") from error


def _refuse(expression: Expression) -> None:
    """Raise what the engine raises for an expression; an `H` is checked with any name."""
    hash_id = b"job" if expression.hashed else None
    croniter.expand(expression.text.lower(), hash_id=hash_id, second_at_beginning=True)


def _values(engine: _Engine, name: str) -> list[int] | None:
    """Return the numbers a field takes, None when it takes all of them."""
    expanded = engine.template.expanded
    if name == "second" and len(expanded) == len(_ENGINE_ORDER) - 1:
        return [0]
    values: list[object] = list(expanded[_ENGINE_ORDER.index(name)])
    return None if values == ["*"] else [value for value in values if isinstance(value, int)]


def _parts(engine: _Engine, expression: Expression, *, day_or: bool) -> _words.Parts:
    template = engine.template
    nth = template.nth_weekday_of_month
    return _words.Parts(
        second=_values(engine, "second"),
        minute=_values(engine, "minute"),
        hour=_values(engine, "hour"),
        day=_values(engine, "day-of-month"),
        month=_values(engine, "month"),
        weekday=_values(engine, "day-of-week"),
        last_day="l" in template.expanded[_ENGINE_ORDER.index("day-of-month")],
        nearest_day=min(template.nearest_weekday, default=None),
        nth_weekdays=tuple(
            (day, _words.nth_words(which)) for day in sorted(nth) for which in sorted(nth[day], key=str)
        ),
        minute_text=expression.field("minute") or "*",
        hour_text=expression.field("hour") or "*",
        day_or=day_or,
    )
