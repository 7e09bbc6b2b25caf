"""The Redis store passes the conformance suite on the newest and on the oldest servers that it works with."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.redis_adapter import RedisAdapter
from tests.servers import Redis5Server, Redis62Server, Redis86Server, RedisServer, Valkey8Server, missing

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
