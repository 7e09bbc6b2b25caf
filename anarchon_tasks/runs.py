"""The worker's side of a run: begin, beat, park and finish.

A `Keeper` serves one process. It opens its connection and starts its one thread at the first run after a fork, so that
neither crosses into a child. The thread beats for all runs of the process in one call per heartbeat, tells a run that
it lost its lease, and writes the ends that the store could not take at once.
"""

from __future__ import annotations

import logging
import os
import threading
import uuid
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from anarchon_tasks import events
from anarchon_tasks._backoff import Backoff
from anarchon_tasks.availability import Refusals
from anarchon_tasks.clock import Clock, SystemClock
from anarchon_tasks.current import CurrentRun
from anarchon_tasks.errors import LeaseLost, StoreError, StoreUnavailable
from anarchon_tasks.link import StoreLink
from anarchon_tasks.stores.base import Beat, Begin, BeginKind, Delivered, Finish, Park

if TYPE_CHECKING:
    from anarchon_tasks.header import Header
    from anarchon_tasks.model import Reason, Status
    from anarchon_tasks.stores.base import BeginAnswer, LeaseStore

logger = logging.getLogger("anarchon_tasks.run")

ANNOUNCE_S = 60.0
RETRY_S = 1.0
ERROR_LIMIT = 500


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """The answer to a worker that wants to execute the run of a message."""

    kind: BeginKind
    run: CurrentRun | None = None
    """Set when admitted."""
    status: Status | None = None
    error: str | None = None


