"""A failover by Sentinel, with the user's own client: what was claimed stays claimed, and what runs goes on."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import TYPE_CHECKING

import pytest
from redis.backoff import NoBackoff
from redis.retry import Retry
from redis.sentinel import Sentinel

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import Beat, BeginKind, ClaimKind, Finish
from anarchon_tasks.stores.redis import RedisBackend
from tests.servers import RedisServer, RedisWithSentinels, missing
from tests.unit.stores.redis_kit import begin_of, claims_of, run_through

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

BOUND_S = 15.0
"""The sentinels notice after a second, and have to agree."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]


@pytest.fixture
def group(tmp_path: Path) -> Iterator[RedisWithSentinels]:
    """Start a primary, its replica, and three sentinels."""
    if RedisServer.binary() is None:
        missing("redis", RedisServer.how_to_have())
    made = RedisWithSentinels(tmp_path).start()
    yield made
    made.close()


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_a_failover(group: RedisWithSentinels, min_replicas: int) -> None:
    """Calls raise `StoreUnavailable` for a while and then go on; the new primary knows what runs and is claimed."""
    sentinel = Sentinel(group.addresses, socket_timeout=0.5, sentinel_kwargs={"socket_timeout": 0.5})
    client = sentinel.master_for("main", socket_timeout=1.0, socket_connect_timeout=0.5, retry=Retry(NoBackoff(), 1))
    store = RedisBackend(client, min_replicas=min_replicas).open()
    assert store.location == "sentinel://main/0"
    assert run_through(store, "before") == [Status.SUCCEEDED]
    running, claimed, later = claims_of(store, ["running", "claimed", "later"])
    won, taken = store.claim([running, claimed]).answers
    [begun] = store.begin([begin_of(running.ref, won.token)]).answers
    assert (taken.kind, begun.kind) == (ClaimKind.WON, BeginKind.OK)
    assert client.execute_command("WAIT", 1, 5_000) == 1

    group.primary.kill()
    beat = Beat(ref=running.ref, token=begun.token, lease_ms=30_000)
    failures, killed = 0, time.monotonic()
    while True:
        try:
            assert store.beat([beat]).answers == [True]
            break
        except StoreUnavailable:
            failures += 1
            assert time.monotonic() - killed < BOUND_S, "no heartbeat after the failover"
    assert failures

    plain = RedisBackend(client).open()  # the new primary has no replica left that min_replicas could count
    [again] = plain.claim([replace(running, claim_id="c2")]).answers
    assert (again.kind, again.status) == (ClaimKind.RUNNING, Status.RUNNING)
    [known] = plain.claim([claimed]).answers
    assert (known.kind, known.token) == (ClaimKind.WON, taken.token)
    assert plain.claim([later]).answers[0].kind is ClaimKind.WON
    assert plain.finish([Finish(ref=running.ref, status=Status.SUCCEEDED, token=begun.token)]).answers == [True]
    assert [run.status for run in plain.history("before", limit=1).answers] == [Status.SUCCEEDED]
    client.close()
