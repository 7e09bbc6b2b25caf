"""Our schedules as objects of Celery's, for those who read these: beat's entries, the log, Sentry."""

from __future__ import annotations

import re
from datetime import timedelta
from typing import TYPE_CHECKING, Any, cast
from zoneinfo import ZoneInfo

from celery.schedules import BaseSchedule, crontab, schedule

from anarchon_tasks.schedules import CronSchedule, EverySchedule
from anarchon_tasks.schedules.base import UNBOUNDED, to_instant_ms, to_utc

if TYPE_CHECKING:
    from datetime import datetime

    from celery import Celery

    from anarchon_tasks.schedules import Schedule

_PLAIN_FIELD = re.compile(r"[\d*,/-]+")
_FIELDS = 5


class TextSchedule(BaseSchedule):
    """One of our schedules for code that expects one of Celery's."""

    def __init__(self, schedule: Schedule, *, app: Celery | None = None) -> None:
        super().__init__(app=app)
        self.schedule = schedule

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Return the time from now to the first slot after an instant."""
        slot = self.schedule.next(to_instant_ms(self.maybe_make_aware(last_run_at)))
        now = self.maybe_make_aware(self.now())
        return timedelta(days=366) if slot is None else to_utc(slot) - now

    def is_due(self, last_run_at: datetime) -> tuple[bool, float]:  # type: ignore[override]
        """Return whether a slot has come since an instant, and the seconds until one should ask again."""
        left = self.remaining_estimate(last_run_at).total_seconds()
        return (True, 0.0) if left <= 0 else (False, left)

    def __repr__(self) -> str:
        return f"<{self.schedule.text}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, TextSchedule) and other.schedule.fingerprint == self.schedule.fingerprint

    def __hash__(self) -> int:
        return hash(self.schedule.fingerprint)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.schedule,)


def to_celery(made: Schedule, *, app: Celery) -> BaseSchedule:
    """Return Celery's object for a schedule where an exact one exists, else an adapter of it."""
    if isinstance(made, EverySchedule) and not made.offset_ms and made.bounds == UNBOUNDED:
        return schedule(timedelta(milliseconds=made.period_ms), app=app)
    if isinstance(made, CronSchedule) and made.bounds == UNBOUNDED and _has_crontab(made):
        found: Any = crontab.from_string(made.expression.text)
        found.app = app
        if made.timezone is not None:
            found.tz = ZoneInfo(made.timezone)
        return cast("BaseSchedule", found)
    return TextSchedule(made, app=app)


def _has_crontab(made: CronSchedule) -> bool:
    fields = made.expression.fields
    plain = len(fields) == _FIELDS and all(_PLAIN_FIELD.fullmatch(field) for field in fields)
    days = fields[-3], fields[-1]
    if not plain or (made.day_or and "*" not in days) or "7" in days[1]:
        return False
    return not any(re.search(r"(^|,)\d+/", field) for field in fields)
