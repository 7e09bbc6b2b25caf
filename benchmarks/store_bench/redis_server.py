"""Redis and Valkey: the limit is `SET NX PX`, pipelined by the same driver."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

import redis

from anarchon_tasks.stores import from_url
from store_bench.servers import batches

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import LeaseStore

_CLAIM_ID = "claim-id-of-32-characters-000000"
_UNLINK = 500


class SetNx:
    """`SET key claim-id NX PX 60000` for fresh keys."""

    def __init__(self, client: redis.Redis, head: str) -> None:
        self._client = client
        self._head = head

    def prepare(self, count: int, size: int) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return the keys, and a pipeline."""
        keys = [f"{self._head}{number}" for number in range(count)]
        return batches(keys, size), self._call

    def _call(self, keys: Sequence[str]) -> None:
        pipe = self._client.pipeline(transaction=False)
        for key in keys:
            pipe.set(key, _CLAIM_ID, nx=True, px=60_000)
        if not all(pipe.execute()):
            raise AssertionError("a fresh key was there already")

    def close(self) -> None:
        """Close the connection."""
        self._client.close()


class RedisServer:
    """One server; a place on it is a prefix."""

    limit = "SET NX PX, pipelined"
    more_limits: ClassVar[tuple[str, ...]] = ()

    def __init__(self, url: str) -> None:
        self._url = url
        self._client = self._open()

    def _open(self) -> redis.Redis:
        # The same driver for the limit and the store: the package valkey differs in speed.
        return redis.Redis.from_url(self._url.replace("valkey", "redis", 1), protocol=2)

    def describe(self) -> str:
        """Name the server and the driver."""
        info = self._client.info("server")
        name, version = (
            ("Valkey", info["valkey_version"]) if "valkey_version" in info else ("Redis", info["redis_version"])
        )
        return f"{name} {version}, redis-py {redis.__version__}{' with hiredis' if _hiredis() else ''}"

    def make_room(self, name: str) -> None:
        """Do nothing: a prefix is there by itself."""

    def store(self, name: str) -> LeaseStore:
        """Open the store under the prefix."""
        return from_url(self._url, prefix=f"{name}:")

    def limits(self, name: str, head: str) -> dict[str, SetNx]:
        """Open the limit."""
        return {self.limit: SetNx(self._open(), f"{name}:set:{head}")}

    def cpu_us(self) -> float:
        """Ask the server."""
        used = self._client.info("cpu")
        return 1e6 * float(used["used_cpu_user"] + used["used_cpu_sys"])

    def calls(self) -> tuple[int, int]:
        """Return how many scripts were called, and how long they held the server."""
        found = self._client.info("commandstats").get("cmdstat_evalsha", {"calls": 0, "usec": 0})
        return int(found["calls"]), int(found["usec"])

    def remove(self, name: str) -> None:
        """Delete every key of the benchmark."""
        for keys in batches(list(self._client.scan_iter(match=f"*{name}:*", count=1_000)), _UNLINK):
            self._client.unlink(*keys)


def _hiredis() -> bool:
    try:
        import hiredis  # noqa: F401, PLC0415 - only whether it is there
    except ModuleNotFoundError:
        return False
    return True


server = RedisServer
