"""What the tests of the PostgreSQL store's connections see of the server."""

from __future__ import annotations

import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores.base import Definition
from tests.servers import poll_until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from psycopg import Connection

    from anarchon_tasks.stores.base import LeaseStore
    from tests.servers import PostgresServer, TcpProxy

TIMEOUT_S = 0.4
"""The stores' `timeout`, unless a test says otherwise."""
CONNECT_S = 2.0
"""The least that the driver waits for a connection."""
SLACK_S = 1.5


@contextmanager
def ends_within(seconds: float) -> Iterator[None]:
    """Check how long something takes."""
    started = time.monotonic()
    yield
    assert time.monotonic() - started < seconds + SLACK_S


def behind(proxy: TcpProxy) -> str:
    """Return the address of the server behind a proxy."""
    return f"postgresql://postgres@127.0.0.1:{proxy.port}/postgres"


def sessions(admin: Connection[Any], name: str) -> list[tuple[int, str]]:
    """Return the server's processes of an application, and what each waits for."""
    ask = "SELECT pid, coalesce(wait_event_type, '') FROM pg_stat_activity WHERE application_name = %s"
    return list(admin.execute(ask, [name]).fetchall())


def waiting(admin: Connection[Any], name: str) -> list[tuple[int, str]]:
    """Return the server's processes of an application that wait for a lock."""
    return [session for session in sessions(admin, name) if session[1] == "Lock"]


def answers(store: LeaseStore) -> bool:
    """Tell whether the store can be written."""
    try:
        store.register([Definition(name="probe", fingerprint="x", document="{}")])
    except StoreUnavailable:
        return False
    return True


def set_standbys(server: PostgresServer, names: str) -> None:
    """Say which standbys a commit waits for."""
    import psycopg

    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        connection.execute("SELECT pg_reload_conf()")
        poll_until(
            lambda: connection.execute("SHOW synchronous_standby_names").fetchone() == (names,), what="the new setting"
        )
        connection.execute(
            "CHECKPOINT"
        )  # the process that does it is the one that makes commits wait, once it has read
