"""Conformance: the store as a whole: history, trimming, indexes, batches, names, namespaces, races."""
# ruff: noqa: PLR2004, S101 - tests: expected values are literals, and assertions are what they are for

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import FORMAT, BeginKind, ClaimKind, Definition, Queued
from anarchon_tasks.testing._lab import ALLOW, LONG_MS, MANUAL, Lab

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import StoreAdapter


class HistoryTests:
    """What readers are told."""

    def test_newest_first(self, adapter: StoreAdapter) -> None:
        """The history goes from the newest slot and attempt to the oldest, open runs included, up to the limit."""
        lab = Lab(adapter)
        lab.job()
        lab.succeeded(lab.ref(3_000))
        lab.end_lease(lab.ref(2_000), lab.running(lab.ref(2_000), policy=ALLOW).token)
        lab.won(lab.ref(2_000), policy=ALLOW)
        lab.succeeded(lab.ref(1_000), policy=ALLOW)
        told = lab.told()
        assert [(ago, attempt) for ago, attempt, _, _ in told] == [(1_000, 1), (2_000, 2), (2_000, 1), (3_000, 1)]
        assert lab.history(limit=2) == lab.history()[:2]

    def test_content(self, adapter: StoreAdapter) -> None:
        """An entry has everything that was ever said of its attempt."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000, key="nightly")
        due = ref.slot + 5
        claimed = lab.waiting(ref, due_ms=due, instance="host-1:77", trigger=MANUAL)
        begun = lab.begin(ref, claimed.token)
        lab.finish(ref, begun.token, Status.FAILED, error="ZeroDivisionError: ☂")
        [entry] = lab.history()
        assert (entry.job, entry.slot, entry.key, entry.due) == ("job", ref.slot, "nightly", due)
        assert (entry.instance, entry.worker, entry.pid) == ("host-1:77", "worker-1", 1)
        assert (entry.trigger, entry.attempt, entry.token, entry.count) == ("manual", 1, begun.token, 1)
        assert (entry.status, entry.error, entry.task_id) == (Status.FAILED, "ZeroDivisionError: ☂", "message-1")
        times = (entry.claimed_at, entry.enqueued_at, entry.started_at, entry.finished_at)
        known = [at for at in times if at is not None]
        assert len(known) == 4
        assert known == sorted(known)
        assert lab.base <= known[0] <= known[-1] <= lab.now()

    def test_last_runs(self, adapter: StoreAdapter) -> None:
        """The newest entry of several jobs is one call; a job without any has none."""
        lab = Lab(adapter)
        for name in ("a", "b"):
            lab.job(name)
        lab.succeeded(lab.ref(2_000, "a"))
        lab.won(lab.ref(1_000, "a"))
        lab.succeeded(lab.ref(1_500, "b"))
        found = lab.store.last_runs(["b", "nothing", "a"]).answers
        assert [run and (run.job, run.slot, run.status) for run in found] == [
            ("b", lab.ref(1_500).slot, Status.SUCCEEDED),
            None,
            ("a", lab.ref(1_000).slot, Status.CLAIMED),
        ]

    def test_unknown_job(self, adapter: StoreAdapter) -> None:
        """A job that never ran has no history."""
        lab = Lab(adapter)
        assert lab.history("nothing") == []

    def test_history_size(self, adapter: StoreAdapter) -> None:
        """The history keeps as many entries as the policy says, the newest ones, apart from the state."""
        lab = Lab(adapter)
        lab.job()
        policy = replace(ALLOW, history_size=3)
        for ago in (6_000, 5_000, 4_000, 3_000, 2_000):
            begun = lab.running(lab.ref(ago), policy=policy)
            lab.finish(lab.ref(ago), begun.token, history_size=3)
        assert [ago for ago, *_ in lab.told()] == [2_000, 3_000, 4_000]
        assert lab.claim(lab.ref(6_000)).status is Status.SUCCEEDED

    def test_history_ttl(self, adapter: StoreAdapter) -> None:
        """Entries of slots older than the limit leave the history at the job's next claim, and stay settled."""
        lab = Lab(adapter)
        lab.job()
        policy = replace(ALLOW, history_ttl_ms=60_000)
        for ago in (100_000, 90_000, 20_000):
            lab.succeeded(lab.ref(ago), policy=policy)
        assert [ago for ago, *_ in lab.told()] == [20_000]
        assert lab.claim(lab.ref(90_000), policy=policy).kind is ClaimKind.DONE
        assert lab.begin(lab.ref(90_000), 1).kind is BeginKind.DONE


