"""A fixed story under an injected clock, whose end is kept in the golden stores; and what can be read of it."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import TYPE_CHECKING, Any

from anarchon_tasks.model import Reason, RunRef, Status, Trigger
from anarchon_tasks.stores.base import ClaimKind, Definition, Delivery, Policy, SlotRange
from anarchon_tasks.testing import Lab, ManualClock

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore

START = 1_750_000_000_000
HOSTILE = (
    "a job with spaces",
    "ημερήσιο ☂ 日本 🎉",
    "}{",
    "back\\slash/and:colon",
    "quote'\"`;--",
    "%00%25 %s {} ?",
    "tab\tnew\nline",
    "f(x) * > . .. #",
    " leading",
    "0",
)
KEY = "a:b|{c} ☂"
LONG_MS = 600_000
ALLOW = Policy(overlap="allow", claim_lease_ms=LONG_MS, start_timeout_ms=LONG_MS)  # type: ignore[arg-type]


class Player:
    """A store and a clock that obeys, as `Lab` needs them."""

    def __init__(self, store: LeaseStore, clock: ManualClock) -> None:
        self._store = store
        self._clock = clock

    def store(self) -> LeaseStore:
        """Return the only client."""
        return self._store

    def elsewhere(self) -> LeaseStore:
        """Refuse: the story happens in one place."""
        raise NotImplementedError

    def advance(self, ms: int) -> bool:
        """Move the clock."""
        self._clock.advance(ms / 1_000)
        return True


def play(store: LeaseStore, clock: ManualClock) -> dict[str, list[Any]]:
    """Let the story happen; return what the clients of the open runs know: slot, key, token, id, by the job's name."""
    lab = Lab(Player(store, clock))
    for name in HOSTILE:
        lab.job(name)
        lab.succeeded(lab.ref(9_000, name))
    _ends(lab)
    _stretches(lab)
    _attempts(lab)
    _trimmed(lab)
    lab.job("gone")
    lab.store.forget(["gone"])
    document = '{"schedule": "cron 0 8 * * 1-5", "zone": "Europe/Athens", "text": "☂ \\u00e9"}'
    definition = Definition(name="documented", fingerprint="two", document=document, floor=lab.base - 7_000)
    lab.store.register([replace(definition, fingerprint="one"), definition])
    lab.store.announce("worker-1", {"mail": lab.base - 5, "ουρά ☂": 0})
    return _open(lab)


def _ends(lab: Lab) -> None:
    """One run of each status that a run can end with."""
    lab.job("ends")
    refs = [lab.ref(ago, "ends") for ago in range(20_000, 8_000, -1_000)]
    for ref, status, fields in (
        (refs[0], Status.SUCCEEDED, {}),
        (refs[1], Status.FAILED, {"error": "ZeroDivisionError: ☂ \n'quoted'"}),
        (refs[2], Status.CANCELLED, {"reason": Reason.REVOKED}),
        (refs[3], Status.INTERRUPTED, {"max_attempts": 1, "reason": Reason.TIME_LIMIT}),
    ):
        assert lab.finish(ref, lab.running(ref, policy=ALLOW).token, status, **fields)
    expired = replace(ALLOW, start_deadline_ms=1)
    lab.begin(refs[4], lab.waiting(refs[4], policy=expired).token)
    once = replace(ALLOW, delivery=Delivery.AT_MOST_ONCE)
    assert lab.release(refs[5], lab.won(refs[5], policy=once).token, unknown=True, policy=once)
    untracked = lab.won(refs[6], policy=ALLOW, tracked=False)
    assert lab.enqueue(refs[6], untracked.token)
    lab.claim(refs[7], policy=ALLOW, latest_ms=lab.base - 12_500)


