"""`min_replicas` with a real replica: nothing is granted that a failover could forget."""

from __future__ import annotations

import logging
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks import events
from anarchon_tasks.clock import SystemClock
from anarchon_tasks.errors import StoreError, TooFewReplicas
from anarchon_tasks.jobs import Job, JobOptions
from anarchon_tasks.link import StoreLink
from anarchon_tasks.model import Status
from anarchon_tasks.scheduler import Scheduler
from anarchon_tasks.schedules import every
from anarchon_tasks.stores.base import Beat, BeginKind, ClaimKind, Finish
from anarchon_tasks.stores.redis import RedisBackend, RedisStore
from tests.servers import Redis86Server, RedisServer, TcpProxy, ValkeyServer, missing, poll_until
from tests.unit.scheduler.kit import RecordingPublisher
from tests.unit.stores.redis_kit import begin_of, claims_of, run_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

redis = pytest.importorskip("redis")  # the unit tests run beside the wheel, too, without any extra

WAIT = "400ms"
"""Long enough for a busy machine, and short for tests that wait it out."""


class Pair:
    """A primary and its replica."""

    def __init__(self, kind: type[RedisServer], directory: Path) -> None:
        soon = ["--repl-diskless-sync-delay", "0"]
        self.primary = kind(directory / "primary", options=soon).start()
        self.replica = kind(directory / "replica", options=["--replicaof", "127.0.0.1", str(self.primary.port)])
        try:
            self.replica.start()
            poll_until(self.in_step, what="the replica in step")
        except BaseException:
            self.close()
            raise

    def in_step(self) -> bool:
        """Say whether the replica has all that the primary has."""
        with redis.Redis(port=self.primary.port) as client:
            client.set("beacon", "1")
            return bool(client.execute_command("WAIT", 1, 100) == 1)

    def store(self, port: int | None = None, **options: Any) -> RedisStore:  # noqa: ANN401 - of any kind
        """Open a store on the primary, or at another port, that wants the replica to have what it grants."""
        url = f"redis://127.0.0.1:{port or self.primary.port}"
        store = RedisBackend(url, **{"min_replicas": 1, "min_replicas_timeout": WAIT, **options}).open()
        assert isinstance(store, RedisStore)
        return store

    def close(self) -> None:
        """End both."""
        self.replica.kill()
        self.primary.kill()


@pytest.fixture(params=[RedisServer, Redis86Server, ValkeyServer], ids=lambda kind: kind.name)
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    """A primary with its replica, of each kind of server: they count differently what a connection wrote."""
    if request.param.binary() is None:
        missing(request.param.name, request.param.how_to_have())
    made = Pair(request.param, tmp_path)
    yield made
    made.close()


