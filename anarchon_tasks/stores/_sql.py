"""SQL files: named statements, with the names of tables filled in."""

from __future__ import annotations

import importlib.resources
import re

_COLUMN = re.compile(r'[(,]\s*"?(\w+)"? (?:TEXT|INTEGER)\b')
_NAME = re.compile(r"^-- name: (\w+)$", re.MULTILINE)


def load(file: str) -> dict[str, str]:
    """Return the statements of a file by name, in its order.

    Args:
        file: The path below `stores/sql`, such as `sqlite/schema.sql`.

    """
    text = importlib.resources.files("anarchon_tasks.stores").joinpath("sql", file).read_text(encoding="utf-8")
    parts = _NAME.split(text)
    return {name: _bare(body) for name, body in zip(parts[1::2], parts[2::2], strict=True)}


def _bare(body: str) -> str:
    lines = [line for line in body.splitlines() if not line.startswith("--")]
    return "\n".join(lines).strip().removesuffix(";")


def quoted(name: str) -> str:
    """Return the name as an identifier of SQL."""
    return '"' + name.replace('"', '""') + '"'


def columns(table: str) -> list[str]:
    """Return the names of the columns that a CREATE TABLE statement of ours makes, in their order."""
    return _COLUMN.findall(table)
