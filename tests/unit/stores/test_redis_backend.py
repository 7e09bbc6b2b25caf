"""Redis and Valkey backends: what they accept, what they refuse, and what they show. No server is asked."""

from __future__ import annotations

import re
import ssl
import sys
from types import SimpleNamespace
from typing import Any

import pytest

from anarchon_tasks.errors import ConfigError, StoreError, StoreUnavailable
from anarchon_tasks.stores import _redis_options, backend_from_url
from anarchon_tasks.stores._redis_client import Connection, translate
from anarchon_tasks.stores._wire import job_key, job_name
from anarchon_tasks.stores.redis import RedisBackend, RedisStore, ValkeyBackend

pytest.importorskip("redis")  # the unit tests run beside the wheel, too, without any extra


SECRET = "s3cret/word"


class Recorder:
    """A client that answers every script with an empty batch and keeps the commands."""

    def __init__(self) -> None:
        self.commands: list[tuple[Any, ...]] = []
        self.closed = False

    def execute_command(self, *args: Any) -> bytes:  # noqa: ANN401 - as drivers have it
        """Note the command."""
        self.commands.append(args)
        return b"[5,[]]"

    def close(self) -> None:
        """Note that somebody closed the client."""
        self.closed = True


class Failing(Recorder):
    """A client whose every command fails."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error

    def execute_command(self, *args: Any) -> bytes:  # noqa: ANN401 - as drivers have it
        """Fail."""
        del args
        raise self.error


# --- settings --------------------------------------------------------------------------------------------------------


def test_without_settings_it_is_the_local_server() -> None:
    """`RedisBackend()` alone is localhost:6379 with the default prefix."""
    store = RedisBackend().open()
    assert (store.location, store.namespace) == ("redis://localhost:6379/0", "cron:")
    assert store.capabilities.leases
    assert store.capabilities.server_clock


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("redis://cache", "redis://cache:6379/0"),
        ("rediss://cache:6380/2", "rediss://cache:6380/2"),
        ("redis://[::1]:7000/1", "redis://[::1]:7000/1"),
        ("redis://cache?db=3&socket_timeout=0.5", "redis://cache:6379/3"),
        ("unix:///run/redis.sock?db=1", "unix:///run/redis.sock?db=1"),
        (f"redis://worker:{SECRET.replace('/', '%2F')}@cache/1", "redis://worker@cache:6379/1"),
    ],
)
def test_urls_of_redis(url: str, location: str) -> None:
    """Every form of address is understood and shown without its password."""
    assert RedisBackend(url).open().location == location
    assert backend_from_url(url).open().location == location


@pytest.mark.parametrize("url", ["valkey://cache:1/2", "valkeys://cache:1/2", "redis://cache:1/2"])
def test_urls_of_valkey(url: str) -> None:
    """Valkey's own schemes and those of Redis are understood."""
    assert ValkeyBackend(url).open().location.endswith("://cache:1/2")
    assert isinstance(backend_from_url("valkey://cache"), ValkeyBackend)


def test_options_in_the_url() -> None:
    """Prefix and strategy may stand in the URL, and the driver's options stay there."""
    backend = RedisBackend("rediss://cache?prefix=billing:cron:&strategy=lease&ssl_cert_reqs=none")
    assert (backend.redis, backend.prefix) == ("rediss://cache?ssl_cert_reqs=none", "billing:cron:")
    assert backend.open().namespace == "billing:cron:"


def test_driver_arguments_of_a_url() -> None:
    """A URL is opened with timeouts of its own and the protocol that every server knows."""
    kwargs = _redis_options.arguments("rediss://u:p%40@cache:1/2?socket_timeout=0.5&ssl_check_hostname=no")
    assert kwargs == {
        "host": "cache",
        "port": 1,
        "db": 2,
        "username": "u",
        "password": "p@",
        "ssl": True,
        "socket_timeout": 0.5,
        "socket_connect_timeout": 2.0,
        "protocol": 2,
        "ssl_check_hostname": False,
    }


