"""The store passes the conformance suite with clients that it did not open itself."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest
import redis

from anarchon_tasks.stores.redis import RedisBackend
from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.cluster_adapter import ClusterAdapter
from tests.contract.redis_adapter import RedisAdapter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.stores.base import LeaseStore
    from tests.servers import RedisCluster

pytestmark = pytest.mark.slow


class ClientAdapter(RedisAdapter):
    """As `RedisAdapter`, through one client for all stores."""

    def __init__(self, client: Any, url: str, prefix: str) -> None:  # noqa: ANN401 - the drivers' own types
        super().__init__(url, prefix)
        self.client = client

    def _open(self, prefix: str) -> LeaseStore:
        self.opened.append(RedisBackend(self.client, prefix=prefix).open())
        return self.opened[-1]

    def close(self) -> None:
        """Close the client as well."""
        super().close()
        self.client.close()


class TestTextsOfProtocol3(LeaseStoreSuite):
    """A client of redis-py with the newer protocol, and texts in its replies."""

    @pytest.fixture
    def adapter(self, redis_url: str, redis_prefix: str) -> Iterator[ClientAdapter]:
        """Make an empty namespace for each test."""
        client = redis.Redis.from_url(redis_url, decode_responses=True, protocol=3)
        adapter = ClientAdapter(client, redis_url, redis_prefix)
        yield adapter
        adapter.close()


class TestGlide(LeaseStoreSuite):
    """GLIDE's synchronous client."""

    @pytest.fixture
    def adapter(self, redis_url: str, redis_prefix: str) -> Iterator[ClientAdapter]:
        """Make an empty namespace for each test."""
        glide = pytest.importorskip("glide_sync")
        port = redis.Redis.from_url(redis_url).connection_pool.connection_kwargs["port"]
        address = glide.NodeAddress("127.0.0.1", port)
        client = glide.GlideClient.create(glide.GlideClientConfiguration([address], request_timeout=5_000))
        adapter = ClientAdapter(client, redis_url, redis_prefix)
        yield adapter
        adapter.close()


class TestTextsOfACluster(LeaseStoreSuite):
    """The client of a cluster, with texts in its replies."""

    @pytest.fixture
    def adapter(self, redis_cluster: RedisCluster) -> Iterator[ClusterAdapter]:
        """Make an empty namespace for each test."""
        port = redis_cluster.port
        with redis.RedisCluster(host="127.0.0.1", port=port, socket_timeout=5, decode_responses=True) as client:
            yield ClusterAdapter(client)
