"""The calls of workers and readers that a lost reply may double: each with what must be there before it."""
# ruff: noqa: S101 - tests: assertions are what they are for

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import Beat, Begin, Definition, Delivered, Finish, LeaseStore, Park, Reply
from anarchon_tasks.testing._lab import ALLOW, LONG_MS
from anarchon_tasks.testing._repeats import SHORT, SKIP, Cases

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import Lab
    from anarchon_tasks.testing._repeats import Call

CASES = Cases()
MESSAGE = Delivered(message_id="message-1", retries=0, worker="worker-1", pid=1)


def _beat(ref: RunRef, token: int, phase: Status = Status.RUNNING) -> Call:
    item = Beat(ref=ref, token=token, lease_ms=LONG_MS, phase=phase)
    return lambda store: store.beat([item])


@CASES.of("beat")
def _worker(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _beat(ref, lab.running(ref).token)


@CASES.of("beat")
def _worker_whose_lease_is_over(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.running(ref).token
    lab.end_lease(ref, token)
    return _beat(ref, token)


@CASES.of("beat")
def _instance(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _beat(ref, lab.won(ref).token, Status.CLAIMED)


def _overtaken(lab: Lab, job: str) -> tuple[RunRef, int]:
    """Return a run and the token of a worker that it was taken from."""
    ref = lab.ref(1_000, lab.job(job))
    token = lab.running(ref).token
    lab.end_lease(ref, token)
    lab.won(ref)
    return ref, token


@CASES.of("beat")
def _worker_that_lost_the_run(lab: Lab, job: str) -> Call:
    return _beat(*_overtaken(lab, job))


# --- the worker's calls ----------------------------------------------------------------------------------------------


def _begin(lab: Lab, ref: RunRef, token: int, *, retries: int = 0, **fields: Any) -> Call:  # noqa: ANN401 - any field
    ask = Begin(
        ref=ref,
        delivery_id=lab.unique("delivery"),
        delivered=replace(MESSAGE, retries=retries),
        attempt=1,
        token=token,
        lease_ms=LONG_MS,
    )
    ask = replace(ask, **fields)
    return lambda store: store.begin([ask])


@CASES.of("begin")
def _first(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _begin(lab, ref, lab.waiting(ref).token)


@CASES.of("begin")
def _before_the_record_of_its_publish(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _begin(lab, ref, lab.won(ref).token)


@CASES.of("begin")
def _retry(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.running(ref).token
    assert lab.park(ref, token)
    return _begin(lab, ref, token, retries=1)


@CASES.of("begin")
def _retry_whose_park_was_lost(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _begin(lab, ref, lab.running(ref).token, retries=1)


@CASES.of("begin")
def _takes_over(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.running(ref).token
    lab.end_lease(ref, token)
    return _begin(lab, ref, token)


@CASES.of("begin")
def _used_up(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.running(ref).token
    lab.end_lease(ref, token)
    return _begin(lab, ref, token, max_attempts=1)


@CASES.of("begin")
def _given_up_as_lost(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.waiting(ref, policy=SHORT).token
    lab.pass_ms(1)
    lab.claim(ref, policy=SHORT, queue_begun_ms=lab.now() + 1)
    assert lab.history(job)[0].status is Status.LOST
    return _begin(lab, ref, token)


@CASES.of("begin")
def _unknown_to_the_store(lab: Lab, job: str) -> Call:
    return _begin(lab, lab.ref(1_000, lab.job(job)), 1)


@CASES.of("begin")
def _past_its_deadline(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.waiting(ref, policy=replace(SKIP, start_deadline_ms=0)).token
    return _begin(lab, ref, token)


@CASES.of("begin")
def _busy(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.running(ref)
    return _begin(lab, ref, 1)


@CASES.of("begin")
def _ended(lab: Lab, job: str) -> Call:
    lab.succeeded(lab.ref(1_000, lab.job(job)))
    return _begin(lab, lab.ref(1_000, job), 1)


@CASES.of("begin")
def _untracked(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.won(ref, tracked=False).token
    assert lab.enqueue(ref, token)
    return _begin(lab, ref, token)


def _park(ref: RunRef, token: int) -> Call:
    item = Park(ref=ref, token=token, eta_ms=0, start_timeout_ms=LONG_MS)
    return lambda store: store.park([item])


@CASES.of("park")
def _parked(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _park(ref, lab.running(ref).token)


@CASES.of("park")
def _parked_by_a_worker_that_lost_the_run(lab: Lab, job: str) -> Call:
    return _park(*_overtaken(lab, job))


def _finish(ref: RunRef, token: int, status: Status, **fields: Any) -> Call:  # noqa: ANN401 - of any of the fields
    end = replace(Finish(ref=ref, token=token, status=status), **fields)
    return lambda store: store.finish([end])


@CASES.of("finish")
def _succeeded(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _finish(ref, lab.running(ref).token, Status.SUCCEEDED)


@CASES.of("finish")
def _failed(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _finish(ref, lab.running(ref).token, Status.FAILED, error="ZeroDivisionError")


@CASES.of("finish")
def _attempt_that_died(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _finish(ref, lab.running(ref).token, Status.INTERRUPTED)


@CASES.of("finish")
def _last_attempt_that_died(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _finish(ref, lab.running(ref).token, Status.INTERRUPTED, max_attempts=1)


@CASES.of("finish")
def _told_by_the_parent(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.running(ref)
    return _finish(ref, 0, Status.FAILED, delivered=MESSAGE, attempt=1)


@CASES.of("finish")
def _told_by_the_parent_before_it_began(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.waiting(ref).token
    return _finish(ref, 0, Status.FAILED, delivered=MESSAGE, attempt=1, header_token=token)


@CASES.of("finish")
def _told_by_a_worker_that_lost_the_run(lab: Lab, job: str) -> Call:
    return _finish(*_overtaken(lab, job), Status.SUCCEEDED)


# --- what spans jobs, and readers ------------------------------------------------------------------------------------


@CASES.of("announce")
def _queue(lab: Lab, job: str) -> Call:
    begun = lab.base - 5
    return lambda store: store.announce("worker-1", {job: begun})


@CASES.of("repair")
def _open_run(lab: Lab, job: str) -> Call:
    lab.running(lab.ref(1_000, lab.job(job)))
    return lambda store: store.repair([job])


@CASES.of("expired")
def _lease_over(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.running(ref).token)

    def only_this(store: LeaseStore) -> Reply[RunRef]:
        reply = store.expired(limit=10_000)
        return replace(reply, answers=[found for found in reply.answers if found.job == job])

    return only_this


def _two_runs(lab: Lab, job: str) -> None:
    lab.succeeded(lab.ref(2_000, lab.job(job)), policy=ALLOW)
    lab.running(lab.ref(1_000, job), policy=ALLOW)


@CASES.of("read")
def _history(lab: Lab, job: str) -> Call:
    _two_runs(lab, job)
    return lambda store: store.history(job, limit=10)


@CASES.of("read")
def _last_runs(lab: Lab, job: str) -> Call:
    _two_runs(lab, job)
    return lambda store: store.last_runs([job, "nothing"])


@CASES.of("read")
def _definitions(lab: Lab, job: str) -> Call:
    lab.job(job)

    def only_this(store: LeaseStore) -> Reply[Definition]:
        reply = store.definitions()
        return replace(reply, answers=[found for found in reply.answers if found.name == job])

    return only_this


@CASES.of("read")
def _queues(lab: Lab, job: str) -> Call:
    lab.store.announce("worker-1", {job: 7})

    def only_this(store: LeaseStore) -> Reply[tuple[str, int]]:
        reply = store.queues()
        found = [(queue, note.begun_ms) for queue, note in reply.answers if queue == job]
        return Reply(now_ms=reply.now_ms, answers=found)

    return only_this


@CASES.of("read")
def _time(lab: Lab, job: str) -> Call:
    del lab, job
    return lambda store: store.time()
