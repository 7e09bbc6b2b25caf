"""One way to Redis or Valkey: opens a client when it is needed, in the process that needs it, and runs scripts on it.

Imports no driver: a client is whatever has `execute_command(*args)`.
"""

from __future__ import annotations

import contextlib
import os
import threading
from typing import TYPE_CHECKING, Any, Protocol

from anarchon_tasks.errors import StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.stores import _wire as wire
from anarchon_tasks.stores._redis_scripts import script
from anarchon_tasks.stores.base import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from anarchon_tasks.clock import Clock


class Client(Protocol):
    """What the store needs of a client."""

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the drivers' own types
        """Send a command and return its reply, or raise what the server answered."""
        ...


# The names of drivers' exceptions and the first words of servers' errors that mean: later it will work again.
_AWAY = frozenset(
    {
        "BusyLoadingError",
        "ClusterDownError",
        "ConnectionError",
        "MasterNotFoundError",
        "MaxConnectionsError",
        "OutOfMemoryError",
        "ReadOnlyError",
        "SlaveNotFoundError",
        "TimeoutError",
        "TryAgainError",
    }
)
_AWAY_WORDS = ("BUSY", "CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOREPLICAS", "OOM", "READONLY", "TRYAGAIN")
_DENIED = frozenset({"AuthenticationError", "AuthorizationError"})  # connection errors by descent, but not by nature
_NO_SCRIPT = ("NOSCRIPT", "No matching script")


def translate(error: Exception, location: str, secrets: Collection[str] = (), *, passing: bool = False) -> StoreError:
    """Return our own error for one of a driver, with no password in its text.

    Args:
        error: The driver's.
        location: Where it happened.
        secrets: What the text must not hold.
        passing: Whether the call can be repeated, whatever the error says.

    """
    names = {cls.__name__ for cls in type(error).__mro__}
    said = str(error) or type(error).__name__
    text = said
    for secret in secrets:
        text = text.replace(secret, "***")
    away = passing or isinstance(error, OSError | EOFError) or names & _AWAY or said.startswith(_AWAY_WORDS)
    kind = StoreUnavailable if away and not names & _DENIED else StoreError
    return kind(f"{location}: {text}")


class Connection:
    """A client that opens at its first use, and again after a fork.

    Args:
        make: Opens a client of ours.
        client: Or one that is handed in; it is never closed.
        location: Where it leads to, for messages.
        secrets: What no message may contain.

    """

    def __init__(
        self,
        *,
        make: Callable[[], Client] | None = None,
        client: Client | None = None,
        location: str,
        secrets: Collection[str] = (),
    ) -> None:
        self.location = location
        self._make = make
        self._given = client
        self._secrets = frozenset(secret for secret in secrets if secret)
        self._client: Client | None = None
        self._lock = threading.Lock()
        self._pid = os.getpid()

    def execute(self, *args: bytes | str | int) -> Any:  # noqa: ANN401 - the drivers' own types
        """Send one command.

        Raises:
            StoreUnavailable: No answer, or the server cannot do it at the moment.
            StoreError: The server refuses it.

        """
        client = self._get()
        try:
            return client.execute_command(*args)
        except Exception as error:  # noqa: BLE001 - each driver has its own
            closed = self._given is None and self._client is not client  # under our hands, by another thread
            ours = translate(error, self.location, self._secrets, passing=closed)
            raise ours from (error if str(error) in str(ours) else None)  # a text with a password is left behind

    def close(self) -> None:
        """Close the client if we opened it. A later call opens a new one."""
        if os.getpid() != self._pid:
            return
        with self._lock:
            client, self._client = self._client, None
        if client is not None and hasattr(client, "close"):
            with contextlib.suppress(Exception):
                client.close()

    def _get(self) -> Client:
        if self._given is not None:
            return self._given
        if os.getpid() != self._pid:
            self._forget_inherited()
        with self._lock:
            if self._client is None:
                assert self._make is not None  # noqa: S101 - one of the two is given
                self._client = self._make()
            return self._client

    def _forget_inherited(self) -> None:
        """Leave the parent's connections alone: what is written to them, it would read."""
        self._lock = threading.Lock()  # another thread of the parent may have held the old one
        self._client = None
        self._pid = os.getpid()


class Scripts:
    """Runs the operations of one prefix."""

    def __init__(self, connection: Connection, *, prefix: str, clock: Clock | None) -> None:
        self._connection = connection
        self._prefix = prefix.encode("utf-8", "surrogatepass")
        self._clock = clock

    def run(self, operation: str, payload: object) -> list[Any]:
        """Run an operation and return `[now, answers, ...]`.

        A server that lost its scripts (a restart, a failover) gets this one again. Repeating is safe for every
        operation, and here nothing was executed anyway.

        Raises:
            StoreFormatError: The store was written by a newer version.
            StoreUnavailable: No answer, or the server cannot do it at the moment.
            StoreError: The server refuses it.

        """
        found = script(operation)
        now = self._clock.wall_ms() if self._clock is not None else 0
        args = (0, self._prefix, now, FORMAT, wire.dumps(payload))
        try:
            text = self._connection.execute("EVALSHA", found.sha, *args)
        except StoreUnavailable:
            raise
        except StoreError as error:
            if not any(word in str(error) for word in _NO_SCRIPT):
                raise
            self._connection.execute("SCRIPT", "LOAD", found.text)
            text = self._connection.execute("EVALSHA", found.sha, *args)
        return self._checked(wire.loads(text))

    def _checked(self, reply: Any) -> list[Any]:  # noqa: ANN401 - JSON is of any type
        if isinstance(reply, dict):
            found = reply.get("format")
            raise StoreFormatError(
                f"{self._connection.location} holds format {found} under the prefix {self._prefix.decode()!r}, and "
                f"this version reads up to {FORMAT}: upgrade this instance. The store was left untouched."
            )
        result: list[Any] = reply
        return result
