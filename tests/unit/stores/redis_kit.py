"""Runs to take through a Redis store."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginKind,
    Claim,
    ClaimKind,
    Definition,
    Delivered,
    Finish,
    Policy,
    Queued,
)

if TYPE_CHECKING:
    from collections.abc import Sequence

    from anarchon_tasks.stores.redis import RedisStore

MESSAGE = Delivered(message_id="m1", retries=0, worker="w1", pid=11)


def claims_of(store: RedisStore, jobs: Sequence[str], *, claim_id: str = "c1", register: bool = True) -> list[Claim]:
    """Register some jobs and return a claim for a slot of each that is due."""
    now = store.time().now_ms
    if register:
        store.register([Definition(name=job, fingerprint="f", document="{}", floor=now - 10_000) for job in jobs])
    return [
        Claim(
            ref=RunRef(job, now - 1_000),
            claim_id=claim_id,
            instance="i1",
            policy=Policy(),
            due_ms=now - 1_000,
            latest_ms=now + 60_000,
            floor=now - 10_000,
        )
        for job in jobs
    ]


def begin_of(ref: RunRef, token: int, delivery_id: str = "d1") -> Begin:
    """Return a begin of a run's first message."""
    return Begin(ref=ref, delivery_id=delivery_id, delivered=MESSAGE, attempt=1, token=token, lease_ms=30_000)


def run_through(store: RedisStore, job: str) -> list[Status]:
    """Take a run of a job from its claim to its end and return what the history says of it."""
    [ask] = claims_of(store, [job])
    [won] = store.claim([ask]).answers
    assert won.kind is ClaimKind.WON
    assert store.queued([Queued(ref=ask.ref, token=won.token, policy=Policy(), task_id="m1")]).answers == [True]
    [begun] = store.begin([begin_of(ask.ref, won.token)]).answers
    assert begun.kind is BeginKind.OK
    assert store.beat([Beat(ref=ask.ref, token=begun.token, lease_ms=30_000)]).answers == [True]
    assert store.finish([Finish(ref=ask.ref, status=Status.SUCCEEDED, token=begun.token)]).answers == [True]
    return [run.status for run in store.history(job, limit=10).answers]
