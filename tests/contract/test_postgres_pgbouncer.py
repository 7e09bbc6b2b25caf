"""The PostgreSQL store behind a pooler that gives each transaction another session of the server."""

from __future__ import annotations

import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores import PostgresBackend, from_url
from anarchon_tasks.stores.base import Claim, ClaimKind, Definition, Overlap, Policy
from anarchon_tasks.testing import LeaseStoreSuite
from tests.servers import PgBouncer, PostgresServer, missing, poll_until

pytest.importorskip("psycopg")

import psycopg

from tests.contract.postgres_adapter import PostgresAdapter

if TYPE_CHECKING:
    from collections.abc import Iterator

    from anarchon_tasks.stores.base import LeaseStore

INSTANCES = 8
"""Twice as many as the pooler has sessions."""
JOBS = [f"job {number}" for number in range(100)]


@pytest.fixture(scope="module")
def behind_it(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PostgresServer]:
    """The server behind the pooler."""
    if PostgresServer.folder() is None:
        missing("postgres", PostgresServer.how_to_have())
    with PostgresServer(tmp_path_factory.mktemp("postgres")) as server:
        yield server


@pytest.fixture(scope="module")
def pooler(tmp_path_factory: pytest.TempPathFactory, behind_it: PostgresServer) -> Iterator[PgBouncer]:
    """A pooler with four sessions, in transaction mode."""
    if PgBouncer.binary() is None:
        missing("pgbouncer", PgBouncer.how_to_have())
    with PgBouncer(tmp_path_factory.mktemp("pgbouncer"), server_port=behind_it.port, pool_size=4) as pooler:
        yield pooler


class TestPostgresBehindPgbouncer(LeaseStoreSuite):
    """The conformance suite, through the pooler."""

    @pytest.fixture
    def adapter(self, pooler: PgBouncer) -> Iterator[PostgresAdapter]:
        """Make an empty namespace for each test."""
        adapter = PostgresAdapter(pooler.url)
        yield adapter
        adapter.close()


def test_instances_that_race_through_it_get_one_winner_per_slot(pooler: PgBouncer) -> None:
    """Eight instances make the store together, and ask for the same slots in batches: each slot is won once."""
    table = f"t{uuid.uuid4().hex[:12]}"
    stores = [from_url(pooler.url, table=table) for _ in range(INSTANCES)]
    definitions = [Definition(name=name, fingerprint="x", document="{}") for name in JOBS]
    try:
        with ThreadPoolExecutor(INSTANCES) as threads:
            known = list(threads.map(lambda store: store.register(definitions).answers, stores))
            floors = {name: answer.floor for name, answer in zip(JOBS, known[0], strict=True)}
            won = [name for names in threads.map(lambda store: claim_all(store, floors), stores) for name in names]
    finally:
        for store in stores:
            store.close()
    assert sorted(won) == sorted(JOBS)


def claim_all(store: LeaseStore, floors: dict[str, int]) -> list[str]:
    """Claim a slot of each job in one batch, and return the jobs whose slot was won."""
    answers = store.claim([_claim(name, floor) for name, floor in floors.items()]).answers
    return [name for name, answer in zip(floors, answers, strict=True) if answer.kind is ClaimKind.WON]


def _claim(job: str, floor: int) -> Claim:
    return Claim(
        ref=RunRef(job, floor + 1),
        claim_id=uuid.uuid4().hex,
        instance="x",
        policy=Policy(overlap=Overlap.ALLOW, claim_lease_ms=60_000),
        due_ms=floor,
        latest_ms=floor + 3_600_000,
        floor=floor,
    )


def test_a_pooler_that_went_away_is_told_and_later_it_works_again(
    own_postgres: PostgresServer, pooler: PgBouncer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Also when it stays and the server behind it goes: each call ends in time."""
    del pooler  # or a reason why there is none
    with PgBouncer(tmp_path_factory.mktemp("bouncer"), server_port=own_postgres.port) as mine:
        store = from_url(mine.url, timeout=0.5)
        store.time()
        own_postgres.kill()
        with pytest.raises(StoreUnavailable):
            store.time()
        own_postgres.start()
        poll_until(lambda: works(store), what="an answer through the pooler")
        mine.kill()
        with pytest.raises(StoreUnavailable):
            store.time()
        mine.start()
        store.time()
        store.close()


@pytest.mark.parametrize("encoding", ["UTF-8", "unicode", None])
def test_connections_of_the_users_go_through_it(pooler: PgBouncer, encoding: str | None) -> None:
    """It tells the encoding as it was told it, and not as the server calls it."""
    parameters = {} if encoding is None else {"client_encoding": encoding}
    store = PostgresBackend(lambda: psycopg.connect(pooler.url, **parameters), table="through").open()
    store.time()
    store.close()


def test_a_pooler_in_statement_mode_is_refused(
    behind_it: PostgresServer, pooler: PgBouncer, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """The store cannot be made through it, later neither: an error that names the option, and no outage."""
    del pooler  # or a reason why there is none
    directory = tmp_path_factory.mktemp("bouncer")
    with PgBouncer(directory, server_port=behind_it.port, pool_mode="statement") as mine:
        store = from_url(mine.url, table="by_statements")
        with pytest.raises(StoreError, match="set pool_mode of pgbouncer to transaction or session") as caught:
            store.time()
        assert not isinstance(caught.value, StoreUnavailable)
        store.close()


def works(store: LeaseStore) -> bool:
    """Tell whether the store answers."""
    try:
        store.time()
    except StoreUnavailable:
        return False
    return True
