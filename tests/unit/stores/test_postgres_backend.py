"""What PostgresBackend takes, what it refuses, and how it is shown."""

from __future__ import annotations

import builtins
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, cast

import pytest

from anarchon_tasks.errors import ConfigError, StoreError, StoreUnavailable
from anarchon_tasks.stores import PostgresBackend, backend_from_url, from_url, open_to_read

pytest.importorskip("psycopg")

from anarchon_tasks.stores import _postgres_options as options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.stores.base import LeaseStore


@pytest.fixture(autouse=True)
def no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without what libpq takes from the environment."""
    for name in ("PGHOST", "PGPORT", "PGUSER", "PGPASSWORD", "PGDATABASE", "PGSERVICE", "PGCONNECT_TIMEOUT"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.parametrize(
    ("target", "location"),
    [
        ("postgresql://app@db:5433/shop", "postgresql://app@db:5433/shop"),
        ("postgres://app:secret@db/shop", "postgresql://app@db/shop"),
        ("POSTGRESQL://db/shop", "postgresql://db/shop"),
        ("postgresql://[::1]:5433/shop", "postgresql://[::1]:5433/shop"),
        ("postgresql://a:1,b:2/shop?target_session_attrs=read-write", "postgresql://a:1,b:2/shop"),
        ("postgresql:///shop?host=/run/pg&port=5433", "postgresql:///shop?host=/run/pg&port=5433"),
        ("postgresql://%2Frun%2Fpg/shop", "postgresql:///shop?host=/run/pg"),
        ("postgresql://u%40x:s%2Fe@db/my%20shop", "postgresql://u%40x@db/my%20shop"),
        ("host=db dbname=shop user=app password='se cret'", "postgresql://app@db/shop"),
        ({"host": "db", "port": 5433, "password": "secret", "dbname": "shop"}, "postgresql://db:5433/shop"),
        ({"service": "shop"}, "postgresql:///?service=shop"),
        (None, "postgresql:///"),
    ],
)
def test_the_location_has_no_password(target: str | dict[str, object] | None, location: str) -> None:
    """Stores, backends and messages show where they lead, and nothing secret."""
    backend = PostgresBackend(target)
    assert backend.open().location == location
    for secret in ("secret", "se cret", "s%2Fe", "s/e"):
        assert secret not in repr(backend)


def test_options_of_ours_are_taken_from_the_url_and_the_rest_goes_to_libpq() -> None:
    """`table` and `timeout` are ours; the others reach the driver as they were written."""
    url = (
        "postgresql://db/shop?table=a.b&application_name=x%20y&timeout=2s&options=-c%20lock_timeout%3D1&sslmode=require"
    )
    for backend in (PostgresBackend(url), backend_from_url(url)):
        assert isinstance(backend, PostgresBackend)
        assert (backend.table, backend.timeout) == ("a.b", "2s")
        found = options.parameters(str(backend.postgres))
        assert (found["application_name"], found["options"]) == ("x y", "-c lock_timeout=1")
        assert (found["sslmode"], found["client_encoding"]) == ("require", "utf8")
        assert not {"table", "timeout"} & found.keys()


def test_an_option_may_be_given_twice_if_it_is_the_same() -> None:
    """In the URL and beside it: equal is fine, a contradiction is refused."""
    assert PostgresBackend("postgresql://db/x?table=a", table="a").table == "a"
    with pytest.raises(ConfigError, match="table='b' contradicts table='a'"):
        PostgresBackend("postgresql://db/x?table=a", table="b")
    with pytest.raises(ConfigError, match="table='b' contradicts table='a'"):
        from_url("postgresql://db/x?table=a", table="b")


def test_a_host_that_does_not_answer_is_given_up_unless_the_user_says_when(monkeypatch: pytest.MonkeyPatch) -> None:
    """Libpq would wait for ever; its own variable and the URL go before our default."""
    assert options.parameters("postgresql://db")["connect_timeout"] == 2
    assert options.parameters("postgresql://db?connect_timeout=7")["connect_timeout"] == "7"
    monkeypatch.setenv("PGCONNECT_TIMEOUT", "9")
    assert "connect_timeout" not in options.parameters("postgresql://db")


def test_a_reader_makes_nothing() -> None:
    """A store opened to read has `create=False`, from a URL and from a backend."""
    for value in ("postgresql://db/x", PostgresBackend("postgresql://db/x"), {"host": "db"}):
        backend = PostgresBackend(value) if isinstance(value, dict) else value
        store: Any = open_to_read(backend)
        assert store._database._create is False


async def _coroutine() -> None: ...


class AsyncPool:
    """Lends connections to coroutines."""

    async def getconn(self) -> None:
        """Lend one."""

    def connection(self) -> None:
        """Lend one for a block."""


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PostgresBackend("mysql://db/x"), r"mysql://db/x is not a URL of PostgreSQL: use postgres://"),
        (lambda: PostgresBackend("db"), "db is not a URL of PostgreSQL"),
        (lambda: PostgresBackend("postgresql://db/x?prefix=a"), "'prefix' .*is not an option .*sslmode"),
        (lambda: PostgresBackend({"hots": "db"}), "'hots' is not an option of postgres; .*host"),
        (lambda: PostgresBackend("host=db hots=x"), "host=db hots=x cannot be read: write key='value' pairs"),
        (lambda: PostgresBackend("postgresql://u:hun/ter2@db/x"), "has an @ or . where none can be: percent-encode"),
        (lambda: PostgresBackend("postgresql://us:hun%zzter2@db/x"), r"us:\*\*\*@db/x cannot be read: percent-encode"),
        (lambda: PostgresBackend("host=db password='hunter2"), r"password=\*\*\* cannot be read"),
        (lambda: PostgresBackend(3), "postgres=int is not a way to a server"),  # type: ignore[arg-type]
        (lambda: PostgresBackend(PostgresBackend), "is not a way to a server"),  # type: ignore[arg-type]
        (lambda: PostgresBackend(_coroutine), "postgres=_coroutine is asynchronous"),  # type: ignore[arg-type]
        (lambda: PostgresBackend(AsyncPool()), "postgres=AsyncPool is asynchronous"),  # type: ignore[arg-type]
        (lambda: PostgresBackend("postgresql://db", table="a."), "table='a.'"),
        (lambda: PostgresBackend("postgresql://db", timeout="soon"), "timeout='soon' is not a duration"),
        (lambda: PostgresBackend("postgresql://db", timeout=0), "timeout=0 is too short"),
        (lambda: PostgresBackend("postgresql://db?sslmode=bogus"), "sslmode='bogus' is not known: .*verify-full"),
        (lambda: PostgresBackend("host=db sslmode=on"), "sslmode='on' is not known"),
        (lambda: PostgresBackend({"host": "db", "sslmode": "bogus"}), "sslmode='bogus' is not known"),
        (lambda: PostgresBackend("postgresql://db?target_session_attrs=rw"), "target_session_attrs='rw' .*read-write"),
        (lambda: PostgresBackend("postgresql://db:99999/x"), "port='99999' is not a port: .*65535"),
        (lambda: PostgresBackend("postgresql://a:1,b:0/x"), "port='1,0' is not a port"),
        (lambda: PostgresBackend({"host": "db", "port": "x"}), "port='x' is not a port"),
        (lambda: PostgresBackend("postgresql://db?connect_timeout=2s"), "connect_timeout='2s' is not a whole number"),
        (lambda: from_url("postgresql://db", prefix="a:"), "prefix='a:' is not an option of postgresql://.*table"),
        (lambda: from_url("postgresql://db?clock=1"), "'clock' in .* is not an option"),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], message: str) -> None:
    """Errors name the option and the value, and hide what is secret."""
    with pytest.raises(ConfigError, match=message) as caught:
        make()
    assert "ter2" not in str(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "url",
    [
        "postgresql://shop:S3cr@ter2@127.0.0.1:5432/e2e",
        "postgresql://shop:S3cr@t/ter2@127.0.0.1/e2e",
        "postgresql://shop:S3cr@ter2:x@127.0.0.1/e2e",
        "postgresql://shop:123?S3cr=ter2@127.0.0.1/e2e",
        "postgresql://shop:123?S3crter2@127.0.0.1/e2e",
        "postgresql://shop:123?S3cr&ter2@127.0.0.1/e2e?sslmode=require",
        "postgresql://shop:123/S3crter2@127.0.0.1/e2e",
        "postgresql://shop:S3crter2#x@y@127.0.0.1/e2e",
        "postgresql://%53hop:S3crter2@127.0.0.1%40x/e2e",
        "host=S3crter2@127.0.0.1 user=shop",
        {"host": "S3crter2@127.0.0.1"},
    ],
)
def test_a_password_that_is_not_encoded_is_refused_without_a_part_of_it(url: Any) -> None:  # noqa: ANN401
    """A URL is cut at the first `@`: the rest of the password would be the host, and shown as such in an outage."""
    ways = [lambda: PostgresBackend(url), lambda: PostgresBackend(pool_of(url))]
    if str(url).startswith("postgresql:"):
        ways += [lambda: from_url(url), lambda: open_to_read(url)]
    for way in ways:
        with pytest.raises(ConfigError, match=r"percent-encode|host") as caught:
            way()
        told = f"{caught.value!r} {caught.value.__cause__!r}"
        assert not any(part in told for part in ("S3cr", "ter2"))


def pool_of(url: Any) -> object:  # noqa: ANN401 - as psycopg_pool has it
    """Return a pool that connects there."""

    class Pool:
        conninfo = url if isinstance(url, str) else ""
        kwargs = {} if isinstance(url, str) else url

        def connection(self) -> None: ...

    return Pool()


@pytest.mark.parametrize(
    ("url", "location"),
    [
        ("postgresql://shop%40x:S3cr%40t@db/e2e", "postgresql://shop%40x@db/e2e"),
        ("postgresql:///e2e?host=@abstract", "postgresql:///e2e?host=@abstract"),
        ("postgresql://db/e2e?user=a@b", "postgresql://a%40b@db/e2e"),
        ("postgresql://db/my%40shop", "postgresql://db/my%40shop"),
    ],
)
def test_an_at_sign_in_its_place_is_taken(url: str, location: str) -> None:
    """Encoded, in the name of an abstract socket, or in the query."""
    assert PostgresBackend(url).open().location == location


def test_a_missing_driver_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever has no psycopg is told what to install."""
    load = builtins.__import__

    def without(name: str, *args: Any) -> object:  # noqa: ANN401 - the signature of an import
        if name.partition(".")[0] == "psycopg":
            raise ModuleNotFoundError(f"No module named {name!r}", name="psycopg")
        return load(name, *args)

    monkeypatch.setattr(builtins, "__import__", without)
    with pytest.raises(ConfigError, match=r'pip install "anarchon-tasks\[postgres\]"'):
        from_url("postgresql://db/x")


