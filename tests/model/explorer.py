"""Breadth-first search through every state of a small model: each violation comes with a shortest trace."""

from __future__ import annotations

import gc
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Generic, NamedTuple, Protocol, TypeVar

if TYPE_CHECKING:
    from collections.abc import Hashable, Iterable

S = TypeVar("S")


class Step(NamedTuple, Generic[S]):
    """One thing that may happen next: what it is called, the state after it, and whether it is a fault."""

    label: str
    after: S
    fault: bool = False


class Model(Protocol[S]):
    """A model: where it starts, what may happen, and which promises a state breaks."""

    def initial(self) -> S:
        """Return the first state."""

    def steps(self, state: S) -> list[Step[S]]:
        """Return everything that may happen in the state, faults included while there are any left."""

    def key(self, state: S) -> Hashable:
        """Return what makes the state different from others: equal keys mean equal futures."""

    def violations(self, state: S, *, at_rest: bool) -> Iterable[str]:
        """Return the promises that the state breaks; at rest nothing but faults can happen any more."""

    def end(self, state: S) -> str:
        """Return a summary of a state at rest, to count the ways in which things end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """What a search found: the number of states, a shortest trace per broken promise, and the ends reached."""

    states: int
    complete: bool
    violations: dict[str, list[str]] = field(default_factory=dict)
    ends: frozenset[str] = frozenset()

    def __str__(self) -> str:
        """Return the traces, numbered, as a failing test shows them."""
        lines = [f"{self.states} states, {'all of them' if self.complete else 'stopped there'}"]
        for name, trace in self.violations.items():
            lines.append(f"! {name}")
            lines.extend(f"  {number:2} {label}" for number, label in enumerate(trace, 1))
        return "\n".join(lines)


def explore(model: Model[S], *, limit: int = 2_000_000, first_only: bool = False) -> Report:
    """Visit every state that can be reached.

    Args:
        model: The model to explore.
        limit: Give up after this many states; the report then is not complete.
        first_only: Stop at the first broken promise.

    Returns:
        A report, whose traces are as short as any.

    """
    gc.disable()  # nothing here is garbage before the end, and looking for it costs half the time
    try:
        return _explore(model, limit=limit, first_only=first_only)
    finally:
        gc.enable()


def _explore(model: Model[S], *, limit: int, first_only: bool) -> Report:
    first = model.initial()
    start = model.key(first)
    came_from: dict[Hashable, tuple[Hashable, str] | None] = {start: None}
    waiting = deque([(start, first)])
    violations: dict[str, list[str]] = {}
    ends: set[str] = set()
    steps_of, key_of, broken_by = model.steps, model.key, model.violations
    while waiting and len(came_from) <= limit and not (first_only and violations):
        here, state = waiting.popleft()
        at_rest = True
        for label, after, fault in steps_of(state):
            at_rest = at_rest and fault
            there = key_of(after)
            if there not in came_from:
                came_from[there] = (here, label)
                waiting.append((there, after))
        for name in broken_by(state, at_rest=at_rest):
            violations.setdefault(name, _trace(came_from, here))
        if at_rest:
            ends.add(model.end(state))
    return Report(states=len(came_from), complete=not waiting, violations=violations, ends=frozenset(ends))


def _trace(came_from: dict[Hashable, tuple[Hashable, str] | None], key: Hashable) -> list[str]:
    labels: list[str] = []
    step = came_from[key]
    while step is not None:
        key, label = step
        labels.append(label)
        step = came_from[key]
    return labels[::-1]
