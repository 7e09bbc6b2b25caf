"""Ways to a server: TLS with certificates of both sides, users with few rights, databases, sockets, versions."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.errors import ConfigError, StoreError, StoreUnavailable
from anarchon_tasks.stores import backend_from_url
from anarchon_tasks.stores.base import Definition
from anarchon_tasks.stores.redis import RedisBackend
from tests.servers import Certificates, RedisServer, TcpProxy, TlsRedisServer, missing, poll_until
from tests.unit.stores.redis_kit import claims_of, run_through

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

redis = pytest.importorskip("redis")  # the unit tests run beside the wheel, too, without any extra


@pytest.fixture(scope="module")
def tls_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TlsRedisServer]:
    """A server that speaks TLS alone and wants to see a client's certificate."""
    pytest.importorskip("trustme")
    if TlsRedisServer.binary() is None:
        missing("redis", TlsRedisServer.how_to_have())
    with TlsRedisServer(tmp_path_factory.mktemp("tls")) as server:
        yield server


def tls_url(server: TlsRedisServer, **options: object) -> str:
    """Return the address with the certificates of both sides, some of them replaced or left out (None)."""
    files = server.files
    given = {"ssl_ca_certs": files.ca, "ssl_certfile": files.client_cert, "ssl_keyfile": files.client_key, **options}
    return f"{server.url}?" + "&".join(f"{name}={value}" for name, value in given.items() if value is not None)


# --- TLS -------------------------------------------------------------------------------------------------------------


def test_mutual_tls(tls_redis: TlsRedisServer) -> None:
    """With the right authority and a client's certificate the store works, from a URL and from a mapping."""
    store = backend_from_url(tls_url(tls_redis)).open()
    assert store.location == f"rediss://127.0.0.1:{tls_redis.port}/0"
    assert store.register([Definition(name="sync", fingerprint="f", document="{}")]).answers[0].changed
    files = tls_redis.files
    options = {"host": "127.0.0.1", "port": tls_redis.port, "ssl": True, "ssl_ca_certs": str(files.ca)}
    options |= {"ssl_certfile": str(files.client_cert), "ssl_keyfile": str(files.client_key)}
    assert [item.name for item in RedisBackend(options).open().definitions().answers] == ["sync"]
    store.close()


def test_tls_with_the_valkey_driver(tls_redis: TlsRedisServer) -> None:
    """`valkeys://` opens the same with the other driver."""
    pytest.importorskip("valkey")
    url = tls_url(tls_redis).replace("rediss://", "valkeys://")
    assert backend_from_url(url).open().time().now_ms


def test_a_server_that_is_not_trusted(tls_redis: TlsRedisServer, tmp_path: Path) -> None:
    """A certificate of another authority ends the call at once, and the message names the option to set."""
    other = Certificates.make(tmp_path / "other")
    for authority in (other.ca, None):
        with pytest.raises(StoreError, match=r"CERTIFICATE_VERIFY_FAILED.*: give the CA .* as ssl_ca_certs$") as caught:
            RedisBackend(tls_url(tls_redis, ssl_ca_certs=authority)).open().time()
        assert not isinstance(caught.value, StoreUnavailable)


def test_a_certificate_for_another_name(tls_redis: TlsRedisServer) -> None:
    """The server must be who the URL says, unless that check is turned off."""
    url = tls_url(tls_redis).replace("127.0.0.1", "localhost")
    with pytest.raises(StoreError, match="not valid for 'localhost'"):
        RedisBackend(url).open().time()
    assert RedisBackend(f"{url}&ssl_check_hostname=no").open().time().now_ms


def test_a_client_that_is_not_trusted(tls_redis: TlsRedisServer, tmp_path: Path) -> None:
    """Without a client's certificate, or with one that the server does not trust, nothing is answered."""
    other = Certificates.make(tmp_path / "other")
    for cert, key in ((None, None), (other.client_cert, other.client_key)):
        # Which end of the refusal the client sees first is a race; a bare reset names no reason.
        with pytest.raises(StoreError, match=r"ssl_certfile and ssl_keyfile|reset|[Cc]losed|[Bb]roken"):
            RedisBackend(tls_url(tls_redis, ssl_certfile=cert, ssl_keyfile=key)).open().time()
    with pytest.raises(StoreError, match="ssl_keyfile is not the key of ssl_certfile"):
        RedisBackend(tls_url(tls_redis, ssl_keyfile=other.client_key)).open().time()


@pytest.mark.parametrize("option", ["ssl_ca_certs", "ssl_certfile", "ssl_keyfile"])
def test_a_missing_file_is_named(option: str) -> None:
    """A certificate that is not there is an error of the settings, before anything is asked of a server."""
    backend = RedisBackend(f"rediss://cache?{option}=/nowhere/x.pem")
    with pytest.raises(ConfigError, match=f"{option}='/nowhere/x.pem' is not a file"):
        backend.open()


# --- sockets and databases -------------------------------------------------------------------------------------------


def test_a_unix_socket(own_redis: RedisServer, tmp_path: Path) -> None:
    """A socket is a way to a server like any other, with its database."""
    own_redis.stop()
    own_redis.options += ["--unixsocket", "redis.sock"]
    own_redis.start()
    path = own_redis.directory / "redis.sock"
    store = backend_from_url(f"unix://{path}?db=2&prefix=t:").open()
    store.register([Definition(name="sync", fingerprint="f", document="{}")])
    assert store.location == f"unix://{path}?db=2"
    assert redis.Redis(port=own_redis.port, db=2).exists("t:jobs")
    assert not redis.Redis(port=own_redis.port).exists("t:jobs")
    assert str(tmp_path) in store.location


def test_databases_share_nothing(own_redis: RedisServer) -> None:
    """The same prefix in another database is another store."""
    first, second = (RedisBackend(f"redis://127.0.0.1:{own_redis.port}/{db}").open() for db in (0, 7))
    first.register([Definition(name="sync", fingerprint="f", document="{}")])
    assert second.definitions().answers == []
    assert [item.name for item in first.definitions().answers] == ["sync"]


# --- a failover behind a name ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("min_replicas", [0, 1])
@pytest.mark.parametrize("package", ["redis", "valkey"])
def test_a_demoted_server_is_left(package: str, min_replicas: int, own_redis: RedisServer, tmp_path: Path) -> None:
    """A name that leads to another server is followed, though the demoted one keeps its connections open."""
    pytest.importorskip(package)
    with RedisServer(tmp_path / "second") as second, TcpProxy(own_redis.port) as proxy:
        old, new = redis.Redis(port=own_redis.port), redis.Redis(port=second.port)
        new.replicaof("127.0.0.1", own_redis.port)
        poll_until(lambda: new.info("replication")["master_link_status"] == "up", what="the replica")
        url = f"{package}://127.0.0.1:{proxy.port}?min_replicas={min_replicas}"
        store: Any = backend_from_url(url).open()
        asks = claims_of(store, ["sync"])
        store.claim(asks)
        proxy.move(second.port)
        new.replicaof("NO", "ONE")
        old.replicaof("127.0.0.1", second.port)
        poll_until(lambda: old.info("replication")["master_link_status"] == "up", what="the replica")
        with pytest.raises(StoreUnavailable):
            store.claim(asks)
        assert run_through(store, "other")
        store.close()
        old.close()
        new.close()
