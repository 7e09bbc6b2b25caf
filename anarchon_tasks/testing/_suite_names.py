"""Conformance: what names of jobs and of namespaces can be."""
# ruff: noqa: S101 - tests: assertions are what they are for

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    ClaimKind,
    Definition,
    Delivered,
    Finish,
    Park,
    Queued,
    Release,
)
from anarchon_tasks.testing._lab import ALLOW, LONG_MS, Lab, alike
from anarchon_tasks.testing._names import check_names, hostile_names

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore
    from anarchon_tasks.testing._lab import StoreAdapter

LOOK_ALIKES = (
    *[
        "b:c",
        "c",
        "b",
        "a:b:c",
        "b%3Ac",
        "x}:state",
        "}:state",
        "state",
        "jobs",
        "jobs:x",
        "leases",
        "queues",
        "format",
    ],
    *["x_state", "_state", "x.state", "other", "prefix:", ":", "*", "job"],
)
"""Names that continue a namespace's own as its keys and tables do."""


class NameTests:
    """What names and namespaces can be."""

    def test_hostile_names(self, adapter: StoreAdapter) -> None:
        """Any text can be the name of a job, and no two meet: in every call and for every reader."""
        check_names(Lab(adapter), hostile_names(500), histories=100)

    def test_names_that_are_no_unicode_spoil_nothing(self, adapter: StoreAdapter) -> None:
        """A scheduler has no such job. A store that cannot hold its name says so, and answers for the others."""
        lab = Lab(adapter)
        names = ["good", "lone \ud800 surrogate", "better", "\udfff"]
        registered = lab.store.register(
            [Definition(name=name, fingerprint="1", document="{}", floor=lab.base - 5_000) for name in names]
        ).answers
        refs = [lab.ref(1_000, name) for name in names]
        won = lab.claim_all([lab.ask(ref, floor=lab.base - 5_000) for ref in refs])
        for at, name in enumerate(names):
            if name.isprintable():
                assert (registered[at].error, won[at].kind) == (None, ClaimKind.WON)
            told = lab.history(name)
            if won[at].kind is ClaimKind.WON:
                assert [(run.job, run.status) for run in told] == [(name, Status.CLAIMED)]
            else:
                assert won[at].kind in {ClaimKind.ERROR, ClaimKind.UNREGISTERED}
                assert told == []
        assert {"good", "better"} <= {item.name for item in lab.store.definitions().answers} <= {*names}

    def test_namespaces_are_isolated(self, adapter: StoreAdapter) -> None:
        """Two namespaces share nothing."""
        lab = Lab(adapter)
        lab.job()
        lab.end_lease(lab.ref(1_000), lab.running(lab.ref(1_000)).token)
        lab.store.announce("worker", {"mail": 1})
        other = adapter.elsewhere()
        assert other.namespace != lab.store.namespace
        assert other.claim([lab.ask(lab.ref(1_000))]).answers[0].kind is ClaimKind.UNREGISTERED
        assert other.definitions().answers == []
        assert other.history("job", limit=10).answers == []
        assert other.expired(limit=10).answers == []
        assert other.queues().answers == []
        [registered] = other.register(
            [Definition(name="job", fingerprint="1", document="{}", floor=lab.base - 5_000)]
        ).answers
        assert registered.changed
        ask = lab.ask(lab.ref(1_000), floor=lab.base - 5_000)
        assert other.claim([ask]).answers[0].kind is ClaimKind.WON
        assert lab.history()[0].status is Status.RUNNING

    def test_namespaces_that_look_alike_are_isolated(self, adapter: StoreAdapter) -> None:
        """Whatever the jobs are called: namespaces of which one is the head of the other, or looks like its keys."""
        lab = Lab(adapter)
        stores = alike(adapter)
        assert len({store.namespace for store in stores}) == len(stores)
        tokens = [_fill(lab, store, at) for at, store in enumerate(stores)]
        for at, store in enumerate(stores):
            _check_own(lab, store, at)
        _live(lab, stores[1], 1, tokens[1])
        others = [(at, store) for at, store in enumerate(stores) if at != 1]
        for at, store in others:
            _check_own(lab, store, at)
        for _, store in others[1:]:
            store.forget(LOOK_ALIKES)
            assert store.definitions().answers == []
        _check_own(lab, stores[0], 0)


