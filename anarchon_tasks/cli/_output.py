"""What commands print: JSON for programs, aligned columns for people."""

from __future__ import annotations

import json
from datetime import datetime
from typing import TYPE_CHECKING, Any

import click

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.schedules.base import to_instant_ms

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anarchon_tasks.schedules import ExplainedSlot

GAP = "  "
SECOND_MS = 1_000
MINUTE_MS = 60_000
HOUR_MS = 3_600_000


def print_json(data: object) -> None:
    """Print one JSON document."""
    click.echo(json.dumps(data, indent=2, ensure_ascii=False))


def print_table(heads: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print rows under their heads, each column as wide as its widest cell; columns that are empty are left out."""
    used = [at for at in range(len(heads)) if any(row[at] for row in rows)]
    table = [[one_line(line[at]) for at in used] for line in (heads, *rows)]
    widths = [max(len(line[at]) for line in table) for at in range(len(used))]
    for line in table:
        click.echo(GAP.join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip())


def one_line(cell: str) -> str:
    """Return a cell that spoils neither its line nor the terminal."""
    return "".join(letter if letter.isprintable() else "�" for letter in " ".join(cell.split()))


def slots_as_data(slots: Sequence[ExplainedSlot]) -> list[dict[str, Any]]:
    """Return slots as plain data."""
    return [{"utc": slot.utc, "local": slot.local, "note": slot.note} for slot in slots]


def print_slots(slots: Sequence[ExplainedSlot], zone: str) -> None:
    """Print slots in UTC, on the clock of a zone, and what a clock change does to them."""
    if not slots:
        click.echo("no slots any more")
        return
    print_table(("UTC", zone, "NOTE"), [(slot.utc, slot.local, slot.note or "") for slot in slots])


def instant_ms(text: str, *, option: str) -> int:
    """Return an instant in ISO 8601 as milliseconds since the epoch.

    Raises:
        ConfigError: It is none, or has no offset.

    """
    try:
        moment = datetime.fromisoformat(text.strip())
    except ValueError:
        message = f"{option}={text!r} is not an instant in ISO 8601, such as 2026-10-24T00:00:00Z"
        raise ConfigError(message) from None
    if moment.utcoffset() is None:
        message = f"{option}={text!r} names no offset: write {moment.isoformat()}Z for UTC, or an offset such as +02:00"
        raise ConfigError(message)
    return to_instant_ms(moment)


def length(ms: int | None) -> str:
    """Write a length of time for people: `250ms`, `2.5s`, `3m10s`, `2h05m`."""
    if ms is None:
        return ""
    sign, ms = ("-" if ms < 0 else ""), abs(ms)
    if ms < SECOND_MS:
        return f"{sign}{ms}ms"
    if ms < MINUTE_MS:
        return f"{sign}{ms / SECOND_MS:.1f}s"
    if ms < HOUR_MS:
        return f"{sign}{ms // MINUTE_MS}m{ms % MINUTE_MS // SECOND_MS:02}s"
    return f"{sign}{ms // HOUR_MS}h{ms % HOUR_MS // MINUTE_MS:02}m"
