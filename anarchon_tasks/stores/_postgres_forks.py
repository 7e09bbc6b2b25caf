"""In which process the pools of the user's were opened: another process would share their sockets."""

from __future__ import annotations

import os
import threading
import weakref
from functools import partial
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_noted: dict[int, Opened] = {}
"""By the identity of the pool: one may be given to several backends, in several processes."""


class Opened:
    """Which process opened one pool. Create it with `note`, as early as the pool is known.

    A pool without an attribute `closed` counts as open from the start.
    """

    def __init__(self, pool: object) -> None:
        self.pool = _reference(pool)
        self._pid: int | None = None
        self.look()

    def look(self, pid: int | None = None) -> None:
        """Note who opened the pool, once it is open: this process, unless told."""
        if getattr(self.pool(), "closed", False):
            self._pid = None
        elif self._pid is None:
            self._pid = pid or os.getpid()

    def elsewhere(self) -> bool:
        """Tell whether the pool was opened by the process that this one was forked from, or by one before."""
        self.look()
        if self._pid is None:
            return False
        return self._pid != os.getpid() or _lost_its_threads(self.pool())


def note(pool: object) -> Opened:
    """Return what is known of a pool, and watch it from now on."""
    found = _noted.get(id(pool))
    if found is None or found.pool() is not pool:
        found = _noted[id(pool)] = Opened(pool)
    return found


def _reference(pool: object) -> Callable[[], object]:
    try:
        return weakref.ref(pool, partial(_forget, id(pool)))
    except TypeError:
        return lambda: pool  # it has slots and none for that; then it is kept


def _forget(key: int, gone: object) -> None:
    if (found := _noted.get(key)) is not None and found.pool is gone:
        del _noted[key]


def _lost_its_threads(pool: object) -> bool:
    """Tell whether a pool of psycopg_pool is open and has no thread that works: a fork leaves them behind."""
    worker = getattr(pool, "_sched_runner", None)
    return isinstance(worker, threading.Thread) and not worker.is_alive() and not getattr(pool, "closed", True)


def _look_at_all() -> None:
    for opened in list(_noted.values()):
        opened.look(os.getppid())


os.register_at_fork(after_in_child=_look_at_all)
