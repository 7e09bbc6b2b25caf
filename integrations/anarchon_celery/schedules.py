"""The schedules of beat's entries as pure schedules: Celery's objects, numbers, and text."""

from __future__ import annotations

from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone, tzinfo
from typing import TYPE_CHECKING, Any, cast

from celery.schedules import BaseSchedule, crontab, schedule

from anarchon_celery.adapters import TextSchedule
from anarchon_celery.asked import DAY_MS, Ask, AskedSchedule, EveryNth
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.schedules import CronSchedule, EverySchedule, at, cron, every, from_sets, parse
from anarchon_tasks.schedules.base import UNBOUNDED, Bounds, to_instant_ms

if TYPE_CHECKING:
    from collections.abc import Iterable

    from celery import Celery

    from anarchon_tasks.schedules import Schedule

_UNITS_MS = (DAY_MS, 3_600_000, 60_000, 1_000)


def convert(value: object, *, app: Celery, relative: bool = False, bounds: Bounds = UNBOUNDED) -> Schedule:
    """Return the pure schedule that a `schedule` of beat means.

    Args:
        value: Seconds, a `timedelta`, a schedule object of Celery's, or text: a cron expression or `every 10s`.
        app: Its time zone counts where the schedule has none.
        relative: Beat's own option: round an interval to its unit on the clock on the wall.
        bounds: No slots outside of them.

    Raises:
        ConfigError: The value is no schedule, or one that cannot be asked for its next time.

    """
    made = _converted(value, app=app, relative=relative)
    match made:
        case EverySchedule() | CronSchedule() | AskedSchedule() if bounds != UNBOUNDED:
            return replace(made, bounds=bounds)
        case EveryNth() if bounds != UNBOUNDED:
            return replace(made, daily=replace(made.daily, bounds=bounds))
    return made


def _converted(value: object, *, app: Celery, relative: bool) -> Schedule:
    if isinstance(value, str):
        return parse(value).in_zone(app_zone(app))
    if isinstance(value, (int, float, timedelta)) and not isinstance(value, bool):
        return _interval(_timedelta(value), app=app, relative=relative)
    if isinstance(value, TextSchedule):
        return value.schedule.in_zone(app_zone(app))
    if isinstance(value, crontab) and not _asks(value, crontab):
        return _crontab(value, app=app)
    if isinstance(value, schedule) and not _asks(value, schedule):
        of_celery = cast("Any", value)
        return _interval(of_celery.run_every, app=app, relative=relative or of_celery.relative)
    clocked = getattr(value, "clocked_time", None)
    if isinstance(clocked, datetime):
        return at(clocked if clocked.tzinfo else clocked.replace(tzinfo=UTC))
    return _asked(value, app=app)


def _timedelta(value: float | timedelta) -> timedelta:
    try:
        return value if isinstance(value, timedelta) else timedelta(seconds=value)
    except (OverflowError, ValueError):
        raise ConfigError(f"schedule={value!r} is no interval: give at most 100 years, in seconds") from None