def _fill(lab: Lab, store: LeaseStore, at: int) -> list[int]:
    """Give a namespace its jobs, each with a run that nobody else has; return the tokens of their claims."""
    store.register(
        [Definition(name=name, fingerprint=f"{at}", document=f"{at}", floor=lab.base - 5_000) for name in LOOK_ALIKES]
    )
    asks = [
        lab.ask(RunRef(name, lab.base - 100 - at), floor=lab.base - 5_000, policy=ALLOW, instance=f"of {at}")
        for name in LOOK_ALIKES
    ]
    answers = store.claim(asks).answers
    assert {answer.kind for answer in answers} == {ClaimKind.WON}
    store.announce("worker-1", {f"{name} {at}": at for name in LOOK_ALIKES})
    return [answer.token for answer in answers]


def _live(lab: Lab, store: LeaseStore, at: int, tokens: list[int]) -> None:
    """Make every other call in a namespace: its runs are published, begun, beaten, parked, ended; or handed back."""
    refs = [RunRef(name, lab.base - 100 - at) for name in LOOK_ALIKES]
    first, rest = dict(zip(refs[:4], tokens, strict=False)), dict(zip(refs[4:], tokens[4:], strict=True))
    assert all(store.release([Release(ref=ref, token=token) for ref, token in first.items()]).answers)
    records = [Queued(ref=ref, token=token, policy=ALLOW, task_id="task-1") for ref, token in rest.items()]
    assert all(store.queued(records).answers)
    begins = [
        Begin(
            ref=ref,
            delivery_id=f"delivery {ref.job}",
            delivered=Delivered(message_id="task-1", retries=0, worker="worker-1", pid=1),
            attempt=1,
            token=token,
            lease_ms=LONG_MS,
        )
        for ref, token in rest.items()
    ]
    begun = {ask.ref: answer.token for ask, answer in zip(begins, store.begin(begins).answers, strict=True)}
    assert all(store.beat([Beat(ref=ref, token=token, lease_ms=1) for ref, token in begun.items()]).answers)
    parked, *ended = begun
    assert all(store.park([Park(ref=parked, token=begun[parked], eta_ms=0, start_timeout_ms=1)]).answers)
    ends = [Finish(ref=ref, token=begun[ref], status=Status.FAILED, error="of this one") for ref in ended]
    assert all(store.finish(ends).answers)
    lab.pass_ms(1)
    assert {parked} <= {*store.expired(limit=1_000).answers} <= {parked, *first}


def _check_own(lab: Lab, store: LeaseStore, at: int) -> None:
    """See that a namespace has what it was given, and nothing else."""
    definitions = store.definitions().answers
    assert [(item.name, item.document) for item in definitions] == [(name, f"{at}") for name in sorted(LOOK_ALIKES)]
    expected = [(name, lab.base - 100 - at, f"of {at}") for name in LOOK_ALIKES]
    assert [run and (run.job, run.slot, run.instance) for run in store.last_runs(LOOK_ALIKES).answers] == expected
    assert [len(store.history(name, limit=10).answers) for name in LOOK_ALIKES] == [1] * len(LOOK_ALIKES)
    assert store.expired(limit=1_000).answers == []
    assert [queue for queue, _ in store.queues().answers] == sorted(f"{name} {at}" for name in LOOK_ALIKES)
    strangers = [lab.ask(RunRef(name, lab.base - 100 - at)) for name in LOOK_ALIKES]
    assert {answer.kind for answer in store.claim(strangers).answers} == {ClaimKind.RUNNING}
    assert store.repair(LOOK_ALIKES).answers == [True] * len(LOOK_ALIKES)
