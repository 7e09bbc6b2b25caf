"""The memory store passes the conformance suite."""

from __future__ import annotations

import pytest

from anarchon_tasks.stores.memory import MemoryStore
from anarchon_tasks.testing import LeaseStoreSuite, ManualClock


class MemoryAdapter:
    """Every client of a memory store is the same object."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self.only = MemoryStore(clock=self.clock)

    def store(self) -> MemoryStore:
        """Return the store."""
        return self.only

    def elsewhere(self) -> MemoryStore:
        """Return another store."""
        return MemoryStore(namespace="other:", clock=self.clock)

    def advance(self, ms: int) -> bool:
        """Move the clock."""
        self.clock.advance(ms / 1_000)
        return True


class TestMemory(LeaseStoreSuite):
    """The reference."""

    @pytest.fixture
    def adapter(self) -> MemoryAdapter:
        """Make an empty store for each test."""
        return MemoryAdapter()
