"""A cluster decides as the rules do: both get the same random calls at the same instants and must answer alike."""

from __future__ import annotations

import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.stores._redis_cluster import RedisClusterStore
from anarchon_tasks.stores._wire import job_key
from tests.contract.cluster_adapter import SHARED
from tests.contract.machine import JOBS, check_lost_run_that_begins, compare
from tests.contract.test_redis_lua_matches_rules import RedisDriver

if TYPE_CHECKING:
    import redis

    from anarchon_tasks.clock import Clock


class ClusterDriver(RedisDriver):
    """A prefix on a cluster."""

    def __init__(self, client: redis.RedisCluster) -> None:
        self.client = client
        self.prefix = f"t{uuid.uuid4().hex[:16]}:"

    def open(self, clock: Clock) -> RedisClusterStore:
        """Return the store, with nothing in it."""
        return RedisClusterStore(self.client, prefix=self.prefix, clock=clock)

    def states(self, job: str) -> dict[str, dict[str, object]]:
        """Return what is stored of each run; the index is where the machine does not look: check it here."""
        states = super().states(job)
        for run in self.open_runs(job):
            score = self.client.zscore(f"{self.prefix}leases", f"{job_key(job)}:{run}")
            ends = max(int(str(states[run][name])) for name in ("lease_until", "not_before"))
            assert score is not None, f"{run} of {job} is not in the index"
            assert score <= ends, f"{run} of {job} ends at {ends}, and the index says {score}"
        return states

    def close(self) -> None:
        """Delete every key that may exist."""
        heads = [self._head(job) for job in JOBS]
        keys = [f"{head}{kind}" for head in heads for kind in ("state", "active", "slots", "runs", "results")]
        for key in (*keys, *(f"{self.prefix}{kind}" for kind in SHARED)):
            self.client.delete(key)


def test_the_cluster_answers_as_the_rules(cluster_client: redis.RedisCluster) -> None:
    """Every answer, every stored state and the history are the same after the same calls."""
    compare(partial(ClusterDriver, cluster_client), examples=15, steps=40)


@pytest.mark.parametrize("newer", ["none", "queued", "running"])
def test_a_lost_run_that_still_begins(cluster_client: redis.RedisCluster, newer: str) -> None:
    """A path that random calls seldom find: a run given up as lost begins, unless a newer one is under way."""
    check_lost_run_that_begins(partial(ClusterDriver, cluster_client), newer)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_the_cluster_answers_as_the_rules_for_long(cluster_client: redis.RedisCluster) -> None:
    """The same, with many more and longer sequences."""
    compare(partial(ClusterDriver, cluster_client), examples=150, steps=80)
