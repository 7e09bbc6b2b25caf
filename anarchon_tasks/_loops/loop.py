"""A thread that takes a step, waits, and takes the next: what all loops share."""

from __future__ import annotations

import logging
import threading
from typing import TYPE_CHECKING, Protocol

from anarchon_tasks._backoff import Backoff
from anarchon_tasks.availability import Refusals
from anarchon_tasks.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock

logger = logging.getLogger("anarchon_tasks.scheduler")

LONGEST_WAIT_S = 1.0


class Stepper(Protocol):
    """What a loop does."""

    def step(self) -> float:
        """Do what is due now; return after how many seconds to come again."""
        ...

    def finish(self) -> None:
        """Hand back what is held, once, after the last step."""
        ...


class Loop:
    """Runs a stepper in a daemon thread. Starting and stopping are idempotent, in any order.

    A step that raises is logged and tried again after a growing pause. A store that refuses (a wrong password, a newer
    format) is told once, without a traceback; one that does not answer is not even logged here, since whoever calls the
    store has noted it. Nothing ends the thread but `stop`.
    """

    def __init__(self, name: str, stepper: Stepper, *, clock: Clock) -> None:
        self.name = name
        self._stepper = stepper
        self._clock = clock
        self._thread: threading.Thread | None = None
        self._wake = threading.Event()
        self._stopping = threading.Event()
        self._lock = threading.Lock()

    @property
    def running(self) -> bool:
        """Whether the thread is alive."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def stopping(self) -> bool:
        """Whether it was asked to stop."""
        return self._stopping.is_set()

    def wake(self) -> None:
        """Take the next step now."""
        self._wake.set()

    def start(self) -> bool:
        """Start the thread, if none runs; return whether one was started.

        A thread that was asked to stop and hangs in a call does not count; the new one begins when that one has ended.
        """
        with self._lock:
            if self.running and not self.stopping:
                return False
            self._stopping = threading.Event()
            self._thread = threading.Thread(
                target=self._run, args=(self._stopping, self._thread), name=f"anarchon-{self.name}", daemon=True
            )
            self._thread.start()
            return True

    def ask_to_stop(self) -> None:
        """Ask the thread to end after its present step."""
        with self._lock:
            self._stopping.set()
        self._wake.set()

    def join(self, timeout: float) -> bool:
        """Wait for the thread to end; return whether it has."""
        thread = self._thread
        if thread is None or thread is threading.current_thread():
            return True
        thread.join(max(0.0, timeout))
        return not thread.is_alive()

    def _run(self, stopping: threading.Event, previous: threading.Thread | None) -> None:
        if previous is not None:
            previous.join()
        backoff, failures, refusals = Backoff(), 0, Refusals(clock=self._clock)
        while not stopping.is_set():
            try:
                pause = min(self._stepper.step(), LONGEST_WAIT_S)
                failures = 0
            except StoreUnavailable:
                failures += 1
                pause = min(backoff.seconds(failures), LONGEST_WAIT_S)
            except StoreError as error:
                failures += 1
                pause = backoff.seconds(failures)
                if refusals.news(error):  # steps that ask nothing of the store succeed in between
                    logger.error("the store refuses, it is tried again: %s", error, extra=self._extra())  # noqa: TRY400
            except Exception:
                failures += 1
                pause = backoff.seconds(failures)
                logger.exception("loop-failed", extra=self._extra())
            if pause > 0:
                self._clock.wait(self._wake, pause)
            self._wake.clear()
        try:
            self._stepper.finish()
        except StoreUnavailable:
            logger.warning("%s: the store did not answer at stop; what is held runs out by itself", self.name)
        except Exception:
            logger.exception("loop-failed", extra=self._extra())

    def _extra(self) -> dict[str, object]:
        return {"anarchon": {"event": "loop-failed", "loop": self.name}}
