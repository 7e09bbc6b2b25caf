"""Clients of other people's making: each of them takes a run from its claim to its end, and stays open."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.errors import ConfigError, StoreError, StoreUnavailable
from anarchon_tasks.model import Status
from anarchon_tasks.stores._glide import GlideClient, RefusedError
from anarchon_tasks.stores.redis import RedisBackend, ValkeyBackend
from tests.unit.stores.redis_kit import claims_of, run_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tests.servers import ProcessOwner, RedisServer, TcpProxy

redis = pytest.importorskip("redis")  # the unit tests run beside the wheel, too, without any extra

NAMES = ("sync", 'κλειδί "{}"\n', "\ud800")


def port_of(url: str) -> int:
    """Return the port of a URL."""
    port: int = redis.Redis.from_url(url).connection_pool.connection_kwargs["port"]
    return port


# --- redis-py and valkey-py ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", [2, 3])
@pytest.mark.parametrize("decode", [False, True])
@pytest.mark.parametrize("package", ["redis", "valkey"])
def test_clients_of_redis_py_and_valkey_py(
    package: str, decode: bool, protocol: int, redis_url: str, redis_prefix: str
) -> None:
    """Either protocol, and bytes or texts in replies: all the same."""
    kind = getattr(pytest.importorskip(package), package.capitalize())
    client = kind(host="127.0.0.1", port=port_of(redis_url), decode_responses=decode, protocol=protocol)
    backend = ValkeyBackend(client, prefix=redis_prefix) if package == "valkey" else None
    store = (backend or RedisBackend(client, prefix=redis_prefix)).open()
    for name in NAMES:
        assert run_through(store, name) == [Status.SUCCEEDED]
    assert [item.name for item in store.definitions().answers] == sorted(NAMES)
    assert store.location == f"redis://127.0.0.1:{port_of(redis_url)}/0"
    store.close()
    assert client.ping()
    client.close()


def test_the_protocol_of_our_own_connections(redis_url: str, redis_prefix: str) -> None:
    """A URL may ask for the newer protocol; without, it is the one that every server knows."""
    for options, protocol in (("", 2), ("&protocol=3", 3)):
        store = RedisBackend(f"{redis_url}?client_name=p{redis_prefix[:-1]}{options}", prefix=redis_prefix).open()
        assert run_through(store, f"sync-{protocol}") == [Status.SUCCEEDED]
        with redis.Redis.from_url(redis_url) as server:
            [mine] = [each for each in server.client_list() if each["name"] == f"p{redis_prefix[:-1]}"]
        assert mine.get("resp", str(protocol)) == str(protocol)
        store.close()


@pytest.mark.parametrize("protocol", [2, 3])
def test_scripts_are_sent_again_by_any_client(protocol: int, own_redis: RedisServer) -> None:
    """A server that lost its scripts gets them again, whichever words a driver has for that."""
    client = redis.Redis(port=own_redis.port, protocol=protocol)
    store = RedisBackend(client).open()
    assert run_through(store, "sync") == [Status.SUCCEEDED]
    client.script_flush()
    assert run_through(store, "other") == [Status.SUCCEEDED]


# --- anything with execute_command -----------------------------------------------------------------------------------


class Bare:
    """A client that has one method."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - any driver's
        self._client = client

    def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - as drivers have it
        """Send a command."""
        return self._client.execute_command(*args)


def test_anything_with_execute_command(redis_url: str, redis_prefix: str) -> None:
    """One method is enough."""
    store = RedisBackend(Bare(redis.Redis.from_url(redis_url)), prefix=redis_prefix).open()
    assert run_through(store, "sync") == [Status.SUCCEEDED]
    assert store.location == "Bare"


# --- GLIDE -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def glide() -> Iterator[Callable[[int], Any]]:
    """A maker of GLIDE's clients, called with a port."""
    sync = pytest.importorskip("glide_sync")
    made = []

    def make(port: int) -> Any:  # noqa: ANN401 - GLIDE's own type
        address = sync.NodeAddress("127.0.0.1", port)
        made.append(sync.GlideClient.create(sync.GlideClientConfiguration([address], request_timeout=2_000)))
        return made[-1]

    yield make
    for client in made:
        client.close()


def test_a_client_of_glide(redis_url: str, redis_prefix: str, glide: Callable[[int], Any]) -> None:
    """GLIDE's synchronous client takes bytes and numbers through its own call, and stays open."""
    client = glide(port_of(redis_url))
    for backend in (RedisBackend(client, prefix=redis_prefix), ValkeyBackend(client, prefix=redis_prefix)):
        store = backend.open()
        for name in NAMES:
            assert run_through(store, f"{name}-{type(backend).__name__}") == [Status.SUCCEEDED]
        assert store.location == f"redis://127.0.0.1:{port_of(redis_url)}/0"
        store.close()
    assert client.custom_command(["PING"]) == b"PONG"


