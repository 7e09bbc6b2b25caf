"""The Lua scripts decide as the rules do: both get the same random calls at the same instants and must answer alike."""

from __future__ import annotations

import json
import uuid
from functools import partial
from typing import TYPE_CHECKING

import pytest
import redis

from anarchon_tasks.stores._redis_client import Connection
from anarchon_tasks.stores._wire import job_key
from anarchon_tasks.stores.redis import RedisStore
from tests.contract.machine import JOBS, STATE, check_lost_run_that_begins, compare

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock


class RedisDriver:
    """A prefix on a shared server."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.client = redis.Redis.from_url(url)
        self.prefix = f"t{uuid.uuid4().hex[:16]}:"

    def open(self, clock: Clock) -> RedisStore:
        """Return the store, with nothing in it."""
        return RedisStore(Connection(client=self.client, location=self.url), prefix=self.prefix, clock=clock)

    def close(self) -> None:
        """Delete every key that may exist."""
        heads = [self._head(job) for job in JOBS]
        keys = [f"{head}{kind}" for head in heads for kind in ("state", "active", "slots", "runs", "results")]
        self.client.delete(*keys, *(f"{self.prefix}{kind}" for kind in ("format", "leases", "jobs", "queues")))
        self.client.close()

    def _head(self, job: str) -> str:
        return f"{{{self.prefix}{job_key(job)}}}:"

    def lose_index(self) -> None:
        """Delete the index of lease ends."""
        self.client.delete(f"{self.prefix}leases")

    def _state(self, job: str) -> dict[str, str]:
        return {key.decode(): value for key, value in self.client.hgetall(f"{self._head(job)}state").items()}

    def states(self, job: str) -> dict[str, dict[str, object]]:
        """Return what is stored of each run."""
        found = {run: json.loads(text) for run, text in self._state(job).items() if run[0].isdigit()}
        states = {run: dict(zip(STATE, values, strict=True)) for run, values in found.items()}
        return {run: {**state, "token": int(str(state["token"]))} for run, state in states.items()}

    def open_runs(self, job: str) -> set[str]:
        """Return the runs in the key of open runs."""
        return {key.decode() for key in self.client.smembers(f"{self._head(job)}active")}

    def known(self, job: str) -> dict[str, int | None]:
        """Return what stands beside the runs."""
        found = self._state(job)
        defaults = {"floor": None, "trimmed": -1, "token": 0}
        return {name: int(found[name]) if name in found else default for name, default in defaults.items()}


def test_lua_answers_as_the_rules(redis_url: str) -> None:
    """Every answer, every stored state and the history are the same after the same calls."""
    compare(partial(RedisDriver, redis_url), examples=50, steps=50)


@pytest.mark.parametrize("newer", ["none", "queued", "running"])
def test_a_lost_run_that_still_begins(redis_url: str, newer: str) -> None:
    """A path that random calls seldom find: a run given up as lost begins, unless a newer one is under way."""
    check_lost_run_that_begins(partial(RedisDriver, redis_url), newer)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_lua_answers_as_the_rules_for_long(redis_url: str) -> None:
    """The same, with many more and longer sequences."""
    compare(partial(RedisDriver, redis_url), examples=250, steps=100)
