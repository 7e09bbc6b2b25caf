"""The account of the demo, computed from what the tasks wrote down and from arithmetic, not from the store."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Expected:
    """What should have run: every multiple of each period between two instants, and single slots."""

    first: float
    last: float
    periods_ms: dict[str, int]
    once: dict[str, int]

    def slots(self) -> set[tuple[str, int]]:
        """Return each expected slot with its job."""
        first, last = int(self.first * 1000), int(self.last * 1000)
        regular = {
            (job, slot)
            for job, period in self.periods_ms.items()
            for slot in range((first // period + 1) * period, last + 1, period)
        }
        return regular | set(self.once.items())


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """What the tasks' notes say."""

    expected: set[tuple[str, int]]
    starts: Counter[tuple[str, int]]
    ends: Counter[tuple[str, int]]
    attempts: dict[tuple[str, int], list[int]]

    @classmethod
    def read(cls, evidence: Path, expected: Expected) -> Account:
        """Read the notes."""
        starts: Counter[tuple[str, int]] = Counter()
        ends: Counter[tuple[str, int]] = Counter()
        attempts: dict[tuple[str, int], list[int]] = {}
        for text in evidence.read_text().splitlines():
            line = json.loads(text)
            slot = (line["job"], line["slot"])
            if line["kind"] == "start":
                starts[slot] += 1
                attempts.setdefault(slot, []).append(line["attempt"])
            else:
                ends[slot] += 1
        return cls(expected=expected.slots(), starts=starts, ends=ends, attempts=attempts)

    @property
    def missing(self) -> list[tuple[str, int]]:
        """Expected slots that no task ran to its end."""
        return sorted(slot for slot in self.expected if not self.ends[slot])

    @property
    def duplicates(self) -> list[tuple[str, int]]:
        """Slots that ran to their end more than once."""
        return sorted(slot for slot, count in self.ends.items() if count > 1)

    @property
    def taken_over(self) -> list[tuple[str, int]]:
        """Slots that began as attempt 1 and ended as a later one."""
        return sorted(slot for slot, seen in self.attempts.items() if seen == [1, 2] and self.ends[slot] == 1)

    def right(self) -> bool:
        """Tell whether the promise was kept: nothing missing, nothing doubled, the one takeover."""
        return bool(self.expected) and not self.missing and not self.duplicates and len(self.taken_over) == 1

    def table(self, enqueued: set[tuple[str, int]]) -> str:
        """Return the account for people; what was enqueued comes from the store and does not count for the verdict."""
        rows = [
            ("slots", len(self.expected)),
            ("enqueued (says the store)", len(self.expected & enqueued)),
            ("started", sum(self.starts[slot] for slot in self.expected)),
            ("executed", sum(1 for slot in self.expected if self.ends[slot])),
            ("duplicates", len(self.duplicates)),
            ("missed", len(self.missing)),
            ("taken over", len(self.taken_over)),
        ]
        lines = ["", "The account, from what the tasks wrote:", *(f"  {name:<26}{count:>4}" for name, count in rows)]
        for name, slots in (("missed", self.missing), ("executed twice", self.duplicates)):
            lines += [f"  {name}: {job} {slot}" for job, slot in slots]
        verdict = "right: every slot ran once" if self.right() else "WRONG"
        return "\n".join([*lines, f"  The account is {verdict}."])
