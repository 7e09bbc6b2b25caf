"""Schedulers are killed -9 at random: every slot runs once, none is missed, nobody waits for a leader."""

from __future__ import annotations

import random
import time
from typing import TYPE_CHECKING

import pytest

from tests.cluster.conftest import stop_all
from tests.cluster.evidence import multiples
from tests.servers import poll_until

if TYPE_CHECKING:
    from tests.cluster.conftest import Cluster

GAP_MS = 1_000
CLAIM_LOST_MS = 6_000
"""The claim's lease of 5 s, and the second in which somebody notices that it ran out."""


def kill_at_random(cluster: Cluster, *, schedulers: int, seconds: float, every: tuple[float, float]) -> list[float]:
    """Keep that many schedulers alive but for the killed one's restart; return when each kill was."""
    chance = random.Random(20261129)
    alive = [cluster.beat() for _ in range(schedulers)]
    kills: list[float] = []
    end = time.time() + seconds
    while time.time() < end:
        pause_until = time.time() + chance.uniform(*every)
        poll_until(lambda until=pause_until: time.time() >= until, every[1] + 1, interval=0.01)  # type: ignore[misc]
        victim = alive.pop(chance.randrange(len(alive)))
        victim.kill()
        kills.append(time.time())
        alive.append(cluster.beat())
    stop_all(alive)
    return kills


def check(cluster: Cluster, *, first: float, last: float, kills: list[float]) -> None:
    """Compare what the tasks wrote with arithmetic, and the delays with the kills."""
    evidence = cluster.evidence
    for job, period in (("second", 1_000), ("minute", 60_000)):
        slots = multiples(period, first, last)
        ends = evidence.count(job, "end")
        assert [slot for slot in slots if not ends[slot]] == [], f"slots of {job!r} that never ran"
        assert {slot: count for slot, count in evidence.count(job, "start").items() if count > 1} == {}
    history = {run.slot: run for run in cluster.history("second") if run.first_slot is None}
    for slot in multiples(1_000, first, last):
        run = history[slot]
        late = run.lateness_ms
        assert late is not None
        near_a_kill = any(-1_000 <= slot - kill * 1000 <= CLAIM_LOST_MS for kill in kills)
        assert late <= (CLAIM_LOST_MS if near_a_kill else GAP_MS), f"slot {slot} was enqueued {late} ms late"
    statuses = {run.status.value for run in history.values() if first * 1000 < run.slot <= last * 1000}
    assert statuses == {"succeeded"}, "the store's account agrees with the tasks"


@pytest.mark.timeout(180)
def test_celery_2856_several_schedulers_send_each_slot_once(cluster: Cluster) -> None:
    """Two schedulers, one of them killed -9 and replaced: each slot of ten seconds runs exactly once."""
    workers = [cluster.worker()]
    first = time.time() + 8
    kills = kill_at_random(cluster, schedulers=2, seconds=14, every=(3, 5))
    last = time.time() - 3
    poll_until(lambda: cluster.evidence.count("second", "end")[multiples(1_000, first, last)[-1]], 15)
    stop_all(workers)
    check(cluster, first=first, last=last, kills=kills)


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_three_schedulers_and_a_minute_of_kill_9(cluster: Cluster) -> None:
    """Three schedulers, two workers, a kill -9 every few seconds for a minute: nothing missed, nothing doubled."""
    workers = [cluster.worker(), cluster.worker()]
    first = time.time() + 10
    kills = kill_at_random(cluster, schedulers=3, seconds=66, every=(2, 5))
    last = time.time() - 3
    poll_until(lambda: cluster.evidence.count("second", "end")[multiples(1_000, first, last)[-1]], 15)
    stop_all(workers)
    assert len(kills) >= 10
    check(cluster, first=first, last=last, kills=kills)
