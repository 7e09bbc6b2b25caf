"""Other versions of Redis than the machine's, fetched once into `.servers/`."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path

from tests.servers._redis import RedisServer

ROOT = Path(__file__).parents[2]
FETCH_TIMEOUT_S = 300.0


@functools.cache
def _fetched(folder: str, script: str, *arguments: str) -> Path | None:
    """Return the server in a folder of `.servers/`, where the script puts it unless it is there; None if it cannot."""
    there = ROOT / ".servers" / folder
    program = there / "redis-server"
    if not program.exists():
        command: list[str | Path] = [ROOT / "scripts" / script, *arguments, there]
        try:
            done = subprocess.run(command, capture_output=True, timeout=FETCH_TIMEOUT_S, check=False)
        except (OSError, subprocess.TimeoutExpired):
            return None
        if done.returncode:
            return None
    return program


class Redis86Server(RedisServer):
    """A Redis of at least 8.6."""

    name = "redis-8.6"

    @staticmethod
    def binary() -> Path | None:
        """Return where the server's program is, or None."""
        return _fetched("redis86", "get-redis86")

    @staticmethod
    def how_to_have() -> str:
        """Say what to do when the program is missing."""
        return "scripts/get-redis86 .servers/redis86 gets it on Debian, or says why not"


class Redis62Server(RedisServer):
    """The last version of Redis 6."""

    name = "redis-6.2"

    @staticmethod
    def binary() -> Path | None:
        """Return where the server's program is, or None."""
        return _fetched("redis-6.2", "get-old-redis", "6.2")

    @staticmethod
    def how_to_have() -> str:
        """Say what to do when the program is missing."""
        return "scripts/get-old-redis 6.2 .servers/redis-6.2 gets it for Linux on x86_64, or says why not"


class Redis5Server(RedisServer):
    """The oldest Redis that the store works with."""

    name = "redis-5.0"

    @staticmethod
    def binary() -> Path | None:
        """Return where the server's program is, or None."""
        return _fetched("redis-5.0", "get-old-redis", "5.0")

    @staticmethod
    def how_to_have() -> str:
        """Say what to do when the program is missing."""
        return "scripts/get-old-redis 5.0 .servers/redis-5.0 builds it, or says why not"
