"""From a setting to a store."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks import stores
from anarchon_tasks.errors import ConfigError, StoreUnavailable
from anarchon_tasks.stores import MemoryBackend, SqliteBackend, from_url, open_store
from anarchon_tasks.stores.memory import MemoryStore
from anarchon_tasks.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_memory() -> None:
    """`memory://` is a new store; a backend object has one store for whoever opens it."""
    assert isinstance(from_url("memory://"), MemoryStore)
    assert from_url("memory://") is not from_url("memory://")
    backend = MemoryBackend()
    assert backend.open() is backend.open()


def test_relative_and_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Three slashes are relative to the directory of now, four are absolute; escapes are read."""
    monkeypatch.chdir(tmp_path)
    relative = from_url("sqlite:///a%20b.db")
    monkeypatch.chdir("/")
    assert relative.location == f"sqlite:///{tmp_path}/a b.db"
    assert from_url("sqlite:////var/x.db").location == "sqlite:////var/x.db"
    assert relative.namespace == "anarchon_runs"


def test_options_of_the_url(tmp_path: Path) -> None:
    """Options can stand in the URL or beside it."""
    assert from_url(f"sqlite:///{tmp_path}/x.db?table=billing").namespace == "billing"
    assert from_url(f"sqlite:///{tmp_path}/x.db", table="billing").namespace == "billing"
    assert SqliteBackend(f"sqlite:///{tmp_path}/x.db?table=billing").open().namespace == "billing"


def test_a_store_a_backend_and_a_url_are_accepted(tmp_path: Path) -> None:
    """Whoever takes a store takes a URL, a backend, or a store."""
    store = MemoryStore()
    assert open_store(store) is store
    assert isinstance(open_store(SqliteBackend(tmp_path / "x.db")), SqliteStore)
    assert open_store(f"sqlite:///{tmp_path}/x.db", table="t").namespace == "t"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: from_url("mysql://h"), r"'mysql' is not known; .* memory://, .*redis://, .*sqlite://"),
        (lambda: from_url("jobs.db"), "has no scheme"),
        (lambda: from_url("amqp://u:secret@h/x"), r"amqp://u:\*\*\*@h/x: RabbitMQ .*not available"),
        (lambda: from_url("amqp://h"), "RabbitMQ stores are not available in this version"),
        (lambda: from_url("nats://h"), "NATS stores are not available in this version"),
        (lambda: from_url("sqlite:///x.db", prefix="a:"), r"prefix='a:' is not an option of sqlite://.*table"),
        (lambda: from_url("sqlite:///x.db?prefix=a:"), r"prefix=a: is not an option of sqlite://.*table"),
        (lambda: from_url("sqlite:///x.db?clock=1"), "clock=1 is not an option"),
        (lambda: from_url("redis://h", table="x"), r"table='x' is not an option of redis://.*prefix"),
        (lambda: from_url("sqlite://x.db"), "sqlite:///x.db"),
        (lambda: from_url("sqlite:///:memory:"), "memory://"),
        (lambda: from_url("sqlite:///"), "names no file"),
        (lambda: from_url("memory://x"), "write memory://"),
        (lambda: SqliteBackend("x.db", table=""), "table=''"),
        (lambda: SqliteBackend("x.db", table="sqlite_x"), "table='sqlite_x'"),
        (lambda: SqliteBackend("x.db", busy_timeout="soon"), "busy_timeout='soon' is not a duration"),
        (lambda: SqliteBackend("sqlite:///x.db?busy_timeout=-1"), "busy_timeout='-1' is too short, as it is negative"),
        (lambda: open_store(3), "3 is not a store"),  # type: ignore[arg-type]
        (lambda: open_store(SqliteBackend), "is not a store"),  # type: ignore[arg-type]
        (lambda: open_store(MemoryStore(), table="x"), "table='x' has no place beside MemoryStore"),
    ],
)
def test_mistakes_are_named(make: Callable[[], object], message: str) -> None:
    """A setting that means no store is refused with what to write instead."""
    with pytest.raises(ConfigError, match=message):
        make()


def test_missing_driver_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    """A store whose driver is not installed says which extra brings it."""
    for name in list(sys.modules):
        if name == "redis" or name.startswith("redis."):
            monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "redis", None)
    with pytest.raises(ConfigError, match=r"pip install .anarchon-tasks\[redis\]"):
        from_url("redis://:secret@h")


def test_nothing_is_loaded_before_it_is_needed() -> None:
    """Importing the package and its stores loads no driver."""
    code = (
        "import sys, anarchon_tasks, anarchon_tasks.stores; "
        "sys.exit(' '.join({'redis', 'valkey', 'sqlite3', 'celery', 'dramatiq', 'psycopg'} & set(sys.modules)) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_backends_by_name() -> None:
    """Every name that the module promises exists."""
    for name in stores.__all__:
        assert getattr(stores, name) is not None
    with pytest.raises(AttributeError):
        _ = stores.Nothing  # type: ignore[attr-defined]


def test_reading_makes_nothing(tmp_path: Path) -> None:
    """A store that is opened to be read is not made when it is missing."""
    missing = stores.open_to_read(f"sqlite:///{tmp_path}/x.db")
    with pytest.raises(StoreUnavailable, match="holds no anarchon-tasks store"):
        missing.time()
    assert list(tmp_path.iterdir()) == []
    made = from_url(f"sqlite:///{tmp_path}/x.db")
    made.time()
    reader = stores.open_to_read(SqliteBackend(tmp_path / "x.db"))
    assert reader.time().now_ms > 0
    other = stores.open_to_read(f"sqlite:///{tmp_path}/x.db", table="other")
    with pytest.raises(StoreUnavailable, match="holds no anarchon-tasks store with table='other'"):
        other.time()
    for store in (made, reader):
        store.close()
