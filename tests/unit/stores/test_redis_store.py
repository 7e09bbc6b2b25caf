"""The Redis store on real servers: races, lost replies, lost scripts, foreign data, hostile names."""

from __future__ import annotations

import threading
import uuid
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from anarchon_tasks.errors import StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.model import Reason, Status
from anarchon_tasks.stores import _remote
from anarchon_tasks.stores._redis_client import Connection
from anarchon_tasks.stores.base import (
    Beat,
    BeginKind,
    Claim,
    ClaimKind,
    Definition,
    Finish,
    Policy,
)
from anarchon_tasks.stores.redis import RedisBackend, RedisStore, ValkeyBackend
from tests.unit.stores.redis_kit import begin_of, claims_of, run_through

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tests.servers import ProcessOwner, RedisServer, TcpProxy, ValkeyServer

redis = pytest.importorskip("redis")  # the unit tests run beside the wheel, too, without any extra

HOSTILE = ("{", "}", "{}", "a:b*", "a.b", "a%2Eb", "q\"'\\", "line\nbreak\0", "κλειδί", "\ud800", "x" * 300, "sync")


@pytest.fixture
def store(redis_url: str, redis_prefix: str) -> Iterator[RedisStore]:
    """A store on the shared server."""
    opened = RedisBackend(redis_url, prefix=redis_prefix).open()
    yield opened
    opened.close()


# --- one winner ------------------------------------------------------------------------------------------------------


def race(open_store: Callable[[], RedisStore], jobs: Sequence[str], *, shared: bool = False) -> list[int]:
    """Let eight threads claim the same slot of each job and return how often each was won."""
    first = open_store()
    plan = claims_of(first, jobs)
    ready = threading.Barrier(8)

    def contend(number: int) -> list[bool]:
        store = open_store()
        asks = [Claim(**{**_fields(ask), "claim_id": f"c{number}"}) for ask in plan]
        ready.wait()
        answers = [answer for at in range(0, len(asks), 25) for answer in store.claim(asks[at : at + 25]).answers]
        if not shared:
            store.close()
        return [answer.kind is ClaimKind.WON for answer in answers]

    with ThreadPoolExecutor(8) as pool:
        won = list(pool.map(contend, range(8)))
    return [sum(column) for column in zip(*won, strict=True)]


def _fields(item: object) -> dict[str, Any]:
    return {name: getattr(item, name) for name in item.__slots__}  # type: ignore[attr-defined]


def test_one_winner_for_each_slot(redis_url: str, redis_prefix: str) -> None:
    """Of eight instances that claim the same 200 slots, each slot has one winner."""
    backend = RedisBackend(redis_url, prefix=redis_prefix)
    assert race(backend.open, [f"job-{n}" for n in range(200)]) == [1] * 200


def test_one_winner_among_threads_that_share_a_store(redis_url: str, redis_prefix: str) -> None:
    """A store may be used by several threads at once."""
    store = RedisBackend(redis_url, prefix=redis_prefix).open()
    assert race(lambda: store, [f"job-{n}" for n in range(100)], shared=True) == [1] * 100


def test_one_winner_on_valkey(own_valkey: ValkeyServer) -> None:
    """Valkey decides alike, and runs every operation."""
    backend = ValkeyBackend(own_valkey.url, prefix="t:")
    assert race(backend.open, [f"job-{n}" for n in range(200)]) == [1] * 200
    store = backend.open()
    assert run_through(store, "sync") == [Status.SUCCEEDED]
    assert run_through(RedisBackend(own_valkey.redis_url, prefix="u:").open(), "sync") == [Status.SUCCEEDED]
    store.close()


def test_a_long_batch_is_answered_in_order(store: RedisStore) -> None:
    """A batch longer than one script call is cut, and its answers stay in order."""
    asks = claims_of(store, [f"job-{n}" for n in range(250)])
    answers = store.claim(asks).answers
    assert [answer.kind for answer in answers] == [ClaimKind.WON] * 250
    assert [answer.run for answer in answers] == [ask.ref.run for ask in asks]
    assert store.repair([ask.ref.job for ask in asks]).answers == [True] * 250
    assert [run.job for run in store.last_runs([ask.ref.job for ask in asks]).answers if run] == [
        ask.ref.job for ask in asks
    ]


