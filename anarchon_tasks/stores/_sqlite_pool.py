"""The connections of an SQLite store in one process, and what becomes of them over a fork and at their end."""

from __future__ import annotations

import ctypes
import os
import threading
import weakref
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

_IDLE = 8


class Connection:
    """A connection and the file that it was opened on."""

    def __init__(self, db: sqlite3.Connection) -> None:
        self.db = db
        self.identity: tuple[int, int] | None = None


class Pool:
    """The connections of one process. Each has one user at a time; the last one given back is taken first.

    When the pool is forgotten or the program ends, the idle connections are closed; but never in a process that was
    forked from the one that opened them.
    """

    def __init__(self) -> None:
        self.pid = os.getpid()
        self._lock = threading.Lock()
        self._idle: list[Connection] = []
        self._every: set[Connection] = set()
        self._closed = False
        weakref.finalize(self, _forgotten, self.pid, self._idle, self._every)

    def add(self, connection: Connection) -> None:
        """Take note of a connection that was opened, and is in use."""
        with self._lock:
            self._every.add(connection)

    def take(self, path: Path) -> Connection | None:
        """Return an idle connection to the file that is now at the path; close those to one that was there before."""
        while True:
            with self._lock:
                if not self._idle:
                    return None
                connection = self._idle.pop()
            if connection.identity == identity(path):
                return connection
            self.give_back(connection, usable=False)

    def give_back(self, connection: Connection, *, usable: bool) -> None:
        """End the use of a connection."""
        with self._lock:
            if usable and not self._closed and len(self._idle) < _IDLE:
                self._idle.append(connection)
                return
            self._every.discard(connection)
        connection.db.close()

    def close(self) -> None:
        """Close the idle connections now, and the others after their use."""
        with self._lock:
            self._closed = True
            idle = self._idle[:]
            self._idle.clear()
            self._every.difference_update(idle)
        for connection in idle:
            connection.db.close()


def _forgotten(pid: int, idle: list[Connection], every: set[Connection]) -> None:
    """Close what nobody can close any more.

    In a forked process the connections belong to its parent. Closing one there, if only by forgetting it or at exit,
    could remove the write-ahead log under the parent, so the set gets a reference that nobody gives back.
    """
    if pid == os.getpid():
        while idle:
            idle.pop().db.close()
    elif every:
        ctypes.pythonapi.Py_IncRef(ctypes.py_object(every))


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that takes its place."""
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino
