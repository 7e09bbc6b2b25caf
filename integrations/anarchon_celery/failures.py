"""What an error of a publish says about the message: the broker does not have it, or nobody knows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from celery.beat import SchedulingError

from anarchon_tasks.publishing import Sent

if TYPE_CHECKING:
    from collections.abc import Iterator

# Errors are known by the names of their classes, so that no driver is imported for them.
_REFUSED = frozenset(
    {"MessageNacked", "ResourceError", "NotFound", "AccessRefused", "PreconditionFailed", "NoConsumers"}
)
_NO_ROUTE = 312
_CONNECTION = frozenset(
    {
        "ConnectionError",
        "ConnectionForced",
        "InterfaceError",
        "OSError",
        "RecoverableConnectionError",
        "TimeoutError",
        "UnexpectedFrame",
    }
)
_ANSWERED = frozenset({"ResponseError"})
"""Redis said no."""
_NOBODY_FARES_BETTER = ("CLUSTERDOWN", "LOADING", "MASTERDOWN", "MISCONF", "NOAUTH", "NOREPLICAS", "OOM", "READONLY")
_NOR_DOES_ANYBODY = frozenset({"ClusterDownError", "MasterDownError", "OutOfMemoryError", "ReadOnlyError"})
"""The same by the name of the class: the client takes the word off the text then."""
_BEFORE_SENDING = frozenset({"EncodeError", "SerializationError", "ContentDisallowed", "SerializerNotInstalled"})


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What an error means."""

    sent: Sent
    broker_down: bool = False
    """The next message would fare no better."""
    connection_lost: bool = False
    """The connection, or its channel, is of no more use."""


def judge(error: BaseException) -> Verdict:
    """Tell what became of a message whose publish raised, on a connection that had just been, or once was, good.

    What the broker itself refused, and what went wrong before anything was sent, certainly failed. When a connection
    is lost or silent nobody knows: the broker may have taken the message before.
    """
    for cause in _chain(error):
        names = {kind.__name__ for kind in type(cause).__mro__}
        if names & _BEFORE_SENDING:
            return Verdict(sent=Sent.FAILED)
        if names & _ANSWERED:
            down = bool(names & _NOR_DOES_ANYBODY) or str(cause).startswith(_NOBODY_FARES_BETTER)
            return Verdict(sent=Sent.FAILED, broker_down=down, connection_lost=down)
        if names & _REFUSED or getattr(cause, "reply_code", getattr(cause, "code", None)) == _NO_ROUTE:
            return Verdict(sent=Sent.FAILED, connection_lost=True)
        if names & _CONNECTION:
            return Verdict(sent=Sent.UNKNOWN, broker_down=True, connection_lost=True)
    if any("amqp" in type(cause).__module__ for cause in _chain(error)):
        return Verdict(sent=Sent.UNKNOWN, connection_lost=True)
    if any(type(cause).__module__.startswith("kombu") for cause in _chain(error)):
        return Verdict(sent=Sent.UNKNOWN, broker_down=True, connection_lost=True)
    return Verdict(sent=Sent.FAILED)


def words(error: BaseException) -> str:
    """Return what first went wrong, with its kind: some of a broker's errors have no text."""
    first = next(iter(_chain(error)))
    text = str(first) or str(error)
    return f"{type(first).__name__}: {text}" if text else type(first).__name__


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Return the causes of an error, the first one first, and without what only wraps them."""
    found: list[BaseException] = []
    current: BaseException | None = error
    while current is not None and current not in found:
        found.append(current)
        wraps = isinstance(current, SchedulingError) or current.__suppress_context__
        current = current.__cause__ or (current.__context__ if wraps else None)
    return reversed(found)
