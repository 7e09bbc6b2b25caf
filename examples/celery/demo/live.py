"""Shows runs as they happen, from the store's history."""

from __future__ import annotations

import time
from datetime import UTC, datetime

from anarchon_tasks import Reader, Run, Status
from anarchon_tasks.errors import StoreError

LONG_MS = 1_000  # a run that takes longer is shown while it runs
BOLD, DIM, PLAIN = "\033[1m", "\033[2m", "\033[0m"


class Live:
    """Prints a line for each change of a run that a person wants to see."""

    def __init__(self, store: str) -> None:
        self._store = store
        self._reader: Reader | None = None
        self._shown: set[tuple[str, int, int, str]] = set()
        self._runs: dict[tuple[str, int, int], Run] = {}
        self._started = time.time()

    def say(self, text: str, *, loud: bool = False) -> None:
        """Print a remark of the demo's own."""
        print(f"{BOLD if loud else DIM}{time.time() - self._started:5.1f}s  {text}{PLAIN}", flush=True)

    def heading(self) -> None:
        """Print the names of the columns."""
        columns = f"{'slot':<13}{'job':<16}{'won by':<10}{'worker':<11}{'late':>7}  {'attempt':<9}outcome"
        print(f"\n        {columns}\n        {'-' * len(columns)}", flush=True)

    def show(self) -> None:
        """Print what has changed since the last time."""
        try:
            self._reader = self._reader or Reader(self._store)
            runs = [run for job in self._reader.jobs() for run in self._reader.history(job.name, limit=12)]
        except StoreError:
            return
        for run in sorted(runs, key=lambda run: (run.slot, run.attempt)):
            self._runs[run.job, run.slot, run.attempt] = run
            mark = (run.job, run.slot, run.attempt, run.status.value)
            ended = run.status not in {Status.CLAIMED, Status.QUEUED, Status.RUNNING}
            long = run.status is Status.RUNNING and time.time() * 1000 - (run.started_at or 0) > LONG_MS
            if (ended or long) and mark not in self._shown:
                self._shown.add(mark)
                self._line(run)

    def _line(self, run: Run) -> None:
        slot = datetime.fromtimestamp(run.slot / 1000, UTC).strftime("%H:%M:%S")
        won = (run.instance or "-").split("/")[0]
        worker = (run.worker or "-").split("@")[0]
        late = f"{run.lateness_ms} ms" if run.lateness_ms is not None else "-"
        outcome = run.status.value + (f" ({run.reason})" if run.reason else "")
        loud = run.attempt > 1 or run.status is Status.INTERRUPTED
        print(
            f"{BOLD if loud else ''}{time.time() - self._started:5.1f}s  "
            f"{slot:<13}{run.job:<16}{won:<10}{worker:<11}{late:>7}  {run.attempt:<9}{outcome}{PLAIN}",
            flush=True,
        )

    def enqueued(self) -> set[tuple[str, int]]:
        """Return the slots that were enqueued, for comparison with what the tasks wrote."""
        return {(run.job, run.slot) for run in self._runs.values() if run.enqueued_at is not None}