class Keeper:
    """Begins, beats and ends the runs of one process.

    Args:
        store: Where the account is.
        lease_ms: How long a run is believed alive after a beat.
        heartbeat_ms: How often to beat. At most a third of the lease.
        patience_s: How long a begin waits for a store that does not answer. After that the message is dropped: the run
            stays open in the store and is published again after its start timeout.
        lost_error: What `raise_if_lost` raises.
        clock: Tests give their own.
        tell: Who hears of events.

    """

    def __init__(
        self,
        store: LeaseStore,
        *,
        lease_ms: int = 30_000,
        heartbeat_ms: int = 10_000,
        patience_s: float = 20.0,
        lost_error: type[LeaseLost] = LeaseLost,
        clock: Clock | None = None,
        tell: events.Events | None = None,
    ) -> None:
        self.store = store
        self.lease_ms = lease_ms
        self.heartbeat_ms = heartbeat_ms
        self.events = tell or events.Events()
        self._patience_s = patience_s
        self._lost_error = lost_error
        self._clock = clock or SystemClock()
        self._start_afresh()

    def _start_afresh(self) -> None:
        """Forget what came through a fork: the parent's runs, thread and locks are not ours."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._runs: dict[int, CurrentRun] = {}
        self._unwritten: list[tuple[CurrentRun, Finish]] = []
        self._begun: dict[str, int] = {}
        self._announced: float | None = None
        self._refusals = Refusals(clock=self._clock)
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._link = StoreLink(
            self.store, clock=self._clock, tell=self.events, lease_ms=self.lease_ms, heartbeat_ms=self.heartbeat_ms
        )

    def _here(self) -> None:
        if self._pid != os.getpid():
            self._start_afresh()

    # --- begin -------------------------------------------------------------------------------------------------------

    def begin(self, header: Header, delivered: Delivered) -> Admission:
        """Ask the store whether this delivery may execute, and from then on beat for it.

        Returns:
            The admission. `BeginKind.ERROR` when the store did not answer for `patience_s` seconds.

        """
        self._here()
        lease_ms = header.lease_ms or self.lease_ms
        ask = Begin(
            ref=header.ref,
            delivery_id=uuid.uuid4().hex,
            delivered=delivered,
            attempt=header.attempt,
            token=header.token,
            lease_ms=lease_ms,
            max_attempts=header.max_attempts,
            history_size=header.history_size,
            trigger=header.trigger,
        )
        sent, answer = self._ask_to_begin(ask)
        if answer is None or answer.kind is BeginKind.ERROR:
            return Admission(kind=BeginKind.ERROR, error=answer.error if answer else "the store does not answer")
        if answer.kind is not BeginKind.OK:
            self.events.emit(
                events.Refused(ref=header.ref, attempt=header.attempt, token=header.token, answer=answer.kind.value)
            )
            return Admission(kind=answer.kind, status=answer.status)
        lease_s = lease_ms / 1000
        run = CurrentRun(
            header=header,
            attempt=answer.attempt,
            token=answer.token,
            delivered=delivered,
            lease_s=lease_s,
            deadline=sent + trusted_s(lease_s),
            lost_error=self._lost_error,
            clock=self._clock,
        )
        self._keep(run)
        self.events.emit(events.Began(ref=header.ref, attempt=run.attempt, token=run.token))
        return Admission(kind=BeginKind.OK, run=run, status=answer.status)

    def _ask_to_begin(self, ask: Begin) -> tuple[float, BeginAnswer | None]:
        give_up = self._clock.monotonic() + self._patience_s
        backoff, failures = Backoff(first_s=0.1, most_s=2.0), 0
        while True:
            sent = self._clock.monotonic()
            try:  # after an outage, also one in the middle of this, the live workers beat first
                answers = self._link.call(self.store.begin, [replace(ask, takeover=not self._link.in_grace)]).answers
            except StoreError as error:
                failures += 1
                if failures == 1 and not isinstance(error, StoreUnavailable):
                    logger.error("beginning a run of %r is tried again: %s", ask.ref.job, error)  # noqa: TRY400
            else:
                return sent, answers[0]
            pause = backoff.seconds(failures)
            if self._clock.monotonic() + pause > give_up or self._clock.wait(self._stop, pause):
                return sent, None

    def _keep(self, run: CurrentRun) -> None:
        with self._lock:
            self._runs[id(run)] = run
            if run.header.queue:
                self._begun[run.header.queue] = self._link.time.now_ms()
            self._need_thread()
        self._wake.set()

    def _need_thread(self) -> None:
        """Start the thread if there is none. The caller holds the lock."""
        if self._thread is None or not self._thread.is_alive():
            self._stop.clear()
            self._thread = threading.Thread(target=self._loop, name="anarchon-heartbeat", daemon=True)
            self._thread.start()

    # --- park and finish ---------------------------------------------------------------------------------------------

    def park(self, run: CurrentRun, *, eta_ms: int) -> bool:
        """Put the run back into its queue before the task's own retry is published.

        Returns:
            Whether it is parked. When the store does not answer it is not; the retry is admitted all the same, by the
            token in its header.

        """
        self._here()
        self.let_go(run)
        item = Park(ref=run.ref, token=run.token, eta_ms=eta_ms, start_timeout_ms=run.header.start_timeout_ms)
        try:
            return self._link.call(self.store.park, [item]).answers[0]
        except StoreError:
            return False

    def finish(
        self, run: CurrentRun, status: Status, *, reason: Reason | None = None, error: str | None = None
    ) -> bool | None:
        """Write the end of the run.

        Returns:
            Whether the store accepted it: False when the run was no longer this attempt's. None when the store does
            not answer, or not as it should; the thread goes on trying, and live workers are heard before anybody takes
            their runs over.

        """
        self._here()
        self.let_go(run)
        end = Finish(
            ref=run.ref,
            status=status,
            token=run.token,
            reason=reason,
            error=shorten(error),
            max_attempts=run.header.max_attempts,
            history_size=run.header.history_size,
        )
        try:
            accepted = self._link.call(self.store.finish, [end]).answers[0]
        except StoreError as problem:
            # Also a refusal passes: the credentials were changed, say.
            self._tell_refusal(f"the end of {run.job} slot {run.slot}", problem)
            with self._lock:
                self._unwritten.append((run, end))
                self._need_thread()
            self._wake.set()
            return None
        self._told(run, end, accepted=accepted)
        return accepted

    def report(
        self,
        header: Header,
        delivered: Delivered,
        status: Status,
        *,
        reason: Reason | None = None,
        error: str | None = None,
    ) -> bool:
        """Tell the end of an attempt from outside the process that executed it: one call, no second try.

        Returns:
            Whether the store accepted it. False also when the store does not answer: the lease then ends the attempt.

        """
        end = Finish(
            ref=header.ref,
            status=status,
            delivered=delivered,
            attempt=header.attempt,
            header_token=header.token,
            reason=reason,
            error=shorten(error),
            max_attempts=header.max_attempts,
            history_size=header.history_size,
        )
        try:
            return self.store.finish([end]).answers[0]
        except StoreError as problem:
            logger.warning("the end of a run could not be reported, its lease will tell: %s", problem)
            return False

    def let_go(self, run: CurrentRun) -> None:
        """Stop beating for the run and write nothing: others tell how it ended, or its lease does."""
        with self._lock:
            if self._runs.pop(id(run), None) is not None:
                run.deadline = float("inf")

    def _told(self, run: CurrentRun, end: Finish, *, accepted: bool) -> None:
        self.events.emit(
            events.Ended(
                ref=run.ref,
                attempt=run.attempt,
                token=run.token,
                status=end.status.value,
                accepted=accepted,
                reason=end.reason.value if end.reason else None,
            )
        )
        if not accepted:
            logger.warning(
                "the end (%s) of %s slot %s attempt %s was refused: another attempt has the run",
                end.status.value,
                run.job,
                run.slot,
                run.attempt,
                extra={"anarchon": {"event": "finish-refused", "job": run.job, "slot": run.slot}},
            )

    # --- the thread --------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        next_beat = self._clock.monotonic() + self._interval_s()
        while not self._stop.is_set():
            self._clock.wait(self._wake, self._pause(next_beat))
            self._wake.clear()
            try:
                now = self._clock.monotonic()
                next_beat = min(next_beat, now + self._interval_s())
                if now >= next_beat:
                    next_beat = now + self._interval_s()
                    self._beat()
                self._judge()
                self._write_ends()
                self._announce()
            except Exception:
                logger.exception("heartbeat-failed")

    def _interval_s(self) -> float:
        """Return how often to beat: as often as the run that needs it most. A job may have a shorter lease."""
        with self._lock:
            own = [run.header.heartbeat_ms / 1000 or run.lease_s / 3 for run in self._runs.values()]
        return min([self.heartbeat_ms / 1000, *own])

    def _pause(self, next_beat: float) -> float:
        now = self._clock.monotonic()
        with self._lock:
            ends = [next_beat, *(run.deadline for run in self._runs.values() if not run.told_lost)]
            if self._unwritten:
                ends.append(now + RETRY_S)
        return max(0.01, min(ends) - now)

    def _beat(self) -> None:
        with self._lock:
            runs = list(self._runs.values())
        if not runs:
            return
        sent = self._clock.monotonic()
        try:
            answers = self._link.call(
                self.store.beat,
                [Beat(ref=run.ref, token=run.token, lease_ms=int(run.lease_s * 1000)) for run in runs],
            ).answers
        except StoreError as error:
            self._tell_refusal("a heartbeat", error)
            return
        refused: list[CurrentRun] = []
        with self._lock:
            for run, alive in zip(runs, answers, strict=True):
                if id(run) not in self._runs:
                    continue
                if alive:  # nobody was granted the run meanwhile, however long the store was silent
                    run.deadline, run.told_lost = sent + trusted_s(run.lease_s), False
                else:
                    del self._runs[id(run)]
                    refused.append(run)
        self._tell_lost(refused)

    def _judge(self) -> None:
        """Tell the runs whose lease this process can no longer vouch for.

        They are beaten for all the same: when the store is back, those who are alive keep their runs.
        """
        now = self._clock.monotonic()
        with self._lock:
            silent = [run for run in self._runs.values() if now >= run.deadline]
        self._tell_lost(silent)

    def _tell_lost(self, runs: list[CurrentRun]) -> None:
        for run in runs:
            if run.told_lost:
                continue
            run.told_lost = True
            logger.warning(
                "lease lost: %s slot %s attempt %s",
                run.job,
                run.slot,
                run.attempt,
                extra={"anarchon": {"event": "lease-lost", "job": run.job, "slot": run.slot}},
            )
            self.events.emit(events.LeaseLost(ref=run.ref, attempt=run.attempt, token=run.token))

    def _write_ends(self) -> None:
        with self._lock:
            waiting = list(self._unwritten)
        if not waiting:
            return
        try:
            answers = self._link.call(self.store.finish, [end for _, end in waiting]).answers
        except StoreError as error:
            self._tell_refusal("the end of a run", error)
            return
        with self._lock:
            self._unwritten = [item for item in self._unwritten if item not in waiting]
        for (run, end), accepted in zip(waiting, answers, strict=True):
            self._told(run, end, accepted=accepted)

    def _announce(self) -> None:
        """Say in which queues runs begin: what tells a lost message from a long queue.

        At once for the first run of a process, which may live for one task only, and then once a minute.
        """
        now = self._clock.monotonic()
        with self._lock:
            if not self._begun or (self._announced is not None and now - self._announced < ANNOUNCE_S):
                return
            begun, self._begun, self._announced = self._begun, {}, now
        try:
            self._link.call(self.store.announce, f"pid-{self._pid}", begun)
        except StoreError as error:
            with self._lock:
                self._begun, self._announced = {**begun, **self._begun}, now + RETRY_S - ANNOUNCE_S
            self._tell_refusal("an announcement", error)

    def _tell_refusal(self, what: str, error: StoreError) -> None:
        """Tell what the store has against a call that will be repeated. Of its absence the link tells."""
        if not isinstance(error, StoreUnavailable) and self._refusals.news(error):
            logger.error("the store refuses %s, it is tried again: %s", what, error)

    def stop(self, timeout: float = 5.0) -> None:
        """Write the ends that are still unwritten, if the store answers, and end the thread. Idempotent."""
        if self._pid != os.getpid():
            return
        thread = self._thread
        if self._unwritten:
            self._write_ends()
        self._stop.set()
        self._wake.set()
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout)


def trusted_s(lease_s: float) -> float:
    """Return for how long after sending a beat the lease may be believed: the lease less a margin."""
    return lease_s - min(1.0, lease_s * 0.1)


def shorten(error: str | None) -> str | None:
    """Keep an error's text within bounds."""
    if error is None or len(error) <= ERROR_LIMIT:
        return error
    return error[: ERROR_LIMIT - 3] + "..."
