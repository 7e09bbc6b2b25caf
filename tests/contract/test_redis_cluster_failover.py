"""Clusters that change under way: a primary is killed, slots move, many claim at once. Each slot is won once."""

from __future__ import annotations

import threading
import time
import uuid
from collections import Counter
from typing import TYPE_CHECKING, TypeVar

import pytest
import redis

from anarchon_tasks.errors import StoreUnavailable, TooFewReplicas
from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores._redis_nodes import Call, Nodes
from anarchon_tasks.stores.base import Beat, Begin, BeginKind, Claim, ClaimKind, Definition, Delivered, Policy, Queued
from anarchon_tasks.stores.redis import RedisBackend, ValkeyBackend
from tests.servers import RedisCluster, ValkeyServer, poll_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from anarchon_tasks.stores.base import LeaseStore, Reply

A = TypeVar("A")

pytestmark = [pytest.mark.slow, pytest.mark.timeout(180)]

FAILOVER_S = 20.0
"""Within it claims go on: the node timeout of 2 s, a vote, and what a loaded machine adds."""
POLICY = Policy(claim_lease_ms=600_000, start_timeout_ms=600_000)


def prefix() -> str:
    """Return a prefix that no other test has."""
    return f"t{uuid.uuid4().hex[:16]}:"


@pytest.fixture
def open_store(redis_cluster: RedisCluster) -> Iterator[Callable[[str], LeaseStore]]:
    """Open stores with a client each, as instances on several hosts would."""
    clients: list[redis.RedisCluster] = []

    def make(prefix: str) -> LeaseStore:
        clients.append(redis.RedisCluster(host="127.0.0.1", port=redis_cluster.port, socket_timeout=5))
        return RedisBackend(clients[-1], prefix=prefix).open()

    yield make
    for client in clients:
        client.close()


def register(store: LeaseStore, jobs: Sequence[str]) -> None:
    """Make jobs known that owe every slot."""
    definitions = [Definition(name=job, fingerprint="f", document="{}", floor=0) for job in jobs]
    until_answered(lambda: store.register(definitions))


def claims_of(jobs: Sequence[str], slot: int, instance: str) -> list[Claim]:
    """Make claims of one slot, that may be repeated."""
    return [
        Claim(
            ref=RunRef(job, slot),
            claim_id=uuid.uuid4().hex,
            instance=instance,
            policy=POLICY,
            due_ms=slot,
            latest_ms=slot + 3_600_000,
            floor=0,
        )
        for job in jobs
    ]


def in_threads(work: Sequence[Callable[[], None]]) -> None:
    """Run functions at the same time, and raise what one of them raised."""
    raised: list[BaseException] = []

    def guarded(one: Callable[[], None]) -> None:
        try:
            one()
        except BaseException as error:  # noqa: BLE001 - shown by the test
            raised.append(error)

    threads = [threading.Thread(target=guarded, args=(one,)) for one in work]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if raised:
        raise raised[0]


@pytest.mark.parametrize("shared", [True, False], ids=["one client", "a client each"])
def test_four_race_for_five_hundred_slots(open_store: Callable[[str], LeaseStore], *, shared: bool) -> None:
    """Each slot has one winner, and the others are told so."""
    here = prefix()
    stores = [open_store(here)] * 4 if shared else [open_store(here) for _ in range(4)]
    jobs = [f"job-{number}" for number in range(500)]
    register(stores[0], jobs)
    slot = stores[0].time().now_ms - 10
    winners: list[str] = []
    kinds: Counter[ClaimKind] = Counter()
    start = threading.Barrier(4)

    def instance(number: int) -> None:
        claims = claims_of(jobs, slot, f"instance-{number}")
        start.wait()
        for first in range(0, 500, 50):
            batch = claims[first : first + 50]
            for claim, answer in zip(batch, stores[number].claim(batch).answers, strict=True):
                kinds[answer.kind] += 1
                if answer.kind is ClaimKind.WON:
                    winners.append(claim.ref.job)

    in_threads([lambda number=number: instance(number) for number in range(4)])  # type: ignore[misc]
    assert sorted(winners) == sorted(jobs)
    assert set(kinds) == {ClaimKind.WON, ClaimKind.RUNNING}