@pytest.mark.parametrize(
    ("target", "message"),
    [
        ("redis://cache?ssl_ca_certs=ca.pem", "ssl_ca_certs can only be given with TLS: use rediss://"),
        ({"ssl": False, "ssl_cert_reqs": "none"}, "ssl_cert_reqs can only be given with TLS"),
        ("redis://cache?protocol=4", "protocol=4 is not valid: give 2 or 3"),
        ("redis://cache?socket_timeout=0", "socket_timeout=0.0 is not valid: give seconds, more than 0"),
        ("redis://cache?socket_timeout=nan", "socket_timeout=nan is not valid"),
        ("redis://cache?socket_connect_timeout=-1", "socket_connect_timeout=-1.0 is not valid"),
        ("redis://cache?max_connections=0", "max_connections=0 is not valid"),
        ("rediss://cache?ssl_cert_reqs=bogus", "ssl_cert_reqs='bogus' is not valid: give one of none, optional, req"),
        ("redis://cache/-1", "db=-1 is not valid"),
        ("redis://cache/1?db=2", "gives db twice, 1 and 2: give it once"),
        ("redis://cache:99999/0", "the port is out of range: give one from 1 to 65535"),
        ("redis://cache:0/0", "port=0 is not valid"),
        ("redis://cache:x/0", "percent-encode special characters of the password"),
        ("unix:", "names no socket: use unix:///"),
        ("redis:cache:6379", "names no host: use redis://HOST:PORT/DB"),
        ({"max_connections": "5"}, "redis: max_connections='5' is not valid: give a whole number, 1 or more"),
        ({"ssl": "true"}, "redis: ssl='true' is not valid: give True or False"),
        ({"port": "6379"}, "redis: port='6379' is not valid: give a port, 1 to 65535"),
        ({"password": 123456}, "redis: password=<int> is not valid: give a text"),
    ],
)
def test_options_that_cannot_work(target: Any, message: str) -> None:  # noqa: ANN401 - some are of a wrong type
    """What no connection could be opened with is refused at once, with the option, its value and what to give."""
    with pytest.raises(ConfigError, match=re.escape(message)) as caught:
        RedisBackend(target)
    assert "123456" not in str(caught.value)


def test_options_that_work() -> None:
    """The same option twice with one value, names of other programs, and None where the driver has a default."""
    arguments = _redis_options.arguments
    assert arguments("redis://cache/2?db=2")["db"] == 2
    assert arguments("rediss://cache?ssl_cert_reqs=CERT_NONE")["ssl_cert_reqs"] == "none"
    assert RedisBackend({"ssl": True, "ssl_cert_reqs": ssl.CERT_NONE, "ssl_ca_certs": None}).redis == {
        "ssl": True,
        "ssl_cert_reqs": ssl.CERT_NONE,
    }
    assert RedisBackend({"socket_timeout": None, "username": None}).redis == {"socket_timeout": None}


def test_options_as_a_mapping() -> None:
    """A mapping has the driver's options, and is copied."""
    given = {"host": "cache", "port": 1, "password": SECRET}
    backend = RedisBackend(given)
    given["host"] = "other"
    assert backend.open().location == "redis://cache:1/0"
    assert SECRET not in repr(backend)