@pytest.mark.parametrize(
    ("table", "namespace"),
    [
        ("anarchon_runs", "anarchon_runs"),
        ("public.anarchon_runs", "anarchon_runs"),
        ("public.a.b", "public.a.b"),
        ("shipping.runs", "shipping.runs"),
        ("Public.runs", "Public.runs"),
    ],
)
def test_one_store_has_one_namespace(table: str, namespace: str) -> None:
    """With the default schema or without: message ids are made from it, and instances share their slots."""
    assert PostgresBackend("postgresql://db/x", table=table).open().namespace == namespace


def test_a_backend_is_a_value() -> None:
    """It can be copied with a change, and shows its table."""
    backend = PostgresBackend("postgresql://db/x")
    assert "table='b'" in repr(replace(backend, table="b"))
    options_ = {"host": "db"}
    copied = PostgresBackend(options_)
    options_["host"] = "elsewhere"
    assert copied.open().location == "postgresql://db/"


class TestConnections:
    """Pools and functions of the user's that misbehave are named."""

    def store(self, target: object) -> LeaseStore:
        """Open a store."""
        return PostgresBackend(cast("Any", target), timeout=0.2).open()

    def test_what_is_no_connection_is_refused(self) -> None:
        """For example one of psycopg2."""

        def connect() -> object:
            return object()

        store = self.store(connect)
        assert store.location == "postgresql:// (connect)"
        with pytest.raises(StoreError, match=r"returned builtins\.object, which is not a connection of psycopg 3"):
            store.time()

    def test_a_pool_without_a_connection_is_unavailable(self) -> None:
        """A pool that times out tells its own words."""
        psycopg = pytest.importorskip("psycopg")

        class Empty:
            @contextmanager
            def connection(self) -> Iterator[None]:
                raise psycopg.OperationalError("couldn't get a connection after 30.00 sec")
                yield

        with pytest.raises(StoreUnavailable, match="couldn't get a connection after 30"):
            self.store(Empty()).time()

    @pytest.mark.parametrize(
        "error", [OSError("no route to the token service"), TimeoutError(), ZeroDivisionError("x")]
    )
    def test_whatever_a_function_or_pool_raises_is_an_outage(self, error: Exception) -> None:
        """Callers handle no other error: one that names the function or the pool, and what it raised."""

        def connect() -> None:
            raise error

        class Broken:
            @contextmanager
            def connection(self) -> Iterator[None]:
                raise error
                yield

        class BrokenAtOnce:
            def connection(self) -> None:
                raise error

        said = f"{type(error).__name__}{': ' if str(error) else ''}{error}$"
        for target, source in ((connect, "the function that opens connections"), (Broken(), "the pool")):
            with pytest.raises(StoreUnavailable, match=f"{source} failed: {said}"):
                self.store(target).time()
        with pytest.raises(StoreUnavailable, match=f"the pool failed: {said}"):
            self.store(BrokenAtOnce()).time()

    def test_a_pool_that_lends_something_else_is_refused(self) -> None:
        """For example a connection of psycopg2."""

        class Pool:
            @contextmanager
            def connection(self) -> Iterator[object]:
                yield object()

        with pytest.raises(
            StoreError, match=r"the pool lends builtins\.object, which is not a connection of psycopg 3"
        ):
            self.store(Pool()).time()

    def test_the_location_of_a_pool_is_what_the_pool_tells(self) -> None:
        """Its address without the password, from its text and its arguments."""

        class Pool:
            conninfo = "postgresql://app:secret@db/shop"
            kwargs = {"port": 5433}  # noqa: RUF012 - as psycopg_pool has it

            def connection(self) -> None: ...

        assert self.store(Pool()).location == "postgresql://app@db:5433/shop"