def test_slots_move_while_claims_go_on(
    redis_cluster: RedisCluster, open_store: Callable[[str], LeaseStore], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The slots of jobs go to another node, key by key, and each run is still won by one instance alone."""
    met: Counter[str] = Counter()
    note = Nodes._note

    def noted(self: Nodes, call: Call, reply: object, node: object = None) -> None:
        met[type(reply).__name__] += 1
        note(self, call, reply, node)

    monkeypatch.setattr(Nodes, "_note", noted)
    here = prefix()
    jobs = [f"job-{number}" for number in range(24)]
    stores = [open_store(here) for _ in range(2)]
    register(stores[0], jobs)
    base = stores[0].time().now_ms - 60_000
    over = threading.Event()
    won: list[Counter[RunRef]] = [Counter(), Counter()]

    def mover() -> None:
        try:
            for job in jobs[:12]:
                key = f"{{{here}{job}}}:state"
                source = redis_cluster.primary_of(key)
                target = redis_cluster.nodes[(redis_cluster.nodes.index(source) + 1) % len(redis_cluster.nodes)]
                with redis_cluster.client(source) as own:
                    slot = int(own.execute_command("CLUSTER", "KEYSLOT", key))
                redis_cluster.move(slot, target, pace_s=0.05)
        finally:
            over.set()

    def instance(number: int) -> None:
        store, step, more = stores[number], 0, 5
        while more and step < 2_000:
            step += 1
            more -= over.is_set()  # some rounds after the last move, too
            claims = [
                Claim(
                    ref=RunRef(job, base + step),
                    claim_id=uuid.uuid4().hex,
                    instance=f"instance-{number}",
                    policy=Policy(overlap="allow"),  # type: ignore[arg-type]
                    due_ms=base + step,
                    latest_ms=base + 3_600_000,
                    floor=0,
                    trigger="backfill",  # type: ignore[arg-type]
                )
                for job in jobs
            ]
            answers = until_answered(lambda claims=claims: store.claim(claims))  # type: ignore[misc]
            for claim, answer in zip(claims, answers, strict=True):
                if answer.kind is ClaimKind.WON:
                    won[number][claim.ref] += 1
                elif answer.kind is ClaimKind.ERROR:
                    assert "on its way" in str(answer.error)

    in_threads([mover, lambda: instance(0), lambda: instance(1)])
    both = won[0] + won[1]
    assert max(both.values()) == 1
    assert len({ref.job for ref in both}) == len(jobs)
    assert met["MovedError"]
    assert met["TryAgainError"] + met["AskError"]  # what a slot on its way answers depends on the server's version


def until_answered(ask: Callable[[], Reply[A]]) -> list[A]:
    """Repeat a call with the same ids until it is answered, as every caller does, and return the answers."""

    def answered() -> Reply[A] | None:
        try:
            return ask()
        except StoreUnavailable:
            return None

    reply = poll_until(answered, FAILOVER_S, what="answers")
    assert reply is not None
    return reply.answers


def killed_and_replaced(cluster: RedisCluster, store: LeaseStore, here: str) -> None:
    """Kill the primary of a claimed and running job, and check what must go on within the bound."""
    jobs = [f"job-{number}" for number in range(30)]
    register(store, jobs)
    slot = store.time().now_ms - 10
    won = store.claim(claims_of(jobs, slot, "instance-1")).answers
    records = [
        Queued(ref=RunRef(job, slot), token=answer.token, policy=POLICY, task_id="m1")
        for job, answer in zip(jobs, won, strict=True)
    ]
    assert store.queued(records).answers == [True] * 30
    begins = [
        Begin(
            ref=record.ref,
            delivery_id=uuid.uuid4().hex,
            delivered=Delivered(message_id="m1", retries=0, worker="w1", pid=1),
            attempt=1,
            token=record.token,
            lease_ms=600_000,
        )
        for record in records
    ]
    begun = store.begin(begins).answers
    assert {answer.kind for answer in begun} == {BeginKind.OK}
    poll_until(lambda: in_step(cluster), 10, what="replicas that have it all")

    victim = cluster.primary_of(f"{{{here}{jobs[0]}}}:state")
    victim.kill()
    killed = time.monotonic()
    with pytest.raises(StoreUnavailable):
        store.claim(claims_of(jobs, slot + 1, "instance-2"))
    beats = [Beat(ref=ask.ref, token=answer.token, lease_ms=600_000) for ask, answer in zip(begins, begun, strict=True)]
    assert until_answered(lambda: store.beat(beats)) == [True] * 30
    again = until_answered(lambda: store.claim(claims_of(jobs, slot, "instance-2")))
    assert {(answer.kind, answer.status) for answer in again} == {(ClaimKind.RUNNING, Status.RUNNING)}
    fresh = [f"fresh-{number}" for number in range(30)]
    register(store, fresh)
    claims = claims_of(fresh, slot, "instance-2")
    assert {answer.kind for answer in until_answered(lambda: store.claim(claims))} == {ClaimKind.WON}
    assert time.monotonic() - killed < FAILOVER_S
    assert until_answered(lambda: store.repair([*jobs, *fresh])) == [True] * 60


def in_step(cluster: RedisCluster) -> bool:
    """Tell whether the replicas have all that their primaries were told."""
    offsets = []
    for node in cluster.nodes:
        with cluster.client(node) as own:
            about = own.info("replication")
        if about["role"] == "master":
            offsets += [
                about["master_repl_offset"] - about[f"slave{n}"]["offset"] for n in range(about["connected_slaves"])
            ]
    return all(offset == 0 for offset in offsets)


def test_a_primary_is_killed(tmp_path: Path) -> None:
    """Claims go on when its replica took over, runs that were under way are known, and the index is whole again."""
    here = prefix()
    with RedisCluster(tmp_path / "cluster", replicas=1) as cluster:
        with redis.RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=1) as client:
            killed_and_replaced(cluster, RedisBackend(client, prefix=here).open(), here)
            members = client.zrange(f"{here}leases", 0, -1)
        assert len(members) == 60


def test_a_primary_of_valkey_is_killed(tmp_path: Path) -> None:
    """The same with the other server and its own client."""
    driver = pytest.importorskip("valkey.cluster")
    here = prefix()
    with RedisCluster(tmp_path / "cluster", replicas=1, server=ValkeyServer) as cluster:
        client = driver.ValkeyCluster(host="127.0.0.1", port=cluster.port, socket_timeout=1)
        try:
            killed_and_replaced(cluster, ValkeyBackend(client, prefix=here).open(), here)
            assert len(client.zrange(f"{here}leases", 0, -1)) == 60
        finally:
            client.close()


def test_the_primary_of_the_index_is_killed(tmp_path: Path) -> None:
    """What the index lost comes back by `repair`, and runs whose lease is over are found."""
    here = prefix()
    with (
        RedisCluster(tmp_path / "cluster", replicas=1) as cluster,
        redis.RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=1) as client,
    ):
        store = RedisBackend(client, prefix=here).open()
        jobs = [f"job-{number}" for number in range(20)]
        register(store, jobs)
        slot = store.time().now_ms - 10
        claims = claims_of(jobs, slot, "instance-1")
        won = store.claim(claims).answers
        cluster.primary_of(f"{here}leases").kill()
        beats = [
            Beat(ref=ask.ref, token=answer.token, lease_ms=1, phase=Status.CLAIMED)
            for ask, answer in zip(claims, won, strict=True)
        ]
        assert until_answered(lambda: store.beat(beats)) == [True] * 20
        until_answered(lambda: store.expired(limit=1))
        client.delete(f"{here}leases")  # as if its replica had not had it
        assert until_answered(lambda: store.expired(limit=100)) == []
        assert until_answered(lambda: store.repair(jobs)) == [True] * 20
        poll_until(lambda: len(until_answered(lambda: store.expired(limit=100))) == 20, 5, what="the runs")


def test_a_primary_that_hangs_is_an_outage(tmp_path: Path) -> None:
    """A call ends with the client's timeout; what the other nodes did is found when it is repeated."""
    here = prefix()
    with (
        RedisCluster(tmp_path / "cluster") as cluster,
        redis.RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=0.3) as client,
    ):
        store = RedisBackend(client, prefix=here).open()
        jobs = [f"job-{number}" for number in range(30)]
        register(store, jobs)
        claims = claims_of(jobs, store.time().now_ms - 10, "instance-1")
        hung = next(node for node in cluster.nodes if node is not cluster.primary_of(f"{here}leases"))
        away = [cluster.primary_of(f"{{{here}{job}}}:state") is hung for job in jobs]
        hung.pause()
        started = time.monotonic()
        with pytest.raises(StoreUnavailable, match=f":{hung.port}/"):
            store.claim(claims)
        assert time.monotonic() - started < 1.5
        shown = store.last_runs(jobs).answers
        assert [run is None for run in shown] == away
        with pytest.raises(StoreUnavailable, match=f":{hung.port}/"):
            store.last_runs([job for job, gone in zip(jobs, away, strict=True) if gone])
        others = [claim for claim, gone in zip(claims, away, strict=True) if not gone]
        assert {answer.kind for answer in store.claim(others).answers} == {ClaimKind.WON}
        hung.resume()
        assert {answer.kind for answer in until_answered(lambda: store.claim(claims))} == {ClaimKind.WON}
        assert len(client.zrange(f"{here}leases", 0, -1)) == 30
    assert any(away)


