"""The Redis store passes the conformance suite on a real cluster, with jobs on all of its nodes."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest
import redis

from anarchon_tasks.stores._redis_cluster import RedisClusterStore
from anarchon_tasks.testing import LeaseStoreSuite
from tests.servers._redis_cluster import RedisCluster

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.stores.base import LeaseStore


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Start three primaries for this module."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def client(cluster: RedisCluster) -> Iterator[redis.RedisCluster]:
    """Open the client that a user would hand in."""
    with redis.RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=5) as client:
        yield client


class ClusterAdapter:
    """Two prefixes on one cluster. Its clocks run by themselves."""

    def __init__(self, client: object) -> None:
        self.client = client
        self.prefix = f"t{uuid.uuid4().hex[:16]}:"

    def store(self) -> LeaseStore:
        """Open another store."""
        return RedisClusterStore(self.client, prefix=self.prefix)

    def elsewhere(self) -> LeaseStore:
        """Open a store with another prefix, which is the head of no other."""
        return RedisClusterStore(self.client, prefix=f"other-{self.prefix}")

    def advance(self, ms: int) -> bool:
        """Leave the waiting to the suite."""
        del ms
        return False


class TestRedisCluster(LeaseStoreSuite):
    """One prefix per test."""

    @pytest.fixture
    def adapter(self, client: redis.RedisCluster) -> ClusterAdapter:
        """Make an empty namespace for each test."""
        return ClusterAdapter(client)
