"""The Redis store passes the conformance suite, on a real server and its own clock."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.redis_adapter import RedisAdapter

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestRedis(LeaseStoreSuite):
    """One prefix per test on a server that tests share."""

    @pytest.fixture
    def adapter(self, redis_url: str, redis_prefix: str) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        adapter = RedisAdapter(redis_url, redis_prefix)
        yield adapter
        adapter.close()
