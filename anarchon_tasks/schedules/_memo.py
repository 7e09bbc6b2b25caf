"""One computation for many jobs: a small memory of neighbouring slots."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anarchon_tasks.schedules.base import NextSlot

_KEPT = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class Stretch:
    """Consecutive slots: all there are after `since`, up to the last one held."""

    since: int = 0
    slots: tuple[int, ...] = ()

    def next(self, after_ms: int) -> int | None:
        """Return the first slot after an instant if this stretch knows it."""
        if self.slots and self.since <= after_ms < self.slots[-1]:
            return self.slots[bisect_right(self.slots, after_ms)]
        return None

    def joined(self, after_ms: int, slot: int) -> Stretch:
        """Return the stretch that also knows the slot that follows an instant."""
        if self.slots and after_ms == self.slots[-1]:
            dropped, kept = self.slots[: 1 - _KEPT], self.slots[1 - _KEPT :]
            return Stretch(since=dropped[-1] if dropped else self.since, slots=(*kept, slot))
        if self.slots and after_ms < self.since and slot == self.slots[0]:
            return Stretch(since=after_ms, slots=self.slots)
        return Stretch(since=after_ms, slots=(slot,))


class SlotMemo:
    """Answers `next` like the function it wraps, and remembers the last few neighbouring slots.

    Many jobs ask about nearly the same instant: the first one pays, the others get a binary search in at most 32
    integers. What is remembered is one immutable object, replaced as a whole: threads need no lock (the worst case is
    the same slot computed twice), and neither does a process that forks.
    """

    __slots__ = ("_compute", "_stretch")

    def __init__(self, compute: NextSlot) -> None:
        self._compute = compute
        self._stretch = Stretch()

    def next(self, after_ms: int) -> int | None:
        """Return the first slot strictly after an instant, or None."""
        stretch = self._stretch
        slot = stretch.next(after_ms)
        if slot is None:
            slot = self._compute(after_ms)
            if slot is not None:
                self._stretch = stretch.joined(after_ms, slot)
        return slot
