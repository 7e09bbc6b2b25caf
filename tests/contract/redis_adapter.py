"""Redis and Valkey, as the conformance suite needs them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import redis

from anarchon_tasks.stores import from_url

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore


class RedisAdapter:
    """Two prefixes on one server. Its clock runs by itself."""

    def __init__(self, url: str, prefix: str) -> None:
        self.url = url
        self.prefix = prefix
        self.opened: list[LeaseStore] = []

    def _open(self, prefix: str) -> LeaseStore:
        self.opened.append(from_url(self.url, prefix=prefix))
        return self.opened[-1]

    def store(self) -> LeaseStore:
        """Open another connection."""
        return self._open(self.prefix)

    def elsewhere(self) -> LeaseStore:
        """Open a connection with another prefix, which is the head of no other."""
        return self._open(f"other-{self.prefix}")

    def alike(self) -> list[LeaseStore]:
        """Open prefixes that continue each other as keys do, and one that is a pattern."""
        return [self._open(f"{self.prefix}{more}") for more in ("", "b:", "b:c:", "jobs:", "leases:", "x_state:", "*:")]

    def advance(self, ms: int) -> bool:
        """Leave the waiting to the suite."""
        del ms
        return False

    def write_format(self, number: int) -> None:
        """Change the key of the format."""
        with redis.Redis.from_url(self.url.replace("valkey", "redis", 1), protocol=2) as client:
            client.set(f"{self.prefix}format", number)

    def close(self) -> None:
        """Close all connections."""
        for store in self.opened:
            store.close()
