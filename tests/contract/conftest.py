"""Empty stores on real servers, for the conformance suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.servers import PostgresServer, RedisCluster, ValkeyServer, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    import psycopg
    import redis
    from valkey.cluster import ValkeyCluster

    from anarchon_tasks.stores.postgres import PostgresStore
    from tests.contract.postgres_adapter import EmptyTables


@pytest.fixture
def postgres_tables(postgres_url: str) -> EmptyTables:
    """The tables of one store, empty, in a database that tests share."""
    return _empty_tables(postgres_url)


@pytest.fixture
def lone_postgres_tables(own_postgres: PostgresServer) -> EmptyTables:
    """The same on a server that nobody else uses: no transaction of others keeps old rows alive."""
    return _empty_tables(own_postgres.url)


def _empty_tables(url: str) -> EmptyTables:
    from anarchon_tasks.stores import PostgresBackend
    from tests.contract.postgres_adapter import EmptyTables, new_table

    tables = EmptyTables(url, new_table())
    store = PostgresBackend(url, table=tables.table).open()
    store.time()
    store.close()
    return tables


@pytest.fixture(scope="module")
def postgres_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """A server of a module's own, on which a role called `app` needs the password `right`."""
    psycopg = pytest.importorskip("psycopg")
    if PostgresServer.folder() is None:
        missing("postgres", PostgresServer.how_to_have())
    access = ["host all app all scram-sha-256"]
    with PostgresServer(tmp_path_factory.mktemp("postgres"), access=access) as server:
        with psycopg.connect(server.url, autocommit=True) as connection:
            connection.execute("CREATE ROLE app LOGIN PASSWORD 'right'")
            connection.execute("GRANT CREATE ON SCHEMA public TO app")
        yield server


@pytest.fixture
def postgres_admin(postgres_server: PostgresServer) -> Iterator[psycopg.Connection[Any]]:
    """A connection beside the store."""
    import psycopg

    with psycopg.connect(postgres_server.url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def open_postgres() -> Iterator[Callable[..., PostgresStore]]:
    """Open stores that are closed afterwards; `table` and `timeout` have defaults."""
    from anarchon_tasks.stores import PostgresBackend
    from tests.contract.postgres_sessions import TIMEOUT_S

    stores: list[PostgresStore] = []

    def make(target: Any, **options: Any) -> PostgresStore:  # noqa: ANN401 - whatever a backend takes
        options = {"timeout": TIMEOUT_S, "table": "connections", **options}
        stores.append(PostgresBackend(target, **options).open())
        return stores[-1]

    yield make
    for store in stores:
        store.close()


@pytest.fixture(scope="session")
def redis_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisCluster]:
    """Three primaries that tests share: work there only under a prefix, and never stop them."""
    with RedisCluster(tmp_path_factory.mktemp("cluster")) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def cluster_client(redis_cluster: RedisCluster) -> Iterator[redis.RedisCluster]:
    """The client that a user would hand in."""
    import redis

    with redis.RedisCluster(host="127.0.0.1", port=redis_cluster.port, socket_timeout=5) as client:
        yield client


@pytest.fixture(scope="session")
def valkey_cluster_client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ValkeyCluster]:
    """Valkey's own client of a cluster of Valkey servers."""
    driver = pytest.importorskip("valkey.cluster")
    with RedisCluster(tmp_path_factory.mktemp("valkeys"), server=ValkeyServer) as cluster:
        client = driver.ValkeyCluster(host="127.0.0.1", port=cluster.port, socket_timeout=5)
        yield client
        client.close()
