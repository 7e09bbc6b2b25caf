"""A TCP proxy that can be a bad network."""

from __future__ import annotations

import contextlib
import socket
import struct
import threading
from typing import TYPE_CHECKING, Self

from tests.servers._ports import HOST

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

CHUNK = 65536


class TcpProxy:
    """Forwards connections to a server and breaks them on request.

    Args:
        target_port: The server's port.
        target_host: The server's host.
    """

    def __init__(self, target_port: int, target_host: str = HOST) -> None:
        self._target = (target_host, target_port)
        self._lock = threading.Lock()
        self._links: set[_Link] = set()
        self._threads: list[threading.Thread] = []
        self._closed = threading.Event()
        self._flowing = threading.Event()
        self._flowing.set()
        self._refusing = False
        self._delay_s = 0.0
        self._to_lose = 0
        self._match = b""
        self.connections = 0
        self.lost_replies = 0
        self._listener = socket.create_server((HOST, 0))
        self.port: int = self._listener.getsockname()[1]
        self._spawn(self._accept)

    # What a test may do to the network.

    def restore(self) -> None:
        """Be a good network again: no delay, nothing refused, held traffic flows on."""
        with self._lock:
            self._refusing = False
            self._delay_s = 0.0
            self._to_lose = 0
        self._flowing.set()

    def drop(self) -> None:
        """Reset every connection; new ones are still welcome."""
        with self._lock:
            links = list(self._links)
        for link in links:
            link.reset()

    def refuse(self) -> None:
        """Reset every connection, and each new one as soon as it is made, until `restore`."""
        with self._lock:
            self._refusing = True
        self.drop()

    def delay(self, seconds: float) -> None:
        """Hold back each piece of traffic, in both directions, for this long."""
        with self._lock:
            self._delay_s = seconds

    def move(self, target_port: int) -> None:
        """Lead new connections to another server; those that are open stay where they are."""
        with self._lock:
            self._target = (self._target[0], target_port)

    def half_open(self) -> None:
        """Keep all connections open, accept new ones, and carry nothing until `restore`."""
        self._flowing.clear()

    def lose_replies(self, count: int = 1, *, match: bytes = b"") -> None:
        """Reset the connection of the next requests after the server has done them and before the reply gets through.

        Args:
            count: How many requests; `lost_replies` counts those it happened to.
            match: Only requests that contain these bytes.
        """
        with self._lock:
            self._to_lose = count
            self._match = match

    def close(self) -> None:
        """End everything. Fine more than once."""
        self._closed.set()
        self._flowing.set()
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)  # wakes accept()
        self._listener.close()
        self.drop()
        for thread in list(self._threads):
            thread.join(timeout=5)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.close()

    # The machinery.

    def _spawn(self, work: Callable[..., None], *args: object) -> None:
        thread = threading.Thread(target=work, args=args, name=f"proxy-{self.port}", daemon=True)
        self._threads.append(thread)
        thread.start()

    def _accept(self) -> None:
        while not self._closed.is_set():
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            with self._lock:
                self.connections += 1
                refusing, target = self._refusing, self._target
            if refusing:
                _reset(client)
                continue
            try:
                server = socket.create_connection(target, timeout=5)
            except OSError:
                _reset(client)
                continue
            server.settimeout(None)
            link = _Link(client, server)
            with self._lock:
                self._links.add(link)
            self._spawn(self._carry_requests, link)
            self._spawn(self._carry_replies, link)

    def _carry_requests(self, link: _Link) -> None:
        before = b""
        while data := self._receive(link, link.client):
            seen = before + data
            if self._takes(seen):
                link.doomed = True
                before = b""
            else:
                before = seen[-(len(self._match) - 1) :] if len(self._match) > 1 else b""
            if not link.send(link.server, data):
                break
        self._end(link, link.server)

    def _carry_replies(self, link: _Link) -> None:
        while data := self._receive(link, link.server):
            if link.doomed:
                with self._lock:
                    self.lost_replies += 1
                link.reset()
                break
            if not link.send(link.client, data):
                break
        self._end(link, link.client)

    def _takes(self, request: bytes) -> bool:
        with self._lock:
            if self._to_lose and self._match in request:
                self._to_lose -= 1
                return True
            return False

    def _receive(self, link: _Link, source: socket.socket) -> bytes:
        try:
            data = source.recv(CHUNK)
        except OSError:
            return b""
        with self._lock:
            delay_s = self._delay_s
        if delay_s:
            link.ended.wait(delay_s)
        self._flowing.wait()
        return b"" if link.ended.is_set() else data

    def _end(self, link: _Link, other: socket.socket) -> None:
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)
        if link.half_done():
            link.close()
            with self._lock:
                self._links.discard(link)


class _Link:
    """A client's connection and its twin to the server."""

    def __init__(self, client: socket.socket, server: socket.socket) -> None:
        self.client = client
        self.server = server
        self.doomed = False
        self.ended = threading.Event()
        self._lock = threading.Lock()
        self._done = 0

    def send(self, sink: socket.socket, data: bytes) -> bool:
        try:
            sink.sendall(data)
        except OSError:
            return False
        return True

    def half_done(self) -> bool:
        """Count one direction as ended; True for the second."""
        with self._lock:
            self._done += 1
            return self._done == 2

    def reset(self) -> None:
        """Send a reset to the client, and let go of the server."""
        self.ended.set()
        _reset(self.client)
        with contextlib.suppress(OSError):
            self.server.shutdown(socket.SHUT_RDWR)

    def close(self) -> None:
        self.ended.set()
        self.client.close()
        self.server.close()


def _reset(connection: socket.socket) -> None:
    """Close with a reset instead of an orderly end."""
    with contextlib.suppress(OSError):
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        connection.shutdown(socket.SHUT_RD)  # wakes the thread that reads it, and tells the other side nothing
    connection.close()
