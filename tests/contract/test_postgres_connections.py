"""Whose connections a PostgreSQL store uses, in which process and thread, and what it says when it gets none."""

from __future__ import annotations

import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.stores import from_url
from anarchon_tasks.stores.base import Definition
from tests.contract.postgres_sessions import TIMEOUT_S, behind, ends_within, sessions

psycopg = pytest.importorskip("psycopg")
psycopg_pool = pytest.importorskip("psycopg_pool")


if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

    from anarchon_tasks.stores.postgres import PostgresStore
    from tests.servers import PostgresServer, ProcessOwner, TcpProxy


class Returning:
    """A pool that fails, or keeps errors to itself, when a connection comes back."""

    def __init__(self, url: str, end: str) -> None:
        self.url = url
        self.end = end

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """Lend one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            try:
                yield connection
            except StoreError:
                if self.end == "keeps":
                    return
                raise
        if self.end == "fails":
            raise OSError("cannot take it back")


class Changing:
    """A pool that sets an encoding when it lends a connection."""

    def __init__(self, url: str) -> None:
        self.url = url

    @contextmanager
    def connection(self) -> Iterator[Connection[Any]]:
        """Lend one."""
        with psycopg.connect(self.url, autocommit=True) as connection:
            connection.execute("SET client_encoding TO latin1")
            yield connection


WAYS = {
    "open": "pool = make(True); backend = PostgresBackend(pool, table='prefork')",
    "opened later": "pool = make(False); backend = PostgresBackend(pool, table='prefork'); pool.open()",
    "given in the child": "pool = make(True); backend = None",
    "of another kind": "pool = Other(make(True)); backend = PostgresBackend(pool, table='prefork')",
}
"""How a pool can come through a fork."""


class TestRefusals:
    """A server that lets nobody in is told as what it is, without a password."""

    def test_a_wrong_password_is_an_error_without_it(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """In a URL, as a pair, in a mapping and from the environment."""
        place = f"127.0.0.1:{postgres_server.port}/postgres"
        wrong = [
            "postgresql://app:hunter2@" + place,
            f"host=127.0.0.1 port={postgres_server.port} user=app password=hunter2",
        ]
        ways: list[Any] = [
            *wrong,
            {"host": "127.0.0.1", "port": postgres_server.port, "user": "app", "password": "hunter2"},
        ]
        monkeypatch.setenv("PGPASSWORD", "hunter2")
        for way in [*ways, f"postgresql://app@{place}"]:
            with pytest.raises(StoreError, match=r"28P01\]; check the user and the password") as caught:
                open_postgres(way).time()
            assert not isinstance(caught.value, StoreUnavailable)
            assert "hunter2" not in f"{caught.value!r} {caught.value.__cause__!r}"
        open_postgres(f"postgresql://app:right@{place}", table="right").time()

    def test_a_missing_database_is_an_error_with_advice(
        self, postgres_server: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """3D000: somebody has to create it."""
        with pytest.raises(StoreError, match=r"3D000.*create the database") as caught:
            open_postgres(f"postgresql://postgres@127.0.0.1:{postgres_server.port}/nowhere").time()
        assert not isinstance(caught.value, StoreUnavailable)

    def test_too_many_connections_are_passing(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """53300: unavailable, and it works when there is room."""
        postgres_admin.execute("CREATE ROLE crowd LOGIN SUPERUSER CONNECTION LIMIT 0")
        postgres_admin.execute("ALTER ROLE crowd NOSUPERUSER")
        postgres_admin.execute("GRANT ALL ON SCHEMA public TO crowd")
        store = open_postgres(f"postgresql://crowd@127.0.0.1:{postgres_server.port}/postgres", table="crowd")
        with pytest.raises(StoreUnavailable, match="53300"):
            store.time()
        postgres_admin.execute("ALTER ROLE crowd CONNECTION LIMIT -1")
        store.time()


class TestOwnership:
    """Whose connections they are, and in which process and thread."""

    def test_nothing_connects_before_the_first_call(
        self, postgres_server: PostgresServer, tcp_proxy: Callable[[int], TcpProxy]
    ) -> None:
        """Making a store opens nothing, and closing one that was never used neither."""
        proxy = tcp_proxy(postgres_server.port)
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
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """Twenty threads get their answers over at most eight."""
        store = open_postgres(f"{postgres_server.url}?application_name=many", timeout=10)
        with ThreadPoolExecutor(20) as threads:
            done = list(threads.map(lambda _: store.time().now_ms, range(400)))
        assert len(done) == 400
        assert len(sessions(postgres_admin, "many")) <= 8

    def test_a_forked_child_leaves_the_connections_of_its_parent_alone(
        self, postgres_server: PostgresServer, processes: ProcessOwner
    ) -> None:
        """The child opens its own; when it ends, by whichever exit, the parent's still answer, unrepeated."""
        code = FORK.format(url=f"{postgres_server.url}?table=forked")
        process = processes.start(sys.executable, "-W", "ignore", "-c", code, name="fork")
        assert process.wait(60) == 0, process.tail()
        assert "parent still has its connection" in process.output()

    @pytest.mark.parametrize("way", WAYS)
    def test_a_pool_that_came_through_a_fork_is_refused_in_the_children(
        self, postgres_server: PostgresServer, processes: ProcessOwner, way: str
    ) -> None:
        """However late the children open their stores, as prefork workers do: two of them would share its sockets."""
        code = PREFORK.format(url=postgres_server.url, way=WAYS[way])
        process = processes.start(sys.executable, "-W", "ignore", "-c", code, name="prefork")
        assert process.wait(60) == 0, process.tail()

    def test_a_pool_that_is_opened_after_the_fork_is_used(
        self, postgres_server: PostgresServer, processes: ProcessOwner
    ) -> None:
        """The child opened it itself, though the backend was made before."""
        code = LATER.format(url=postgres_server.url)
        process = processes.start(sys.executable, "-W", "ignore", "-c", code, name="later")
        assert process.wait(60) == 0, process.tail()

    def test_a_pool_of_the_users_is_used_and_left_open(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        postgres_admin: Connection[Any],
    ) -> None:
        """Also one whose connections are not in autocommit: they come back outside of any transaction."""
        for autocommit in (True, False):
            kwargs = {"autocommit": autocommit, "application_name": f"pooled{autocommit}"}
            with psycopg_pool.ConnectionPool(
                postgres_server.url, kwargs=kwargs, min_size=1, max_size=1, open=True
            ) as pool:
                store = open_postgres(pool, table=f"pooled{autocommit}")
                assert len(store.register([Definition(name="a", fingerprint="x", document="{}")]).answers) == 1
                store.close()
                assert not pool.closed
                with pool.connection() as connection:
                    assert connection.info.transaction_status.name == "IDLE"
                assert (
                    open_postgres(postgres_server.url, table=f"pooled{autocommit}").definitions().answers[0].name == "a"
                )
                [(pid, _)] = sessions(postgres_admin, f"pooled{autocommit}")
                postgres_admin.execute("SELECT pg_terminate_backend(%s, 5000)", [pid])
                store.time()

    def test_a_pool_that_fails_to_take_a_connection_back_is_an_outage(
        self, postgres_server: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """An error of the store's own passes such a pool, also one that would keep it."""
        with pytest.raises(StoreUnavailable, match="the pool failed: OSError: cannot take it back"):
            open_postgres(Returning(postgres_server.url, "fails"), table="returning").time()
        for end in ("keeps", "raises"):
            store = open_postgres(Returning(postgres_server.url, end), table="nobody_made_it", create=False)
            with pytest.raises(StoreUnavailable, match="holds no anarchon-tasks store"):
                store.time()

    def test_a_pool_gets_no_connection_back_that_waits_for_an_answer(
        self,
        postgres_server: PostgresServer,
        tcp_proxy: Callable[[int], TcpProxy],
        open_postgres: Callable[..., PostgresStore],
    ) -> None:
        """A call without an answer is bounded here too, and its connection is closed."""
        proxy = tcp_proxy(postgres_server.port)
        with psycopg_pool.ConnectionPool(behind(proxy), min_size=1, max_size=1, open=True) as pool:
            store = open_postgres(pool)
            store.time()
            proxy.half_open()
            with ends_within(TIMEOUT_S), pytest.raises(StoreUnavailable, match="no answer within"):
                store.time()
            proxy.restore()
            store.time()

    def test_a_function_opens_connections_which_the_store_closes(
        self, postgres_server: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """In autocommit or not; open until the store closes."""
        made: list[Connection[Any]] = []

        def connect() -> Connection[Any]:
            made.append(psycopg.connect(postgres_server.url))
            return made[-1]

        store = open_postgres(connect, table="made")
        store.register([Definition(name="a", fingerprint="x", document="{}")])
        store.time()
        assert [connection.closed for connection in made] == [False]
        assert open_postgres(postgres_server.url, table="made").definitions().answers[0].name == "a", "it is committed"
        store.close()
        assert [connection.closed for connection in made] == [True]

    def test_a_connection_in_a_transaction_is_refused(
        self, postgres_server: PostgresServer, open_postgres: Callable[..., PostgresStore]
    ) -> None:
        """What the store does would be undone with it, or would wait for its end."""
        with psycopg.connect(postgres_server.url) as busy:
            busy.execute("SELECT 1")
            with pytest.raises(StoreError, match="one that is in a transaction"):
                open_postgres(lambda: busy).time()
            assert not busy.closed

        class Pool:
            @contextmanager
            def connection(self) -> Iterator[Connection[Any]]:
                with psycopg.connect(postgres_server.url) as connection:
                    connection.execute("SELECT 1")
                    yield connection

        with pytest.raises(StoreError, match="in a transaction: let it commit"):
            open_postgres(Pool()).time()

    @pytest.mark.parametrize("way", ["function", "pool", "environment", "changed"])
    def test_a_connection_in_another_encoding_is_refused(
        self,
        postgres_server: PostgresServer,
        open_postgres: Callable[..., PostgresStore],
        monkeypatch: pytest.MonkeyPatch,
        way: str,
    ) -> None:
        """It would store other names than a connection in UTF-8, and so another account of the same job."""
        url, target = postgres_server.url, None
        if way == "environment":
            monkeypatch.setenv("PGCLIENTENCODING", "latin1")
        pool = Returning(url if way == "environment" else f"{url}?client_encoding=latin1", "raises")
        if way == "function":
            target = lambda: psycopg.connect(url, client_encoding="latin1")  # noqa: E731
        elif way == "changed":
            pool = Changing(url)
        store = open_postgres(target or pool, table="encoded")
        with pytest.raises(StoreError, match=r"in the encoding LATIN1: .*client_encoding=utf8"):
            store.register([Definition(name="zażółć", fingerprint="x", document="{}")])
        if way == "environment":
            open_postgres(url, table="encoded").time()


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


PREFORK = """
import os, psycopg_pool
from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.stores import PostgresBackend

class Other:
    __slots__ = ("inner",)  # neither a weak reference nor `closed`

    def __init__(self, inner):
        self.inner = inner

    def connection(self):
        return self.inner.connection()

def make(opened):
    return psycopg_pool.ConnectionPool({url!r}, min_size=1, max_size=1, open=opened)

{way}
for _ in range(2):
    child = os.fork()
    if child == 0:
        code = 1
        try:
            (backend or PostgresBackend(pool, table="prefork")).open().time()
        except StoreError as error:
            code = 0 if "before this process was forked" in str(error) and type(error) is StoreError else 2
        os._exit(code)
    _, status = os.waitpid(child, 0)
    assert status == 0, status
(backend or PostgresBackend(pool, table="prefork")).open().time()
getattr(pool, "inner", pool).close()
"""

LATER = """
import os, psycopg_pool
from anarchon_tasks.stores import PostgresBackend

pool = psycopg_pool.ConnectionPool({url!r}, min_size=1, max_size=1, open=False)
store = PostgresBackend(pool, table="later").open()
if os.fork() == 0:
    pool.open()
    store.time()
    pool.close()
    os._exit(0)
_, status = os.wait()
assert status == 0, status
"""