# --- networks and servers that fail ----------------------------------------------------------------------------------


def test_a_claim_whose_reply_was_lost(redis_url: str, redis_prefix: str, tcp_proxy: Callable[[int], TcpProxy]) -> None:
    """A call that was executed and not answered is answered the same when it is repeated."""
    proxy = tcp_proxy(redis.Redis.from_url(redis_url).connection_pool.connection_kwargs["port"])
    store = RedisBackend(f"redis://127.0.0.1:{proxy.port}", prefix=redis_prefix).open()
    [ask] = claims_of(store, ["sync"])
    store.claim([])  # so that the server has the script
    proxy.lose_replies(1, match=b"EVALSHA")
    [won] = store.claim([ask]).answers  # the driver repeats once by itself
    proxy.lose_replies(2, match=b"EVALSHA")
    with pytest.raises(StoreUnavailable):
        store.claim([ask])
    assert store.claim([ask]).answers == [won]
    assert (won.kind, won.attempt, proxy.lost_replies) == (ClaimKind.WON, 1, 3)
    [begun] = store.begin([begin_of(ask.ref, won.token)]).answers
    proxy.lose_replies(1, match=b"EVALSHA")
    [again] = store.begin([begin_of(ask.ref, won.token)]).answers
    assert (again.kind, again.attempt, again.token) == (BeginKind.OK, 1, begun.token)
    end = Finish(ref=ask.ref, status=Status.SUCCEEDED, token=begun.token)
    store.finish([])
    proxy.lose_replies(1, match=b"EVALSHA")
    assert store.finish([end]).answers == [True]
    assert [run.status for run in store.history("sync", limit=5).answers] == [Status.SUCCEEDED]


def test_a_server_that_does_not_answer(redis_url: str, redis_prefix: str, tcp_proxy: Callable[[int], TcpProxy]) -> None:
    """A call ends with `StoreUnavailable` after its timeout, and works when the server is back."""
    proxy = tcp_proxy(redis.Redis.from_url(redis_url).connection_pool.connection_kwargs["port"])
    url = f"redis://127.0.0.1:{proxy.port}?socket_timeout=0.1&socket_connect_timeout=0.1"
    store = RedisBackend(url, prefix=redis_prefix).open()
    store.time()
    proxy.half_open()
    with pytest.raises(StoreUnavailable, match=f"127.0.0.1:{proxy.port}"):
        store.time()
    proxy.refuse()
    proxy.restore()
    assert store.time().now_ms
    proxy.refuse()
    with pytest.raises(StoreUnavailable):
        store.time()


def test_scripts_that_the_server_lost(own_redis: RedisServer) -> None:
    """After a flush of the scripts, and after a restart, calls go on as if nothing had happened."""
    store = RedisBackend(own_redis.redis_url).open()
    server = redis.Redis(port=own_redis.port)
    assert run_through(store, "sync") == [Status.SUCCEEDED]
    server.script_flush()
    assert run_through(store, "other") == [Status.SUCCEEDED]
    own_redis.restart()
    assert run_through(store, "sync") == [Status.SUCCEEDED]


