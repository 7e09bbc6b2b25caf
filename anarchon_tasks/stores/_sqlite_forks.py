"""Keeps the connections of SQLite stores out of forks.

SQLite remembers in the process which locks the process has on a file. A child that is forked while a connection is open
inherits what is remembered and not the locks: it works without any, and what it commits can be lost. No connection of
its own would mend that. So none is open at the instant of a fork: the forking thread lets no new use of a file begin,
waits for those of other threads to end, and closes what is idle. Parent and child open the file anew when they need it.
"""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING
from weakref import WeakSet

if TYPE_CHECKING:
    import sqlite3
    from pathlib import Path

    from anarchon_tasks.stores._sqlite_pool import Pool

log = logging.getLogger("anarchon_tasks.stores")

MORE_S = 1.0
"""How much longer than the longest `busy_timeout` in question a fork waits for others to be done."""


class Connection:
    """A connection, the file that it was opened on, and the thread that uses it now."""

    def __init__(self, db: sqlite3.Connection, path: Path) -> None:
        self.db = db
        self.path = path
        self.identity: tuple[int, int] | None = None
        self.user: int | None = threading.get_ident()

    def close(self) -> None:
        """Close it. Not in a child of the process that opened it."""
        try:
            self.db.close()
        finally:
            GATE.closed(self)


@dataclass(frozen=True, slots=True, eq=False)
class Use:
    """A thread that is busy with a file, and how long that may take it, in seconds."""

    thread: int
    path: Path
    patience_s: float


class Gate:
    """What every use of a file in this process passes; closed while a thread forks."""

    def __init__(self) -> None:
        self._registered = False
        self._inherited: set[tuple[int, int] | None] = set()
        self._begin()

    def _begin(self) -> None:
        self._pid = os.getpid()
        self._changed = threading.Condition()  # its lock is reentrant: finalizers come here at any moment
        self._forking: set[int] = set()
        self._uses: set[Use] = set()
        self._open: set[Connection] = set()
        self._pools: WeakSet[Pool] = WeakSet()

    @property
    def shut(self) -> bool:
        """Whether a thread is about to fork, so that no connection may be kept."""
        return bool(self._forking)

    def know(self, pool: Pool) -> None:
        """Take note of a pool, whose idle connections are closed at a fork."""
        with self._changed:
            self._pools.add(pool)

    def enter(self, path: Path, patience_s: float) -> Use:
        """Begin to use a file, after the forks that are under way; `leave` is to follow.

        A thread that is in already, or that forks, does not wait: the fork would wait for it.
        """
        self.notice_a_fork()
        self._register()
        me = threading.get_ident()
        use = Use(me, path, patience_s)
        with self._changed:
            while self._forking and not self._is_in(me):
                self._changed.wait()
            self._uses.add(use)
        return use

    def _is_in(self, thread: int) -> bool:
        return thread in self._forking or any(use.thread == thread for use in self._uses)

    def leave(self, use: Use) -> None:
        """End a use."""
        with self._changed:
            self._uses.discard(use)
            if self._forking:
                self._changed.notify_all()

    def opened(self, connection: Connection) -> None:
        """Take note of a connection."""
        with self._changed:
            self._open.add(connection)

    def closed(self, connection: Connection) -> None:
        """Forget a connection."""
        with self._changed:
            self._open.discard(connection)
            if self._forking:
                self._changed.notify_all()

    def is_inherited(self, identity: tuple[int, int] | None) -> bool:
        """Tell whether a file was open at the fork that began this process, so that it has no locks on it."""
        return identity is not None and identity in self._inherited

    # --- forks -------------------------------------------------------------------------------------------------------

    def _register(self) -> None:
        if self._registered or not hasattr(os, "register_at_fork"):
            return
        with self._changed:
            if not self._registered:
                self._registered = True
                os.register_at_fork(
                    before=self._before, after_in_parent=self._after_in_parent, after_in_child=self._after_in_child
                )

    def _before(self) -> None:
        with self._changed:
            self._forking.add(threading.get_ident())
            pools = list(self._pools)
            patience_s = max((use.patience_s for use in self._uses), default=0.0) + MORE_S
        for pool in pools:
            pool.close_idle()
        with self._changed:
            done = self._changed.wait_for(self._others_are_out, patience_s)
            paths = sorted({str(path) for path in self._paths()})
        if not done:
            log.warning(
                "sqlite_open_at_fork: %s was in use for more than %g s; the child that is forked now cannot use it",
                ", ".join(paths),
                patience_s,
                extra={"paths": paths},
            )

    def _others_are_out(self) -> bool:
        users = (*(use.thread for use in self._uses), *(connection.user for connection in self._open))
        return all(user in self._forking for user in users)

    def _paths(self) -> list[Path]:
        return [use.path for use in self._uses] + [connection.path for connection in self._open]

    def _after_in_parent(self) -> None:
        with self._changed:
            self._forking.discard(threading.get_ident())
            self._changed.notify_all()

    def _after_in_child(self) -> None:
        """Begin anew: the other threads are not here, and what they held is never given back.

        Connections that are open all the same belong to the parent. Closing one here, if only by forgetting it or at
        exit, could remove the write-ahead log under the parent, so they get a reference that nobody gives back.
        """
        self._inherited.update(connection.identity for connection in self._open)
        self._inherited.update(identity(path) for path in self._paths())
        if self._open:
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._open))
        self._begin()

    def notice_a_fork(self) -> None:
        """Begin anew also where the process was forked by something that does not tell Python."""
        if self._pid != os.getpid():
            self._after_in_child()


def identity(path: Path) -> tuple[int, int] | None:
    """Return what tells a file from one that takes its place."""
    with suppress(OSError):
        status = path.stat()
        return status.st_dev, status.st_ino
    return None


GATE = Gate()
