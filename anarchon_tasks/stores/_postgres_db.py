"""Runs the operations of a PostgreSQL store: each is one call of one function on the server, and one round trip."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

from anarchon_tasks.errors import StoreFormatError
from anarchon_tasks.stores import _postgres_migration as migration
from anarchon_tasks.stores import _postgres_text as text
from anarchon_tasks.stores._postgres_calls import Failed, call
from anarchon_tasks.stores._postgres_errors import AGAIN, MISSING, RENEW, translate
from anarchon_tasks.stores.base import FORMAT

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from psycopg import Connection

    from anarchon_tasks.clock import Clock
    from anarchon_tasks.stores._postgres_pool import Connections
    from anarchon_tasks.stores._postgres_schema import Names

T = TypeVar("T")

DEFAULT_TIMEOUT_S = 5.0
_REPEATS = 3
_SERVER_PATIENCE = 0.8
"""The server gives up waiting for a lock after this part of the time, so that abandoned statements pile up nowhere."""


class Database:
    """The way to the tables of one store.

    Args:
        connections: Where connections come from.
        names: What the tables and functions are called.
        location: Where the server is, for people.
        create: Make the tables and functions when they are missing.
        timeout_s: How long one statement may take.
        secrets: What no message may contain.
        clock: Tells the time in place of the server, for tests that move it.

    """

    def __init__(
        self,
        connections: Connections,
        *,
        names: Names,
        location: str,
        create: bool = True,
        timeout_s: float = DEFAULT_TIMEOUT_S,
        secrets: Collection[str] = (),
        clock: Clock | None = None,
    ) -> None:
        self.names = names
        self.location = location
        self._connections = connections
        self._create = create
        self._timeout_s = timeout_s
        self._secrets = frozenset(secret for secret in secrets if secret)
        self._clock = clock
        self._lock_timeout = b"%d" % max(1, int(timeout_s * 1_000 * _SERVER_PATIENCE))
        self._statements: dict[str, bytes] = {}

    def run(self, operation: str, payload: object) -> list[Any]:
        """Run an operation and return `[now, answers, ...]`.

        A store that is missing is made, and the functions of this version are added to one that has others. A call is
        repeated when the server undid it because of others, and once when its connection turned out to be lost: every
        operation may be executed twice.

        Raises:
            StoreFormatError: The store was written by a newer version.
            StoreUnavailable: No answer, or the server cannot do it at the moment.
            StoreError: The server refuses it.

        """
        now = self._clock.wall_ms() if self._clock is not None else 0
        arguments = (text.dumps(payload), b"%d" % now, b"%d" % FORMAT, self._lock_timeout)
        statement = self._statement(operation)

        def ask(connection: Connection[Any]) -> bytes:
            [[_, reply]] = call(connection, statement, arguments, timeout_s=self._timeout_s)
            return reply or b"null"

        try:
            said = self._lasting(ask)
        except Failed as failed:
            if failed.sqlstate not in MISSING:
                raise self._ours(failed) from None
            self._prepare()
            said = self._translated(ask)
        return self._checked(text.loads(said.decode("utf-8", "replace")))

    def migrate(self, *, timeout_s: float) -> list[str]:
        """Make what is missing, and return the names of what was made.

        Args:
            timeout_s: How long one statement may take.

        Raises:
            StoreFormatError: The store was written by a newer version.
            StoreUnavailable: No answer, or the server cannot do it at the moment.
            StoreError: The server refuses it, or something else has these names.

        """
        return self._translated(
            lambda connection: migration.migrate(connection, self.names, location=self.location, timeout_s=timeout_s)
        )

    def close(self) -> None:
        """Close the connections that were opened here. A later call opens new ones."""
        self._connections.close()

    # --- details -----------------------------------------------------------------------------------------------------

    def _statement(self, operation: str) -> bytes:
        statement = self._statements.get(operation)
        if statement is None:
            function = self.names.function(operation)
            lock_timeout = "pg_catalog.set_config('lock_timeout', $4, true)"  # of this transaction, and so of this call
            statement = f"SELECT {lock_timeout}, {function}($1::jsonb, $2::bigint, $3::integer)".encode()
            self._statements[operation] = statement
        return statement

    def _prepare(self) -> None:
        """Make what is missing, if we may; or say what is."""
        if self._create:
            self.migrate(timeout_s=self._timeout_s)
            return
        self._translated(
            lambda connection: migration.explain_missing(
                connection, self.names, location=self.location, timeout_s=self._timeout_s
            )
        )

    def _translated(self, do: Callable[[Connection[Any]], T]) -> T:
        try:
            return self._lasting(do)
        except Failed as failed:
            raise self._ours(failed) from None

    def _lasting(self, do: Callable[[Connection[Any]], T]) -> T:
        """Do it on a connection, and again where that helps."""
        renewed = False
        for last in (*[False] * _REPEATS, True):
            try:
                with self._connections.lent() as connection:
                    return do(connection)
            except Failed as failed:
                if last or failed.late:
                    raise
                if failed.sqlstate in AGAIN:
                    continue
                if renewed or not (failed.broken or failed.sqlstate in RENEW):
                    raise
                renewed = True
                self._connections.forget_idle()
        raise AssertionError  # pragma: no cover - the last round returns or raises

    def _ours(self, failed: Failed) -> Exception:
        return translate(failed, location=self.location, names=self.names, secrets=self._secrets)

    def _checked(self, reply: Any) -> list[Any]:  # noqa: ANN401 - JSON is of any type
        if isinstance(reply, dict):
            raise StoreFormatError(migration.newer(reply.get("format"), self.names, self.location))
        result: list[Any] = reply
        return result
