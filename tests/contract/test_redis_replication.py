"""What the scripts change arrives at replicas, also where the server would rather send them the scripts."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import redis

from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import ClaimKind
from anarchon_tasks.stores.redis import RedisBackend
from tests.servers import Redis5Server, Redis62Server, Redis86Server, RedisServer, ValkeyServer, missing, poll_until
from tests.unit.stores.redis_kit import claims_of, run_through

if TYPE_CHECKING:
    from pathlib import Path

# Redis 5 and 6 send scripts to their replicas unless they are told otherwise, or the script says so itself.
BY_SCRIPT = ("--lua-replicate-commands", "no")
OLD = pytest.mark.slow
KINDS = [
    pytest.param(RedisServer, (), id="redis"),
    pytest.param(Redis86Server, (), id="redis-8.6"),
    pytest.param(ValkeyServer, (), id="valkey"),
    pytest.param(Redis62Server, BY_SCRIPT, id="redis-6.2-by-script", marks=OLD),
    pytest.param(Redis5Server, BY_SCRIPT, id="redis-5-by-script", marks=OLD),
]


def everything(client: redis.Redis) -> dict[bytes, object]:
    """Return all keys with their values."""
    read = {
        b"string": client.get,
        b"hash": client.hgetall,
        b"set": client.smembers,
        b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
        b"stream": client.xrange,
    }
    return {key: read[client.type(key)](key) for key in client.scan_iter(count=1_000)}


@pytest.mark.timeout(400)
@pytest.mark.parametrize(("kind", "options"), KINDS)
def test_a_replica_has_the_same(kind: type[RedisServer], options: tuple[str, ...], tmp_path: Path) -> None:
    """After runs of every kind a replica holds what its primary holds, to the byte, and can take over."""
    if kind.binary() is None:
        missing(kind.name, kind.how_to_have())
    with kind(tmp_path / "primary", options=["--repl-diskless-sync-delay", "0", *options]) as primary:
        follow = ["--replicaof", "127.0.0.1", str(primary.port)]
        with (
            kind(tmp_path / "replica", options=[*follow, *options]) as replica,
            redis.Redis(port=primary.port, protocol=2) as first,
            redis.Redis(port=replica.port, protocol=2) as second,
        ):
            poll_until(lambda: first.set("beacon", 1) and first.execute_command("WAIT", 1, 100) == 1, what="the link")
            store = RedisBackend(primary.redis_url).open()
            for name in ("sync", 'κλειδί "{}"\n'):
                assert run_through(store, name) == [Status.SUCCEEDED]
            asks = claims_of(store, ["open-1", "open-2"])
            assert {answer.kind for answer in store.claim(asks).answers} == {ClaimKind.WON}
            store.announce("w1", {"celery": 0})
            store.forget(["sync"])
            first.set("beacon", 2)
            poll_until(lambda: second.get("beacon") == b"2", what="the last write")
            assert everything(second) == everything(first)
            assert first.info("replication")["slave0"]["state"] == "online"
            store.close()
            primary.kill()
            second.replicaof("NO", "ONE")
            after = RedisBackend(replica.redis_url).open()
            assert {answer.kind for answer in after.claim(asks).answers} == {ClaimKind.WON}
            after.close()
