"""Durations as people write them: `"1h30m"`, a `timedelta`, or a number of seconds."""

from __future__ import annotations

import math
import re
from datetime import timedelta

from anarchon_tasks.errors import ConfigError

Duration = timedelta | float | int | str

_UNITS_MS = {"ms": 1, "s": 1_000, "m": 60_000, "h": 3_600_000, "d": 86_400_000, "w": 604_800_000}
_PART = re.compile(r"(\d+(?:\.\d+)?)(ms|[smhdw])")
_NEGATIVE = re.compile(r"-\s*\d[\da-z.]*")
"""What looks like a duration below zero, with a unit or without."""
_MAX_MS = 100 * 366 * 86_400_000


def to_ms(value: Duration, *, option: str, minimum_ms: int = 0) -> int:
    """Return a duration in whole milliseconds.

    Args:
        value: A `timedelta`, seconds as a number, or text such as `"1h30m"`, `"10s"`, `"250ms"`, `"7d"`.
        option: The name of the option, for the error.
        minimum_ms: The smallest duration allowed.

    Raises:
        ConfigError: The value is no duration, is not finite, or is below the minimum.

    """
    ms = _parse(value, option)
    if ms < 0:
        message = f"{option}={value!r} is too short, as it is negative: give at least {_least(minimum_ms)}"
        raise ConfigError(message)
    if not math.isfinite(ms) or round(ms) > _MAX_MS:
        message = f"{option}={value!r} is too long: give at most 100 years"
        raise ConfigError(message)
    if ms < minimum_ms or (ms > 0 and round(ms) == 0):
        message = f"{option}={value!r} is too short: give at least {_least(minimum_ms)}"
        raise ConfigError(message)
    return round(ms)


def _least(minimum_ms: int) -> str:
    return f"{minimum_ms}ms" if minimum_ms else "1ms, or 0"


def _parse(value: object, option: str) -> float:
    if isinstance(value, timedelta):
        return value / timedelta(milliseconds=1)
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return value * 1_000.0
    if isinstance(value, str):
        text = value.strip()
        parts = _PART.findall(text)
        if parts and "".join(number + unit for number, unit in parts) == text:
            return sum(float(number) * _UNITS_MS[unit] for number, unit in parts)
        if _NEGATIVE.fullmatch(text):
            return -math.inf
    message = (
        f"{option}={value!r} is not a duration: "
        "give seconds as a number, a timedelta, or text such as '10s', '1h30m' or '250ms'"
    )
    raise ConfigError(message)


def to_text(ms: int) -> str:
    """Write milliseconds as the shortest text that `to_ms` reads back: 5400000 is `"1h30m"`."""
    if ms == 0:
        return "0s"
    parts = []
    for unit in ("d", "h", "m", "s", "ms"):
        count, ms = divmod(ms, _UNITS_MS[unit])
        if count:
            parts.append(f"{count}{unit}")
    return "".join(parts)
