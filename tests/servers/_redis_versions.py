"""Other versions of Redis and Valkey than the machine's, fetched once into `.servers/`."""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path
from typing import ClassVar

from tests.servers._redis import RedisServer

ROOT = Path(__file__).parents[2]
FETCH_TIMEOUT_S = 300.0


@functools.cache
def _fetched(program: Path, script: str, *arguments: str) -> Path | None:
    """Return a server's program, which the script puts where it is missing; None if it cannot."""
    if not program.exists():
        command: list[str | Path] = [ROOT / "scripts" / script, *arguments, program.parent]
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

    @classmethod
    def binary(cls) -> Path | None:
        """Return where the server's program is, or None."""
        return _fetched(ROOT / ".servers" / "redis86" / "redis-server", "get-redis86")

    @classmethod
    def how_to_have(cls) -> str:
        """Say what to do when the program is missing."""
        return "scripts/get-redis86 .servers/redis86 gets it on Debian, or says why not"


class OldServer(RedisServer):
    """One of the servers that `scripts/get-old-server` knows by this name."""

    @classmethod
    def binary(cls) -> Path | None:
        """Return where the server's program is, or None."""
        program = f"{cls.name.partition('-')[0]}-server"
        return _fetched(ROOT / ".servers" / cls.name / program, "get-old-server", cls.name)

    @classmethod
    def how_to_have(cls) -> str:
        """Say what to do when the program is missing."""
        return f"scripts/get-old-server {cls.name} .servers/{cls.name} gets it, or says why not"


class Redis5Server(OldServer):
    """The oldest Redis that the store works with."""

    name = "redis-5.0"


class Redis62Server(OldServer):
    """The last version of Redis 6."""

    name = "redis-6.2"


class Valkey8Server(OldServer):
    """The last version of Valkey 8."""

    name = "valkey-8.1"
    scheme: ClassVar[str] = "valkey"
