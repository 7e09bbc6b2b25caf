"""Ports of this machine."""

from __future__ import annotations

import socket

HOST = "127.0.0.1"

_given: set[int] = set()


def free_port() -> int:
    """Return a port that nothing listens on and that this process has not given away before."""
    while True:
        with socket.socket() as probe:
            probe.bind((HOST, 0))
            port: int = probe.getsockname()[1]
        if port not in _given:
            _given.add(port)
            return port


def accepts_connections(port: int, host: str = HOST, *, timeout: float = 0.5) -> bool:
    """Say whether something accepts a TCP connection at the port."""
    try:
        with socket.create_connection((host, port), timeout=timeout):
            return True
    except OSError:
        return False
