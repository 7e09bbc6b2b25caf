"""The search itself: it visits everything, and its traces are shortest."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.model.checks import assert_breaks, assert_keeps_every_promise
from tests.model.explorer import Step, explore

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterator


class Counter:
    """A number that grows by one or by two, may fall by a fault, and must never rest below its end."""

    def __init__(self, *, end: int = 5, forbidden: int = -1, stops_at: int = -1) -> None:
        self.end_at = end
        self.forbidden = forbidden
        self.stops_at = stops_at

    def initial(self) -> int:
        """Return zero."""
        return 0

    def key(self, state: int) -> Hashable:
        """Return the number."""
        return state

    def steps(self, state: int) -> list[Step[int]]:
        """Return the larger numbers, and the smaller one as a fault."""
        grow = [] if state == self.stops_at else [1, 2]
        steps = [Step(f"add {more}", state + more) for more in grow if state + more <= self.end_at]
        return [*steps, Step("fall", max(state - 1, 0), fault=True)]

    def violations(self, state: int, *, at_rest: bool) -> Iterator[str]:
        """Return whether the number is the forbidden one, or rests too low."""
        if state == self.forbidden:
            yield "FORBIDDEN"
        if at_rest and state < self.end_at:
            yield "STUCK"

    def end(self, state: int) -> str:
        """Return the number in words."""
        return f"at {state}"


def test_every_state_is_visited_once() -> None:
    """A state reached in many ways counts once, and the end that is reached is reported."""
    report = assert_keeps_every_promise(Counter())
    assert report.states == 6
    assert report.ends == {"at 5"}


def test_traces_are_shortest() -> None:
    """Four is reached by two steps of two, not by the longer ways that lead there as well."""
    report = explore(Counter(forbidden=4))
    assert report.violations == {"FORBIDDEN": ["add 2", "add 2"]}


def test_a_state_that_only_faults_lead_out_of_is_at_rest() -> None:
    """A fault that might still happen does not count as progress."""
    report = explore(Counter(stops_at=3))
    assert report.violations == {"STUCK": ["add 1", "add 2"]}


def test_the_search_gives_up_at_its_limit() -> None:
    """A model that is too big is reported as not complete, which is never taken for a proof."""
    report = explore(Counter(end=10_000), limit=100)
    assert not report.complete
    assert "stopped there" in str(report)


def test_a_failure_shows_the_trace() -> None:
    """Who reads a failing test sees the numbered steps that lead to the broken promise."""
    with pytest.raises(pytest.fail.Exception, match="! FORBIDDEN\n   1 add 1\n   2 add 2"):
        assert_keeps_every_promise(Counter(forbidden=3))


def test_another_broken_promise_than_the_expected_one_is_a_failure() -> None:
    """A rule whose loss breaks something else is not explained by its test."""
    with pytest.raises(pytest.fail.Exception, match="expected a trace that ends in\n! STUCK"):
        assert_breaks(Counter(forbidden=3), "STUCK")
