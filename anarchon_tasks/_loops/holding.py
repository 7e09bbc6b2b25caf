"""The claims that this instance holds and has not published yet."""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.model import RunRef


@dataclass(slots=True)
class _Held:
    token: int
    until: float
    renewed: float


class Holding:
    """Knows, by the monotonic clock, which claims may still be believed to be this instance's."""

    def __init__(self, *, clock: Clock, lease_s: float) -> None:
        self._clock = clock
        self._trusted_s = lease_s * 0.9
        self._lock = threading.Lock()
        self._held: dict[RunRef, _Held] = {}

    def add(self, ref: RunRef, token: int, *, granted: float) -> None:
        """Note a claim that was granted at that monotonic instant, or not long after it."""
        with self._lock:
            self._held[ref] = _Held(token, granted + self._trusted_s, granted)

    def drop(self, ref: RunRef, token: int) -> None:
        """Forget a claim: published, handed back, or no longer ours."""
        with self._lock:
            held = self._held.get(ref)
            if held is not None and held.token == token:
                del self._held[ref]

    def mine(self, ref: RunRef, token: int) -> bool:
        """Tell whether the claim may still be published."""
        with self._lock:
            held = self._held.get(ref)
        return held is not None and held.token == token and self._clock.monotonic() < held.until

    def to_renew(self, *, after_s: float) -> list[tuple[RunRef, int]]:
        """Return the claims that were last renewed longer ago than that."""
        now = self._clock.monotonic()
        with self._lock:
            return [(ref, held.token) for ref, held in self._held.items() if now - held.renewed >= after_s]

    def renewed(self, ref: RunRef, token: int, *, sent: float) -> None:
        """Note that a claim was renewed by a call sent at that instant."""
        with self._lock:
            held = self._held.get(ref)
            if held is not None and held.token == token:
                held.until, held.renewed = sent + self._trusted_s, sent
