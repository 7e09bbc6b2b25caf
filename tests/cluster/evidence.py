"""What the tasks wrote down, and the sums over it."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

Slot = tuple[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """The lines of one test."""

    lines: list[dict[str, Any]]

    @classmethod
    def read(cls, path: Path) -> Evidence:
        """Read what is there; a last line that is still being written is left out."""
        if not path.exists():
            return cls(lines=[])
        whole = path.read_text().rpartition("\n")[0]
        return cls(lines=[json.loads(line) for line in whole.splitlines()])

    def of(self, job: str, kind: str) -> list[dict[str, Any]]:
        """Return the lines of one kind of one job, oldest first."""
        return [line for line in self.lines if line.get("job") == job and line["kind"] == kind]

    def count(self, job: str, kind: str) -> Counter[int]:
        """Count the lines of one kind by slot."""
        return Counter(line["slot"] for line in self.of(job, kind))

    def tokens(self, job: str) -> dict[int, list[int]]:
        """Return the tokens of each slot's starts, in order."""
        tokens: dict[int, list[int]] = defaultdict(list)
        for line in self.of(job, "start"):
            tokens[line["slot"]].append(line["token"])
        return tokens


def multiples(period_ms: int, first: float, last: float) -> list[int]:
    """Return the multiples of a period in an interval of seconds since the epoch: the slots of an interval job."""
    begin = (int(first * 1000) // period_ms + 1) * period_ms
    return list(range(begin, int(last * 1000) + 1, period_ms))
