"""A primary, its replica, and three sentinels that make the replica the primary when that one is gone."""

from __future__ import annotations

import socket
from typing import TYPE_CHECKING, Self

from tests.servers._ports import HOST
from tests.servers._redis import RedisServer
from tests.servers._waiting import poll_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

NAME = "main"
DOWN_AFTER_MS = 1_000
READY_TIMEOUT_S = 40.0


class SentinelServer(RedisServer):
    """One sentinel.

    Args:
        directory: Holds its file, which it rewrites itself.
        watched: The port of the primary.
    """

    name = "sentinel"

    def __init__(self, directory: Path, *, watched: int) -> None:
        super().__init__(directory)
        self.watched = watched

    def command(self) -> list[str | Path]:
        """Write its file and return the command that runs it in the foreground."""
        lines = [
            f"port {self.port}",
            f"bind {HOST}",
            f"dir {self.directory}",
            f"sentinel monitor {NAME} {HOST} {self.watched} 2",
            f"sentinel down-after-milliseconds {NAME} {DOWN_AFTER_MS}",
            f"sentinel failover-timeout {NAME} 5000",
        ]
        file = self.directory / "sentinel.conf"
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return [super().command()[0], file, "--sentinel"]

    def sees_all(self) -> bool:
        """Say whether it knows of both other sentinels and of a replica that is in step."""
        with socket.create_connection((HOST, self.port), timeout=1.0) as connection:
            connection.sendall(f"SENTINEL MASTER {NAME}\r\n".encode())
            words = connection.recv(65_536).decode().split("\r\n")
        known = dict(zip(words[2::4], words[4::4], strict=False))
        return (known.get("num-other-sentinels"), known.get("num-slaves")) == ("2", "1")


class RedisWithSentinels:
    """A primary, its replica, and three sentinels.

    Args:
        directory: Holds a directory for each of the five.
    """

    def __init__(self, directory: Path) -> None:
        soon: Sequence[str] = ["--repl-diskless-sync-delay", "0"]
        self.primary = RedisServer(directory / "primary", options=soon)
        follow = ["--replicaof", HOST, str(self.primary.port)]
        self.replica = RedisServer(directory / "replica", options=[*soon, *follow])
        self.sentinels = [
            SentinelServer(directory / f"sentinel-{number}", watched=self.primary.port) for number in range(3)
        ]

    @property
    def addresses(self) -> list[tuple[str, int]]:
        """Where the sentinels are."""
        return [(HOST, sentinel.port) for sentinel in self.sentinels]

    def start(self) -> Self:
        """Start all five, and return once the sentinels know each other and the replica."""
        try:
            for server in (self.primary, self.replica, *self.sentinels):
                server.start()
            poll_until(
                lambda: all(sentinel.sees_all() for sentinel in self.sentinels),
                READY_TIMEOUT_S,
                what="sentinels that know each other",
            )
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """End all five."""
        for server in (*self.sentinels, self.replica, self.primary):
            server.kill()
