"""The scheduler's calls that a lost reply may double: each with what must be there before it."""
# ruff: noqa: S101 - tests: assertions are what they are for

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from anarchon_tasks.model import Reason, RunRef, Status
from anarchon_tasks.stores.base import Definition, Queued, Release, SlotRange
from anarchon_tasks.testing._lab import LONG_MS, MANUAL
from anarchon_tasks.testing._repeats import ONCE, SHORT, SKIP, Cases

if TYPE_CHECKING:
    from anarchon_tasks.testing._lab import Lab
    from anarchon_tasks.testing._repeats import Call

CASES = Cases()


# --- register, forget ------------------------------------------------------------------------------------------------


@CASES.of("register")
def _new_job(lab: Lab, job: str) -> Call:
    del lab
    return lambda store: store.register([Definition(name=job, fingerprint="1", document="{}")])


@CASES.of("register")
def _changed_job(lab: Lab, job: str) -> Call:
    lab.job(job)
    return lambda store: store.register([Definition(name=job, fingerprint="2", document="{}")])


@CASES.of("register")
def _job_that_the_store_lost(lab: Lab, job: str) -> Call:
    floor = lab.base - 5_000
    return lambda store: store.register([Definition(name=job, fingerprint="1", document="{}", floor=floor)])


@CASES.of("forget")
def _known_job(lab: Lab, job: str) -> Call:
    lab.succeeded(lab.ref(1_000, lab.job(job)))
    return lambda store: store.forget([job])


@CASES.of("forget")
def _unknown_job(lab: Lab, job: str) -> Call:
    del lab
    return lambda store: store.forget([job])


# --- claim -----------------------------------------------------------------------------------------------------------


def _claim(lab: Lab, ref: RunRef, **fields: Any) -> Call:  # noqa: ANN401 - of any of the fields
    ask = lab.ask(ref, **fields)
    return lambda store: store.claim([ask])


def _range(lab: Lab, first: int, last: int, count: int) -> SlotRange:
    return SlotRange(
        first=lab.base - first, last=lab.base - last, count=count, status=Status.MISSED, reason=Reason.NO_INSTANCE
    )


@CASES.of("claim")
def _won(lab: Lab, job: str) -> Call:
    return _claim(lab, lab.ref(1_000, lab.job(job)))


@CASES.of("claim")
def _won_with_a_stretch(lab: Lab, job: str) -> Call:
    return _claim(lab, lab.ref(1_000, lab.job(job)), ranges=(_range(lab, 9_000, 5_000, 5),))


@CASES.of("claim")
def _manual_run(lab: Lab, job: str) -> Call:
    lab.job(job)
    return _claim(lab, lab.ref(1_000, job, key="by hand"), trigger=MANUAL)


@CASES.of("claim")
def _claim_taken_over(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.won(ref).token, phase=Status.CLAIMED)
    return _claim(lab, ref)


@CASES.of("claim")
def _worker_taken_over(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.running(ref).token)
    return _claim(lab, ref)


@CASES.of("claim")
def _worker_left_to_beat(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.running(ref).token)
    return _claim(lab, ref, takeover=False)


@CASES.of("claim")
def _takeover_delayed(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.running(ref).token)
    return _claim(lab, ref, policy=replace(SKIP, takeover_delay_ms=LONG_MS))


