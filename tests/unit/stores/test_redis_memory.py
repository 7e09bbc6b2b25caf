"""Servers whose memory is full, or that may throw keys away then: told beforehand, and nothing half-written."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores.base import ClaimKind, Definition
from anarchon_tasks.stores.redis import RedisBackend
from tests.unit.stores.redis_kit import claims_of, run_through

if TYPE_CHECKING:
    from collections.abc import Callable

    from tests.servers import ProcessOwner, RedisServer

redis = pytest.importorskip("redis")  # the unit tests run beside the wheel, too, without any extra

DEFINITION = Definition(name="sync", fingerprint="f", document="{}")


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Collect what the store says."""
    caplog.set_level(logging.WARNING, "anarchon_tasks")


# --- eviction --------------------------------------------------------------------------------------------------------


def set_policy(server: RedisServer, policy: str, **rights: list[str]) -> None:
    """Set what the server evicts, and what its clients may do from then on."""
    client = redis.Redis(port=server.port)
    client.config_set("maxmemory-policy", policy)
    if rights:
        client.acl_setuser("default", enabled=True, nopass=True, keys=["*"], **rights)
    client.close()


def clients(port: int) -> dict[str, Any]:
    """Return clients that read a reply in different ways."""
    made = {f"protocol {n}": redis.Redis(port=port, protocol=n) for n in (2, 3)}
    return made | {"texts": redis.Redis(port=port, decode_responses=True)}


@pytest.mark.parametrize("rights", [["+@all"], ["+@all", "-config"]], ids=["config", "info"])
def test_a_server_that_may_evict_is_told_of(
    own_redis: RedisServer, rights: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """At its first write a process says once which policy the server has and what to do, however a client reads it."""
    set_policy(own_redis, "allkeys-lfu", commands=rights)
    for kind, client in clients(own_redis.port).items():
        caplog.clear()
        store = RedisBackend(client).open()
        assert store.definitions().now_ms
        assert caplog.messages == [], kind
        assert run_through(store, kind) == run_through(store, f"{kind} again")
        [said] = caplog.messages
        assert f"redis://localhost:{own_redis.port}/0 has maxmemory-policy allkeys-lfu: " in said
        assert "set it to noeviction or a volatile-* policy" in said


def test_glide_is_told_of_eviction(own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """GLIDE's replies are read as well."""
    sync = pytest.importorskip("glide_sync")
    address = sync.NodeAddress("127.0.0.1", own_redis.port)
    client = sync.GlideClient.create(sync.GlideClientConfiguration([address], request_timeout=2_000))
    for rights in (["+@all"], ["-config"]):
        set_policy(own_redis, "allkeys-random", commands=rights)
        RedisBackend(client).open().register([DEFINITION])
    client.close()
    assert ["maxmemory-policy allkeys-random" in message for message in caplog.messages] == [True, True]


@pytest.mark.parametrize("policy", ["noeviction", "volatile-lru", "volatile-ttl"])
def test_servers_that_leave_our_keys_alone(
    own_redis: RedisServer, policy: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Our keys never expire, so the other policies are fine."""
    set_policy(own_redis, policy)
    RedisBackend(own_redis.redis_url).open().register([DEFINITION])
    assert caplog.messages == []


def test_a_server_that_does_not_tell(own_redis: RedisServer, caplog: pytest.LogCaptureFixture) -> None:
    """Where neither question is allowed nothing is said, and the store works."""
    set_policy(own_redis, "allkeys-lru", commands=["+@all", "-config", "-info"])
    assert RedisBackend(own_redis.redis_url).open().register([DEFINITION]).answers[0].changed
    assert caplog.messages == []


def test_children_of_a_fork_say_nothing(own_redis: RedisServer, processes: ProcessOwner) -> None:
    """Of a pool's processes only the parent warns."""
    set_policy(own_redis, "allkeys-lru")
    code = f"""
import os
from anarchon_tasks.stores.redis import RedisBackend
store = RedisBackend({own_redis.redis_url!r}).open()
children = []
for n in range(3):
    child = os.fork()
    if child == 0:
        store.announce("w", {{"q": 0}})
        os._exit(0)
    children.append(child)
assert [os.waitpid(child, 0)[1] for child in children] == [0, 0, 0]
store.announce("w", {{"q": 0}})
"""
    process = processes.python("-c", code)
    assert process.wait(30) == 0, process.output()
    assert process.output().count("maxmemory-policy allkeys-lru") == 1


# --- full memory -----------------------------------------------------------------------------------------------------


def fill(server: Any, use: Callable[[int], object]) -> int:  # noqa: ANN401 - the driver's client
    """Leave the server a megabyte, then use it up; return which use was the first that failed."""
    server.config_set("maxmemory", server.info("memory")["used_memory"] + 1_000_000)
    for number in range(1_000):
        try:
            use(number)
        except StoreUnavailable:
            return number
    raise AssertionError("the memory was never full")


def test_full_memory_leaves_nothing_half_written(own_redis: RedisServer) -> None:
    """Each batch is written as a whole or not at all, and goes on with the same ids when there is room again."""
    server = redis.Redis(port=own_redis.port, decode_responses=True)
    store = RedisBackend(own_redis.redis_url).open()
    batches = [claims_of(store, [f"job-{batch}-{n}" for n in range(25)]) for batch in range(20)]
    failed = fill(server, lambda number: store.claim(batches[number]))
    assert 0 < failed < len(batches)
    for number, batch in enumerate(batches):
        for ask in batch:
            head = f"{{cron:{ask.ref.job}}}:"
            there = [
                server.hexists(f"{head}state", ask.ref.run),
                server.sismember(f"{head}active", ask.ref.run),
                server.zscore(f"{head}slots", ask.ref.run) is not None,
                server.xlen(f"{head}runs") == 1,
                server.zscore("cron:leases", f"{ask.ref.job}:{ask.ref.run}") is not None,
            ]
            assert [bool(found) for found in there] == [number < failed] * 5
    server.config_set("maxmemory", 0)
    for batch in batches:
        assert {answer.kind for answer in store.claim(batch).answers} == {ClaimKind.WON}
