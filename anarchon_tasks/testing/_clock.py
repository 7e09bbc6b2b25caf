"""A clock that moves only when it is told to."""

from __future__ import annotations

import threading
from dataclasses import dataclass

from anarchon_tasks._durations import Duration, to_ms

_LOOK_S = 0.005
_HAND_OVER_S = 5.0


@dataclass(slots=True, eq=False)
class _Waiter:
    until_ms: float
    over: bool = False


class ManualClock:
    """A clock that stands still until `advance`, which wakes those who wait on it in the order of their times.

    Args:
        wall_ms: What its wall clock shows at first, in milliseconds since the Unix epoch.

    """

    def __init__(self, wall_ms: int = 1_750_000_000_000) -> None:
        self._changed = threading.Condition()
        self._elapsed_ms = 0.0
        self._wall_at_zero = float(wall_ms)
        self._waiters: list[_Waiter] = []

    def wall_ms(self) -> int:
        """Return what the wall clock shows."""
        with self._changed:
            return int(self._wall_at_zero + self._elapsed_ms)

    def monotonic(self) -> float:
        """Return the seconds that have passed, which `set_wall` does not change."""
        with self._changed:
            return self._elapsed_ms / 1_000

    def wait(self, event: threading.Event, seconds: float) -> bool:
        """Wait until the event is set or the clock has advanced; return whether the event is set."""
        with self._changed:
            waiter = _Waiter(self._elapsed_ms + max(0.0, seconds) * 1_000)
            waiter.over = waiter.until_ms <= self._elapsed_ms
            self._waiters.append(waiter)
            try:
                while not (event.is_set() or waiter.over):
                    self._changed.wait(_LOOK_S)
            finally:
                self._waiters.remove(waiter)
                self._changed.notify_all()
        return event.is_set()

    @property
    def waiting(self) -> int:
        """How many threads wait on this clock now."""
        with self._changed:
            return len(self._waiters)

    def advance(self, duration: Duration) -> int:
        """Let time pass, and return what the wall clock shows then.

        Whoever waits is woken at its own time, one after the other, and has left `wait` before time goes on.
        """
        with self._changed:
            target = self._elapsed_ms + to_ms(duration, option="duration")
            while due := [waiter for waiter in self._waiters if waiter.until_ms <= target and not waiter.over]:
                first = min(due, key=lambda waiter: waiter.until_ms)
                self._elapsed_ms = max(self._elapsed_ms, first.until_ms)
                first.over = True
                self._changed.notify_all()
                self._changed.wait_for(lambda first=first: first not in self._waiters, _HAND_OVER_S)  # type: ignore[misc]
            self._elapsed_ms = target
            return int(self._wall_at_zero + self._elapsed_ms)

    def set_wall(self, wall_ms: int) -> None:
        """Let the wall clock jump. No time passes, so nobody is woken."""
        with self._changed:
            self._wall_at_zero = wall_ms - self._elapsed_ms
