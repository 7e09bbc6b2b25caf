"""What each kind of server has in common for the benchmark, and which one a URL means."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import LeaseStore

_MODULES = {
    "redis": "redis_server",
    "rediss": "redis_server",
    "valkey": "redis_server",
    "valkeys": "redis_server",
    "unix": "redis_server",
    "postgres": "postgres_server",
    "postgresql": "postgres_server",
    "sqlite": "sqlite_server",
}


class Limit(Protocol):
    """One client's way to do the least that lets one caller win, and no more."""

    def prepare(self, count: int, size: int) -> tuple[Sequence[Any], Callable[[Any], Any]]:
        """Return so many batches of this size, and what to call with each of them."""
        ...

    def close(self) -> None:
        """Close the connection."""
        ...


class Server(Protocol):
    """A server, and a place on it that is the benchmark's own."""

    limit: str
    """What the limit is."""
    more_limits: tuple[str, ...]
    """Others that are measured beside it."""

    def describe(self) -> str:
        """Say which server and driver these are, with their versions."""
        ...

    def make_room(self, name: str) -> None:
        """Make the place."""
        ...

    def store(self, name: str) -> LeaseStore:
        """Open the store in this place."""
        ...

    def limits(self, name: str, head: str) -> dict[str, Limit]:
        """Open the limits by name, the bare limit first; `head` is a part of names that no other client has."""
        ...

    def cpu_us(self) -> float | None:
        """Return the CPU time that the server has used, in microseconds; None where that cannot be told."""
        ...

    def calls(self) -> tuple[int, int] | None:
        """Return how many calls of a store the server has executed, and for how many microseconds."""
        ...

    def remove(self, name: str) -> None:
        """Remove the place and everything in it."""
        ...


def server_of(url: str) -> Server:
    """Return the server that a URL names."""
    scheme = url.partition(":")[0].lower()
    if scheme not in _MODULES:
        raise SystemExit(f"{scheme}:// cannot be measured; the schemes are: {', '.join(sorted(_MODULES))}")
    made: Server = import_module(f"store_bench.{_MODULES[scheme]}").server(url)
    return made


def batches(items: Sequence[Any], size: int) -> list[Sequence[Any]]:
    """Cut into batches."""
    return [items[first : first + size] for first in range(0, len(items), size)]