def _interval(period: timedelta, *, app: Celery, relative: bool) -> Schedule:
    if not relative:
        return every(period)
    ms = every(period).period_ms
    unit = next((unit for unit in _UNITS_MS if ms >= unit), 0)
    if unit == DAY_MS:
        return _local_days(ms // DAY_MS, zone=app_zone(app))
    # Beat rounds each due time down to the interval's unit, so what exceeds a whole number of units is lost.
    whole = ms // unit * unit if unit else ms
    zone_ms = (datetime.now(app.timezone).utcoffset() or timedelta(0)) // timedelta(milliseconds=1)
    return every(timedelta(milliseconds=whole), offset=timedelta(milliseconds=-(zone_ms % (unit or 1))))


def _local_days(days: int, *, zone: str) -> Schedule:
    daily = cron("0 0 * * *", timezone=zone)
    return daily if days == 1 else EveryNth(daily=daily, days=days)


def _crontab(value: crontab, *, app: Celery) -> CronSchedule:
    nowfun = cast("Any", value).nowfun
    own = vars(value).get("tz")
    if own is not None:
        return _from_sets(value, zone_of(own))
    zone = nowfun().tzinfo if nowfun is not None and _reads_nowfun(app) else None
    return _from_sets(value, app_zone(app) if zone is None else zone_of(zone))


def _reads_nowfun(app: Celery) -> bool:
    """Tell whether this Celery reads a crontab on the clock of `nowfun` (up to 5.6) or on the app's (from 5.7 on)."""
    nowhere = timezone(timedelta(hours=5, minutes=17))
    noon = datetime(2000, 1, 1, 12, tzinfo=nowhere)
    found = Ask(crontab("0", "0"), app).next(noon)
    return found == to_instant_ms(datetime(2000, 1, 2, tzinfo=nowhere))


def _from_sets(of_celery: crontab, zone: str) -> CronSchedule:
    value = cast("Any", of_celery)
    return from_sets(
        value.minute,
        value.hour,
        value.day_of_month,
        value.month_of_year,
        value.day_of_week,
        fixed=not (_starred(value._orig_minute, 60) or _starred(value._orig_hour, 24)),  # noqa: SLF001 - as it was written
        timezone=zone,
    )


def _starred(written: object, size: int) -> bool:
    """Tell whether a field was written with a star, or lists everything."""
    if isinstance(written, str):
        return written.startswith("*")
    return not isinstance(written, int) and len(set(cast("Iterable[int]", written))) == size


def app_zone(app: Celery) -> str:
    """Return the IANA name of the app's time zone, where that of the host counts if `enable_utc` is off.

    Raises:
        ConfigError: The host has no zone with a name.

    """
    return zone_of(app.timezone)


def zone_of(zone: tzinfo | str) -> str:
    """Return the IANA name of a zone.

    Raises:
        ConfigError: It has none.

    """
    if isinstance(zone, str):
        return zone
    name = getattr(zone, "key", None) or getattr(zone, "zone", None)  # zoneinfo; pytz
    if isinstance(name, str):
        return name
    offset = zone.utcoffset(None)
    if offset == timedelta(0):
        return "UTC"
    if offset is not None and offset % timedelta(hours=1) == timedelta(0):
        return f"Etc/GMT{-offset // timedelta(hours=1):+d}"
    raise ConfigError(
        f"timezone={zone!r} has no IANA name that means the same on every host: "
        "set app.conf.timezone to a name such as 'Europe/Athens'"
    )


def _asks(value: BaseSchedule, base: type[BaseSchedule]) -> bool:
    """Tell whether a subclass computes its times by itself.

    Raises:
        ConfigError: It only says whether it is due now.

    """
    kind = type(value)
    names = ("remaining_estimate", "remaining_delta")
    if any(getattr(kind, name, None) is not getattr(base, name, None) for name in names):
        return True
    if kind.is_due is not base.is_due and "tz" not in vars(value):
        raise _cannot_ask(value)
    return False


def _cannot_ask(value: object) -> ConfigError:
    kind = type(value)
    return ConfigError(
        f"schedule={value!r}: {kind.__module__}.{kind.__qualname__} does not say when it is next due; let its "
        "remaining_estimate(last_run_at) return the time from last_run_at to the next slot, and depend on nothing else"
    )


def _asked(value: object, *, app: Celery) -> AskedSchedule:
    estimate = getattr(type(value), "remaining_estimate", None)
    if estimate is None:
        raise ConfigError(
            f"schedule={value!r} is no schedule: give seconds, a timedelta, crontab(...), another schedule of "
            "Celery's, or text such as '0 8 * * 1-5' or 'every 10s'"
        )
    if not isinstance(value, BaseSchedule) or estimate is BaseSchedule.remaining_estimate:
        raise _cannot_ask(value)
    return AskedSchedule(ask=Ask(value, app))
