"""Waiting times between tries: doubling, capped, with jitter."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """Seconds to wait before try 1, 2, 3, ...: `first_s` doubling to `most_s`, spread by up to `jitter` of itself."""

    first_s: float = 0.2
    most_s: float = 5.0
    jitter: float = 0.2

    def seconds(self, failures: int) -> float:
        """Return the wait after the given number of failures in a row (1 or more)."""
        exact = min(self.most_s, self.first_s * 2.0 ** min(failures - 1, 30))
        return exact * (1.0 - self.jitter * random.random())  # noqa: S311 - spreads load, guards nothing
