"""Where the connections of a store come from, and who may use them.

A connection has one user at a time, and never another process than the one that opened it.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
import weakref
from contextlib import AbstractContextManager, contextmanager
from typing import TYPE_CHECKING, Any, Protocol

import psycopg

from anarchon_tasks.stores import _postgres_forks
from anarchon_tasks.stores._postgres_calls import Failed, in_transaction, is_broken
from anarchon_tasks.stores._postgres_errors import state_of_refusal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from psycopg import Connection

_MOST = 8
_ENCODINGS = ("utf8", "unicode")
"""Two names of one; the server says UTF8, and a pooler what it was told."""
_abandoned: list[object] = []
"""Connections of the process that this one was forked from. Never closed here: the server would end them there."""


class Pool(Protocol):
    """What a pool must offer: psycopg_pool's `ConnectionPool`, or another with the same context manager."""

    def connection(self) -> AbstractContextManager[Connection[Any]]:
        """Lend a connection for the time of a `with` block."""
        ...


class Connections(Protocol):
    """Lends connections."""

    def lent(self) -> AbstractContextManager[Connection[Any]]:
        """Lend a connection for the time of a `with` block.

        Raises:
            Failed: There is none to be had.

        """
        ...

    def forget_idle(self) -> None:
        """Drop the connections that nobody uses: one of them turned out to be lost."""
        ...

    def close(self) -> None:
        """Close what was opened here."""
        ...


class OwnPool:
    """A few connections, opened when they are needed, and again after a fork; the last one given back goes first.

    Args:
        make: Opens a connection. It belongs to this pool, which closes it.
        timeout_s: How long a thread waits for one when all are in use.

    """

    def __init__(self, make: Callable[[], Connection[Any]], *, timeout_s: float) -> None:
        self._make = make
        self._timeout_s = timeout_s
        self._ours = _Ours()
        weakref.finalize(self, _Ours.drop_idle, self._ours)  # also when the process ends, so that the server knows

    @contextmanager
    def lent(self) -> Iterator[Connection[Any]]:
        """Lend a connection; it is closed afterwards when it is broken, or waits for something, or in a transaction."""
        self._ours.check_process()
        free, age = self._ours.free, self._ours.age
        if not free.acquire(timeout=self._timeout_s):
            raise Failed(f"all {_MOST} connections of this process are in use since {self._timeout_s:g} s", late=True)
        try:
            connection = self._ours.take() or self._ours.add(_opened(self._make))
            try:
                yield connection
            finally:
                self._ours.give_back(connection, usable=age == self._ours.age)
        finally:
            free.release()

    def forget_idle(self) -> None:
        """Close the connections that nobody uses."""
        self._ours.drop_idle()

    def close(self) -> None:
        """Close every connection that is not in use, and the others after their use."""
        self._ours.drop_idle()
        self._ours.age += 1


class _Ours:
    """The connections of one process."""

    def __init__(self) -> None:
        self.age = 0
        """How often the pool was closed, or found itself in another process."""
        self._begin()

    def _begin(self) -> None:
        self._lock = threading.Lock()  # another thread of the parent may have held the old one
        self.free = threading.BoundedSemaphore(_MOST)
        self._idle: list[Connection[Any]] = []
        self._every: set[Connection[Any]] = set()
        self._pid = os.getpid()

    def check_process(self) -> None:
        """Leave the connections of the process that this one was forked from alone."""
        if self._pid != os.getpid():
            _abandoned.append(self._every)
            self.age += 1
            self._begin()

    def take(self) -> Connection[Any] | None:
        """Return an idle connection."""
        with self._lock:
            return self._idle.pop() if self._idle else None

    def add(self, connection: Connection[Any]) -> Connection[Any]:
        """Take a new connection in."""
        with self._lock:
            self._every.add(connection)
        return connection

    def give_back(self, connection: Connection[Any], *, usable: bool) -> None:
        """Keep a connection for the next user, or close it."""
        with self._lock:
            if usable and not is_broken(connection) and not in_transaction(connection):
                self._idle.append(connection)
                return
            self._every.discard(connection)
        _finish(connection)

    def drop_idle(self) -> None:
        """Close the connections that nobody uses."""
        self.check_process()
        with self._lock:
            idle, self._idle = self._idle, []
            self._every.difference_update(idle)
        for connection in idle:
            _finish(connection)


