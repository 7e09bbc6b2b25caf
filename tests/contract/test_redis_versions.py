"""The Redis store passes the conformance suite on the newest and on the oldest servers that it works with."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import redis

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores.redis import RedisBackend
from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.redis_adapter import RedisAdapter
from tests.servers import (
    Redis5Server,
    Redis62Server,
    Redis86Server,
    RedisServer,
    Valkey8Server,
    ValkeyServer,
    missing,
)
from tests.unit.stores.redis_kit import begin_of, claims_of

if TYPE_CHECKING:
    from collections.abc import Iterator


def _served(kind: type[RedisServer], directory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    if kind.binary() is None:
        missing(kind.name, kind.how_to_have())
    with kind(directory.mktemp(kind.name)) as server:
        yield server


def _adapted(server: RedisServer) -> Iterator[RedisAdapter]:
    adapter = RedisAdapter(server.url, f"t{uuid.uuid4().hex[:16]}:")
    yield adapter
    adapter.close()


@pytest.fixture(scope="module")
def newest(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start a Redis of at least 8.6."""
    yield from _served(Redis86Server, tmp_path_factory)


@pytest.fixture(scope="module")
def redis62(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start a Redis 6.2."""
    yield from _served(Redis62Server, tmp_path_factory)


@pytest.fixture(scope="module")
def valkey8(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start a Valkey 8.1."""
    yield from _served(Valkey8Server, tmp_path_factory)


@pytest.fixture(scope="module")
def redis5(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start a Redis 5; the first time it is built."""
    yield from _served(Redis5Server, tmp_path_factory)


class TestRedis86(LeaseStoreSuite):
    """The newest."""

    @pytest.fixture
    def adapter(self, newest: RedisServer) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        yield from _adapted(newest)


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestRedis62(LeaseStoreSuite):
    """Version 6."""

    @pytest.fixture
    def adapter(self, redis62: RedisServer) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        yield from _adapted(redis62)


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestValkey8(LeaseStoreSuite):
    """Version 8 of Valkey."""

    @pytest.fixture
    def adapter(self, valkey8: RedisServer) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        yield from _adapted(valkey8)


@pytest.mark.slow
@pytest.mark.timeout(400)
class TestRedis5(LeaseStoreSuite):
    """Version 5, which knows neither HELLO nor ACL users."""

    @pytest.fixture
    def adapter(self, redis5: RedisServer) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        yield from _adapted(redis5)


_CANNOT_WRITE = {
    "OOM|used memory": (("CONFIG", "SET", "maxmemory", "1"), ("CONFIG", "SET", "maxmemory", "0")),
    "READONLY|read only": (("REPLICAOF", "127.0.0.1", "1"), ("REPLICAOF", "NO", "ONE")),
    "NOREPLICAS": (("CONFIG", "SET", "min-slaves-to-write", "1"), ("CONFIG", "SET", "min-slaves-to-write", "0")),
}
"""What a server says, and the commands that bring it to that and back."""


@pytest.fixture
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """Start a server of the kind that the test is about."""
    yield from _served(request.param, tmp_path_factory)


@pytest.mark.parametrize(
    "server",
    [
        RedisServer,
        ValkeyServer,
        Redis86Server,
        pytest.param(Redis5Server, marks=pytest.mark.slow),
        pytest.param(Redis62Server, marks=pytest.mark.slow),
        pytest.param(Valkey8Server, marks=pytest.mark.slow),
    ],
    indirect=True,
)
@pytest.mark.parametrize("said", _CANNOT_WRITE)
def test_a_server_that_cannot_write_is_away(server: RedisServer, said: str) -> None:
    """Full memory, a demoted primary and missing replicas are outages, in whichever words a version tells them."""
    if said == "NOREPLICAS" and isinstance(server, Redis5Server):
        pytest.skip("a Redis 5 lets scripts write without its replicas")
    spoil, mend = _CANNOT_WRITE[said]
    store = RedisBackend(server.redis_url).open()
    asks = claims_of(store, ["sync"])
    [won] = store.claim(asks).answers
    with redis.Redis.from_url(server.redis_url, protocol=2) as client:
        client.execute_command(*spoil)
        with pytest.raises(StoreUnavailable, match=said):
            store.claim(asks)
        with pytest.raises(StoreUnavailable, match=said):
            store.begin([begin_of(asks[0].ref, won.token)])
        client.execute_command(*mend)
    assert store.claim(asks).now_ms
    store.close()
