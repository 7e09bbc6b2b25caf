"""One statement on one connection, with a bound on the wait for its answer.

The driver itself waits for ever: a server that is paused, or a network that carries nothing, would hold the caller.
"""

from __future__ import annotations

import selectors
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from psycopg.pq import ConnStatus, DiagnosticField, ExecStatus, TransactionStatus

from anarchon_tasks.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from psycopg import Connection
    from psycopg.pq.abc import PGconn, PGresult

_DONE = frozenset({ExecStatus.TUPLES_OK, ExecStatus.COMMAND_OK, ExecStatus.EMPTY_QUERY})
_clock = SystemClock()


@dataclass(eq=False)
class Failed(Exception):
    """A statement was refused, or its connection failed."""

    text: str
    sqlstate: str = ""
    broken: bool = False
    """The connection is of no use any more."""
    late: bool = False
    """No answer within the time, or no connection: to try again at once is of no use."""

    def __str__(self) -> str:
        return self.text


def call(
    connection: Connection[Any], statement: bytes, arguments: Sequence[bytes] = (), *, timeout_s: float
) -> list[tuple[bytes | None, ...]]:
    """Run one statement and return its rows, as the server writes them.

    Args:
        connection: Outside of a transaction, or in one that the caller began.
        statement: With `$1` and so on.
        arguments: Texts.
        timeout_s: How long to wait. Then the connection is broken. The statement is not cancelled: one that waits for
            a standby would be committed without it, and seen by others.

    Raises:
        Failed: For every reason.

    """
    conn = connection.pgconn
    deadline = _clock.monotonic() + timeout_s
    try:
        # The list of arguments makes it one statement of the extended protocol, which nothing prepares by name.
        conn.send_query_params(statement, list(arguments))
        results = _results(conn, deadline)
    except TimeoutError:
        raise Failed(f"no answer within {timeout_s:g} s", broken=True, late=True) from None
    except Failed:
        raise
    except Exception as error:
        raise Failed(str(error) or type(error).__name__, broken=conn.status == ConnStatus.BAD) from error
    for result in results:
        if result.status not in _DONE:
            raise _refusal(conn, result)
    if not results:
        raise Failed("the connection was closed before the answer", broken=True)
    return [
        tuple(result.get_value(row, column) for column in range(result.nfields))
        for result in results
        for row in range(result.ntuples)
    ]


def in_transaction(connection: Connection[Any]) -> bool:
    """Tell whether statements on this connection are part of a transaction of somebody else."""
    return connection.pgconn.transaction_status != TransactionStatus.IDLE


def is_broken(connection: Connection[Any]) -> bool:
    """Tell whether the connection is closed, or known to be lost."""
    return connection.pgconn.status == ConnStatus.BAD


def _results(conn: PGconn, deadline: float) -> list[PGresult]:
    with selectors.DefaultSelector() as selector:
        selector.register(conn.socket, selectors.EVENT_READ)
        while conn.flush():
            ready = _wait(selector, conn, selectors.EVENT_READ | selectors.EVENT_WRITE, deadline)
            if ready & selectors.EVENT_READ:
                conn.consume_input()
        found: list[PGresult] = []
        while True:
            while conn.is_busy():
                _wait(selector, conn, selectors.EVENT_READ, deadline)
                conn.consume_input()
            result = conn.get_result()
            if result is None:
                return found
            found.append(result)


def _wait(selector: selectors.BaseSelector, conn: PGconn, events: int, deadline: float) -> int:
    selector.modify(conn.socket, events)
    left = deadline - _clock.monotonic()
    ready = selector.select(left) if left > 0 else []
    if not ready:
        raise TimeoutError
    return ready[0][1]


def _refusal(conn: PGconn, result: PGresult) -> Failed:
    state = result.error_field(DiagnosticField.SQLSTATE) or b""
    said = result.error_field(DiagnosticField.MESSAGE_PRIMARY) or result.error_message or b"no reason given"
    advice = result.error_field(DiagnosticField.MESSAGE_HINT) or b""
    return Failed(
        b". ".join(filter(None, (said, advice))).decode("utf-8", "replace").strip(),
        sqlstate=state.decode("ascii", "replace"),
        broken=conn.status == ConnStatus.BAD,
    )
