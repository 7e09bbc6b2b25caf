"""Waiting for other processes, always with a bound."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable

T = TypeVar("T")


def poll_until(
    predicate: Callable[[], T],
    timeout: float = 10.0,
    *,
    interval: float = 0.02,
    what: str | Callable[[], str] = "the condition",
) -> T:
    """Return the first true answer of `predicate`, asked once more at the deadline.

    Args:
        predicate: Asked again and again. An exception that it raises is not caught.
        timeout: Seconds until giving up.
        interval: Seconds between two questions.
        what: Names what was waited for in the error; a callable is asked only then.

    Raises:
        AssertionError: Nothing true came in time.
    """
    deadline = time.monotonic() + timeout
    while True:
        answer = predicate()
        if answer:
            return answer
        left = deadline - time.monotonic()
        if left <= 0:
            name = what if isinstance(what, str) else what()
            raise AssertionError(f"waited {timeout:g} s for {name}; the last answer was {answer!r}")
        time.sleep(min(interval, left))
