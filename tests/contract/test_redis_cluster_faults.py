"""What a cluster has that a single server has not: places, slots on their way, and an index on a node of its own."""

from __future__ import annotations

import time
import uuid
from typing import TYPE_CHECKING, Any

import pytest
import redis

from anarchon_tasks.errors import StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.model import Reason, RunRef, Status
from anarchon_tasks.stores._redis_cluster import FORMAT_S, _merged, _Part
from anarchon_tasks.stores._redis_nodes import Nodes
from anarchon_tasks.stores.base import Begin, BeginKind, Claim, ClaimKind, Definition, Delivered, Finish, Policy
from anarchon_tasks.stores.redis import RedisBackend
from anarchon_tasks.testing import Lab
from tests.contract.cluster_adapter import SHARED, ClusterAdapter

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable

    from tests.servers import RedisCluster, TcpProxy


@pytest.fixture
def adapter(cluster_client: redis.RedisCluster) -> ClusterAdapter:
    """Make an empty namespace for each test."""
    return ClusterAdapter(cluster_client)


@pytest.fixture
def lab(adapter: ClusterAdapter) -> Lab:
    """Short ways to make each call."""
    return Lab(adapter)


@pytest.fixture
def score_of(cluster_client: redis.RedisCluster, adapter: ClusterAdapter) -> Callable[[str, int], float | None]:
    """Read an entry of the index."""
    return lambda job, slot: cluster_client.zscore(f"{adapter.prefix}leases", f"{job}:{slot}")


# --- where things are ------------------------------------------------------------------------------------------------


def jobs_of(lab: Lab, count: int) -> list[str]:
    """Register some jobs with names of their own."""
    jobs = [f"job-{number}-{uuid.uuid4().hex[:6]}" for number in range(count)]
    lab.store.register([Definition(name=job, fingerprint="f", document="{}", floor=0) for job in jobs])
    return jobs


def claims_of(lab: Lab, jobs: list[str]) -> list[Claim]:
    """Make a claim for the present slot of each job."""
    return [lab.ask(RunRef(job, lab.base)) for job in jobs]


def test_each_job_is_on_one_node_and_jobs_are_on_all(
    redis_cluster: RedisCluster, cluster_client: redis.RedisCluster, adapter: ClusterAdapter, lab: Lab
) -> None:
    """The five keys of a job lie together, jobs lie everywhere, and there are no keys but the documented ones."""
    jobs = jobs_of(lab, 60)
    lab.store.announce("w", {"celery": 1})
    answers = lab.store.claim(claims_of(lab, jobs)).answers
    assert {answer.kind for answer in answers} == {ClaimKind.WON}
    places: dict[str, set[int]] = {}
    for node in redis_cluster.nodes:
        with redis_cluster.client(node) as own:
            for key in own.scan_iter(match=f"*{adapter.prefix}*", count=1_000):
                head = key.decode().partition("}")[0]
                places.setdefault(head, set()).add(node.port)
    assert set(places) == {f"{adapter.prefix}{kind}" for kind in SHARED} | {f"{{{adapter.prefix}{job}" for job in jobs}
    assert all(len(ports) == 1 for ports in places.values())
    assert set.union(*places.values()) == {node.port for node in redis_cluster.nodes}
    index = dict(cluster_client.zrange(f"{adapter.prefix}leases", 0, -1, withscores=True))
    assert index == {f"{job}:{lab.base}".encode(): answer.until for job, answer in zip(jobs, answers, strict=True)}


def test_a_batch_is_answered_in_order(lab: Lab) -> None:
    """Answers stand where their questions stood, with jobs in any order and twice in one batch."""
    jobs = jobs_of(lab, 40)
    claims = claims_of(lab, jobs)
    again = claims_of(lab, jobs)
    reply = lab.store.claim([*claims, *reversed(again)])
    kinds = [answer.kind for answer in reply.answers]
    assert kinds == [ClaimKind.WON] * 40 + [ClaimKind.RUNNING] * 40
    tokens = [answer.token for answer in reply.answers]
    assert tokens[40:] == tokens[:40][::-1]


