"""The connections of an SQLite store in one process, and what becomes of them over a fork and at their end."""

from __future__ import annotations

import os
import sqlite3
import threading
import weakref
from contextlib import suppress
from typing import TYPE_CHECKING

from anarchon_tasks.stores._sqlite_forks import GATE, Connection, identity

if TYPE_CHECKING:
    from pathlib import Path

_IDLE = 8


class Pool:
    """The connections of one process. Each has one user at a time; the last one given back is taken first.

    Connections are taken, given back and closed by those that `GATE` let in. When the pool is forgotten or the program
    ends, the idle connections are closed; but never in a process that was forked from the one that opened them.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._closed = False
        weakref.finalize(self, _forgotten, self.pid, self._idle)
        GATE.know(self)

    @property
    def is_ours(self) -> bool:
        """Whether the connections were opened by this process, and not by one that it was forked from."""
        return self.pid == os.getpid()

    def take(self, path: Path) -> Connection | None:
        """Return an idle connection to the file that is now at the path; close those to one that was there before."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
                connection.user = threading.get_ident()
            if connection.identity == identity(path):
                return connection
            connection.close()

    def give_back(self, connection: Connection, *, usable: bool) -> None:
        """End the use of a connection. One of the parent is left alone."""
        if not self.is_ours:
            return
        with self._lock:
            if usable and not self._closed and not GATE.shut and len(self._idle) < _IDLE:
                connection.user = None
                self._idle.append(connection)
                return
        connection.close()

    def close(self) -> None:
        """Close the idle connections now, and the others after their use."""
        with self._lock:
            self._closed = True
        self.close_idle()

    def close_idle(self) -> None:
        """Close the connections that nobody uses now."""
        with self._lock:
            idle = self._idle[:]
            self._idle.clear()
        for connection in idle:
            with suppress(sqlite3.Error):
                connection.close()


def _forgotten(pid: int, idle: list[Connection]) -> None:
    """Close what nobody can close any more, unless it belongs to the parent of this process."""
    GATE.notice_a_fork()
    if pid == os.getpid():
        while idle:
            idle.pop().close()
