"""A cluster of Redis or Valkey, as the conformance suite needs it."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING, Any

from anarchon_tasks.stores.redis import RedisBackend, ValkeyBackend

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore


SHARED = ("format", "jobs", "leases", "queues")
"""The keys behind the prefix that jobs share."""


class ClusterAdapter:
    """Two prefixes on one cluster. Its clocks run by themselves."""

    def __init__(self, client: Any, *, valkey: bool = False) -> None:  # noqa: ANN401 - the drivers' own types
        self.client = client
        self.backend = ValkeyBackend if valkey else RedisBackend
        self.prefix = f"t{uuid.uuid4().hex[:16]}:"
        self.opened: list[Any] = []

    def store(self) -> LeaseStore:
        """Open another store."""
        store = self.backend(self.client, prefix=self.prefix).open()
        self.opened.append(store)
        return store

    def elsewhere(self) -> LeaseStore:
        """Open a store with another prefix, which is the head of no other."""
        return self.backend(self.client, prefix=f"other-{self.prefix}").open()

    def alike(self) -> list[LeaseStore]:
        """Open prefixes that continue each other as keys do."""
        ways = ("", "b:", "b:c:", "jobs:", "leases:")
        return [self.backend(self.client, prefix=f"{self.prefix}{more}").open() for more in ways]

    def advance(self, ms: int) -> bool:
        """Leave the waiting to the suite."""
        del ms
        return False

    def write_format(self, number: int) -> None:
        """Change the key of the format, which clients of a cluster look at every ten seconds."""
        self.client.set(f"{self.prefix}format", number)
        for store in self.opened:
            store._operations._readable_until = store._operations._writable_until = 0.0