class TrimTests:
    """What is forgotten, and what never is."""

    def test_trimmed_slot_stays_settled(self, adapter: StoreAdapter) -> None:
        """A slot whose state was trimmed is never won and never begun again."""
        lab = Lab(adapter)
        lab.job()
        policy = replace(ALLOW, keep_ms=0)
        agos = list(range(20_000, 0, -1_000))
        for ago in agos:
            lab.succeeded(lab.ref(ago), policy=policy)
        for ago in agos:
            assert lab.claim(lab.ref(ago), policy=policy).kind is ClaimKind.DONE
            assert lab.begin(lab.ref(ago), 1).kind is BeginKind.DONE
        assert len(lab.history()) == len(agos)
        assert lab.claim(lab.ref(agos[0])).status is None, "the state of the oldest slot is still there"

    def test_open_runs_do_not_stop_trimming(self, adapter: StoreAdapter) -> None:
        """Runs that hang at the bottom stay, and what ended above them is trimmed all the same."""
        lab = Lab(adapter)
        lab.job()
        policy = replace(ALLOW, keep_ms=0)
        hanging = [lab.ref(ago) for ago in range(30_000, 24_000, -1_000)]
        for ref in hanging:
            lab.running(ref, policy=policy)
        for ago in range(20_000, 0, -1_000):
            lab.succeeded(lab.ref(ago), policy=policy)
        assert lab.claim(lab.ref(20_000)).status is None, "the state of an ended slot is still there"
        for ref in hanging:
            assert lab.claim(ref, policy=policy).kind is ClaimKind.RUNNING

    def test_young_states_stay(self, adapter: StoreAdapter) -> None:
        """States that a late claim could still ask for are kept."""
        lab = Lab(adapter)
        lab.job()
        for ago in range(9_000, 0, -1_000):
            lab.succeeded(lab.ref(ago))
        assert lab.claim(lab.ref(9_000)).status is Status.SUCCEEDED


class IndexTests:
    """What spans jobs."""

    def test_expired(self, adapter: StoreAdapter) -> None:
        """Runs whose lease is over are found, those over longest first; live and ended ones are not."""
        lab = Lab(adapter)
        for name in ("a", "b", "c", "d"):
            lab.job(name)
        runs = {name: (lab.ref(1_000, name), lab.running(lab.ref(1_000, name)).token) for name in ("a", "b", "c", "d")}
        assert lab.store.expired(limit=10).answers == []
        for name in ("b", "a"):
            lab.end_lease(*runs[name])
        lab.finish(*runs["d"])
        assert lab.store.expired(limit=10).answers == [runs["b"][0], runs["a"][0]]
        assert lab.store.expired(limit=1).answers == [runs["b"][0]]
        lab.beat(*runs["b"])
        assert lab.store.expired(limit=10).answers == [runs["a"][0]]
        lab.finish(*runs["a"])
        assert lab.store.expired(limit=10).answers == []

    def test_expired_with_a_key(self, adapter: StoreAdapter) -> None:
        """Runs with a key come back whole, whatever the key."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000, key="a:b|{c} ☂")
        lab.end_lease(ref, lab.won(ref, trigger=MANUAL).token, phase=Status.CLAIMED)
        assert lab.store.expired(limit=10).answers == [ref]

    def test_resting_run_is_not_expired(self, adapter: StoreAdapter) -> None:
        """A run that rests after a failed publish is not found before its time."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        lab.release(ref, lab.won(ref).token)
        assert lab.store.expired(limit=10).answers == []
        lab.pass_ms(1_000)
        assert lab.store.expired(limit=10).answers == [ref]

    def test_repair(self, adapter: StoreAdapter) -> None:
        """Repairing the index of leases changes nothing where nothing is missing."""
        lab = Lab(adapter)
        lab.job()
        ref = lab.ref(1_000)
        begun = lab.running(ref)
        assert len(lab.store.repair(["job", "nothing"]).answers) == 2
        assert lab.store.expired(limit=10).answers == []
        lab.end_lease(ref, begun.token)
        lab.store.repair(["job"])
        assert lab.store.expired(limit=10).answers == [ref]
        assert lab.beat(ref, begun.token)

    def test_queues(self, adapter: StoreAdapter) -> None:
        """What workers said of their queues is kept by queue; when a run last began only moves forward."""
        lab = Lab(adapter)
        assert lab.store.queues().answers == []
        lab.store.announce("worker-1", {"mail": 50, "default": 0})
        lab.store.announce("worker-2", {"mail": 40})
        found = dict(lab.store.queues().answers)
        assert list(found) == ["default", "mail"]
        assert (found["default"].begun_ms, found["mail"].begun_ms) == (0, 50)
        assert lab.base <= found["mail"].announced_ms <= lab.now()