@pytest.mark.parametrize(
    ("kwargs", "said"),
    [
        ({"redis": "redis://cache?colour=red"}, "colour=red is not an option of redis:// URLs; the options are:"),
        ({"redis": f"redis://cache?password={SECRET}"}, "password=*** is not an option"),
        ({"redis": "redis://cache?db=x"}, "db='x' is not valid"),
        ({"redis": "redis://cache/x"}, "db='x' is not valid"),
        ({"redis": f"redis://:{SECRET}@cache"}, "percent-encode"),
        ({"redis": "http://cache"}, "is not a URL of Redis or Valkey: use redis://, rediss://"),
        ({"redis": "redis://cache?prefix=a:", "prefix": "b:"}, "contradicts"),
        ({"redis": {"host": "cache", "pasword": SECRET}}, "'pasword' is not an option of redis; the options are:"),
        ({"redis": 6379}, "redis=int is not a way to a server"),
        ({"prefix": "cron"}, "use 'cron:'"),
        ({"prefix": "a::"}, "use 'a:'"),
        ({"prefix": "{a}:"}, "use 'a:'"),
        ({"prefix": ""}, "use 'cron:'"),
        ({"prefix": None}, "is not a text"),
        ({"strategy": "leases"}, "does not exist; the strategies are: lease, stream-id, idmp, script"),
        ({"strategy": ["lease"]}, "does not exist"),
        ({"strategy": "stream-id"}, "strategy='stream-id' is not available in this version: use 'lease'"),
        ({"strategy": {"name": "script", "window": "10m"}}, "strategy='script' is not available in this version"),
        ({"strategy": {"name": "idmp", "duration": 900, "max_size": 5}}, "'idmp' is not available in this version"),
        ({"strategy": {"name": "lease", "window": 1}}, "window is a setting of script, not of lease; lease has no"),
        ({"strategy": {"name": "script", "max_size": 1}}, "max_size is a setting of idmp, not of script; the settings"),
        ({"strategy": {"name": "lease", "colour": 1}}, "'colour' is not a setting of a strategy; lease has no"),
        ({"strategy": {"window": 1}}, "has no name: write {'name': 'lease'}"),
        ({"redis": "redis://cache?strategy=script"}, "'script' is not available in this version"),
        ({"redis": "redis://cache?strategy=script", "strategy": {"name": "idmp"}}, "contradicts strategy='script'"),
        ({"min_replicas": -1}, "min_replicas=-1 is not a number of replicas: give 0 or more"),
        ({"min_replicas": True}, "min_replicas=True is not"),
        ({"redis": "redis://cache?min_replicas=x"}, "min_replicas='x' is not"),
        ({"min_replicas_timeout": "soon"}, "min_replicas_timeout='soon' is not a duration"),
        ({"min_replicas": 1, "min_replicas_timeout": "2s"}, "less than the socket_timeout of 2 s"),
        ({"redis": Recorder(), "min_replicas": 1}, "min_replicas=1 needs a client that can send several commands"),
    ],
)
def test_refused_settings(kwargs: dict[str, Any], said: str) -> None:
    """What is not valid is refused when the backend is made, with what would be."""
    with pytest.raises(ConfigError) as caught:
        RedisBackend(**kwargs)
    assert said in str(caught.value)
    assert SECRET not in str(caught.value)


def test_a_strategy_with_its_settings() -> None:
    """A strategy is a name, or a mapping with its name; both mean the same when there are no settings."""
    assert RedisBackend(strategy={"name": "lease"}).strategy == "lease"
    assert RedisBackend("redis://h", strategy={"name": "lease"}).open().capabilities.leases


def test_valkey_cannot_have_idmp() -> None:
    """Where a strategy cannot work it is refused at once, with the reason and with what works in this version."""
    with pytest.raises(ConfigError, match=r"'idmp' cannot be used here: Valkey has no XADD IDMP\. Use 'lease'$"):
        ValkeyBackend(strategy="idmp")
    with pytest.raises(ConfigError, match="Valkey has no XADD IDMP"):
        backend_from_url("valkey://cache?strategy=idmp")


def test_replicas_in_the_url() -> None:
    """The options for replicas may stand in the URL, and are shown when they are not the defaults."""
    backend = ValkeyBackend("valkey://cache?min_replicas=2&min_replicas_timeout=50ms")
    assert (backend.min_replicas, backend.min_replicas_timeout) == (2, "50ms")
    assert repr(backend).endswith("strategy='lease', min_replicas=2, min_replicas_timeout='50ms')")
    assert "min_replicas" not in repr(RedisBackend())


def test_unknown_arguments_are_errors() -> None:
    """A backend has no options that it ignores."""
    with pytest.raises(TypeError):
        RedisBackend(window_ms=1)  # type: ignore[call-arg]