@pytest.mark.parametrize("min_replicas", [0, 1])
def test_scripts_that_are_lost_in_the_middle_of_work(
    own_redis: RedisServer, min_replicas: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A script that is gone again between its load and its use is loaded once more."""
    store = RedisBackend(own_redis.redis_url, min_replicas=min_replicas).open()
    server = redis.Redis(port=own_redis.port)
    execute, flushes = Connection.execute, iter(range(2))

    def lossy(self: Connection, *args: Any) -> Any:  # noqa: ANN401 - the driver's replies
        reply = execute(self, *args)
        if args[:2] == ("SCRIPT", "LOAD") and next(flushes, None) is not None:
            server.script_flush()
        return reply

    monkeypatch.setattr(Connection, "execute", lossy)
    assert store.claim([]).now_ms
    assert next(flushes, None) is None


def test_a_server_that_cannot_write(own_redis: RedisServer) -> None:
    """Full memory and a replica fail the call: no item is told that its token is stale."""
    store = RedisBackend(own_redis.redis_url).open()
    server = redis.Redis(port=own_redis.port)
    [ask] = claims_of(store, ["sync"])
    [won] = store.claim([ask]).answers
    beat = Beat(ref=ask.ref, token=won.token, lease_ms=30_000, phase=Status.CLAIMED)
    server.config_set("maxmemory", 1)
    for call in (lambda: store.beat([beat]), lambda: store.claim([ask])):
        with pytest.raises(StoreUnavailable, match=r"OOM|used memory"):
            call()
    server.config_set("maxmemory", 0)
    server.replicaof("127.0.0.1", 1)
    with pytest.raises(StoreUnavailable, match="read only replica"):
        store.beat([beat])
    server.replicaof("NO", "ONE")
    assert store.beat([beat]).answers == [True]


def test_a_server_without_hello(own_redis: RedisServer) -> None:
    """A server that does not know the newer protocol's greeting, as before Redis 6, is spoken to in the older one."""
    own_redis.stop()
    own_redis.options += ["--rename-command", "HELLO", ""]
    own_redis.start()
    assert run_through(RedisBackend(own_redis.redis_url).open(), "sync") == [Status.SUCCEEDED]


def test_passwords_are_not_told(own_redis: RedisServer) -> None:
    """A refused password is an error without that password; the right one works."""
    redis.Redis(port=own_redis.port).config_set("requirepass", "right-one")
    refused = RedisBackend(f"redis://:wrong-one@127.0.0.1:{own_redis.port}").open()
    with pytest.raises(StoreError) as caught:
        refused.time()
    assert not isinstance(caught.value, StoreUnavailable)
    backend = RedisBackend(f"redis://:right-one@127.0.0.1:{own_redis.port}")
    store = backend.open()
    assert store.time().now_ms
    told = f"{caught.value} {caught.value!r} {backend!r} {store!r} {store.location}"
    assert "right-one" not in told
    assert "wrong-one" not in told


def test_a_fork_opens_a_connection_of_its_own(redis_url: str, redis_prefix: str, processes: ProcessOwner) -> None:
    """Parent and child of a fork use the same store object at the same time, and never each other's connection."""
    code = f"""
import os
from anarchon_tasks.stores.redis import RedisBackend
store = RedisBackend({redis_url!r}, prefix={redis_prefix!r}).open()
store.time()
child = os.fork()
names = [str(n) for n in range(300)]
assert store.forget(names).answers == [False] * 300
assert all(store.history(name, limit=1).answers == [] for name in names)
store.close()
assert store.time().now_ms
if child == 0:
    os._exit(0)
assert os.waitpid(child, 0)[1] == 0
print("both are fine")
"""
    process = processes.python("-c", code)
    assert process.wait(30) == 0
    assert "both are fine" in process.output()


# --- data ------------------------------------------------------------------------------------------------------------


def test_hostile_names(store: RedisStore) -> None:
    """Whatever a job is called, its account is its own."""
    for name in HOSTILE:
        assert run_through(store, name) == [Status.SUCCEEDED]
    assert [d.name for d in store.definitions().answers] == sorted(HOSTILE)
    assert store.forget(HOSTILE).answers == [True] * len(HOSTILE)


def test_a_job_without_a_name_is_refused(store: RedisStore) -> None:
    """An empty name is an error of its item alone."""
    named, unnamed = store.register([Definition(name=n, fingerprint="f", document="{}") for n in ("a", "")]).answers
    assert (named.error, named.changed) == (None, True)
    assert "must not be empty" in (unnamed.error or "")
    assert [d.name for d in store.definitions().answers] == ["a"]


def test_two_prefixes_share_nothing(redis_url: str, redis_prefix: str) -> None:
    """The same job under another prefix is another job."""
    for prefix in (redis_prefix, f"{redis_prefix}more:"):
        assert run_through(RedisBackend(redis_url, prefix=prefix).open(), "sync") == [Status.SUCCEEDED]


def test_keys(store: RedisStore, redis_url: str, redis_prefix: str) -> None:
    """The keys are the documented ones, those of a job share a hash tag, and none expires."""
    run_through(store, "a.b")
    store.claim(claims_of(store, ["sync"]))
    store.announce("w1", {"celery": 0})
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    kinds = ("active", "results", "runs", "slots", "state")
    expected = {f"{redis_prefix}{kind}" for kind in ("format", "jobs", "leases", "queues")}
    expected |= {f"{{{redis_prefix}{job}}}:{kind}" for job in ("a%2Eb", "sync") for kind in kinds}
    expected -= {f"{{{redis_prefix}a%2Eb}}:active", f"{{{redis_prefix}sync}}:results"}
    found = set(client.scan_iter(match=f"*{redis_prefix}*", count=1_000))
    assert found == expected
    assert {client.ttl(key) for key in found} == {-1}


def test_a_newer_format_is_left_untouched(store: RedisStore, redis_url: str, redis_prefix: str) -> None:
    """A store of a newer version is neither read nor written."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    client.set(f"{redis_prefix}format", "2")
    calls: list[Callable[[], object]] = [
        store.time,
        lambda: store.register([Definition(name="sync", fingerprint="f", document="{}")]),
        lambda: store.claim([]),
        lambda: store.history("sync", limit=1),
        store.queues,
        lambda: store.expired(limit=1),
    ]
    for call in calls:
        with pytest.raises(StoreFormatError, match="holds format 2"):
            call()
    assert set(client.scan_iter(match=f"*{redis_prefix}*")) == {f"{redis_prefix}format"}
    client.set(f"{redis_prefix}format", "other")
    with pytest.raises(StoreFormatError):
        store.time()


def test_a_damaged_job_does_not_spoil_its_batch(store: RedisStore, redis_url: str, redis_prefix: str) -> None:
    """An item whose keys are of another kind answers with the error; its neighbours are decided."""
    client = redis.Redis.from_url(redis_url)
    asks = claims_of(store, ["a", "bad", "z"])
    client.delete(f"{{{redis_prefix}bad}}:state")
    client.set(f"{{{redis_prefix}bad}}:state", "not ours")
    answers = store.claim(asks).answers
    assert [answer.kind for answer in answers] == [ClaimKind.WON, ClaimKind.ERROR, ClaimKind.WON]
    assert "WRONGTYPE" in (answers[1].error or "")
    begun = store.begin([begin_of(ask.ref, 1) for ask in asks]).answers
    assert [answer.kind for answer in begun] == [BeginKind.OK, BeginKind.ERROR, BeginKind.OK]
    beats = [Beat(ref=ask.ref, token=answer.token, lease_ms=1) for ask, answer in zip(asks, begun, strict=True)]
    assert store.beat(beats).answers == [True, False, True]
    client.set(f"{{{redis_prefix}bad}}:results", "not ours")
    assert [run is None for run in store.last_runs(["a", "bad"]).answers] == [False, True]
    with pytest.raises(StoreError, match="history of 'bad'"):
        store.history("bad", limit=1)


def test_last_runs_that_cannot_be_read(
    store: RedisStore, redis_url: str, redis_prefix: str, caplog: pytest.LogCaptureFixture
) -> None:
    """A job that cannot be read has no last run, with a warning; when none can, that is an error."""
    run_through(store, "sync")
    redis.Redis.from_url(redis_url).set(f"{{{redis_prefix}broken}}:results", "x")
    assert [run is None for run in store.last_runs(["sync", "broken"]).answers] == [False, True]
    assert "the history of 1 of 2 jobs cannot be read: " in caplog.text
    with pytest.raises(StoreError, match=r"history of 1 of 1 jobs cannot be read: .*WRONGTYPE"):
        store.last_runs(["broken"])


def test_a_step_that_fails_has_decided_nothing(store: RedisStore, redis_url: str, redis_prefix: str) -> None:
    """When a job's history cannot be written, the run stays as it was and can be ended later."""
    client = redis.Redis.from_url(redis_url)
    [ask] = claims_of(store, ["sync"])
    [won] = store.claim([ask]).answers
    [begun] = store.begin([begin_of(ask.ref, won.token)]).answers
    client.set(f"{{{redis_prefix}sync}}:results", "not ours")
    end = Finish(ref=ask.ref, status=Status.SUCCEEDED, token=begun.token)
    assert store.finish([end]).answers == [False]
    client.delete(f"{{{redis_prefix}sync}}:results")
    assert store.beat([Beat(ref=ask.ref, token=begun.token, lease_ms=30_000)]).answers == [True]
    assert store.finish([end]).answers == [True]
    assert [run.status for run in store.history("sync", limit=5).answers] == [Status.SUCCEEDED]


def test_a_client_that_decodes(redis_url: str, redis_prefix: str) -> None:
    """A client that returns texts instead of bytes works, and stays open at close."""
    client = redis.Redis.from_url(redis_url, decode_responses=True)
    store = RedisBackend(client, prefix=redis_prefix).open()
    assert run_through(store, "κλειδί") == [Status.SUCCEEDED]
    store.close()
    assert client.ping()


def test_close_is_not_the_end(store: RedisStore) -> None:
    """Closing twice is fine, and a later call opens the connection again."""
    store.time()
    store.close()
    store.close()
    assert store.time().now_ms


# --- the index of lease ends -----------------------------------------------------------------------------------------


def test_beats_leave_the_index_alone(store: RedisStore, redis_url: str, redis_prefix: str) -> None:
    """A heartbeat does not touch the index; when the entry is due, it moves to where the lease ends now."""
    client = redis.Redis.from_url(redis_url)
    [ask] = claims_of(store, ["sync"])
    [won] = store.claim([ask]).answers
    index, member = f"{redis_prefix}leases", f"sync:{ask.ref.run}"
    assert client.zscore(index, member) == won.until
    store.beat([Beat(ref=ask.ref, token=won.token, lease_ms=60_000, phase=Status.CLAIMED)])
    assert client.zscore(index, member) == won.until
    client.zadd(index, {member: 1, "sync:1": 1, "gone:2": 1})
    assert store.expired(limit=10).answers == []
    assert client.zrange(index, 0, -1) == [member.encode()]
    assert (client.zscore(index, member) or 0) > won.until


def test_a_long_index_is_read_in_bounded_steps(
    store: RedisStore, redis_url: str, redis_prefix: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However many entries have to be moved, a call is bounded, and calls that follow find what is over."""
    monkeypatch.setattr(_remote, "_EXPIRED_LOOKS", 5)
    client = redis.Redis.from_url(redis_url)
    asks = claims_of(store, [f"job-{n:02}" for n in range(60)])
    won = store.claim(asks).answers
    client.zadd(f"{redis_prefix}leases", {f"{ask.ref.job}:{ask.ref.run}": n for n, ask in enumerate(asks)})
    last = Beat(ref=asks[-1].ref, token=won[-1].token, lease_ms=0, phase=Status.CLAIMED)
    assert store.beat([last]).answers == [True]
    client.zadd(f"{redis_prefix}leases", {f"{last.ref.job}:{last.ref.run}": 1_000})
    found = [store.expired(limit=5).answers for _ in range(4)]
    assert found == [[], [], [last.ref], [last.ref]]


def test_repair_brings_back_lost_entries(store: RedisStore, redis_url: str, redis_prefix: str) -> None:
    """When the index is lost, `repair` finds the open runs again."""
    [ask] = claims_of(store, ["sync"])
    [won] = store.claim([ask]).answers
    store.beat([Beat(ref=ask.ref, token=won.token, lease_ms=0, phase=Status.CLAIMED)])
    redis.Redis.from_url(redis_url).delete(f"{redis_prefix}leases")
    assert store.expired(limit=10).answers == []
    assert store.repair(["sync", uuid.uuid4().hex]).answers == [True, True]
    assert store.expired(limit=10).answers == [ask.ref]


@pytest.mark.parametrize("policy", [Policy(history_size=10), Policy(history_ttl_ms=60_000)], ids=["size", "ttl"])
def test_a_long_history_is_trimmed_in_bounded_steps(
    store: RedisStore, redis_url: str, redis_prefix: str, policy: Policy
) -> None:
    """A history that suddenly has too much loses a hundred of its oldest entries in each step."""
    client = redis.Redis.from_url(redis_url)
    results = f"{{{redis_prefix}sync}}:results"
    client.zadd(results, {f"\0\x000000{slot}": slot for slot in range(300)})
    [ask] = claims_of(store, ["sync"])
    late = {"latest_ms": ask.due_ms, "late_reason": Reason.NO_INSTANCE, "policy": policy}
    assert store.claim([Claim(**{**_fields(ask), **late})]).answers[0].kind is ClaimKind.LATE
    assert client.zrange(results, 0, 0, withscores=True)[0][1] == 100
    assert client.zcard(results) == 201
