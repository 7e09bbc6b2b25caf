"""Rounds of limit and store in turn, and the medians of their ratios."""

from __future__ import annotations

import statistics
import uuid
from dataclasses import dataclass
from typing import TYPE_CHECKING

from store_bench.clients import Clients, Step
from store_bench.workload import OPERATIONS

if TYPE_CHECKING:
    from store_bench.servers import Server


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """How much is measured."""

    sizes: tuple[int, ...] = (1, 100, 500)
    """Items per batch."""
    clients: tuple[int, ...] = (1, 2, 4)
    count: int = 4_000
    """Runs per round over all clients; one by one, a fifth of them."""
    rounds: int = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """The medians of some rounds of one operation, or of a limit."""

    name: str
    size: int
    clients: int
    per_second: float
    ratio: float
    """To the bare limit in the same round."""
    lowest: float
    highest: float
    cpu_us: float | None
    """The server's CPU time for one item."""
    call_ms: float | None
    """How long one call of the store holds the server: nobody else is served meanwhile."""


@dataclass(frozen=True, slots=True)
class _Rate:
    per_second: float
    cpu_us: float | None
    call_ms: float | None


def measure(server: Server, url: str, plan: Plan, size: int, number: int) -> list[Result]:
    """Measure batches of one size with so many clients."""
    count = max(plan.count // (5 if size == 1 else 1) // number, 1)
    clients = Clients(url, number)
    rounds: list[dict[str, _Rate]] = []
    try:
        for lap in range(plan.rounds + 1):
            place = f"bench_{uuid.uuid4().hex[:12]}"
            server.make_room(place)
            try:
                items = count if lap else min(count, size)  # the first lap only warms up
                step = Step(name="", limit=False, place=place, count=items, size=size)
                rates = _round(server, clients, number, step)
                if lap:
                    rounds.append(rates)
            finally:
                clients.leave()
                server.remove(place)
    finally:
        clients.close()
    return [_summed(name, rounds, server.limit, size, number) for name in rounds[0]]


def _round(server: Server, clients: Clients, number: int, model: Step) -> dict[str, _Rate]:
    limits = [server.limit, *server.more_limits]
    steps = [(name, True) for name in limits] + [(name, False) for name in OPERATIONS]
    rates = {}
    for name, limit in steps:
        step = Step(name=name, limit=limit, place=model.place, count=model.count, size=model.size)
        clients.prepare(step)
        before, calls_before = server.cpu_us(), server.calls()
        took = clients.run()
        after, calls_after = server.cpu_us(), server.calls()
        items = step.count * number
        cpu_us = None if before is None or after is None else (after - before) / items
        rates[name] = _Rate(items / took, cpu_us, _mean_ms(calls_before, calls_after))
    return rates


def _mean_ms(before: tuple[int, int] | None, after: tuple[int, int] | None) -> float | None:
    if before is None or after is None or after[0] == before[0]:
        return None
    return (after[1] - before[1]) / (after[0] - before[0]) / 1_000


def _median(values: list[float | None]) -> float | None:
    known = [value for value in values if value is not None]
    return statistics.median(known) if known else None


def _summed(name: str, rounds: list[dict[str, _Rate]], limit: str, size: int, number: int) -> Result:
    ratios = [rates[name].per_second / rates[limit].per_second for rates in rounds]
    return Result(
        name=name,
        size=size,
        clients=number,
        per_second=statistics.median(rates[name].per_second for rates in rounds),
        ratio=statistics.median(ratios),
        lowest=min(ratios),
        highest=max(ratios),
        cpu_us=_median([rates[name].cpu_us for rates in rounds]),
        call_ms=_median([rates[name].call_ms for rates in rounds]),
    )
