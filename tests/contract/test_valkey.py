"""The Valkey store passes the conformance suite, on a real server and its own clock."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.redis_adapter import RedisAdapter
from tests.servers import ValkeyServer, missing

if TYPE_CHECKING:
    from collections.abc import Iterator


@pytest.fixture(scope="module")
def valkey_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyServer]:
    """Start a server for this module."""
    if ValkeyServer.binary() is None:
        missing("valkey", ValkeyServer.how_to_have())
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server


class TestValkey(LeaseStoreSuite):
    """One prefix per test."""

    @pytest.fixture
    def adapter(self, valkey_server: ValkeyServer) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        adapter = RedisAdapter(valkey_server.url, f"t{uuid.uuid4().hex[:16]}:")
        yield adapter
        adapter.close()
