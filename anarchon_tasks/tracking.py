"""Which queues are served by workers that report on their runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_tasks.jobs import DAY_MS

if TYPE_CHECKING:
    from collections.abc import Iterable

    from anarchon_tasks.jobs import Job
    from anarchon_tasks.stores.base import QueueNote


class Tracking:
    """Tells whether a run of a job will be tracked.

    A worker that does not load the integration never begins and never beats, and its silence would look like death. So
    a run is tracked only where a worker that does has announced itself for the job's queue in the last day.
    """

    def __init__(self, *, enabled: bool) -> None:
        self.enabled = enabled
        self._notes: dict[str, QueueNote] = {}

    def learn(self, notes: Iterable[tuple[str, QueueNote]], *, now_ms: int) -> None:
        """Take over what the store knows of the queues, and keep what it has lost since, for a day."""
        kept = {queue: note for queue, note in self._notes.items() if note.announced_ms > now_ms - DAY_MS}
        self._notes = kept | dict(notes)

    def tracked(self, job: Job) -> bool:
        """Whether the job's runs are tracked."""
        return self.enabled and job.options.track is not False and job.queue in self._notes

    def begun_ms(self, queue: str) -> int:
        """Return when a run of the queue last began, as far as is known; 0: never."""
        note = self._notes.get(queue)
        return note.begun_ms if note else 0

    def hopes_for(self, jobs: Iterable[Job]) -> bool:
        """Whether some job would be tracked if only a worker announced itself."""
        return self.enabled and any(job.options.track is not False and job.queue not in self._notes for job in jobs)
