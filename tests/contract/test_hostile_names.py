"""Ten thousand jobs whose names a store could confuse, on each store."""

from __future__ import annotations

import uuid
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.errors import ConfigError, StoreError
from anarchon_tasks.jobs import NAME_LIMIT, check_name
from anarchon_tasks.stores import from_url
from anarchon_tasks.stores.base import Definition
from anarchon_tasks.testing import Lab
from anarchon_tasks.testing._names import LONGEST, check_names, hostile_names
from tests.contract.redis_adapter import RedisAdapter
from tests.contract.test_memory import MemoryAdapter
from tests.contract.test_sqlite import SqliteAdapter
from tests.servers import ValkeyServer, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from anarchon_tasks.testing import StoreAdapter

TEN_THOUSAND = 10_000


def _postgres(request: pytest.FixtureRequest) -> StoreAdapter:
    url = request.getfixturevalue("postgres_url")  # skips where the driver is missing
    from tests.contract.postgres_adapter import PostgresAdapter

    return PostgresAdapter(url)


ADAPTERS: dict[str, Callable[[pytest.FixtureRequest], StoreAdapter]] = {
    "memory": lambda _: MemoryAdapter(),
    "postgres": _postgres,
    "redis": lambda request: RedisAdapter(
        request.getfixturevalue("redis_url"), request.getfixturevalue("redis_prefix")
    ),
    "sqlite": lambda request: SqliteAdapter(request.getfixturevalue("tmp_path") / "store.db"),
    "valkey": lambda request: RedisAdapter(request.getfixturevalue("valkey_url"), f"t{uuid.uuid4().hex[:16]}:"),
}


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server for this module."""
    if ValkeyServer.binary() is None:
        missing("valkey", ValkeyServer.how_to_have())
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


@pytest.mark.slow
@pytest.mark.timeout(120)
@pytest.mark.parametrize("kind", ADAPTERS)
def test_ten_thousand_jobs_with_hostile_names(request: pytest.FixtureRequest, kind: str) -> None:
    """Registered, claimed, published, begun, beaten, ended, listed, found: each with an account of its own."""
    lab = Lab(ADAPTERS[kind](request))
    try:
        check_names(lab, hostile_names(TEN_THOUSAND), histories=1_000)
    finally:
        lab.store.close()


def test_the_hostile_names_are_those_that_a_scheduler_allows() -> None:
    """They are different, of every length, from all planes; and what UTF-8 cannot write is refused before any store."""
    names = hostile_names(TEN_THOUSAND)
    assert len(set(names)) == TEN_THOUSAND
    assert [check_name(name) for name in names] == names
    assert LONGEST == NAME_LIMIT
    assert {len(name) for name in names} >= {1, 2, 10, LONGEST - 1, LONGEST}
    assert {ord(character) >> 16 for name in names for character in name} >= {0, 1, 2, 14, 15, 16}
    for text in ('"', "'", "{", "}", ":", "*", "%", "\n", "\0"):
        assert sum(text in name for name in names) > 10, text
    with pytest.raises(ConfigError, match="UTF-8 cannot write"):
        check_name("lone \ud800")


@pytest.mark.parametrize(("first", "second"), [("x", "x_state"), ("x_state", "x"), ("x_jobs", "x")])
@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_a_table_that_another_store_has_is_refused(
    request: pytest.FixtureRequest, tmp_path: Path, kind: str, first: str, second: str
) -> None:
    """The one table is a part of the other store: whoever comes second is refused, and the first is left alone."""
    if kind == "sqlite":
        url, schema = f"sqlite:///{tmp_path / 'store.db'}", ""
    else:
        url, schema = request.getfixturevalue("postgres_url"), f"t{uuid.uuid4().hex[:12]}."
    had, late = from_url(url, table=f"{schema}{first}"), from_url(url, table=f"{schema}{second}")
    definition = Definition(name="job", fingerprint="1", document="{}")
    had.register([definition])
    with pytest.raises(StoreError, match="choose another table name"):
        late.register([definition])
    assert had.definitions().answers == [definition]
    had.close()
    late.close()
