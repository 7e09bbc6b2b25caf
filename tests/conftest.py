"""Fixtures shared by all tests: servers of their own, shared ones under a name of one's own, owned subprocesses."""

from __future__ import annotations

import os
import uuid
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

import pytest

from tests.servers import (
    PostgresServer,
    ProcessOwner,
    RedisServer,
    TcpProxy,
    ValkeyServer,
    answers_ping,
    answers_postgres,
    missing,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

pytest_plugins = ["pytester"]

STANDARD_PORT = 6379
STANDARD_POSTGRES = "postgresql://postgres@127.0.0.1:5432/postgres"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Let tests with subprocesses run one at a time: two of them on two cores disturb each other's timing."""
    for item in items:
        if "processes" in getattr(item, "fixturenames", ()):
            item.add_marker(pytest.mark.xdist_group("processes"))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """Show the end of what subprocesses and servers wrote when a test fails."""
    report = yield
    if report.failed:
        for value in getattr(item, "funcargs", {}).values():
            if isinstance(value, ProcessOwner):
                report.sections.extend((f"output of {p.name} (pid {p.pid})", p.tail()) for p in value.started)
    return report


@pytest.fixture(scope="session")
def redis_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a Redis that tests share: work there only below `redis_prefix`, and never stop it.

    It is the one `REDIS_URL` names, else the one at the standard port, else one started for this session.
    """
    named = os.environ.get("REDIS_URL")
    if named:
        yield named
    elif answers_ping(STANDARD_PORT):
        yield f"redis://127.0.0.1:{STANDARD_PORT}/0"
    elif RedisServer.binary() is None:
        missing("redis", RedisServer.how_to_have())
    else:
        with RedisServer(tmp_path_factory.mktemp("redis")) as server:
            yield server.redis_url


@pytest.fixture
def redis_prefix(redis_url: str) -> Iterator[str]:
    """A prefix on the shared Redis that no other test has; its keys are deleted afterwards."""
    import redis

    prefix = f"t{uuid.uuid4().hex[:16]}:"
    yield prefix
    client = redis.Redis.from_url(redis_url)
    try:
        for key in client.scan_iter(match=f"*{prefix}*", count=1000):
            client.delete(key)
    finally:
        client.close()


@pytest.fixture
def own_redis(tmp_path: Path) -> Iterator[RedisServer]:
    """A Redis that the test may kill, pause and start again."""
    if RedisServer.binary() is None:
        missing("redis", RedisServer.how_to_have())
    server = RedisServer(tmp_path / "redis")
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def own_valkey(tmp_path: Path) -> Iterator[ValkeyServer]:
    """A Valkey that the test may kill, pause and start again."""
    if ValkeyServer.binary() is None:
        missing("valkey", ValkeyServer.how_to_have())
    server = ValkeyServer(tmp_path / "valkey")
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture(scope="session")
def postgres_server_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a PostgreSQL that tests share: make databases of your own there, and never stop it.

    It is the one `POSTGRES_URL` names (as a role that may make databases and roles), else the one at the standard
    port, else one started for this session.
    """
    pytest.importorskip("psycopg")
    named = os.environ.get("POSTGRES_URL")
    if named:
        yield named
    elif answers_postgres(STANDARD_POSTGRES):
        yield STANDARD_POSTGRES
    elif PostgresServer.folder() is None:
        missing("postgres", PostgresServer.how_to_have())
    else:
        with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
            yield server.url


@pytest.fixture(scope="session")
def postgres_url(postgres_server_url: str) -> Iterator[str]:
    """The address of a database of this session, which is dropped afterwards."""
    import psycopg
    from psycopg import sql

    name = f"t{uuid.uuid4().hex[:16]}"
    address = urlsplit(postgres_server_url)
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(
            sql.SQL("CREATE DATABASE {} TEMPLATE template0 ENCODING 'UTF8'").format(sql.Identifier(name))
        )
        try:
            yield address._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(sql.SQL("DROP DATABASE {} WITH (FORCE)").format(sql.Identifier(name)))


@pytest.fixture
def postgres_schema(postgres_url: str) -> Iterator[str]:
    """A schema that no other test has, for `table="<schema>.anarchon_runs"`. A store makes it; it goes afterwards."""
    import psycopg
    from psycopg import sql

    name = f"t{uuid.uuid4().hex[:16]}"
    yield name
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(sql.SQL("DROP SCHEMA IF EXISTS {} CASCADE").format(sql.Identifier(name)))


@pytest.fixture
def own_postgres(tmp_path: Path) -> Iterator[PostgresServer]:
    """A PostgreSQL that the test may kill, pause and start again."""
    pytest.importorskip("psycopg")
    if PostgresServer.folder() is None:
        missing("postgres", PostgresServer.how_to_have())
    server = PostgresServer(tmp_path / "postgres")
    try:
        yield server.start()
    finally:
        server.kill()


@pytest.fixture
def tcp_proxy() -> Iterator[Callable[[int], TcpProxy]]:
    """A maker of proxies, called with the port of the server to stand in front of."""
    made: list[TcpProxy] = []

    def make(target_port: int) -> TcpProxy:
        made.append(TcpProxy(target_port))
        return made[-1]

    try:
        yield make
    finally:
        for proxy in made:
            proxy.close()


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[ProcessOwner]:
    """Start subprocesses that are ended with all their children when the test is over."""
    directory = tmp_path / "processes"
    directory.mkdir()
    owner = ProcessOwner(directory)
    try:
        yield owner
    finally:
        owner.close()
