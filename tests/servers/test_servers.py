"""The helpers that other tests stand on do what they say."""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import psutil
import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from tests.servers import (
    PgBouncer,
    PostgresServer,
    RedisServer,
    accepts_connections,
    answers_ping,
    free_port,
    missing,
    poll_until,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import ProcessOwner, TcpProxy, ValkeyServer


@pytest.fixture
def connect() -> Iterator[Callable[[int], redis.Redis]]:
    """Open clients that try once, wait at most two seconds, and are closed afterwards."""
    clients: list[redis.Redis] = []

    def make(port: int) -> redis.Redis:
        clients.append(redis.Redis(host="127.0.0.1", port=port, socket_timeout=2, retry=Retry(NoBackoff(), 0)))
        return clients[-1]

    yield make
    for client in clients:
        client.close()


class TestPollUntil:
    """`poll_until` waits as long as it must and no longer than it may."""

    def test_returns_the_first_true_answer(self) -> None:
        """The answer itself comes back, after false ones."""
        answers = iter([0, "", None, "yes"])
        assert poll_until(lambda: next(answers), timeout=5, interval=0) == "yes"

    def test_names_what_did_not_come(self) -> None:
        """The error says what was waited for and what was seen."""
        with pytest.raises(AssertionError, match=r"waited 0.01 s for rain; the last answer was 0"):
            poll_until(lambda: 0, timeout=0.01, what="rain")


class TestMissing:
    """A missing server is a skip for a person and a failure for CI."""

    def test_skips_without_ci(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Without CI the test is skipped, with the reason."""
        monkeypatch.delenv("CI", raising=False)
        with pytest.raises(pytest.skip.Exception, match="redis is missing: install it"):
            missing("redis", "install it")

    def test_fails_with_ci(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """With CI set the test fails."""
        monkeypatch.setenv("CI", "true")
        with pytest.raises(pytest.fail.Exception, match="redis is missing: install it"):
            missing("redis", "install it")


class TestServers:
    """A server of one's own can be killed, paused and started again."""

    def test_a_port_is_given_once(self) -> None:
        """The same port is never given twice."""
        ports = [free_port() for _ in range(50)]
        assert len(set(ports)) == 50

    def test_the_shared_redis_is_used_below_a_prefix(self, redis_url: str, redis_prefix: str) -> None:
        """The shared server answers, and the prefix is this test's own."""
        with redis.Redis.from_url(redis_url) as client:
            assert client.set(f"{{{redis_prefix}job}}:x", "1")
            assert list(client.scan_iter(match=f"*{redis_prefix}*")) == [f"{{{redis_prefix}job}}:x".encode()]

    def test_own_redis_comes_back_at_the_same_port(
        self, own_redis: RedisServer, connect: Callable[[int], redis.Redis]
    ) -> None:
        """After kill nothing listens; after start the same address answers, empty."""
        port = own_redis.port
        connect(port).set("key", "value")
        own_redis.kill()
        assert not own_redis.running
        assert not accepts_connections(port)
        own_redis.start()
        assert own_redis.port == port
        assert connect(port).get("key") is None

    def test_persistence_survives_a_kill(self, tmp_path: Path, connect: Callable[[int], redis.Redis]) -> None:
        """A persistent server remembers each write after SIGKILL."""
        if RedisServer.binary() is None:
            missing("redis", RedisServer.how_to_have())
        with RedisServer(tmp_path / "kept", persistence=True) as server:
            connect(server.port).set("key", "value")
            server.kill()
            server.start()
            assert connect(server.port).get("key") == b"value"

    def test_a_paused_server_keeps_its_port_and_answers_later(self, own_redis: RedisServer) -> None:
        """While paused it accepts and does not answer; after resume it answers."""
        own_redis.pause()
        assert accepts_connections(own_redis.port)
        assert not own_redis.ready()
        own_redis.resume()
        poll_until(own_redis.ready, what="an answer")

    def test_a_server_that_cannot_start_shows_its_log(self, tmp_path: Path) -> None:
        """The error carries what the server said."""
        if RedisServer.binary() is None:
            missing("redis", RedisServer.how_to_have())
        with pytest.raises(AssertionError, match="no-such-option"):
            RedisServer(tmp_path / "bad", options=["--no-such-option", "1"]).start()

    def test_own_valkey_is_valkey(self, own_valkey: ValkeyServer, connect: Callable[[int], redis.Redis]) -> None:
        """The wheel's server says that it is Valkey."""
        info: dict[str, Any] = connect(own_valkey.port).info("server")
        assert info["server_name"] == "valkey"
        assert own_valkey.url == f"valkey://127.0.0.1:{own_valkey.port}/0"


class TestPostgres:
    """A PostgreSQL of one's own, and a pooler before it."""

    def test_the_shared_one_is_used_in_a_database_of_the_session(self, postgres_url: str) -> None:
        """The database is there, empty, and not the one that everybody has."""
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(postgres_url) as connection:
            assert connection.info.dbname not in {"postgres", "template1"}
            assert connection.info.parameter_status("server_encoding") == "UTF8"

    def test_it_remembers_what_was_committed_before_a_crash(self, own_postgres: PostgresServer) -> None:
        """After kill nothing listens; after start the same address has the rows."""
        psycopg = pytest.importorskip("psycopg")
        with psycopg.connect(own_postgres.url) as connection:
            connection.execute("CREATE TABLE kept AS SELECT 1 AS row")
        own_postgres.kill()
        assert not accepts_connections(own_postgres.port)
        own_postgres.start()
        with psycopg.connect(own_postgres.url) as connection:
            assert connection.execute("SELECT row FROM kept").fetchall() == [(1,)]

    def test_a_paused_one_does_not_answer_on_an_open_connection(self, own_postgres: PostgresServer) -> None:
        """Also the processes of open connections are paused, and go on after resume."""
        psycopg = pytest.importorskip("psycopg")
        with contextlib.closing(psycopg.connect(own_postgres.url, autocommit=True)) as connection:
            own_postgres.pause()
            connection.pgconn.send_query(b"SELECT 1")
            connection.pgconn.flush()
            with socket.socket(fileno=os.dup(connection.fileno())) as wire:
                assert not select.select([wire], [], [], 0.2)[0]
                own_postgres.resume()
                assert select.select([wire], [], [], 10)[0]

    def test_clients_of_the_pooler_share_few_server_connections(
        self, own_postgres: PostgresServer, tmp_path: Path
    ) -> None:
        """Ten clients see no more server processes than the pool has."""
        psycopg = pytest.importorskip("psycopg")
        if PgBouncer.binary() is None:
            missing("pgbouncer", PgBouncer.how_to_have())
        with PgBouncer(tmp_path / "bouncer", server_port=own_postgres.port, pool_size=2) as bouncer:
            clients = [psycopg.connect(bouncer.url, autocommit=True, prepare_threshold=None) for _ in range(10)]
            seen = {client.execute("SELECT pg_backend_pid()").fetchone()[0] for client in clients}
            for client in clients:
                client.close()
        assert 1 <= len(seen) <= 2


def has_ended(connection: socket.socket) -> bool:
    """Wait for the other side to end the connection, in whichever way it comes."""
    try:
        return connection.recv(16) == b""
    except ConnectionResetError:
        return True


class TestTcpProxy:
    """The proxy is a network that breaks when told to."""

    @pytest.fixture
    def proxy(self, own_redis: RedisServer, tcp_proxy: Callable[[int], TcpProxy]) -> TcpProxy:
        """A proxy in front of a Redis of its own."""
        return tcp_proxy(own_redis.port)

    def test_carries_traffic(self, proxy: TcpProxy, connect: Callable[[int], redis.Redis]) -> None:
        """A good network changes nothing, whatever the size."""
        client = connect(proxy.port)
        client.set("key", b"x" * 300_000)
        assert client.get("key") == b"x" * 300_000

    def test_a_lost_reply_is_a_request_that_was_done(
        self, proxy: TcpProxy, own_redis: RedisServer, connect: Callable[[int], redis.Redis]
    ) -> None:
        """The server has counted once for each request, though the client saw a reset the first time."""
        client = connect(proxy.port)
        client.ping()
        proxy.lose_replies(match=b"INCR")
        with pytest.raises(redis.ConnectionError):
            client.incr("count")
        assert connect(own_redis.port).get("count") == b"1"
        assert proxy.lost_replies == 1
        assert client.incr("count") == 2

    def test_drop_ends_what_is_open(self, proxy: TcpProxy) -> None:
        """Open connections end, most with a reset; a new one works."""
        address = ("127.0.0.1", proxy.port)
        with socket.create_connection(address, timeout=5) as connection:
            connection.sendall(b"PING\r\n")
            assert connection.recv(16) == b"+PONG\r\n"
            proxy.drop()
            assert has_ended(connection)
        assert answers_ping(proxy.port)
        assert proxy.connections == 2

    def test_refuse_lasts_until_restore(self, proxy: TcpProxy, connect: Callable[[int], redis.Redis]) -> None:
        """No connection works while refusing."""
        client = connect(proxy.port)
        proxy.refuse()
        with pytest.raises(redis.ConnectionError):
            client.ping()
        proxy.restore()
        assert client.ping()

    def test_half_open_holds_traffic(self, proxy: TcpProxy) -> None:
        """Nothing comes through until restore, and the client's own timeout is what ends the wait."""
        client = redis.Redis(host="127.0.0.1", port=proxy.port, socket_timeout=0.2, retry=Retry(NoBackoff(), 0))
        with client:
            client.ping()
            proxy.half_open()
            with pytest.raises(redis.TimeoutError):
                client.ping()
            proxy.restore()
            assert client.ping()

    def test_delay_is_added_both_ways(self, proxy: TcpProxy, connect: Callable[[int], redis.Redis]) -> None:
        """A round trip takes at least twice the delay."""
        client = connect(proxy.port)
        client.ping()
        proxy.delay(0.05)
        started = time.monotonic()
        client.ping()
        assert time.monotonic() - started >= 0.1


class TestProcessOwner:
    """Subprocesses never outlive the test, and their output is kept."""

    def test_output_and_status_are_kept(self, processes: ProcessOwner) -> None:
        """Both streams are captured, and the status is the process's own."""
        process = processes.python("-c", "import sys; print('out'); print('err', file=sys.stderr); sys.exit(3)")
        assert process.wait() == 3
        assert set(process.output().split()) == {"out", "err"}

    def test_variables_are_added(self, processes: ProcessOwner) -> None:
        """The given variables stand beside those of this process."""
        process = processes.python("-c", "import os; print(os.environ['A'], 'PATH' in os.environ)", env={"A": "b"})
        process.wait_for_output("b True")

    def test_an_early_end_is_told_with_the_output(self, processes: ProcessOwner) -> None:
        """Waiting for a text ends at once when the process has ended without it."""
        process = processes.python("-c", "print('something else')", name="short")
        with pytest.raises(AssertionError, match=r"short ended with 0 before 'ready':\nsomething else"):
            process.wait_for_output("ready", timeout=60)

    def test_close_ends_children_too(self, processes: ProcessOwner) -> None:
        """Grandchildren go with the group, even when their parent was killed before."""
        parent = "import subprocess, sys; c = subprocess.Popen(['sleep', '600']); print(c.pid, flush=True); c.wait()"
        process = processes.python("-c", parent)
        poll_until(lambda: process.output().endswith("\n"), what="the child's pid")
        child = psutil.Process(int(process.output()))
        process.signal(signal.SIGKILL)
        assert process.wait() == -signal.SIGKILL
        processes.close()
        poll_until(lambda: not child.is_running() or child.status() == psutil.STATUS_ZOMBIE, what="the child's end")

    def test_a_failure_shows_the_output(self, pytester: pytest.Pytester) -> None:
        """The report of a failed test has the end of each subprocess's output."""
        pytester.makeconftest("from tests.conftest import *")
        pytester.makepyfile(
            """
            def test_it(processes):
                processes.python("-c", "print('last words')", name="talker").wait()
                assert False
            """
        )
        root = Path(__file__).parents[2]
        result = pytester.runpytest_subprocess("-o", f"pythonpath={root}", "-p", "no:randomly", "-p", "no:valkey")
        result.stdout.fnmatch_lines(["*output of talker (pid *", "last words"])