def test_a_process_that_can_start_no_threads_works_on(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """As one that ends: then the nodes are asked one after the other."""

    def start(thread: threading.Thread) -> None:
        raise RuntimeError(f"can't start {thread}")

    jobs = jobs_of(lab, 30)
    monkeypatch.setattr("threading.Thread.start", start)
    assert {answer.kind for answer in lab.store.claim(claims_of(lab, jobs)).answers} == {ClaimKind.WON}


def test_policies_of_one_batch_are_not_mixed_up(lab: Lab) -> None:
    """Each job is decided by its own policy."""
    jobs = jobs_of(lab, 9)
    leases = [1_000 * (1 + number % 3) for number in range(9)]
    claims = [
        lab.ask(RunRef(job, lab.base), policy=Policy(claim_lease_ms=lease))
        for job, lease in zip(jobs, leases, strict=True)
    ]
    reply = lab.store.claim(claims)
    for answer, lease in zip(reply.answers, leases, strict=True):
        assert abs(answer.until - reply.now_ms - lease) < 500


def test_instants_of_a_batch_are_told_by_one_clock() -> None:
    """Where the clock of a node is behind, its answers are told by the clock of the reply."""
    ahead = _Part(
        "a", [1], now=5_000, at=1.5, answers=[["running", 0, 9_000, 1, "7", "claimed", "1", True, "schedule"]]
    )
    behind = _Part("b", [0, 2], now=2_000, at=1.0, answers=[["early", 0, 3_000], ["done", 0, 0]])
    now, answers = _merged("claim", [ahead, behind])
    assert now == 5_000
    assert [answer[2] for answer in answers] == [5_500, 9_000, 0]
    alike = _Part("c", [0], now=4_500, at=1.0, answers=[["early", 0, 5_000]])
    assert _merged("claim", [ahead, alike])[1][0] == ["early", 0, 5_000]


# --- the format ------------------------------------------------------------------------------------------------------


def test_a_newer_format_is_left_untouched(
    cluster_client: redis.RedisCluster, adapter: ClusterAdapter, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A process that comes new does nothing there, and one that runs stops after a while."""
    [job] = jobs_of(lab, 1)
    cluster_client.set(f"{adapter.prefix}format", "2")
    claims = claims_of(lab, [job])
    for ask in (lambda store: store.claim(claims), lambda store: store.history(job, limit=1), lambda s: s.time()):
        with pytest.raises(StoreFormatError, match="holds format 2"):
            ask(adapter.store())
    later = time.monotonic() + FORMAT_S
    monkeypatch.setattr("anarchon_tasks.stores._redis_cluster.time.monotonic", lambda: later)
    with pytest.raises(StoreFormatError, match="upgrade this instance"):
        lab.store.claim(claims)
    assert cluster_client.zcard(f"{adapter.prefix}leases") == 0


def test_a_reader_writes_nothing(cluster_client: redis.RedisCluster, adapter: ClusterAdapter) -> None:
    """The format is written by who writes."""
    store = adapter.store()
    store.time()
    store.definitions()
    store.last_runs(["sync"])
    assert cluster_client.get(f"{adapter.prefix}format") is None


# --- what may fail ---------------------------------------------------------------------------------------------------


def test_nodes_that_lost_their_scripts_get_them_again(redis_cluster: RedisCluster, lab: Lab) -> None:
    """As after a restart or a failover."""
    jobs = jobs_of(lab, 30)
    for node in redis_cluster.nodes:
        with redis_cluster.client(node) as own:
            own.script_flush()
    assert {answer.kind for answer in lab.store.claim(claims_of(lab, jobs)).answers} == {ClaimKind.WON}


def test_a_node_that_loses_its_scripts_again_and_again(
    redis_cluster: RedisCluster, lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As when every round meets another node that was just promoted: in the end the script goes along."""
    jobs = jobs_of(lab, 30)
    execute = Nodes._execute

    def forgetful(self: Nodes, *args: Any) -> Any:  # noqa: ANN401 - handed through
        for node in redis_cluster.nodes:
            with redis_cluster.client(node) as own:
                own.script_flush()
        return execute(self, *args)

    monkeypatch.setattr(Nodes, "_execute", forgetful)
    assert {answer.kind for answer in lab.store.claim(claims_of(lab, jobs)).answers} == {ClaimKind.WON}


def test_connections_that_nodes_closed_are_opened_again(redis_cluster: RedisCluster, lab: Lab) -> None:
    """An idle connection that is gone is nobody's concern."""
    jobs = jobs_of(lab, 30)
    for node in redis_cluster.nodes:
        with redis_cluster.client(node) as own:
            own.client_kill_filter(_type="normal", skipme=True)
    assert {answer.kind for answer in lab.store.claim(claims_of(lab, jobs)).answers} == {ClaimKind.WON}


@pytest.mark.parametrize("operation", ["claim", "begin", "finish"])
def test_a_call_whose_replies_are_lost_is_one_call(
    redis_cluster: RedisCluster,
    adapter: ClusterAdapter,
    lab: Lab,
    score_of: Callable[[str, int], float | None],
    tcp_proxy: Callable[[int], TcpProxy],
    operation: str,
) -> None:
    """Every node has done it and no reply comes: the repeat on new connections answers as the first did."""
    proxies = {node.port: tcp_proxy(node.port) for node in redis_cluster.nodes}
    jobs = jobs_of(lab, 12)
    refs = [RunRef(job, lab.base) for job in jobs]
    for job in jobs_of(lab, 30):  # nodes that know the scripts execute them before their replies are lost
        lab.succeeded(RunRef(job, lab.base))
    with redis.RedisCluster(
        host="127.0.0.1",
        port=redis_cluster.port,
        socket_timeout=5,
        address_remap=lambda address: ("127.0.0.1", proxies[address[1]].port if address[1] in proxies else address[1]),
    ) as lossy:
        store = RedisBackend(lossy, prefix=adapter.prefix).open()
        if operation == "claim":
            claims = claims_of(lab, jobs)
            call = lambda: store.claim(claims)  # noqa: E731
        elif operation == "begin":
            tokens = [lab.waiting(ref).token for ref in refs]
            begins = [begin_of(ref, token) for ref, token in zip(refs, tokens, strict=True)]
            call = lambda: store.begin(begins)  # noqa: E731
        else:
            ends = [Finish(ref=ref, token=lab.running(ref).token, status=Status.SUCCEEDED) for ref in refs]
            call = lambda: store.finish(ends)  # noqa: E731
        store.time()
        for proxy in proxies.values():
            proxy.lose_replies(match=b"EVALSHA")
        answers = call().answers
        assert sum(proxy.lost_replies for proxy in proxies.values()) == len(proxies)
        again = call().answers
    said = (lambda answer: answer) if operation == "finish" else (lambda answer: (answer.kind, answer.token))
    assert [said(answer) for answer in again] == [said(answer) for answer in answers]
    good = {"claim": ClaimKind.WON, "begin": BeginKind.OK, "finish": True}[operation]
    assert {answer if operation == "finish" else answer.kind for answer in answers} == {good}
    if operation == "finish":  # what is left in the index of a run that ended goes when it is looked at
        adapter.client.zadd(f"{adapter.prefix}leases", {f"{job}:{lab.base}": 1 for job in jobs}, xx=True)
        assert lab.store.expired(limit=100).answers == []
    assert {score_of(job, lab.base) is None for job in jobs} == {operation == "finish"}
    assert {len(lab.history(job)) for job in jobs} == {1}


def begin_of(ref: RunRef, token: int) -> Begin:
    """Make a begin that may be repeated."""
    return Begin(
        ref=ref,
        delivery_id=uuid.uuid4().hex,
        delivered=Delivered(message_id="m1", retries=0, worker="w1", pid=1),
        attempt=1,
        token=token,
        lease_ms=600_000,
    )


def test_a_damaged_job_does_not_spoil_its_batch(
    cluster_client: redis.RedisCluster, adapter: ClusterAdapter, lab: Lab
) -> None:
    """Whichever of its keys is damaged: that job answers with an error, and the others are decided."""
    jobs = jobs_of(lab, 6)
    for job, kind in zip(jobs, ("state", "active", "slots", "runs", "results"), strict=False):
        cluster_client.delete(f"{{{adapter.prefix}{job}}}:{kind}")
        cluster_client.set(f"{{{adapter.prefix}{job}}}:{kind}", "x")
    answers = lab.store.claim(claims_of(lab, jobs)).answers
    assert {answer.kind for answer in answers[:4]} == {ClaimKind.ERROR}
    assert answers[5].kind is ClaimKind.WON
    lab.store.repair(jobs)
    lab.store.expired(limit=10)


def slot_on_its_way(redis_cluster: RedisCluster, cluster_client: redis.RedisCluster, key: str) -> Callable[[], None]:
    """Begin to move the slot of a key to another node; return what completes it."""
    source = redis_cluster.primary_of(key)
    target = next(node for node in redis_cluster.nodes if node is not source)
    slot = cluster_client.keyslot(key)
    with redis_cluster.client(source) as here, redis_cluster.client(target) as there:
        there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", redis_cluster.node_id(source))
        here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", redis_cluster.node_id(target))
    return lambda: redis_cluster.move(slot, target)


def test_a_slot_on_its_way_holds_up_its_own_jobs_alone(
    redis_cluster: RedisCluster, cluster_client: redis.RedisCluster, adapter: ClusterAdapter, lab: Lab
) -> None:
    """Meanwhile no beat is refused, no claim is answered wrongly, and the other jobs' claims go on."""
    jobs = jobs_of(lab, 6)
    run = RunRef(jobs[0], lab.base)
    token = lab.running(run).token
    arrive = slot_on_its_way(redis_cluster, cluster_client, f"{{{adapter.prefix}{jobs[0]}}}:state")
    try:
        claims = claims_of(lab, jobs)
        kinds = [answer.kind for answer in lab.store.claim(claims).answers]
        assert kinds == [ClaimKind.ERROR, *[ClaimKind.WON] * 5]
        with pytest.raises(StoreUnavailable, match="on its way"):
            lab.beat(run, token)
        with pytest.raises(StoreUnavailable, match="on its way"):
            lab.store.claim(claims[:1])
    finally:
        arrive()
    assert lab.beat(run, token)
    assert [answer.kind for answer in lab.store.claim(claims).answers] == [ClaimKind.RUNNING, *[ClaimKind.WON] * 5]


# --- the index of lease ends -----------------------------------------------------------------------------------------


def lose_next(monkeypatch: pytest.MonkeyPatch, store: object, operation: str) -> None:
    """Let a process die, or its connection, before it writes to a shared key."""
    scripts = store._operations  # type: ignore[attr-defined]
    real = scripts._on_key

    def on_key(name: str, payload: object) -> list[Any]:
        if name == operation:
            monkeypatch.setattr(scripts, "_on_key", real)
            raise StoreUnavailable("the network is gone")
        return real(name, payload)

    monkeypatch.setattr(scripts, "_on_key", on_key)


def meanwhile(monkeypatch: pytest.MonkeyPatch, store: object, change: Callable[[], object]) -> None:
    """Let something happen between what `expired` sees and what it writes."""
    scripts = store._operations  # type: ignore[attr-defined]
    real = scripts._on_key

    def on_key(name: str, payload: object) -> list[Any]:
        if name == "reindex":
            monkeypatch.setattr(scripts, "_on_key", real)
            change()
        return real(name, payload)

    monkeypatch.setattr(scripts, "_on_key", on_key)


@pytest.mark.parametrize("ending", ["repeated", "repaired"])
def test_a_grant_that_is_not_in_the_index_comes_there(
    lab: Lab, score_of: Callable[[str, int], float | None], monkeypatch: pytest.MonkeyPatch, ending: str
) -> None:
    """By the repeat of the claim, or by `repair` if its process is gone."""
    [job] = jobs_of(lab, 1)
    claims = claims_of(lab, [job])
    lose_next(monkeypatch, lab.store, "reindex")
    with pytest.raises(StoreUnavailable):
        lab.store.claim(claims)
    assert score_of(job, lab.base) is None
    if ending == "repeated":
        [answer] = lab.store.claim(claims).answers
        assert (answer.kind, answer.until) == (ClaimKind.WON, score_of(job, lab.base))
    else:
        assert lab.store.repair([job]).answers == [True]
        assert score_of(job, lab.base) is not None


def test_a_definition_that_is_not_on_the_list_comes_there(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the repeat of the call that registered the job."""
    lose_next(monkeypatch, lab.store, "define")
    with pytest.raises(StoreUnavailable):
        lab.job("sync")
    lab.job("sync")
    assert [found.name for found in lab.store.definitions().answers] == ["sync"]


def test_a_definition_that_cannot_be_written_is_told(
    redis_cluster: RedisCluster, cluster_client: redis.RedisCluster, adapter: ClusterAdapter, lab: Lab
) -> None:
    """A list that is damaged is an error of each job, and one whose node is full is an outage."""
    [job] = jobs_of(lab, 1)
    again = [Definition(name=job, fingerprint="f", document="{}")]
    listing = f"{adapter.prefix}jobs"
    place = redis_cluster.primary_of(listing)
    with redis_cluster.client(place) as own:
        own.config_set("maxmemory", 1)
        try:
            with pytest.raises(StoreUnavailable, match="used memory"):
                lab.store.register(again)
        finally:
            own.config_set("maxmemory", 0)
    assert lab.store.register(again).answers[0].error is None
    cluster_client.delete(listing)
    cluster_client.set(listing, "x")
    assert "WRONGTYPE" in str(lab.store.register(again).answers[0].error)


def test_one_node_is_no_store(redis_cluster: RedisCluster) -> None:
    """A URL of a node is refused by each call, also where the node has some of the keys, and the message says why."""
    prefix = f"t{uuid.uuid4().hex[:16]}:"
    jobs = [f"job-{number}" for number in range(30)]
    definitions = [Definition(name=job, fingerprint="f", document="{}") for job in jobs]
    for node in redis_cluster.nodes:
        store = RedisBackend(node.redis_url, prefix=prefix).open()
        for call in (
            lambda store: store.register(definitions),
            lambda store: store.last_runs(jobs),
            lambda store: [store.history(job, limit=1) for job in jobs],
        ):
            with pytest.raises(StoreError, match=r"a node of a cluster: hand in .*redis\.cluster\.RedisCluster"):
                call(store)
        store.close()


def test_errors_name_the_node(redis_cluster: RedisCluster, adapter: ClusterAdapter, lab: Lab) -> None:
    """Each node by its own address, not by that of the first one that the client was given."""
    jobs = jobs_of(lab, 9)
    for job in jobs:
        place = redis_cluster.primary_of(f"{{{adapter.prefix}{job}}}:state")
        with redis_cluster.client(place) as own:
            own.config_set("min-replicas-to-write", 1)
            try:
                with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{place.port}/0: NOREPLICAS"):
                    lab.store.claim(claims_of(lab, [job]))
            finally:
                own.config_set("min-replicas-to-write", 0)


def test_a_lease_that_ends_while_its_entry_is_moved_is_found(
    lab: Lab, adapter: ClusterAdapter, score_of: Callable[[str, int], float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is not left at the later end that `expired` saw."""
    [job] = jobs_of(lab, 1)
    ref = RunRef(job, lab.base)
    token = lab.running(ref).token
    adapter.client.zadd(f"{adapter.prefix}leases", {f"{job}:{lab.base}": 1})
    end = Finish(ref=ref, status=Status.INTERRUPTED, token=token)
    meanwhile(monkeypatch, lab.store, lambda: adapter.store().finish([end]))
    lab.store.expired(limit=10)
    assert (score_of(job, lab.base) or 0) <= lab.now()
    assert lab.store.expired(limit=10).answers == [ref]


def test_a_lost_run_that_begins_while_its_entry_is_removed_stays_in_the_index(
    lab: Lab, score_of: Callable[[str, int], float | None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is not left away because `expired` saw a run that had ended."""
    [job] = jobs_of(lab, 1)
    policy = Policy(start_timeout_ms=1, max_attempts=1, claim_lease_ms=1_000)
    ref = RunRef(job, lab.base)
    token = lab.waiting(ref, policy=policy).token
    lab.pass_ms(5)
    [answer] = lab.store.claim([lab.ask(ref, policy=policy, queue_begun_ms=lab.now())]).answers
    assert (answer.status, answer.reason) == (Status.LOST, Reason.NEVER_STARTED)
    begun: list[BeginKind] = []
    meanwhile(monkeypatch, lab.store, lambda: begun.append(lab.begin(ref, token).kind))
    lab.store.expired(limit=10)
    assert begun == [BeginKind.OK]
    assert score_of(job, lab.base) is not None
