"""The PostgreSQL store outlives its connections: every call ends in time, and the next one gets what it needs."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores.base import Definition
from tests.contract.postgres_sessions import (
    CONNECT_S,
    TIMEOUT_S,
    answers,
    behind,
    ends_within,
    sessions,
    set_standbys,
    waiting,
)
from tests.servers import poll_until

psycopg = pytest.importorskip("psycopg")


if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from psycopg import Connection

    from anarchon_tasks.stores.postgres import PostgresStore
    from tests.servers import PostgresServer, TcpProxy


class TestBounds:
    """No call waits for ever."""

    def test_a_half_open_network_is_given_up_in_time(
        self,
        postgres_server: PostgresServer,
        tcp_proxy: Callable[[int], TcpProxy],
        open_postgres: Callable[..., PostgresStore],
    ) -> None:
        """A connection that carries nothing, and a new one that is accepted and carries nothing: both are told."""
        proxy = tcp_proxy(postgres_server.port)
        store = open_postgres(behind(proxy))
        store.time()
        proxy.half_open()
        with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match=r"no answer within 0\.4 s"):
            store.time()
        with ends_within(CONNECT_S), pytest.raises(StoreUnavailable, match="timeout expired"):
            store.time()
        proxy.restore()
        store.time()

    def test_a_large_batch_into_a_half_open_network_is_given_up_in_time(
        self,
        postgres_server: PostgresServer,
        tcp_proxy: Callable[[int], TcpProxy],
        open_postgres: Callable[..., PostgresStore],
    ) -> None:
        """Also when what is sent does not fit into the buffers on the way."""
        proxy = tcp_proxy(postgres_server.port)
        store = open_postgres(behind(proxy))
        store.time()
        proxy.half_open()
        heavy = [Definition(name=f"{i}", fingerprint="x", document="x" * 500_000) for i in range(50)]
        with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="no answer within"):
            store.register(heavy)
        proxy.restore()
        assert len(store.register(heavy[:1]).answers) == 1

    def test_a_paused_server_is_given_up_in_time(
        self, own_postgres: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """Its kernel still acknowledges everything; nobody answers."""
        store = open_postgres(own_postgres.url)
        store.time()
        own_postgres.pause()
        with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="no answer within"):
            store.time()
        with ends_within(CONNECT_S), pytest.raises(StoreUnavailable):
            store.time()
        own_postgres.resume()
        store.time()

    def test_the_server_gives_up_too(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """Statements of callers that gave up do not pile up behind a lock."""
        store = open_postgres(f"{postgres_server.url}?application_name=piled", table="piled")
        store.time()
        with psycopg.connect(postgres_server.url) as other:
            other.execute("LOCK TABLE piled_jobs IN ACCESS EXCLUSIVE MODE")
            for _ in range(3):
                with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match=r"lock timeout|no answer within"):
                    store.register([Definition(name="a", fingerprint="x", document="{}")])
            poll_until(lambda: not waiting(postgres_admin, "piled"), what="the end of the abandoned statements")
            other.rollback()
        assert len(store.register([Definition(name="a", fingerprint="x", document="{}")]).answers) == 1

    def test_what_a_standby_does_not_have_is_never_answered(
        self, own_postgres: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """With synchronous replication a call waits for the standby, and so does its repetition, until it is there."""
        store = open_postgres(own_postgres.url)
        call = [Definition(name="a", fingerprint="x", document="{}")]
        store.time()
        set_standbys(own_postgres, "nobody")
        for _ in range(3):
            with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable):
                store.register(call)
        assert store.definitions().answers == [], "nobody sees what is not confirmed"
        set_standbys(own_postgres, "")
        poll_until(lambda: [found.name for found in store.definitions().answers] == ["a"], what="the confirmed call")
        assert store.register(call).answers[0].error is None

    def test_a_thread_that_gets_no_connection_is_told(
        self, postgres_server: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """When all are in use for as long as a call may take."""
        store = open_postgres(postgres_server.url)
        store.time()
        pool = store._database._connections
        with ThreadPoolExecutor(8) as threads:
            release, ready = threading.Event(), threading.Barrier(9)

            def hold() -> None:
                with pool.lent():
                    ready.wait(10)
                    release.wait(10)

            holding = [threads.submit(hold) for _ in range(8)]
            ready.wait(10)
            with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="all 8 connections"):
                store.time()
            release.set()
            for held in holding:
                held.result()
        store.time()


class TestLostConnections:
    """A connection that is gone is replaced, once and at once."""

    def test_a_crash_of_the_server_is_told_and_later_it_works_again(
        self, own_postgres: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """While it is away each call fails soon; with the server back, the same store works."""
        store = open_postgres(own_postgres.url)
        [before] = store.register([Definition(name="a", fingerprint="x", document="{}")]).answers
        own_postgres.kill()
        for _ in range(3):
            with ends_within(0), pytest.raises(StoreUnavailable):
                store.time()
        own_postgres.start()
        store.time()
        assert store.register([Definition(name="a", fingerprint="x", document="{}")]).answers[0].floor == before.floor

    def test_connections_of_a_server_that_was_restarted_are_replaced_without_a_word(
        self, own_postgres: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """However many were idle, no call fails."""
        store = open_postgres(own_postgres.url, timeout=5)
        store.time()
        use_at_once(store, 5)
        own_postgres.kill()
        own_postgres.start()
        for _ in range(10):
            store.time()

    def test_a_reset_of_the_connection_during_a_call_is_mended(
        self,
        postgres_server: PostgresServer,
        tcp_proxy: Callable[[int], TcpProxy],
        open_postgres: Callable[..., PostgresStore],
    ) -> None:
        """The call is executed again on a new connection; a second loss is told."""
        proxy = tcp_proxy(postgres_server.port)
        store = open_postgres(behind(proxy))
        store.time()
        proxy.lose_replies(1)
        store.time()
        assert proxy.lost_replies == 1
        proxy.lose_replies(2)
        with pytest.raises(StoreUnavailable):
            store.time()
        proxy.restore()
        store.time()

    def test_a_session_that_was_terminated_is_replaced(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """An administrator ends the sessions (57P01), idle or at work."""
        store = open_postgres(f"{postgres_server.url}?application_name=ended", timeout=20)
        store.time()
        [(idle, _)] = sessions(postgres_admin, "ended")
        postgres_admin.execute("SELECT pg_terminate_backend(%s, 5000)", [idle])
        store.time()
        with ThreadPoolExecutor(1) as thread, psycopg.connect(postgres_server.url) as other:
            other.execute("LOCK TABLE connections_jobs IN ACCESS EXCLUSIVE MODE")
            answer = thread.submit(store.register, [Definition(name="b", fingerprint="x", document="{}")])
            [(busy, _)] = poll_until(lambda: waiting(postgres_admin, "ended"), what="a statement that waits")
            postgres_admin.execute("SELECT pg_terminate_backend(%s, 5000)", [busy])
            poll_until(
                lambda: [pid for pid, _ in waiting(postgres_admin, "ended") if pid != busy], what="its repetition"
            )
            other.rollback()
            assert len(answer.result(10).answers) == 1

    def test_a_statement_that_was_cancelled_is_told(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """57014: the store is unavailable, and works again."""
        store = open_postgres(f"{postgres_server.url}?application_name=cancelled", timeout=20)
        store.time()
        with ThreadPoolExecutor(1) as thread, psycopg.connect(postgres_server.url) as other:
            other.execute("LOCK TABLE connections_jobs IN ACCESS EXCLUSIVE MODE")
            answer = thread.submit(store.register, [Definition(name="c", fingerprint="x", document="{}")])
            [(busy, _)] = poll_until(lambda: waiting(postgres_admin, "cancelled"), what="a statement that waits")
            postgres_admin.execute("SELECT pg_cancel_backend(%s)", [busy])
            with pytest.raises(StoreUnavailable, match="57014"):
                answer.result(10)
            other.rollback()
        store.time()

    def test_a_deadlock_is_no_error(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """The server undoes one of those who wait for each other (40P01); the store repeats."""
        store = open_postgres(
            f"{postgres_server.url}?application_name=dead&options=-c%20deadlock_timeout%3D2s", timeout=20
        )
        store.register([Definition(name="d", fingerprint="x", document="{}")])
        with ThreadPoolExecutor(1) as thread, psycopg.connect(postgres_server.url) as other:
            other.execute("SET deadlock_timeout = '1h'")  # so that the store's is the one that is undone
            other.execute("LOCK TABLE connections_definitions IN ACCESS EXCLUSIVE MODE")
            answer = thread.submit(store.register, [Definition(name="d", fingerprint="y", document="{}")])
            [(busy, _)] = poll_until(lambda: waiting(postgres_admin, "dead"), what="a statement that waits")
            mine = (
                "SELECT pg_advisory_xact_lock(classid::int8::bit(32)::int4, objid::int8::bit(32)::int4) FROM pg_locks"
            )
            other.execute(f"{mine} WHERE pid = %s AND locktype = 'advisory' AND granted", [busy])
            other.rollback()
            assert answer.result(15).answers[0].changed

    def test_a_standby_is_told_and_left_for_the_primary(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """25006: unavailable with advice; the connection is not kept, so the next one finds the primary."""
        store = open_postgres(postgres_server.url)
        store.time()
        postgres_admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        store.close()
        try:
            with pytest.raises(StoreUnavailable, match=r"25006.*target_session_attrs=read-write"):
                store.register([Definition(name="a", fingerprint="x", document="{}")])
        finally:
            postgres_admin.execute("SET default_transaction_read_only = off")
            postgres_admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        assert len(store.register([Definition(name="a", fingerprint="x", document="{}")]).answers) == 1

    def test_the_primary_is_found_after_a_failover(
        self, own_postgres: PostgresServer, open_postgres: Callable[..., PostgresStore], tmp_path: Path
    ) -> None:
        """With all hosts in the URL; and with synchronous replication the new one has everything that was answered."""
        with own_postgres.standby(tmp_path / "standby") as standby:
            set_standbys(own_postgres, "*")
            hosts = f"127.0.0.1:{standby.port},127.0.0.1:{own_postgres.port}"
            store = open_postgres(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write", timeout=5)
            poll_until(lambda: answers(store), what="the standby")
            call = [Definition(name="a", fingerprint="x", document="{}")]
            [before] = store.register(call).answers
            own_postgres.kill()
            assert not answers(store), "a standby is no primary"
            with psycopg.connect(standby.url, autocommit=True) as connection:
                connection.execute("SELECT pg_promote()")
            poll_until(lambda: answers(store), what="the new primary")
            [after] = store.register(call).answers
            assert (before.floor, after.changed) == (after.floor, False)


def use_at_once(store: PostgresStore, count: int) -> None:
    """Have this many connections in use at the same time, and then idle."""
    together = threading.Barrier(count)

    def use() -> None:
        with store._database._connections.lent():
            together.wait(10)

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(use) for _ in range(count)]:
            done.result()
