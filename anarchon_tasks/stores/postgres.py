"""The PostgreSQL store: each batch is one call of a function on the server, and so one transaction and one round trip.

The tables are described in `sql/postgres/tables.sql`, and what each operation guarantees at the top of its file. A
process that is suspended never holds a lock: a call begins and ends on the server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from anarchon_tasks.model import RunRef
from anarchon_tasks.stores._remote import Operations, RemoteStore

if TYPE_CHECKING:
    from collections.abc import Sequence


class Database(Operations, Protocol):
    """The functions of one store, and the connections that call them."""

    def close(self) -> None:
        """Close the connections that we opened."""
        ...


class PostgresStore(RemoteStore):
    """Leases and the account of runs in PostgreSQL.

    Args:
        database: Calls the functions.
        namespace: The main table; one text for all ways to write it.
        location: Where the server is, for people.

    """

    def __init__(self, database: Database, *, namespace: str, location: str) -> None:
        super().__init__(database, namespace=namespace, location=location)
        self._database = database

    @staticmethod
    def _key(job: str) -> str:
        """Write the name of a job: as it is."""
        return job

    @staticmethod
    def _ref(member: Sequence[str]) -> RunRef:
        """Read whose lease is over."""
        job, run = member
        return RunRef.parse(job, run)

    def close(self) -> None:
        """Close what we opened; what was handed in stays open."""
        self._database.close()
