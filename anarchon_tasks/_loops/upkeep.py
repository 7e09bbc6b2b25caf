"""The loop that keeps claims alive, makes jobs known, and looks for runs whose lease is over."""

from __future__ import annotations

import logging
import threading
from collections import deque
from dataclasses import dataclass, replace
from itertools import islice
from typing import TYPE_CHECKING

from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import Beat

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks._loops.holding import Holding
    from anarchon_tasks.clock import Clock
    from anarchon_tasks.jobs import Job
    from anarchon_tasks.link import StoreLink
    from anarchon_tasks.model import RunRef
    from anarchon_tasks.stores.base import Definition
    from anarchon_tasks.tracking import Tracking

logger = logging.getLogger("anarchon_tasks.scheduler")

STEP_S = 0.25
RENEW_S = 1.0
RECOVER_S = 0.5
QUEUES_S = 30.0
QUEUES_HOPING_S = 1.0
REPAIR_S = 60.0
REPAIR_STEPS = 200
"""A round of repairs takes at most so many steps, however many jobs there are: less than `REPAIR_S`."""
PAGE = 100
RECOVER_LIMIT = 200
RECOVER_MOST = 100_000


class Every:
    """Tells whether an interval has passed since it last said yes; the first time at once."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._last: float | None = None

    def passed(self, seconds: float) -> bool:
        """Tell, and if so start the next interval."""
        now = self._clock.monotonic()
        if self._last is not None and now - self._last < seconds:
            return False
        self._last = now
        return True


@dataclass(frozen=True, slots=True)
class _Unregistered:
    job: Job
    floor: int | None
    at: float


class Upkeep:
    """Renews, registers, refreshes, recovers, repairs: each in batches, each at its own pace."""

    def __init__(
        self,
        *,
        link: StoreLink,
        holding: Holding,
        tracking: Tracking,
        clock: Clock,
        claim_lease_ms: int,
        jobs: Callable[[], Sequence[Job]],
        registered: Callable[[Job, int], None],
        recover: Callable[[Sequence[RunRef]], None],
    ) -> None:
        self._link = link
        self._holding = holding
        self._tracking = tracking
        self._claim_lease_ms = claim_lease_ms
        self._jobs = jobs
        self._registered = registered
        self._recover = recover
        self._lock = threading.Lock()
        self._unregistered: dict[str, _Unregistered] = {}
        self._failed: dict[str, _Unregistered] = {}
        """Jobs that the store would not register; they are tried again in the next round of repairs."""
        self._forget: set[str] = set()
        self._recover_limit = RECOVER_LIMIT
        self._renewal, self._search, self._look, self._refresh, self._round = (Every(clock) for _ in range(5))
        self._to_repair: deque[str] = deque()
        self._repair_page = PAGE
        self._queues_known = False
        self._clock = clock

    def register(self, job: Job, floor: int | None) -> None:
        """Make a job known to the store soon; with the floor that is known here, should the store have lost it."""
        with self._lock:
            self._unregistered[job.name] = _Unregistered(job, floor, self._clock.monotonic())
            self._failed.pop(job.name, None)
            self._forget.discard(job.name)

    def forget(self, name: str) -> None:
        """Take a job off the list that readers see, soon."""
        with self._lock:
            self._unregistered.pop(name, None)
            self._failed.pop(name, None)
            self._forget.add(name)

    def step(self) -> float:
        """Do what is due."""
        if self._renewal.passed(RENEW_S / 2):
            self._renew()
        if not self._queues_known or self._queues_due():
            reply = self._link.call(self._link.store.queues)
            self._tracking.learn(reply.answers, now_ms=reply.now_ms)
            self._queues_known = True  # before any job is registered, and so before any claim
        more = self._register_some()
        self._forget_some()
        if self._may_search() and self._search.passed(RECOVER_S):
            self._search_expired()
        self._repair_some()
        return 0.0 if more else STEP_S

    def finish(self) -> None:
        """Nothing is held here."""

    def _queues_due(self) -> bool:
        """Tell whether to ask which queues report: each second as long as a job could gain from it, else rarely."""
        return self._look.passed(QUEUES_HOPING_S) and (
            self._refresh.passed(QUEUES_S) or self._tracking.hopes_for(self._jobs())
        )

    def _may_search(self) -> bool:
        """Tell whether those who hold claims had the time to speak since an outage: as long as a claim lasts.

        Workers get longer: until then `Claim.takeover` leaves the runs that they began to them.
        """
        return self._link.undisturbed_s() >= self._claim_lease_ms / 1000

    def _search_expired(self) -> None:
        """Look for runs whose lease is over. A reply that itself shows a jump of the store's clock counts for nothing.

        Runs of jobs that nobody here has, or that are disabled here, stay in the index. When they fill a page, the next
        one is longer.
        """
        limit = self._recover_limit
        refs = self._link.call(self._link.store.expired, limit=limit).answers
        if not refs or not self._may_search():
            return
        here = {job.name for job in self._jobs() if job.options.enabled}
        mine = [ref for ref in refs if ref.job in here]
        crowded = len(refs) >= limit and len(mine) < len(refs)
        self._recover_limit = min(limit * 2, RECOVER_MOST) if crowded else RECOVER_LIMIT
        if mine:
            self._recover(mine[:RECOVER_LIMIT])

    def _renew(self) -> None:
        held = self._holding.to_renew(after_s=RENEW_S)
        if not held:
            return
        sent = self._clock.monotonic()
        beats = [Beat(ref=ref, token=token, lease_ms=self._claim_lease_ms, phase=Status.CLAIMED) for ref, token in held]
        answers = self._link.call(self._link.store.beat, beats).answers
        for (ref, token), alive in zip(held, answers, strict=True):
            if alive:
                self._holding.renewed(ref, token, sent=sent)
            else:
                self._holding.drop(ref, token)

    def _register_some(self) -> bool:
        """Register a page of jobs; return whether more are waiting."""
        with self._lock:
            page = list(islice(self._unregistered.values(), PAGE))
        if not page:
            return False
        reply = self._link.call(self._link.store.register, [self._definition(entry) for entry in page])
        for entry, answer in zip(page, reply.answers, strict=True):
            job = entry.job
            self._answered(entry, failed=answer.error is not None)
            if answer.error is not None:
                logger.error("job %r could not be registered, it is tried again: %s", job.name, answer.error)
            else:
                self._registered(job, answer.floor)
        with self._lock:
            return bool(self._unregistered)

    def _definition(self, entry: _Unregistered) -> Definition:
        """Say since when this instance answers for the job: what was due since then is owed, however long it took."""
        waited_ms = int((self._clock.monotonic() - entry.at) * 1000)
        return replace(entry.job.definition(), floor=entry.floor, since=self._link.time.now_ms() - waited_ms)

    def _answered(self, entry: _Unregistered, *, failed: bool) -> None:
        """Take a job off the list, unless it was removed or changed while the store was asked."""
        name = entry.job.name
        with self._lock:
            if self._unregistered.get(name) is entry:
                del self._unregistered[name]
                if failed:
                    self._failed[name] = entry

    def _forget_some(self) -> None:
        with self._lock:
            names = list(islice(self._forget, PAGE))
        if names:
            self._link.call(self._link.store.forget, names)
            with self._lock:
                self._forget.difference_update(names)

    def _repair_some(self) -> None:
        """Repair the index of lease ends, a page at a time, each job once in a round; retry failed registrations."""
        if not self._to_repair and self._round.passed(REPAIR_S):
            with self._lock:
                self._unregistered, self._failed = {**self._failed, **self._unregistered}, {}
            self._to_repair.extend(job.name for job in self._jobs())
            self._repair_page = max(PAGE, -(-len(self._to_repair) // REPAIR_STEPS))
        page = [self._to_repair.popleft() for _ in range(min(self._repair_page, len(self._to_repair)))]
        if page:
            self._link.call(self._link.store.repair, page)
