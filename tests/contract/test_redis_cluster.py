"""The Redis store passes the conformance suite on real clusters, with jobs on all of their nodes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.cluster_adapter import ClusterAdapter

if TYPE_CHECKING:
    import redis
    from valkey.cluster import ValkeyCluster


class TestRedisCluster(LeaseStoreSuite):
    """One prefix per test."""

    @pytest.fixture
    def adapter(self, cluster_client: redis.RedisCluster) -> ClusterAdapter:
        """Make an empty namespace for each test."""
        return ClusterAdapter(cluster_client)


class TestValkeyCluster(LeaseStoreSuite):
    """The same with the other servers and their own client."""

    @pytest.fixture
    def adapter(self, valkey_cluster_client: ValkeyCluster) -> ClusterAdapter:
        """Make an empty namespace for each test."""
        return ClusterAdapter(valkey_cluster_client, valkey=True)
