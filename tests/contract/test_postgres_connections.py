"""The PostgreSQL store outlives its connections: every call ends in time, and the next one gets what it needs."""

from __future__ import annotations

import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.stores import PostgresBackend, from_url
from anarchon_tasks.stores.base import Definition
from tests.servers import PostgresServer, missing, poll_until

psycopg = pytest.importorskip("psycopg")
psycopg_pool = pytest.importorskip("psycopg_pool")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from psycopg import Connection

    from anarchon_tasks.stores.postgres import PostgresStore
    from tests.servers import ProcessOwner, TcpProxy

TIMEOUT_S = 0.4
CONNECT_S = 2.0
SLACK_S = 1.5


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server for this module, on which a role called `app` needs the password `right`."""
    if PostgresServer.folder() is None:
        missing("postgres", PostgresServer.how_to_have())
    access = ["host all app all scram-sha-256"]
    with PostgresServer(tmp_path_factory.mktemp("postgres"), access=access) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
            connection.execute("GRANT CREATE ON SCHEMA public TO app")
        yield server


@pytest.fixture
def opened() -> Iterator[Callable[..., PostgresStore]]:
    """Open stores that are closed afterwards; `table` and `timeout` have defaults."""
    stores: list[PostgresStore] = []

    def open_(target: Any, **options: Any) -> PostgresStore:  # noqa: ANN401 - whatever a backend takes
        options = {"timeout": TIMEOUT_S, "table": "connections", **options}
        stores.append(PostgresBackend(target, **options).open())
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


@pytest.fixture
def admin(server: PostgresServer) -> Iterator[Connection[Any]]:
    """A connection beside the store."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        yield connection


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