def test_a_missing_driver_names_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without a driver the error holds what to install; a client that is handed in needs none."""
    monkeypatch.setitem(sys.modules, "redis", None)
    monkeypatch.setitem(sys.modules, "valkey", None)
    with pytest.raises(ConfigError, match=r'pip install "anarchon-tasks\[redis\]"'):
        RedisBackend().open()
    with pytest.raises(ConfigError, match=r'pip install "anarchon-tasks\[valkey\]"'):
        ValkeyBackend().open()
    assert RedisBackend(Recorder()).open().time().now_ms == 5
    monkeypatch.setitem(sys.modules, "valkey", SimpleNamespace())
    with pytest.raises(ConfigError, match=r"\[redis\]\", or use ValkeyBackend: its driver is installed$"):
        RedisBackend("valkey://cache").open()


# --- clients ---------------------------------------------------------------------------------------------------------


def test_what_looks_like_a_client() -> None:
    """Pipelines and the like have `execute_command` too, but no replies: they are refused, with what to give."""
    redis = pytest.importorskip("redis")
    client = redis.Redis()
    for other in (client.pipeline(), client.pubsub()):
        with pytest.raises(ConfigError, match=r"cannot run scripts .*: give the client that it was made of"):
            RedisBackend(other)
    with pytest.raises(ConfigError, match=r"redis=Sentinel .*: give the client that its master_for\(...\) returns"):
        RedisBackend(redis.sentinel.Sentinel([]))


@pytest.mark.parametrize("reply", [None, b"OK", "no", 6, b"5", b"[]", ["1"], "\ufffe"])
def test_replies_that_are_none(reply: Any) -> None:  # noqa: ANN401 - whatever a client may return
    """A client that changes replies, or is none of such a server, is told apart from an outage, with what to give."""

    class Odd(Recorder):
        """Returns something of its own."""

        def execute_command(self, *args: Any) -> Any:  # noqa: ANN401 - as drivers have it
            """Return it."""
            del args
            return reply

    with pytest.raises(StoreError, match="hand in a client that returns replies as they come") as caught:
        RedisBackend(Odd()).open().time()
    assert type(caught.value) is StoreError


def test_any_client_with_execute_command() -> None:
    """A client needs `execute_command` alone, and stays open."""
    client = Recorder()
    store = RedisBackend(client, prefix="a:").open()
    assert store.claim([]).now_ms == 5
    store.close()
    (command, _, keys, prefix, now, *_) = client.commands[0]
    assert (command, keys, prefix, now, client.closed) == ("EVALSHA", 0, b"a:", 0, False)
    assert store.location == "Recorder"
    assert repr(RedisBackend(client)) == "RedisBackend(redis=client, prefix='cron:', strategy='lease')"


def test_asynchronous_clients_are_refused() -> None:
    """A client that cannot work is refused at once and not at the first claim."""
    import redis.asyncio

    with pytest.raises(ConfigError, match="asynchronous"):
        RedisBackend(redis.asyncio.Redis())
    with pytest.raises(ConfigError, match="asynchronous"):
        RedisBackend(redis.asyncio.RedisCluster("cache"))


def test_a_client_tells_where_it_leads() -> None:
    """The location of a driver's client is read off it, and its password hidden."""
    import redis.sentinel

    client = redis.Redis(host="cache", port=1, password=SECRET, username="worker")
    store = RedisBackend(client).open()
    assert store.location == "redis://worker@cache:1/0"
    assert SECRET not in repr(store)
    assert RedisBackend(redis.Redis(host="cache", ssl=True)).open().location == "rediss://cache:6379/0"
    assert RedisBackend(redis.Redis(unix_socket_path="/run/x.sock", db=1)).open().location == "unix:///run/x.sock?db=1"
    primary = redis.sentinel.Sentinel([("cache", 26379)], password=SECRET).master_for("main", db=2)
    assert RedisBackend(primary).open().location == "sentinel://main/2"


def test_a_cluster_client_tells_where_it_leads() -> None:
    """The first node that it was given is its location, and its password is hidden, in errors too."""

    class Cluster(Recorder):
        startup_nodes = (SimpleNamespace(host="cache", port=1),)
        nodes_manager = SimpleNamespace(connection_kwargs={"username": "worker", "password": SECRET})

        def get_node_from_key(self, key: bytes) -> None:
            raise RuntimeError(f"no node for {key!r} with {SECRET}")

        def get_redis_connection(self, node: object) -> None:
            raise AssertionError(f"there is no {node!r}")

    backend = RedisBackend(Cluster())
    store = backend.open()
    assert store.location == "redis://worker@cache:1/0"
    assert "client" in repr(backend)
    with pytest.raises(StoreError, match=r"no node for .* with \*\*\*") as raised:
        store.time()
    assert SECRET not in str(raised.value)