class GivenPool:
    """A pool of the user's, which stays open.

    Args:
        pool: The pool.

    """

    def __init__(self, pool: Pool) -> None:
        self._pool = pool
        self._opened = _postgres_forks.note(pool)

    @contextmanager
    def lent(self) -> Iterator[Connection[Any]]:
        """Lend a connection of the pool; a broken one goes back closed, and so the pool drops it.

        Raises:
            Failed: The pool has none, or belongs to another process, or lends one that is in a transaction.

        """
        if self._opened.elsewhere():
            raise Failed(
                "the pool was open before this process was forked, so its connections belong to the other process: "
                "give the store a URL, or a function that opens a connection"
            )
        thrown: BaseException | None = None
        try:
            with self._pool.connection() as connection:
                _check(connection, "the pool lends", "let it commit or roll back before")
                _check_encoding(connection, "the pool lends")
                try:
                    yield connection
                except BaseException as error:
                    thrown = error
                    if isinstance(error, Failed) and error.broken:
                        _finish(connection)
                    raise
        except Failed:
            raise
        except Exception as error:
            if error is thrown:
                raise
            raise _refused(error, "the pool") from error
        if thrown is not None:  # the pool kept it to itself
            raise thrown

    def forget_idle(self) -> None:
        """Leave that to the pool."""

    def close(self) -> None:
        """Leave that to whoever opened the pool."""


def connecting(parameters: Mapping[str, Any]) -> Callable[[], Connection[Any]]:
    """Return what opens a connection of our own, fit for a pooler that gives each transaction another server process.

    Args:
        parameters: Those of libpq.

    """
    return lambda: psycopg.connect("", autocommit=True, prepare_threshold=None, **parameters)


def _opened(make: Callable[[], Connection[Any]]) -> Connection[Any]:
    try:
        connection = make()
    except Exception as error:
        raise _refused(error, "the function that opens connections") from error
    said = "the function that opens connections returned"
    _check(connection, said, "let it return a new connection each time, which the store then closes")
    try:
        _check_encoding(connection, said)
    except Failed:
        _finish(connection)
        raise
    return connection


def _check(connection: Connection[Any], said: str, advice: str) -> None:
    """Refuse what a store cannot use; a lost connection is found out when it is used."""
    if not hasattr(connection, "pgconn"):
        kind = f"{type(connection).__module__}.{type(connection).__qualname__}"
        raise Failed(f"{said} {kind}, which is not a connection of psycopg 3")
    if in_transaction(connection) and not is_broken(connection):
        raise Failed(f"{said} one that is in a transaction: {advice}")


def _check_encoding(connection: Connection[Any], said: str) -> None:
    """Refuse a connection whose server would take our UTF-8 for something else, and keep another account for a name."""
    if is_broken(connection):
        return
    encoding = (connection.pgconn.parameter_status(b"client_encoding") or b"utf8").decode("ascii", "replace")
    if re.sub(r"[\W_]", "", encoding).lower() not in _ENCODINGS:
        raise Failed(
            f"{said} one in the encoding {encoding}: open connections with client_encoding=utf8, which also goes "
            "before the variable PGCLIENTENCODING"
        )


def _refused(error: Exception, source: str) -> Failed:
    text = " ".join(str(error).split())
    if not isinstance(error, psycopg.Error):
        # Whatever asks a service for a password, or waits for a connection, may do better later.
        kind = type(error).__name__
        return Failed(f"{source} failed: {kind}" + (f": {text}" if text else ""), broken=True, late=True)
    text = text or type(error).__name__
    away = isinstance(error, psycopg.OperationalError)
    return Failed(text, sqlstate=error.sqlstate or state_of_refusal(text), broken=away, late=away)


def _finish(connection: Connection[Any]) -> None:
    with contextlib.suppress(Exception):
        connection.pgconn.finish()
