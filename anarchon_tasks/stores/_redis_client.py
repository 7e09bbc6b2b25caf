"""One way to Redis or Valkey: opens a client when it is needed, in the process that needs it, and runs scripts on it.

Imports no driver: a client is whatever has `execute_command(*args)`.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.stores import _wire as wire
from anarchon_tasks.stores._redis_eviction import warn_if_evicting
from anarchon_tasks.stores._redis_scripts import Script, read, script
from anarchon_tasks.stores.base import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from anarchon_tasks.clock import Clock

A = TypeVar("A")


class Client(Protocol):
    """What the store needs of a client."""

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - the drivers' own types
        """Send a command and return its reply, or raise what the server answered."""
        ...


# The names of drivers' exceptions and the first words of servers' errors that mean: later it will work again.
_AWAY = frozenset(
    {
        "BusyLoadingError",
        "CircuitBreakerError",
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
_DEMOTED = frozenset({"MasterDownError", "ReadOnlyError"})
_DEMOTED_WORDS = ("MASTERDOWN", "READONLY")
_RAISED_IN = re.compile(
    r"\A(?:ERR )?(?:Error running script \(call to f_[0-9a-f]+\): ?)?(?:@user_script: ?\d+: ?)*-?(?=[A-Z])"
)
"""What servers before Redis 7 put before the word of an error that a command in a script raised."""
_DENIED = frozenset({"AuthenticationError", "AuthorizationError"})  # connection errors by descent, but not by nature
_NO_SCRIPT = ("NOSCRIPT", "No matching script")
_LOADS = 3
"""How often a script is loaded for one call: the server may lose it again, or may be another one by then."""
_FIRST_WRITES = frozenset({"announce", "begin", "claim", "register"})
"""Where a process that only reads does not come by: it need not be told what its server may do to the store."""

# Words in an error, and what to do about them.
_ADVICE = {
    "self-signed certificate": "give the CA that signed the server's certificate as ssl_ca_certs",
    "unable to get local issuer": "give the CA that signed the server's certificate as ssl_ca_certs",
    "WRONG_VERSION_NUMBER": "the server does not speak TLS at this port: use redis://, or its TLS port",
    "record layer failure": "the server does not speak TLS at this port: use redis://, or its TLS port",
    "EOF occurred in violation of protocol": "if the server asks for client certificates, give ssl_certfile and "
    "ssl_keyfile, signed by a CA that it trusts",
    "CERTIFICATE_REQUIRED": "the server asks for a client certificate: give ssl_certfile and ssl_keyfile",
    "ALERT_UNKNOWN_CA": "the server does not trust the CA that signed the client's certificate: give other files as "
    "ssl_certfile and ssl_keyfile",
    "KEY_VALUES_MISMATCH": "ssl_keyfile is not the key of ssl_certfile",
    "access a non local key": "the server is a node of a cluster: hand in a client of the cluster "
    "(redis.cluster.RedisCluster, valkey.cluster.ValkeyCluster) in place of a URL or of a client of one node",
}
_NOT_PASSING = ("CERTIFICATE_VERIFY_FAILED", "CERTIFICATE_REQUIRED", "ALERT_UNKNOWN_CA", "KEY_VALUES_MISMATCH")


def translate(error: Exception, location: str, secrets: Collection[str] = (), *, passing: bool = False) -> StoreError:
    """Return our own error for one of a driver, with no password in its text.

    Args:
        error: The driver's.
        location: Where it happened.
        secrets: What the text must not hold.
        passing: Whether the call can be repeated, whatever the error says.

    """
    names = {cls.__name__ for cls in type(error).__mro__}
    said = _RAISED_IN.sub("", str(error)) or type(error).__name__
    text = _without(said, secrets)
    for words, advice in _ADVICE.items():
        if words in said:
            text = f"{text.rstrip('.')}: {advice}"
            break
    away = passing or isinstance(error, OSError | EOFError) or names & _AWAY or said.startswith(_AWAY_WORDS)
    denied = names & _DENIED or any(words in said for words in _NOT_PASSING)
    kind = StoreUnavailable if away and not denied else StoreError
    return kind(f"{location}: {text}")


def _without(text: str, secrets: Collection[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, "***")
    return text


def _harmless(error: Exception, secrets: Collection[str]) -> Exception | None:
    """Return an error as the cause of ours, unless its text holds a password."""
    return error if _without(str(error), secrets) == str(error) else None


def _leave_demoted(error: Exception, client: Any) -> None:  # noqa: ANN401 - the drivers' own types
    """Close idle connections to a server that is no primary: the next call asks again where the name leads to."""
    if type(error).__name__ in _DEMOTED or _RAISED_IN.sub("", str(error)).startswith(_DEMOTED_WORDS):
        with contextlib.suppress(Exception):
            client.connection_pool.disconnect(inuse_connections=False)


def as_bytes(kwargs: Mapping[str, object]) -> dict[str, object]:
    """Return what to give each command of a client that was made with these arguments, so that its reply is bytes.

    A client of redis-py or valkey-py with `decode_responses` would read replies as text, and names of jobs may be none.
    """
    return {"NEVER_DECODE": True} if kwargs.get("decode_responses") else {}


class Connection:
    """A client that opens at its first use, and again after a fork.

    Args:
        make: Opens a client of ours.
        client: Or one that is handed in; it is never closed.
        location: Where it leads to, for messages.
        secrets: What no message may contain.
        options: Go with each command as arguments by name: see `as_bytes`.

    """

    def __init__(
        self,
        *,
        make: Callable[[], Client] | None = None,
        client: Client | None = None,
        location: str,
        secrets: Collection[str] = (),
        options: Mapping[str, object] | None = None,
    ) -> None:
        self.location = location
        self._options = dict(options or {})
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
        client: Any = self._get()
        try:
            return client.execute_command(*args, **self._options)
        except Exception as error:  # noqa: BLE001 - each driver has its own
            raise self._ours(error, client) from _harmless(error, self._secrets)

    def execute_all(self, *commands: Sequence[bytes | str | int]) -> list[Any]:
        """Send commands in one round trip on one connection; an error stands in the place of its reply.

        Raises:
            StoreUnavailable: No answer.

        """
        client: Any = self._get()
        try:
            if hasattr(client, "execute_all"):
                replies = client.execute_all(commands)
            else:
                pipeline = client.pipeline(transaction=False)
                for command in commands:
                    pipeline.execute_command(*command, **self._options)
                replies = pipeline.execute(raise_on_error=False)
        except Exception as error:  # noqa: BLE001 - each driver has its own
            raise self._ours(error, client) from _harmless(error, self._secrets)
        return [self._ours(reply, client) if isinstance(reply, Exception) else reply for reply in replies]

    def _ours(self, error: Exception, client: Client) -> StoreError:
        closed = self._given is None and self._client is not client  # under our hands, by another thread
        if self._given is None:
            _leave_demoted(error, client)
        return translate(error, self.location, self._secrets, passing=closed)

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
        self._warners = [os.getpid()]  # who may be the first; children of a fork leave the warning to their parent
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
        found, command = self._command(operation, payload)
        text = self._sent(found, lambda: self._connection.execute(*command))
        return self._read(operation, text)

    def run_and_wait(self, operation: str, payload: object, replicas: int, timeout_ms: int) -> tuple[list[Any], int]:
        """Run an operation, and return its reply and how many replicas have what it wrote.

        Args:
            operation: Its name.
            payload: Its questions.
            replicas: How many are enough.
            timeout_ms: How long the server waits for them.

        Raises:
            StoreFormatError: The store was written by a newer version.
            StoreUnavailable: No answer, or the server cannot do it at the moment.
            StoreError: The server refuses it.

        """
        found, command = self._command(operation, payload)

        def send() -> list[Any]:
            replies = self._connection.execute_all(command, ("WAIT", replicas, timeout_ms))
            for reply in replies:
                if isinstance(reply, StoreError):
                    raise reply
            return replies

        text, counted = self._sent(found, send)
        return self._read(operation, text), int(counted)

    def _sent(self, found: Script, send: Callable[[], A]) -> A:
        """Return what `send` returns, after loading the script if the server says that it does not have it."""
        for _ in range(_LOADS):
            try:
                return send()
            except StoreError as error:
                if not any(word in str(error) for word in _NO_SCRIPT):
                    raise
            self._connection.execute("SCRIPT", "LOAD", found.text)
        return send()

    def _command(self, operation: str, payload: object) -> tuple[Script, tuple[bytes | str | int, ...]]:
        found = script(operation)
        now = self._clock.wall_ms() if self._clock is not None else 0
        return found, ("EVALSHA", found.sha, 0, self._prefix, now, FORMAT, wire.dumps(payload))

    def _read(self, operation: str, text: bytes | str) -> list[Any]:
        reply = read(text, self._connection.location, self._prefix.decode(errors="replace"))
        if operation in _FIRST_WRITES and self._warners:
            self._warn_once()
        return reply

    def _warn_once(self) -> None:
        try:
            warner = self._warners.pop()
        except IndexError:  # another thread was faster
            return
        if warner == os.getpid():
            warn_if_evicting(self._connection.execute, self._connection.location)