def test_errors_of_glide(own_redis: RedisServer, glide: Callable[[int], Any]) -> None:
    """GLIDE has words of its own for the server's errors: a lost script, full memory, a replica."""
    server = redis.Redis(port=own_redis.port)
    store = RedisBackend(glide(own_redis.port)).open()
    asks = claims_of(store, ["sync"])
    store.claim(asks)
    server.script_flush()
    assert store.claim(asks).now_ms
    server.config_set("maxmemory", 1)
    with pytest.raises(StoreUnavailable, match="OOM"):
        store.claim(asks)
    server.config_set("maxmemory", 0)
    server.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailable, match="READONLY"):
        store.claim(asks)
    server.replicaof("NO", "ONE")
    server.acl_setuser("default", enabled=True, nopass=True, commands=["+@all", "-evalsha"], keys=["*"])
    with pytest.raises(StoreError, match="NOPERM") as caught:
        store.claim(asks)
    assert not isinstance(caught.value, StoreUnavailable)


def test_a_server_that_glide_does_not_reach(
    redis_url: str, redis_prefix: str, tcp_proxy: Callable[[int], TcpProxy], glide: Callable[[int], Any]
) -> None:
    """An outage is `StoreUnavailable`, and the same client works afterwards."""
    proxy = tcp_proxy(port_of(redis_url))
    store = RedisBackend(glide(proxy.port), prefix=redis_prefix).open()
    store.time()
    proxy.refuse()
    with pytest.raises(StoreUnavailable):
        store.time()
    proxy.restore()
    for _ in range(20):  # GLIDE connects again at its own pace; each try waits for its timeout
        try:
            assert store.time().now_ms
        except StoreUnavailable:
            continue
        break
    assert store.time().now_ms


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork on this system")
def test_a_client_of_glide_after_a_fork(redis_url: str, redis_prefix: str, processes: ProcessOwner) -> None:
    """GLIDE connects again in the child of a fork, so a client may be made before a prefork pool is."""
    pytest.importorskip("glide_sync")
    code = f"""
import os
from glide_sync import GlideClient, GlideClientConfiguration, NodeAddress
from anarchon_tasks.stores.redis import RedisBackend
client = GlideClient.create(GlideClientConfiguration([NodeAddress("127.0.0.1", {port_of(redis_url)})]))
store = RedisBackend(client, prefix={redis_prefix!r}).open()
store.time()
child = os.fork()
assert store.forget([str(n) for n in range(300)]).answers == [False] * 300
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("both are fine")
"""
    process = processes.python("-c", code)
    assert process.wait(30) == 0, process.output()
    assert "both are fine" in process.output()


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("An error was signalled by the server: - NoScriptError: No matching script.", "NOSCRIPT No matching script."),
        ("An error was signalled by the server: - ReadOnly: You can't write", "READONLY You can't write"),
        ("An error was signalled by the server: - ResponseError: a: b", "ERR a: b"),
        ("OOM: command not allowed", "OOM command not allowed"),
        ("the pool: it is closed", "the pool: it is closed"),
    ],
)
def test_words_of_glide(said: str, meant: str) -> None:
    """The server's errors get their own words back, and all others stay as they are."""

    class Refusing:
        """Fails as GLIDE does."""

        def custom_command(self, args: list[Any]) -> None:
            """Fail."""
            del args
            raise RuntimeError(said)

    with pytest.raises((RefusedError, RuntimeError)) as caught:
        GlideClient(Refusing()).execute_command("PING")
    assert str(caught.value) == meant


class AsyncGlide:
    """The shape of GLIDE's client for asyncio."""

    async def custom_command(self, args: list[Any]) -> None:
        """Send a command."""


class ClusterGlide:
    """The shape of GLIDE's client of a cluster."""

    def custom_command(self, args: list[Any], route: object = None) -> None:
        """Send a command to some node."""


def test_glide_clients_that_cannot_work() -> None:
    """Those for asyncio and of clusters are refused when the backend is made."""
    with pytest.raises(ConfigError, match="redis=AsyncGlide is an asynchronous client: give a synchronous one"):
        RedisBackend(AsyncGlide())  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"valkey=ClusterGlide is .*client of a cluster"):
        ValkeyBackend(ClusterGlide())  # type: ignore[arg-type]


def test_glide_is_not_imported(processes: ProcessOwner) -> None:
    """A store in Redis does not load GLIDE."""
    code = "import sys, anarchon_tasks.stores.redis as r; r.RedisBackend().open(); print('glide_sync' in sys.modules)"
    process = processes.start(sys.executable, "-c", code)
    process.wait_for_output("False")