def _stretches(lab: Lab) -> None:
    """Slots that share one fate, before a run; and slots that were skipped beside a long run."""
    floor = lab.base - 100_000
    for name in ("stretches", "busy"):
        lab.job(name, ago_ms=100_000)
    stretch = SlotRange(
        first=floor + 1_000, last=floor + 50_000, count=50, status=Status.MISSED, reason=Reason.SUPERSEDED
    )
    lab.won(lab.ref(40_000, "stretches"), ranges=(stretch,), policy=ALLOW)
    lab.running(lab.ref(50_000, "busy"))
    lab.pass_ms(30_000)
    for ago in (45_000, 40_000, 35_000):
        assert lab.claim(lab.ref(ago, "busy")).kind is ClaimKind.OVERLAP


def _attempts(lab: Lab) -> None:
    """A run whose first worker died, and one with retries of its own that was published twice."""
    lab.job("attempts")
    first = lab.running(lab.ref(9_000, "attempts"))
    lab.end_lease(lab.ref(9_000, "attempts"), first.token)
    second = lab.won(lab.ref(9_000, "attempts"))
    assert second.attempt == 2
    assert not lab.beat(lab.ref(9_000, "attempts"), first.token)
    lab.job("retries")
    ref, short = lab.ref(9_000, "retries"), Policy(start_timeout_ms=1, claim_lease_ms=LONG_MS)
    lab.waiting(ref, policy=short)
    lab.pass_ms(10)
    begun = lab.begin(ref, lab.waiting(ref, policy=short).token)
    lab.park(ref, begun.token)
    lab.finish(ref, lab.begin(ref, begun.token, retries=1).token)


def _trimmed(lab: Lab) -> None:
    """Slots whose state was forgotten."""
    lab.job("trimmed")
    for ago in range(20_000, 0, -1_000):
        lab.succeeded(lab.ref(ago, "trimmed"), policy=replace(ALLOW, keep_ms=0, history_size=5))


def _open(lab: Lab) -> dict[str, list[Any]]:
    """One run in each state that is not an end."""
    for name in ("claimed", "queued", "running", "parked", "resting", "manual", "over"):
        lab.job(name)
    known: dict[str, tuple[RunRef, int, str]] = {}
    claimed = lab.ref(1_000, "claimed")
    known["claimed"] = (
        claimed,
        lab.won(claimed, claim_id="claim of the golden store").token,
        "claim of the golden store",
    )
    queued = lab.ref(1_000, "queued")
    known["queued"] = (queued, lab.waiting(queued).token, "")
    running = lab.ref(1_000, "running")
    message = lab.waiting(running)
    known["running"] = (running, lab.begin(running, message.token, delivery_id="delivery 1").token, "delivery 1")
    parked = lab.ref(1_000, "parked")
    token = lab.running(parked).token
    assert lab.park(parked, token)
    known["parked"] = (parked, token, "")
    resting = lab.ref(1_000, "resting")
    lab.release(resting, lab.won(resting).token, error="the broker is away")
    known["resting"] = (resting, 0, "")
    manual = lab.ref(1_000, "manual", key=KEY)
    known["manual"] = (manual, lab.running(manual, trigger=Trigger.MANUAL).token, "")
    over = lab.ref(1_000, "over")
    token = lab.running(over).token
    lab.end_lease(over, token)
    known["over"] = (over, token, "")
    return {job: [ref.slot, ref.key, token, grant] for job, (ref, token, grant) in known.items()}


def read(store: LeaseStore) -> dict[str, Any]:
    """Return everything that readers see, as JSON."""
    jobs = [*HOSTILE, "ends", "stretches", "busy", "attempts", "retries", "trimmed", "gone", "documented"]
    jobs += ["claimed", "queued", "running", "parked", "resting", "manual", "over", "unknown"]
    last = store.last_runs(jobs).answers
    return {
        "definitions": [[d.name, d.fingerprint, d.document] for d in store.definitions().answers],
        "queues": [[queue, asdict(note)] for queue, note in store.queues().answers],
        "expired": [[ref.job, ref.slot, ref.key] for ref in store.expired(limit=100).answers],
        "history": {job: [asdict(run) for run in store.history(job, limit=1_000).answers] for job in jobs},
        "last": [run and [run.job, run.slot, run.key, run.attempt] for run in last],
    }