# --- errors ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "kind"),
    [
        (ConnectionRefusedError("no"), StoreUnavailable),
        (TimeoutError("no"), StoreUnavailable),
        (EOFError(), StoreUnavailable),
        (RuntimeError("LOADING Redis is loading the dataset in memory"), StoreUnavailable),
        (RuntimeError("READONLY You can't write against a read only replica."), StoreUnavailable),
        (RuntimeError("OOM command not allowed when used memory > 'maxmemory'."), StoreUnavailable),
        (RuntimeError("NOPERM this user has no permissions"), StoreError),
        (RuntimeError("ERR unknown command"), StoreError),
    ],
)
def test_errors_of_any_client(error: Exception, kind: type[StoreError]) -> None:
    """What will pass is `StoreUnavailable`, what will not is `StoreError`, whichever driver raises it."""
    store = RedisBackend(Failing(error)).open()
    with pytest.raises(StoreError) as caught:
        store.time()
    assert type(caught.value) is kind
    assert caught.value.__cause__ is error


IN_A_SCRIPT = "Error running script (call to f_4cb91861d207e5689edc816618ab68f9d6de3b44): @user_script:92: "


@pytest.mark.parametrize(
    ("said", "kind", "word"),
    [
        (
            f"{IN_A_SCRIPT}@user_script: 92: -OOM command not allowed when used memory > 'maxmemory'.",
            StoreUnavailable,
            "OOM",
        ),
        (f"ERR {IN_A_SCRIPT}@user_script: 92: -OOM command not allowed when used", StoreUnavailable, "OOM"),
        (
            f"{IN_A_SCRIPT}@user_script: 92: -READONLY You can't write against a read only r",
            StoreUnavailable,
            "READONLY",
        ),
        (
            f"{IN_A_SCRIPT}@user_script: 92: -NOREPLICAS Not enough good replicas to write.",
            StoreUnavailable,
            "NOREPLICAS",
        ),
        (f"{IN_A_SCRIPT}@user_script: 92: -MISCONF Redis is configured to save RDB snaps", StoreUnavailable, "MISCONF"),
        ("@user_script: 92: -OOM command not allowed when used memory > 'maxmemory'.", StoreUnavailable, "OOM"),
        (
            "NOREPLICAS Not enough good replicas to write. script: 4cb9, on @user_script:1.",
            StoreUnavailable,
            "NOREPLICAS",
        ),
        (f"{IN_A_SCRIPT}WRONGTYPE Operation against a key holding the wrong kind of value", StoreError, "WRONGTYPE"),
        (f"{IN_A_SCRIPT}user_script:92: attempt to index a nil value", StoreError, "user_script:92: attempt"),
    ],
)
def test_errors_in_a_script(said: str, kind: type[StoreError], word: str) -> None:
    """What a command in a script raised counts as what it is, also where a server puts the place of it first."""
    found = translate(RuntimeError(said), "here")
    assert type(found) is kind
    assert word in str(found)
    assert kind is StoreError or str(found).startswith(f"here: {word} ")


def test_errors_of_redis_py() -> None:
    """The driver's classes are told apart by what they mean, not by their descent."""
    from redis import exceptions

    away = [exceptions.ConnectionError, exceptions.TimeoutError, exceptions.BusyLoadingError, exceptions.ReadOnlyError]
    away += [exceptions.OutOfMemoryError, exceptions.ClusterDownError, exceptions.MasterDownError]
    assert {type(translate(kind("text"), "here")) for kind in away} == {StoreUnavailable}
    refused = [exceptions.AuthenticationError, exceptions.ResponseError, exceptions.NoPermissionError]
    assert {type(translate(kind("text"), "here")) for kind in refused} == {StoreError}


def test_no_error_holds_the_password() -> None:
    """A driver's text that quotes the password is passed on without it, and its error is left behind."""
    client = Failing(RuntimeError(f"cannot log in with {SECRET}"))
    store = RedisStore(Connection(client=client, location="redis://cache", secrets=[SECRET]))
    with pytest.raises(StoreError) as caught:
        store.time()
    assert str(caught.value) == "redis://cache: cannot log in with ***"
    assert caught.value.__cause__ is None
    assert caught.value.__suppress_context__


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["sync", "a.b~c", "a%2Eb", "{x}:*?[]", "κλειδί\n\0", "\ud800", "a b+c/d", "x" * 300])
def test_names_in_keys(name: str) -> None:
    """A job's name is percent-encoded outside `A-Z a-z 0-9 _ -`, and can be read back."""
    key = job_key(name)
    assert set(key) <= {*"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789_-%"}
    assert job_name(key) == name
