"""What the tests of repeated calls share: a case, and what can be seen of a job before and after it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, TypeAlias

from anarchon_tasks.model import Run, RunRef
from anarchon_tasks.stores.base import Definition, Delivery, LeaseStore, Policy, Registered, Reply
from anarchon_tasks.testing._lab import LONG_MS

if TYPE_CHECKING:
    from collections.abc import Callable

    from anarchon_tasks.testing._lab import Lab

Call: TypeAlias = "Callable[[LeaseStore], Reply[Any]]"
Prepare: TypeAlias = "Callable[[Lab, str], Call]"

SKIP = Policy(claim_lease_ms=LONG_MS, start_timeout_ms=LONG_MS)
ONCE = replace(SKIP, delivery=Delivery.AT_MOST_ONCE, max_attempts=1)
SHORT = replace(SKIP, start_timeout_ms=1, max_attempts=1)

_COUNTED = ("attempt", "status", "reason", "count", "publishes", "retries", "refused", "worker", "error")
_INSTANTS = ("first_slot", "claimed_at", "enqueued_at", "started_at", "finished_at")
_ANSWERED = ("kind", "attempt", "status", "reason", "error")
_NEAR_MS = 500
"""A slot that is no further than this before the beginning of the test was made from the store's time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One call, by its operation and its situation."""

    operation: str
    name: str
    prepare: Prepare
    """Brings a job into the situation, and returns the call."""


class Cases(list[Case]):
    """The cases of one module."""

    def of(self, operation: str) -> Callable[[Prepare], Prepare]:
        """Add a function as a case of an operation."""

        def add(prepare: Prepare) -> Prepare:
            self.append(Case(operation=operation, name=prepare.__name__.strip("_"), prepare=prepare))
            return prepare

        return add


def observed(lab: Lab, job: str, *, refusals: bool = True) -> list[object]:
    """Return what readers see of a job. `refusals` are counted by execution, and can be left out."""
    store = lab.store
    entries = [entry if refusals else replace(entry, refused=0) for entry in lab.history(job)]
    newest = store.last_runs([job]).answers[0]
    return [
        entries,
        newest if newest is None or refusals else replace(newest, refused=0),
        [definition for definition in store.definitions().answers if definition.name == job],
        [ref for ref in store.expired(limit=10_000).answers if ref.job == job],
        [queue for queue, _ in store.queues().answers if queue == job],
    ]


def shape(value: object, base: int) -> object:
    """Return a value without what no two executions share: instants become their presence, tokens likewise."""
    if isinstance(value, list | tuple):
        return [shape(item, base) for item in value]
    if isinstance(value, RunRef):
        return value.job, base - value.slot, value.key
    if isinstance(value, Run):
        return {
            "slot": base - value.slot if base - value.slot > _NEAR_MS else "now",
            **{name: getattr(value, name) for name in _COUNTED},
            **{name: getattr(value, name) is not None for name in _INSTANTS},
            "token": value.token > 0,
        }
    if isinstance(value, Registered):
        return value.error
    if isinstance(value, Definition):
        return value.name, value.fingerprint
    if hasattr(value, "kind"):
        return {name: getattr(value, name) for name in _ANSWERED if hasattr(value, name)}
    return value
