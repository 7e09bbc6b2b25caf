"""The connection is reset after a call was executed and before its reply: repeated, it is one call."""

from __future__ import annotations

import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores import from_url
from anarchon_tasks.stores.base import ClaimKind, Policy, Queued, Release
from anarchon_tasks.testing import Lab, _repeats_scheduler, _repeats_workers
from anarchon_tasks.testing._repeats import observed, shape
from tests.contract.test_memory import MemoryAdapter
from tests.servers import TcpProxy, ValkeyServer, missing

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from anarchon_tasks.stores.base import LeaseStore
    from anarchon_tasks.testing._repeats import Call, Case

CASES = [*_repeats_scheduler.CASES, *_repeats_workers.CASES]
NAMELESS = {"definitions", "queues", "time", "lease_over"}
"""Calls whose requests do not hold the name of the job."""
TRIES = 5


def _redis(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    return str(request.getfixturevalue("redis_url")), {"prefix": f"t{uuid.uuid4().hex[:16]}:"}


def _valkey(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    return str(request.getfixturevalue("valkey_url")), {"prefix": f"t{uuid.uuid4().hex[:16]}:"}


def _postgres(request: pytest.FixtureRequest) -> tuple[str, dict[str, str]]:
    return str(request.getfixturevalue("postgres_url")), {"table": f"t{uuid.uuid4().hex[:16]}"}


NETWORKED: dict[str, Callable[[pytest.FixtureRequest], tuple[str, dict[str, str]]]] = {
    "postgres": _postgres,
    "redis": _redis,
    "valkey": _valkey,
}
"""How a test gets the URL of a server and the options of a namespace of its own there."""


@pytest.fixture(scope="module")
def valkey_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Start a server for this module."""
    if ValkeyServer.binary() is None:
        missing("valkey", ValkeyServer.how_to_have())
    with ValkeyServer(tmp_path_factory.mktemp("valkey")) as server:
        yield server.url


@dataclass(slots=True)
class Lossy:
    """A namespace with two ways to it: a good one, and one through a network that loses replies."""

    url: str
    options: dict[str, str]
    proxy: TcpProxy
    stores: list[LeaseStore]

    def store(self) -> LeaseStore:
        """Open a good connection."""
        self.stores.append(from_url(self.url, **self.options))
        return self.stores[-1]

    def bad_store(self) -> LeaseStore:
        """Open a connection through the bad network."""
        parts = urlsplit(self.url)
        secrets, at, _ = parts.netloc.rpartition("@")
        self.stores.append(
            from_url(parts._replace(netloc=f"{secrets}{at}127.0.0.1:{self.proxy.port}").geturl(), **self.options)
        )
        return self.stores[-1]

    def elsewhere(self) -> LeaseStore:
        """No test here needs another namespace."""
        raise NotImplementedError

    def advance(self, ms: int) -> bool:
        """Leave the waiting to the lab."""
        del ms
        return False


@pytest.fixture(scope="module", params=sorted(NETWORKED))
def lossy(request: pytest.FixtureRequest) -> Iterator[Lossy]:
    """A server behind a proxy."""
    url, options = NETWORKED[request.param](request)
    parts = urlsplit(url)
    assert parts.port is not None
    with TcpProxy(parts.port, parts.hostname or "127.0.0.1") as proxy:
        made = Lossy(url, options, proxy, [])
        yield made
        for store in made.stores:
            store.close()


@pytest.fixture(scope="module")
def lab(lossy: Lossy) -> Lab:
    """The good way to the server."""
    return Lab(lossy)


@pytest.fixture(scope="module")
def bad_store(lossy: Lossy) -> LeaseStore:
    """The bad one, opened."""
    store = lossy.bad_store()
    store.time()
    return store


def _until_answered(call: Call, store: LeaseStore) -> tuple[list[Any], int]:
    """Repeat a call as its caller does, and return the answers and how often the caller had to."""
    for failures in range(TRIES):
        try:
            return call(store).answers, failures
        except StoreUnavailable:
            continue
    raise AssertionError(f"no answer after {TRIES} tries")


def _until_aside(answer: object) -> object:
    return replace(answer, until=0) if hasattr(answer, "until") else answer  # type: ignore[type-var]


@pytest.mark.parametrize("losses", [1, 3])
@pytest.mark.parametrize("case", CASES, ids=[f"{case.operation}-{case.name}" for case in CASES])
def test_a_call_whose_reply_was_lost_is_answered_as_the_first_time(
    lossy: Lossy, lab: Lab, bad_store: LeaseStore, case: Case, losses: int
) -> None:
    """One loss is mended by the driver; after more, the caller is told and asks again. The account is of one call."""
    model = Lab(MemoryAdapter())
    job = f"{case.name}_{uuid.uuid4().hex[:8]}"
    expected = case.prepare(model, job)(model.store).answers
    call = case.prepare(lab, job)
    lost = lossy.proxy.lost_replies
    lossy.proxy.lose_replies(losses, match=b"" if case.name in NAMELESS else job.encode())
    try:
        answers, failures = _until_answered(call, bad_store)
    finally:
        lossy.proxy.restore()
    assert lossy.proxy.lost_replies == lost + losses, "the replies that were to be lost were lost"
    assert (failures > 0) == (losses > 1)
    if case.operation not in {"register", "forget"}:  # these tell what their own execution did
        assert shape(answers, lab.base) == shape(expected, model.base)
        assert [_until_aside(answer) for answer in call(lab.store).answers] == [_until_aside(a) for a in answers]
    account = observed(lab, job, refusals=False)
    assert shape(account, lab.base) == shape(observed(model, job, refusals=False), model.base)
    if case.operation == "claim" and answers[0].kind is ClaimKind.WON:
        assert lab.history(job)[0].token == answers[0].token, "the token that was told is the one that counts"


def test_what_no_reader_sees_is_counted_once(lossy: Lossy, lab: Lab, bad_store: LeaseStore) -> None:
    """A failed publish rests once, and a publish doubles the next one's wait once, however often its reply was lost."""
    job = lab.job(f"counted_{uuid.uuid4().hex[:8]}")
    ref = lab.ref(1_000, job)
    token = lab.won(ref).token
    lossy.proxy.lose_replies(2, match=job.encode())
    assert _until_answered(lambda store: store.release([Release(ref=ref, token=token)]), bad_store)[0] == [True]
    assert lab.claim(ref).until <= lab.now() + 1_000
    lab.pass_ms(1_000)
    token = lab.won(ref).token
    record = Queued(ref=ref, token=token, policy=Policy(start_timeout_ms=5), task_id="task-1")
    lossy.proxy.lose_replies(2, match=job.encode())
    assert _until_answered(lambda store: store.queued([record]), bad_store)[0] == [True]
    lab.pass_ms(5)
    again = lab.won(ref).token
    assert lab.store.queued([replace(record, token=again, policy=Policy(start_timeout_ms=60_000))]).answers == [True]
    assert lab.claim(ref).until <= lab.now() + 120_000
    assert lossy.proxy.lost_replies >= 4


def test_a_refusal_is_counted_by_execution(lossy: Lossy, lab: Lab, bad_store: LeaseStore) -> None:
    """Nothing tells a repeated heartbeat from the next one: `refused` counts both, and that is all that differs."""
    [case] = [case for case in CASES if case.name == "worker_that_lost_the_run"]
    job = f"refused_{uuid.uuid4().hex[:8]}"
    call = case.prepare(lab, job)
    lossy.proxy.lose_replies(1, match=job.encode())
    assert _until_answered(call, bad_store) == ([False], 0)
    assert [run.refused for run in lab.history(job)] == [0, 2]
