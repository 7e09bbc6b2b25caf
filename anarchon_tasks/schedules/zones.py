"""Time zones by IANA name, and the versions of what computes slots."""

from __future__ import annotations

import difflib
import importlib
import zoneinfo
from dataclasses import dataclass
from datetime import UTC, tzinfo
from functools import lru_cache
from importlib import metadata
from pathlib import Path

from anarchon_tasks.errors import ScheduleError

_HOST_DEPENDENT = frozenset({"localtime", "posixrules"})


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineVersions:
    """The versions that decide which slots a cron expression has; instances should agree on them."""

    croniter: str
    tzdata: str


def engine_versions() -> EngineVersions:
    """Return the versions of the cron engine and of the time zone data in use."""
    return EngineVersions(croniter=metadata.version("croniter"), tzdata=_tzdata_version())


def zone_of(name: str) -> tzinfo:
    """Return the zone of an IANA name.

    Raises:
        ScheduleError: There is no such zone.

    """
    if name == "UTC":
        return UTC
    try:
        return zoneinfo.ZoneInfo(name)
    except (KeyError, ValueError, OSError, TypeError) as error:
        message = f"timezone={name!r} is not a known time zone: give an IANA name such as 'Europe/Athens'{_hint(name)}"
        raise ScheduleError(message) from error


def zone_name(zone: object, *, option: str = "timezone") -> str | None:
    """Return the checked IANA name of a zone given as a name, a `ZoneInfo`, `datetime.UTC` or None.

    Raises:
        ScheduleError: The zone is not known, has no IANA name, or differs from host to host.

    """
    if zone is None:
        return None
    name = "UTC" if zone is UTC else getattr(zone, "key", zone)
    if not isinstance(name, str) or name in _HOST_DEPENDENT:
        message = (
            f"{option}={zone!r} has no IANA name that means the same on every host: "
            "give a name such as 'Europe/Athens', or a ZoneInfo"
        )
        raise ScheduleError(message)
    zone_of(name)
    return name


def _hint(name: object) -> str:
    known = {zone.lower(): zone for zone in sorted(zoneinfo.available_timezones())}
    close = difflib.get_close_matches(str(name).lower(), known, n=1)
    return f" (did you mean {known[close[0]]!r}?)" if close else ""


@lru_cache(maxsize=1)
def _tzdata_version() -> str:
    for folder in zoneinfo.TZPATH:
        source = Path(folder) / "tzdata.zi"
        if source.is_file():
            with source.open(encoding="utf-8") as lines:
                return lines.readline().removeprefix("# version ").strip()
        if Path(folder, "UTC").is_file():
            return "unknown"
    try:
        return str(importlib.import_module("tzdata").IANA_VERSION)
    except (ImportError, AttributeError):
        return "unknown"