@CASES.of("claim")
def _after_a_release(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    assert lab.release(ref, lab.won(ref).token, failed=False)
    return _claim(lab, ref)


@CASES.of("claim")
def _while_it_rests(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    assert lab.release(ref, lab.won(ref).token)
    return _claim(lab, ref)


@CASES.of("claim")
def _settled_as_late(lab: Lab, job: str) -> Call:
    ref = lab.ref(5_000, lab.job(job))
    return _claim(lab, ref, latest_ms=lab.base - 4_000, ranges=(_range(lab, 9_000, 6_000, 2),))


@CASES.of("claim")
def _settled_as_late_and_trimmed(lab: Lab, job: str) -> Call:
    ref = lab.ref(5_000, lab.job(job))
    return _claim(lab, ref, latest_ms=lab.base - 4_000, policy=replace(SKIP, keep_ms=0))


@CASES.of("claim")
def _late_joins_a_stretch(lab: Lab, job: str) -> Call:
    lab.job(job)
    late = lab.base - 4_000
    lab.claim(lab.ref(6_000, job), latest_ms=late)
    return _claim(lab, lab.ref(5_000, job), latest_ms=late)


@CASES.of("claim")
def _settled_as_overlap(lab: Lab, job: str) -> Call:
    lab.running(lab.ref(1_000, lab.job(job)))
    lab.pass_ms(2)
    return _claim(lab, replace(lab.ref(0, job), slot=lab.now()), gap_ms=1)


@CASES.of("claim")
def _waits(lab: Lab, job: str) -> Call:
    lab.won(lab.ref(2_000, lab.job(job)))
    return _claim(lab, lab.ref(1_000, job))


@CASES.of("claim")
def _supersedes(lab: Lab, job: str) -> Call:
    old = lab.ref(60_000, lab.job(job))
    lab.end_lease(old, lab.won(old).token, phase=Status.CLAIMED)
    return _claim(lab, lab.ref(1_000, job))


@CASES.of("claim")
def _ends_as_interrupted(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.running(ref).token)
    return _claim(lab, ref, policy=replace(SKIP, max_attempts=1))


@CASES.of("claim")
def _ends_as_expired(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    policy = replace(SKIP, start_deadline_ms=0)
    lab.waiting(ref, policy=policy)
    lab.pass_ms(1)
    return _claim(lab, ref, policy=policy)


@CASES.of("claim")
def _ends_as_lost(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.waiting(ref, policy=SHORT)
    lab.pass_ms(1)
    return _claim(lab, ref, policy=SHORT, queue_begun_ms=lab.now() + 1)


@CASES.of("claim")
def _ends_as_perhaps_published(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.won(ref, policy=ONCE).token, phase=Status.CLAIMED)
    return _claim(lab, ref, policy=ONCE)


@CASES.of("claim")
def _ends_as_missed(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.end_lease(ref, lab.won(ref, latest_ms=lab.now() + 30).token, phase=Status.CLAIMED)
    lab.pass_ms(30)
    return _claim(lab, ref)


@CASES.of("claim")
def _publishes_again(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    lab.waiting(ref, policy=SHORT)
    lab.pass_ms(1)
    return _claim(lab, ref, policy=SHORT)


@CASES.of("claim")
def _somebody_has_it(lab: Lab, job: str) -> Call:
    lab.won(lab.ref(1_000, lab.job(job)))
    return _claim(lab, lab.ref(1_000, job))


@CASES.of("claim")
def _done(lab: Lab, job: str) -> Call:
    lab.succeeded(lab.ref(1_000, lab.job(job)))
    return _claim(lab, lab.ref(1_000, job))


@CASES.of("claim")
def _early(lab: Lab, job: str) -> Call:
    lab.job(job)
    return _claim(lab, lab.ref(-LONG_MS, job))


@CASES.of("claim")
def _moved(lab: Lab, job: str) -> Call:
    lab.succeeded(lab.ref(2_000, lab.job(job)))
    return _claim(lab, lab.ref(1_000, job), floor=lab.base - 5_000)


@CASES.of("claim")
def _unregistered(lab: Lab, job: str) -> Call:
    return _claim(lab, lab.ref(1_000, job))


# --- the scheduler's records -----------------------------------------------------------------------------------------


def _queued(ref: RunRef, token: int) -> Call:
    record = Queued(ref=ref, token=token, policy=SKIP, task_id="task-1")
    return lambda store: store.queued([record])


@CASES.of("queued")
def _published(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _queued(ref, lab.won(ref).token)


@CASES.of("queued")
def _published_untracked(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _queued(ref, lab.won(ref, tracked=False).token)


@CASES.of("queued")
def _published_stale(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    token = lab.won(ref).token
    lab.begin(ref, token)
    return _queued(ref, token)


def _release(ref: RunRef, token: int, **fields: Any) -> Call:  # noqa: ANN401 - of any of the fields
    record = replace(Release(ref=ref, token=token, error="refused"), **fields)
    return lambda store: store.release([record])


@CASES.of("release")
def _publish_failed(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _release(ref, lab.won(ref).token)


@CASES.of("release")
def _instance_stops(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _release(ref, lab.won(ref).token, failed=False, error=None)


@CASES.of("release")
def _perhaps_published_at_most_once(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _release(ref, lab.won(ref, policy=ONCE).token, unknown=True, policy=ONCE)


@CASES.of("release")
def _released_stale(lab: Lab, job: str) -> Call:
    ref = lab.ref(1_000, lab.job(job))
    return _release(ref, lab.waiting(ref).token)