def test_min_replicas_counts_the_replicas_of_each_node(tmp_path: Path) -> None:
    """Nothing runs on a grant that only its primary has, and the next claim has it when the replicas are back."""
    here = prefix()
    with (
        RedisCluster(tmp_path / "cluster", replicas=1) as cluster,
        redis.RedisCluster(host="127.0.0.1", port=cluster.port, socket_timeout=1) as client,
    ):
        store = RedisBackend(client, prefix=here, min_replicas=1, min_replicas_timeout="300ms").open()
        jobs = [f"job-{number}" for number in range(30)]
        register(store, jobs)
        slot = store.time().now_ms - 10
        assert {answer.kind for answer in store.claim(claims_of(jobs, slot, "instance-1")).answers} == {ClaimKind.WON}
        replicas = cluster.nodes[cluster.primaries :]
        for replica in replicas:
            replica.kill()
        fresh = [f"fresh-{number}" for number in range(30)]
        register(store, fresh)
        with pytest.raises(TooFewReplicas, match="0 of min_replicas=1"):
            store.claim(claims_of(fresh, slot, "instance-1"))
        for replica in replicas:
            replica.start()
        poll_until(cluster.healthy, FAILOVER_S, what="replicas that are back")
        claims = claims_of(fresh, slot, "instance-2")
        assert {answer.kind for answer in until_answered(lambda: store.claim(claims))} == {ClaimKind.WON}
