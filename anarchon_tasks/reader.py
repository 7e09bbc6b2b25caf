"""Reading the account without running anything: needs the store, and no user code."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.jobs import fingerprint
from anarchon_tasks.schedules.stored import rebuild
from anarchon_tasks.stores import open_to_read

if TYPE_CHECKING:
    from anarchon_tasks.model import Run
    from anarchon_tasks.schedules import Schedule
    from anarchon_tasks.stores import Backend
    from anarchon_tasks.stores.base import Definition, LeaseStore

HISTORY_LIMIT = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredJob:
    """A job as the store knows it."""

    name: str
    schedule: str
    kind: str
    timezone: str | None = None
    describe: str = ""
    target: str = ""
    queue: str = ""
    options: dict[str, Any] = field(default_factory=dict)
    details: dict[str, Any] = field(default_factory=dict)
    """What the text of the schedule does not show."""
    fingerprint: str = ""

    @classmethod
    def parse(cls, definition: Definition) -> StoredJob:
        """Read a stored definition; what a newer version added is left out."""
        data = json.loads(definition.document)
        known = {key: data[key] for key in cls.__dataclass_fields__ if key in data}
        usual = {"schedule": "", "kind": ""}
        return cls(**{**usual, **known, "name": definition.name, "fingerprint": definition.fingerprint})

    def rebuild(self) -> Schedule | None:
        """Return the job's schedule, or None when only the code that registered it can compute its slots.

        What is returned has the fingerprint that was registered: it has exactly the job's slots.
        """
        try:
            schedule = rebuild(self.schedule, job=self.name, timezone=self.timezone, details=self.details)
        except (ConfigError, TypeError, ValueError):
            return None
        return schedule if fingerprint(schedule) == self.fingerprint else None


class Reader:
    """Reads jobs and history. A store that is not there is not made.

    Args:
        store: A URL, a backend, or an open store.
        options: Options of the URL's backend, such as `prefix` or `table`.

    """

    def __init__(self, store: str | Backend | LeaseStore, **options: Any) -> None:  # noqa: ANN401 - whatever the backend takes
        self.store = open_to_read(store, **options)

    def jobs(self) -> list[StoredJob]:
        """Return the jobs that instances told the store of, by name."""
        return [StoredJob.parse(item) for item in self.store.definitions().answers]

    def history(self, name: str, limit: int = 20) -> list[Run]:
        """Return the newest attempts of a job, newest first.

        Raises:
            ConfigError: The limit is not a whole number from 1 to 100000.
            StoreUnavailable: The store does not answer.

        """
        if not 1 <= limit <= HISTORY_LIMIT:
            message = f"limit={limit!r} must be a whole number from 1 to {HISTORY_LIMIT}"
            raise ConfigError(message)
        return self.store.history(name, limit=limit).answers

    def last_run(self, name: str) -> Run | None:
        """Return the newest attempt of a job, or None."""
        return self.store.last_runs([name]).answers[0]

    def last_runs(self, names: list[str]) -> list[Run | None]:
        """Return the newest attempt of each job, in one call."""
        return self.store.last_runs(names).answers if names else []

    def now_ms(self) -> int:
        """Return the store's time."""
        return self.store.time().now_ms

    def close(self) -> None:
        """Close the store's connection."""
        self.store.close()