class BatchTests:
    """What a batch guarantees."""

    def test_sizes(self, adapter: StoreAdapter) -> None:
        """A batch of any size is answered whole and in its order, over any number of jobs."""
        lab = Lab(adapter)
        for size in (0, 1, 2, 100, 500):
            names = [f"{size}-{at}" for at in range(size)]
            definitions = [Definition(name=n, fingerprint="1", document="{}", floor=lab.base - 5_000) for n in names]
            registered = lab.store.register(definitions).answers
            assert [a.floor for a in registered] == [lab.base - 5_000] * size
            asks = [lab.ask(lab.ref(1_000 + at % 7, name), floor=lab.base - 5_000) for at, name in enumerate(names)]
            answers = lab.claim_all(asks)
            assert [a.kind for a in answers] == [ClaimKind.WON] * size
            assert [a.run for a in answers] == [ask.ref.run for ask in asks]
            records = [
                Queued(ref=ask.ref, token=answer.token, policy=ask.policy, task_id=f"task-{at}")
                for at, (ask, answer) in enumerate(zip(asks, answers, strict=True))
            ]
            assert lab.store.queued(records).answers == [True] * size
            last = lab.store.last_runs(names).answers
            assert [run and run.task_id for run in last] == [record.task_id for record in records]

    def test_items_of_one_job(self, adapter: StoreAdapter) -> None:
        """Items of one job in one batch are decided one after the other."""
        lab = Lab(adapter)
        lab.job()
        first, second = lab.ref(2_000), lab.ref(1_000)
        asks = [lab.ask(first), lab.ask(first), replace(lab.ask(second), floor=first.slot)]
        assert [a.kind for a in lab.claim_all(asks)] == [ClaimKind.WON, ClaimKind.RUNNING, ClaimKind.WAIT]

    def test_mixed_answers(self, adapter: StoreAdapter) -> None:
        """Items of a batch do not spoil each other."""
        lab = Lab(adapter)
        for name in ("a", "b", "c"):
            lab.job(name)
        lab.succeeded(lab.ref(1_000, "b"))
        asks = [
            lab.ask(lab.ref(1_000, "unknown")),
            lab.ask(lab.ref(1_000, "a")),
            lab.ask(lab.ref(1_000, "b")),
            lab.ask(RunRef("c", lab.base + LONG_MS)),
        ]
        kinds = [a.kind for a in lab.claim_all(asks)]
        assert kinds == [ClaimKind.UNREGISTERED, ClaimKind.WON, ClaimKind.DONE, ClaimKind.EARLY]

    def test_race_for_slots(self, adapter: StoreAdapter) -> None:
        """Of several clients that claim the same runs at once, exactly one wins each."""
        lab = Lab(adapter)
        names = [lab.job(f"job-{at}") for at in range(40)]
        stores = [lab.store, *(adapter.store() for _ in range(3))]
        start = threading.Barrier(len(stores))
        wins: list[list[str]] = [[] for _ in stores]

        def claim(at: int) -> None:
            asks = [lab.ask(lab.ref(1_000, name), claim_id=f"{at}-{name}") for name in names]
            start.wait()
            for part in (asks[i : i + 5] for i in range(0, len(asks), 5)):
                answers = stores[at].claim(part).answers
                wins[at] += [a.ref.job for a, won in zip(part, answers, strict=True) if won.kind is ClaimKind.WON]

        threads = [threading.Thread(target=claim, args=(at,)) for at in range(len(stores))]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(name for won in wins for name in won) == sorted(names)


class ConnectionTests:
    """What opening and closing guarantee."""

    def test_time_moves_on(self, adapter: StoreAdapter) -> None:
        """The store tells its time in milliseconds, and it moves on."""
        lab = Lab(adapter)
        lab.pass_ms(3)
        assert lab.now() >= lab.base + 3
        assert FORMAT >= 1

    def test_close_is_not_the_end(self, adapter: StoreAdapter) -> None:
        """Closing twice is fine, and a later call opens the store again with everything in it."""
        lab = Lab(adapter)
        lab.job()
        lab.succeeded(lab.ref(1_000))
        lab.store.close()
        lab.store.close()
        assert lab.told() == [(1_000, 1, "succeeded", None)]

    def test_location_is_for_people(self, adapter: StoreAdapter) -> None:
        """A store can say where it is."""
        assert "://" in adapter.store().location
