"""The PostgreSQL store passes the conformance suite, on a real server."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.clock import SystemClock
from anarchon_tasks.errors import StoreError
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores.base import ClaimKind, Definition
from anarchon_tasks.testing import Lab, LeaseStoreSuite
from anarchon_tasks.testing._lab import ALLOW, MANUAL

pytest.importorskip("psycopg")

from anarchon_tasks.stores import PostgresBackend
from tests.contract.postgres_adapter import OwnClock, PostgresAdapter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.contract.postgres_adapter import EmptyTables


class TestPostgres(LeaseStoreSuite):
    """Two tables per test, in a database that tests share, and an injected clock."""

    @pytest.fixture
    def adapter(self, postgres_url: str) -> Iterator[PostgresAdapter]:
        """Make an empty namespace for each test."""
        adapter = PostgresAdapter(postgres_url)
        yield adapter
        adapter.close()


@pytest.mark.slow
class TestPostgresOnItsOwnClock(LeaseStoreSuite):
    """The same with the server's clock, which takes its time."""

    @pytest.fixture
    def adapter(self, postgres_url: str) -> Iterator[OwnClock]:
        """Make an empty namespace for each test."""
        adapter = OwnClock(postgres_url)
        yield adapter
        adapter.close()


def test_an_item_that_cannot_be_stored_spoils_none(postgres_tables: EmptyTables) -> None:
    """A name that no index of the server can hold is an error of that item; the others of its batch are decided."""
    adapter = PostgresAdapter(postgres_tables.url, postgres_tables.table)
    long = "".join(chr(0x4E00 + at * 7 % 20_000) for at in range(9_000))
    lab = Lab(adapter)
    names = ["a", long, "b"]
    registered = lab.store.register([Definition(name=n, fingerprint="1", document="{}", floor=0) for n in names])
    assert [answer.error is None for answer in registered.answers] == [True, False, True]
    key = RunRef("a", lab.base - 1_000, long)
    asks = [
        lab.ask(lab.ref(1_000, "a"), floor=0),
        lab.ask(key, trigger=MANUAL, policy=ALLOW),
        lab.ask(lab.ref(1_000, "b"), floor=0),
    ]
    answers = lab.store.claim(asks).answers
    assert [answer.kind for answer in answers] == [ClaimKind.WON, ClaimKind.ERROR, ClaimKind.WON]
    assert "index" in str(answers[1].error)
    adapter.close()


def test_the_clock_is_the_servers(postgres_tables: EmptyTables) -> None:
    """Without a clock of the test, the server tells the time, once in each call."""
    store = PostgresBackend(postgres_tables.url, table=postgres_tables.table).open()
    before = SystemClock().wall_ms()
    first, second = store.time().now_ms, store.claim([]).now_ms
    assert before - 60_000 <= first <= second <= SystemClock().wall_ms() + 60_000
    store.close()


def test_a_transaction_that_sees_the_past_is_refused(postgres_tables: EmptyTables) -> None:
    """Where every transaction is serializable by default, a call says what to set; it decides nothing."""
    url = f"{postgres_tables.url}?options=-c%20default_transaction_isolation%3Dserializable"
    store = PostgresBackend(url, table=postgres_tables.table).open()
    with pytest.raises(StoreError, match="read committed"):
        store.register([Definition(name="a", fingerprint="1", document="{}")])
    store.close()
