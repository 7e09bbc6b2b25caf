"""The PostgreSQL store passes the conformance suite, on a real server."""

from __future__ import annotations

import pytest

from anarchon_tasks.testing import LeaseStoreSuite

pytest.importorskip("psycopg")

from typing import TYPE_CHECKING

from tests.contract.postgres_adapter import PostgresAdapter

if TYPE_CHECKING:
    from collections.abc import Iterator


class TestPostgres(LeaseStoreSuite):
    """Two tables per test, in a database that tests share, and an injected clock."""

    @pytest.fixture
    def adapter(self, postgres_url: str) -> Iterator[PostgresAdapter]:
        """Make an empty namespace for each test."""
        adapter = PostgresAdapter(postgres_url)
        yield adapter
        adapter.close()