class TestBounds:
    """No call waits for ever."""

    def test_a_half_open_network_is_given_up_in_time(
        self, server: PostgresServer, tcp_proxy: Callable[[int], TcpProxy], opened: Callable[..., PostgresStore]
    ) -> None:
        """A connection that carries nothing, and a new one that is accepted and carries nothing: both are told."""
        proxy = tcp_proxy(server.port)
        store = opened(behind(proxy))
        store.time()
        proxy.half_open()
        with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match=r"no answer within 0\.4 s"):
            store.time()
        with ends_within(CONNECT_S), pytest.raises(StoreUnavailable, match="timeout expired"):
            store.time()
        proxy.restore()
        store.time()

    def test_a_large_batch_into_a_half_open_network_is_given_up_in_time(
        self, server: PostgresServer, tcp_proxy: Callable[[int], TcpProxy], opened: Callable[..., PostgresStore]
    ) -> None:
        """Also when what is sent does not fit into the buffers on the way."""
        proxy = tcp_proxy(server.port)
        store = opened(behind(proxy))
        store.time()
        proxy.half_open()
        heavy = [Definition(name=f"{i}", fingerprint="x", document="x" * 500_000) for i in range(50)]
        with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="no answer within"):
            store.register(heavy)
        proxy.restore()
        assert len(store.register(heavy[:1]).answers) == 1

    def test_a_paused_server_is_given_up_in_time(
        self, own_postgres: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """Its kernel still acknowledges everything; nobody answers."""
        store = opened(own_postgres.url)
        store.time()
        own_postgres.pause()
        with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="no answer within"):
            store.time()
        with ends_within(CONNECT_S), pytest.raises(StoreUnavailable):
            store.time()
        own_postgres.resume()
        store.time()

    def test_the_server_gives_up_too(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """Statements of callers that gave up do not pile up behind a lock."""
        store = opened(f"{server.url}?application_name=piled", table="piled")
        store.time()
        with psycopg.connect(server.url) as other:
            other.execute("LOCK TABLE piled_jobs IN ACCESS EXCLUSIVE MODE")
            for _ in range(3):
                with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match=r"lock timeout|no answer within"):
                    store.register([Definition(name="a", fingerprint="x", document="{}")])
            poll_until(lambda: not waiting(admin, "piled"), what="the end of the abandoned statements")
            other.rollback()
        assert len(store.register([Definition(name="a", fingerprint="x", document="{}")]).answers) == 1

    def test_what_a_standby_does_not_have_is_never_answered(
        self, own_postgres: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """With synchronous replication a call waits for the standby, and so does its repetition, until it is there."""
        store = opened(own_postgres.url)
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
        self, server: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """When all are in use for as long as a call may take."""
        store = opened(server.url)
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
        self, own_postgres: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """While it is away each call fails soon; with the server back, the same store works."""
        store = opened(own_postgres.url)
        [before] = store.register([Definition(name="a", fingerprint="x", document="{}")]).answers
        own_postgres.kill()
        for _ in range(3):
            with ends_within(0), pytest.raises(StoreUnavailable):
                store.time()
        own_postgres.start()
        store.time()
        assert store.register([Definition(name="a", fingerprint="x", document="{}")]).answers[0].floor == before.floor

    def test_connections_of_a_server_that_was_restarted_are_replaced_without_a_word(
        self, own_postgres: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """However many were idle, no call fails."""
        store = opened(own_postgres.url, timeout=5)
        store.time()
        use_at_once(store, 5)
        own_postgres.kill()
        own_postgres.start()
        for _ in range(10):
            store.time()

    def test_a_reset_of_the_connection_during_a_call_is_mended(
        self, server: PostgresServer, tcp_proxy: Callable[[int], TcpProxy], opened: Callable[..., PostgresStore]
    ) -> None:
        """The call is executed again on a new connection; a second loss is told."""
        proxy = tcp_proxy(server.port)
        store = opened(behind(proxy))
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
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """An administrator ends the sessions (57P01), idle or at work."""
        store = opened(f"{server.url}?application_name=ended", timeout=20)
        store.time()
        [(idle, _)] = sessions(admin, "ended")
        admin.execute("SELECT pg_terminate_backend(%s, 5000)", [idle])
        store.time()
        with ThreadPoolExecutor(1) as thread, psycopg.connect(server.url) as other:
            other.execute("LOCK TABLE connections_jobs IN ACCESS EXCLUSIVE MODE")
            answer = thread.submit(store.register, [Definition(name="b", fingerprint="x", document="{}")])
            [(busy, _)] = poll_until(lambda: waiting(admin, "ended"), what="a statement that waits")
            admin.execute("SELECT pg_terminate_backend(%s, 5000)", [busy])
            poll_until(lambda: [pid for pid, _ in waiting(admin, "ended") if pid != busy], what="its repetition")
            other.rollback()
            assert len(answer.result(10).answers) == 1

    def test_a_statement_that_was_cancelled_is_told(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """57014: the store is unavailable, and works again."""
        store = opened(f"{server.url}?application_name=cancelled", timeout=20)
        store.time()
        with ThreadPoolExecutor(1) as thread, psycopg.connect(server.url) as other:
            other.execute("LOCK TABLE connections_jobs IN ACCESS EXCLUSIVE MODE")
            answer = thread.submit(store.register, [Definition(name="c", fingerprint="x", document="{}")])
            [(busy, _)] = poll_until(lambda: waiting(admin, "cancelled"), what="a statement that waits")
            admin.execute("SELECT pg_cancel_backend(%s)", [busy])
            with pytest.raises(StoreUnavailable, match="57014"):
                answer.result(10)
            other.rollback()
        store.time()

    def test_a_deadlock_is_no_error(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """The server undoes one of those who wait for each other (40P01); the store repeats."""
        store = opened(f"{server.url}?application_name=dead&options=-c%20deadlock_timeout%3D2s", timeout=20)
        store.register([Definition(name="d", fingerprint="x", document="{}")])
        with ThreadPoolExecutor(1) as thread, psycopg.connect(server.url) as other:
            other.execute("SET deadlock_timeout = '1h'")  # so that the store's is the one that is undone
            other.execute("LOCK TABLE connections_definitions IN ACCESS EXCLUSIVE MODE")
            answer = thread.submit(store.register, [Definition(name="d", fingerprint="y", document="{}")])
            [(busy, _)] = poll_until(lambda: waiting(admin, "dead"), what="a statement that waits")
            mine = (
                "SELECT pg_advisory_xact_lock(classid::int8::bit(32)::int4, objid::int8::bit(32)::int4) FROM pg_locks"
            )
            other.execute(f"{mine} WHERE pid = %s AND locktype = 'advisory' AND granted", [busy])
            other.rollback()
            assert answer.result(15).answers[0].changed

    def test_a_standby_is_told_and_left_for_the_primary(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """25006: unavailable with advice; the connection is not kept, so the next one finds the primary."""
        store = opened(server.url)
        store.time()
        admin.execute("ALTER DATABASE postgres SET default_transaction_read_only = on")
        store.close()
        try:
            with pytest.raises(StoreUnavailable, match=r"25006.*target_session_attrs=read-write"):
                store.register([Definition(name="a", fingerprint="x", document="{}")])
        finally:
            admin.execute("SET default_transaction_read_only = off")
            admin.execute("ALTER DATABASE postgres RESET default_transaction_read_only")
        assert len(store.register([Definition(name="a", fingerprint="x", document="{}")]).answers) == 1

    def test_the_primary_is_found_after_a_failover(
        self, own_postgres: PostgresServer, opened: Callable[..., PostgresStore], tmp_path: Path
    ) -> None:
        """With all hosts in the URL; and with synchronous replication the new one has everything that was answered."""
        with own_postgres.standby(tmp_path / "standby") as standby:
            set_standbys(own_postgres, "*")
            hosts = f"127.0.0.1:{standby.port},127.0.0.1:{own_postgres.port}"
            store = opened(f"postgresql://postgres@{hosts}/postgres?target_session_attrs=read-write", timeout=5)
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


class TestRefusals:
    """A server that lets nobody in is told as what it is, without a password."""

    def test_a_wrong_password_is_an_error_without_it(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """In a URL, as a pair, in a mapping and from the environment."""
        place = f"127.0.0.1:{server.port}/postgres"
        wrong = ["postgresql://app:hunter2@" + place, f"host=127.0.0.1 port={server.port} user=app password=hunter2"]
        ways: list[Any] = [*wrong, {"host": "127.0.0.1", "port": server.port, "user": "app", "password": "hunter2"}]
        monkeypatch.setenv("PGPASSWORD", "hunter2")
        for way in [*ways, f"postgresql://app@{place}"]:
            with pytest.raises(StoreError, match=r"28P01\]; check the user and the password") as caught:
                opened(way).time()
            assert not isinstance(caught.value, StoreUnavailable)
            assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
        opened(f"postgresql://app:right@{place}", table="right").time()

    def test_a_missing_database_is_an_error_with_advice(
        self, server: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """3D000: somebody has to create it."""
        with pytest.raises(StoreError, match=r"3D000.*create the database") as caught:
            opened(f"postgresql://postgres@127.0.0.1:{server.port}/nowhere").time()
        assert not isinstance(caught.value, StoreUnavailable)

    def test_too_many_connections_are_passing(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """53300: unavailable, and it works when there is room."""
        admin.execute("CREATE ROLE crowd LOGIN SUPERUSER CONNECTION LIMIT 0")
        admin.execute("ALTER ROLE crowd NOSUPERUSER")
        admin.execute("GRANT ALL ON SCHEMA public TO crowd")
        store = opened(f"postgresql://crowd@127.0.0.1:{server.port}/postgres", table="crowd")
        with pytest.raises(StoreUnavailable, match="53300"):
            store.time()
        admin.execute("ALTER ROLE crowd CONNECTION LIMIT -1")
        store.time()


class TestOwnership:
    """Whose connections they are, and in which process and thread."""

    def test_nothing_connects_before_the_first_call(
        self, server: PostgresServer, tcp_proxy: Callable[[int], TcpProxy]
    ) -> None:
        """Making a store opens nothing, and closing one that was never used neither."""
        proxy = tcp_proxy(server.port)
        store = from_url(behind(proxy), table="lazy")
        store.close()
        assert proxy.connections == 0
        store.time()
        assert proxy.connections == 1
        store.close()
        store.close()
        store.time()
        store.close()
        assert proxy.connections == 2

    def test_many_threads_share_few_connections(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """Twenty threads get their answers over at most eight."""
        store = opened(f"{server.url}?application_name=many", timeout=10)
        with ThreadPoolExecutor(20) as threads:
            done = list(threads.map(lambda _: store.time().now_ms, range(400)))
        assert len(done) == 400
        assert len(sessions(admin, "many")) <= 8

    def test_a_forked_child_leaves_the_connections_of_its_parent_alone(
        self, server: PostgresServer, processes: ProcessOwner
    ) -> None:
        """The child opens its own; when it ends, by whichever exit, the parent's still answer, unrepeated."""
        code = FORK.format(url=f"{server.url}?table=forked")
        process = processes.start(sys.executable, "-W", "ignore", "-c", code, name="fork")
        assert process.wait(60) == 0, process.tail()
        assert "parent still has its connection" in process.output()

    def test_a_pool_of_the_users_is_used_and_left_open(
        self, server: PostgresServer, opened: Callable[..., PostgresStore], admin: Connection[Any]
    ) -> None:
        """Also one whose connections are not in autocommit: they come back outside of any transaction."""
        for autocommit in (True, False):
            kwargs = {"autocommit": autocommit, "application_name": f"pooled{autocommit}"}
            with psycopg_pool.ConnectionPool(server.url, kwargs=kwargs, min_size=1, max_size=1, open=True) as pool:
                store = opened(pool, table=f"pooled{autocommit}")
                assert len(store.register([Definition(name="a", fingerprint="x", document="{}")]).answers) == 1
                store.close()
                assert not pool.closed
                with pool.connection() as connection:
                    assert connection.info.transaction_status.name == "IDLE"
                assert opened(server.url, table=f"pooled{autocommit}").definitions().answers[0].name == "a"
                [(pid, _)] = sessions(admin, f"pooled{autocommit}")
                admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
                store.time()

    def test_a_pool_gets_no_connection_back_that_waits_for_an_answer(
        self, server: PostgresServer, tcp_proxy: Callable[[int], TcpProxy], opened: Callable[..., PostgresStore]
    ) -> None:
        """A call without an answer is bounded here too, and its connection is closed."""
        proxy = tcp_proxy(server.port)
        with psycopg_pool.ConnectionPool(behind(proxy), min_size=1, max_size=1, open=True) as pool:
            store = opened(pool)
            store.time()
            proxy.half_open()
            with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="no answer within"):
                store.time()
            proxy.restore()
            store.time()

    def test_a_function_opens_connections_which_the_store_closes(
        self, server: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """In autocommit or not; open until the store closes."""
        made: list[Connection[Any]] = []

        def connect() -> Connection[Any]:
            made.append(psycopg.connect(server.url))
            return made[-1]

        store = opened(connect, table="made")
        store.register([Definition(name="a", fingerprint="x", document="{}")])
        store.time()
        assert [connection.closed for connection in made] == [False]
        assert opened(server.url, table="made").definitions().answers[0].name == "a", "it is committed"
        store.close()
        assert [connection.closed for connection in made] == [True]

    def test_a_connection_in_a_transaction_is_refused(
        self, server: PostgresServer, opened: Callable[..., PostgresStore]
    ) -> None:
        """What the store does would be undone with it, or would wait for its end."""
        with psycopg.connect(server.url) as busy:
            busy.execute("SELECT 1")
            with pytest.raises(StoreError, match="one that is in a transaction"):
                opened(lambda: busy).time()
            assert not busy.closed

        class Pool:
            @contextmanager
            def connection(self) -> Iterator[Connection[Any]]:
                with psycopg.connect(server.url) as connection:
                    connection.execute("SELECT 1")
                    yield connection

        with pytest.raises(StoreError, match="in a transaction: let it commit"):
            opened(Pool()).time()


def waiting(admin: Connection[Any], name: str) -> list[tuple[int, str]]:
    """Return the server's processes of an application that wait for a lock."""
    return [session for session in sessions(admin, name) if session[1] == "Lock"]


def answers(store: PostgresStore) -> bool:
    """Tell whether the store can be written."""
    try:
        store.register([Definition(name="probe", fingerprint="x", document="{}")])
    except StoreUnavailable:
        return False
    return True


def set_standbys(server: PostgresServer, names: str) -> None:
    """Say which standbys a commit waits for."""
    with psycopg.connect(server.url, autocommit=True) as connection:
        connection.execute(f"ALTER SYSTEM SET synchronous_standby_names = '{names}'")
        connection.execute("SELECT pg_reload_conf()")
        poll_until(
            lambda: connection.execute("SHOW synchronous_standby_names").fetchone() == (names,), what="the new setting"
        )


def use_at_once(store: PostgresStore, count: int) -> None:
    """Have this many connections in use at the same time, and then idle."""
    together = threading.Barrier(count)

    def use() -> None:
        with store._database._connections.lent():
            together.wait(10)

    with ThreadPoolExecutor(count) as threads:
        for done in [threads.submit(use) for _ in range(count)]:
            done.result()


FORK = """
import os, sys, psycopg_pool
from anarchon_tasks.errors import StoreError
from anarchon_tasks.stores import PostgresBackend, from_url

store = from_url({url!r})
store.time()
pool = psycopg_pool.ConnectionPool({url!r}.partition("?")[0], min_size=1, max_size=1, open=True)
pooled = PostgresBackend(pool, table="forked").open()
pooled.time()

def backends():
    return [connection.info.backend_pid for connection in store._database._connections._ours._idle]

before = backends()
assert len(before) == 1
for end in ("exit", "_exit", "close"):
    child = os.fork()
    if child == 0:
        store.time()
        assert len(backends()) == 1 and backends() != before, "the child has a connection of its own"
        try:
            pooled.time()
        except StoreError as error:
            assert "before this process was forked" in str(error), error
        else:
            raise AssertionError("the child used the pool of its parent")
        if end == "close":
            store.close()
        if end == "_exit":
            os._exit(0)
        pool._closed = True  # its end in the child is its owner's concern
        sys.exit(0)
    _, status = os.waitpid(child, 0)
    assert status == 0, (end, status)
    with store._database._connections.lent() as connection:
        assert connection.execute("SELECT 1").fetchone() == (1,)
    assert backends() == before, end
pooled.time()
pool.close()
print("parent still has its connection")
"""


def test_the_helpers_address_a_server(server: PostgresServer) -> None:
    """The module's own server is not the one that others share."""
    assert urlsplit(server.url).port != 5432