def test_with_its_replica_all_is_as_usual(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """A grant that the replica has is a grant, and nothing is said."""
    store = pair.store()
    assert run_through(store, "sync") == [Status.SUCCEEDED]
    assert store.claim([]).now_ms
    assert caplog.messages == []


def test_a_claim_that_no_replica_has(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """It is refused and handed back; when the replica answers again it is won; the log has one line for each change."""
    store = pair.store()
    asks = claims_of(store, ["a", "b"])
    pair.replica.pause()
    for _ in range(3):
        with pytest.raises(TooFewReplicas, match=r"0 of min_replicas=1 replicas have what was granted, after 400 ms"):
            store.claim(asks)
    state = redis.Redis(port=pair.primary.port).hget("{cron:a}:state", asks[0].ref.run)
    assert state.startswith(b'["claimed"')
    [elsewhere] = pair.store(min_replicas=0).claim([replace(asks[1], claim_id="c2")]).answers
    assert (elsewhere.kind, elsewhere.attempt) == (ClaimKind.WON, 1)
    pair.replica.resume()
    poll_until(pair.in_step, what="the replica in step")
    mine, other = store.claim(asks).answers
    assert (mine.kind, mine.attempt, other.kind) == (ClaimKind.WON, 1, ClaimKind.RUNNING)
    short, met = caplog.messages
    assert "0 of min_replicas=1 replicas answer within min_replicas_timeout=400 ms" in short
    assert "min_replicas=1 is met again after" in met


def test_a_begin_that_no_replica_has(pair: Pair) -> None:
    """It is refused; the same delivery that asks again is admitted when the replica answers, as the same attempt."""
    store = pair.store()
    [ask] = claims_of(store, ["sync"])
    [won] = store.claim([ask]).answers
    begin = begin_of(ask.ref, won.token)
    pair.replica.pause()
    for _ in range(2):
        with pytest.raises(TooFewReplicas):
            store.begin([begin])
    pair.replica.resume()
    poll_until(pair.in_step, what="the replica in step")
    [begun] = store.begin([begin]).answers
    assert (begun.kind, begun.attempt) == (BeginKind.OK, 1)


def test_what_runs_goes_on(pair: Pair) -> None:
    """Without replicas, heartbeats and ends are written, and claims that grant nothing are answered."""
    store = pair.store()
    [ask, other] = claims_of(store, ["sync", "other"])
    [won, _] = store.claim([ask, other]).answers
    [begun] = store.begin([begin_of(ask.ref, won.token)]).answers
    pair.replica.pause()
    assert store.beat([Beat(ref=ask.ref, token=begun.token, lease_ms=30_000)]).answers == [True]
    [busy] = store.begin([begin_of(ask.ref, won.token, "d2")]).answers
    [taken] = store.claim([replace(other, claim_id="c2")]).answers
    assert (busy.kind, taken.kind) == (BeginKind.BUSY, ClaimKind.RUNNING)
    assert store.finish([Finish(ref=ask.ref, status=Status.SUCCEEDED, token=begun.token)]).answers == [True]


def test_a_lost_reply_hides_nothing(pair: Pair, tcp_proxy: Callable[[int], TcpProxy]) -> None:
    """A call repeated on another connection waits for what the first one wrote."""
    proxy = tcp_proxy(pair.primary.port)
    store = pair.store(proxy.port)
    asks = claims_of(store, ["sync"])
    store.claim([])  # so that the server has the script
    pair.replica.pause()
    proxy.lose_replies(1, match=b"EVALSHA")
    with pytest.raises(TooFewReplicas):
        store.claim(asks)
    assert proxy.lost_replies == 1


def test_a_failover_forgets_nothing_that_was_granted(pair: Pair) -> None:
    """The claim that the replica missed was refused, so the one after the failover is the only one."""
    store = pair.store()
    [ask] = claims_of(store, ["sync"])
    assert pair.in_step()
    pair.replica.pause()
    with pytest.raises(TooFewReplicas):
        store.claim([ask])
    pair.primary.kill()
    pair.replica.resume()
    redis.Redis(port=pair.replica.port).replicaof("NO", "ONE")
    after = pair.store(pair.replica.port, min_replicas=0)
    [won] = after.claim([replace(ask, claim_id="c2")]).answers
    assert (won.kind, won.attempt) == (ClaimKind.WON, 1)


def test_scripts_that_the_server_lost(pair: Pair) -> None:
    """A lost script is sent again, and the grant waited for."""
    store = pair.store()
    redis.Redis(port=pair.primary.port).script_flush()
    assert run_through(store, "sync") == [Status.SUCCEEDED]


def test_a_client_of_glide(pair: Pair) -> None:
    """GLIDE's batches ask on one connection, too."""
    sync = pytest.importorskip("glide_sync")
    address = sync.NodeAddress("127.0.0.1", pair.primary.port)
    client = sync.GlideClient.create(sync.GlideClientConfiguration([address], request_timeout=2_000))
    store = RedisBackend(client, min_replicas=1, min_replicas_timeout=WAIT).open()
    assert run_through(store, "sync") == [Status.SUCCEEDED]
    redis.Redis(port=pair.primary.port).script_flush()
    asks = claims_of(store, ["other"])
    pair.replica.pause()
    with pytest.raises(TooFewReplicas):
        store.claim(asks)
    client.close()


def test_a_server_that_may_not_wait(own_redis: RedisServer) -> None:
    """A user without the right to WAIT is told so, and nothing is granted."""
    redis.Redis(port=own_redis.port).acl_setuser(
        "default", enabled=True, nopass=True, commands=["+@all", "-wait"], keys=["*"]
    )
    store = RedisBackend(own_redis.redis_url, min_replicas=1).open()
    with pytest.raises(StoreError, match=r"(?i)wait"):
        store.claim(claims_of(store, ["sync"]))


def test_the_store_is_not_away(own_redis: RedisServer) -> None:
    """Too few replicas are no outage: heartbeats go on, and nothing is said of the store being down."""
    store = RedisBackend(own_redis.redis_url, min_replicas=1, min_replicas_timeout="20ms").open()
    asks = claims_of(store, ["sync"])
    link = StoreLink(store, clock=SystemClock(), tell=events.Events(), lease_ms=30_000, heartbeat_ms=10_000)
    with pytest.raises(TooFewReplicas):
        link.call(store.claim, asks)
    assert not link.availability.down


@pytest.mark.parametrize("pair", [RedisServer], indirect=True)
def test_schedulers_wait_for_the_replica(pair: Pair, caplog: pytest.LogCaptureFixture) -> None:
    """While it is silent nothing is published; then every slot is, once, and each scheduler said two things of it."""
    url = f"redis://127.0.0.1:{pair.primary.port}?min_replicas=1&min_replicas_timeout={WAIT}"
    publishers = [RecordingPublisher() for _ in range(3)]
    schedulers = [Scheduler(backend=url, publisher=publisher) for publisher in publishers]

    def published() -> list[int]:
        return sorted(slot for publisher in publishers for slot in publisher.slots)

    for scheduler in schedulers:
        scheduler.add_job(Job(name="tick", schedule=every("1s"), target="shop.tick", options=JobOptions(track=False)))
        scheduler.start()
    try:
        poll_until(published, what="the first slot")
        pair.replica.pause()
        poll_until(lambda: "within min_replicas_timeout" in caplog.text, what="a claim that is refused")
        before, now = published(), int(redis.Redis(port=pair.primary.port).time()[0])
        poll_until(lambda: int(redis.Redis(port=pair.primary.port).time()[0]) >= now + 3, what="three seconds")
        assert published() == before
        pair.replica.resume()
        poll_until(lambda: len(published()) >= len(before) + 5, 20.0, what="the slots that waited, and newer ones")
    finally:
        for scheduler in schedulers:
            scheduler.stop(timeout=10)
    slots = published()
    assert slots == list(range(slots[0], slots[-1] + 1_000, 1_000))
    said = [record.getMessage() for record in caplog.records if record.levelno >= logging.WARNING]
    short = sum("answer within min_replicas_timeout" in message for message in said)
    met = sum("is met again after" in message for message in said)
    assert len(said) == short + met
    assert 1 <= short <= 3
    assert 1 <= met <= short


@pytest.fixture(autouse=True)
def _warnings(caplog: pytest.LogCaptureFixture) -> None:
    """Collect what the store says."""
    caplog.set_level(logging.WARNING, "anarchon_tasks")
