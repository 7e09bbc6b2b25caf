"""`min_replicas`: nothing runs before enough replicas have the grant, so that a failover cannot forget it."""

from __future__ import annotations

import contextlib
import logging
import threading
import time
from typing import Any, Protocol

from anarchon_tasks.errors import StoreError, TooFewReplicas
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores import _wire as wire
from anarchon_tasks.stores.base import Release

logger = logging.getLogger("anarchon_tasks")

_GRANTS = {"claim": "won", "begin": "ok"}
"""Operations that allow something to run, and the answer that does."""


class Waiting(Protocol):
    """Operations on a server that can wait for its replicas."""

    def run(self, operation: str, payload: object) -> list[Any]:
        """Run an operation and return `[now, answers, ...]`."""
        ...

    def run_and_wait(self, operation: str, payload: object, replicas: int, timeout_ms: int) -> tuple[list[Any], int]:
        """Run an operation, and return its reply and how many replicas have what it wrote."""
        ...


class ReplicatedScripts:
    """Runs operations; a grant that too few replicas have is none.

    The server is asked in the same round trip, on the same connection: it counts the replicas that have what this
    connection wrote. Every script that repeats a grant writes it again, so the repeat waits as the first did.

    Args:
        scripts: Runs them.
        count: How many replicas must have a grant.
        timeout_ms: How long the server waits for them.
        location: Where the server is, for people.

    """

    def __init__(self, scripts: Waiting, *, count: int, timeout_ms: int, location: str) -> None:
        self._scripts = scripts
        self._count = count
        self._timeout_ms = timeout_ms
        self._location = location
        self._lock = threading.Lock()
        self._short_since: float | None = None

    def run(self, operation: str, payload: Any) -> list[Any]:  # noqa: ANN401 - JSON is of any type
        """Run an operation and return `[now, answers, ...]`.

        Raises:
            TooFewReplicas: It granted something that too few replicas have. Claims were handed back.

        """
        grant = _GRANTS.get(operation)
        if grant is None:
            return self._scripts.run(operation, payload)
        reply, replicas = self._scripts.run_and_wait(operation, payload, self._count, self._timeout_ms)
        granted = [place for place, answer in enumerate(reply[1]) if answer[0] == grant]
        if not granted:
            return reply
        if replicas >= self._count:
            self._met()
            return reply
        if operation == "claim":  # a begin is repeated by its worker, and admitted again
            self._hand_back([(payload[1][place], reply[1][place]) for place in granted])
        self._short(replicas)
        raise TooFewReplicas(
            f"{self._location}: {replicas} of min_replicas={self._count} replicas have what was granted, after "
            f"{self._timeout_ms} ms: nothing of it is run, and it is asked for again"
        )

    def _hand_back(self, claims: list[tuple[list[Any], list[Any]]]) -> None:
        """Release what was won, so that whoever asks first when the replicas are back has it."""
        releases = [
            Release(ref=RunRef.parse(wire.job_name(ask[0]), ask[1]), token=int(answer[4]), failed=False)
            for ask, answer in claims
        ]
        with contextlib.suppress(StoreError):  # then the lease of the claim runs out
            self._scripts.run("release", [wire.release(release, wire.job_key) for release in releases])

    def _short(self, replicas: int) -> None:
        with self._lock:
            if self._short_since is not None:
                return
            self._short_since = time.monotonic()
        logger.warning(
            "%s: %d of min_replicas=%d replicas answer within min_replicas_timeout=%d ms: nothing is run until they do",
            self._location,
            replicas,
            self._count,
            self._timeout_ms,
            extra={"anarchon": {"event": "replicas-short"}},
        )

    def _met(self) -> None:
        if self._short_since is None:
            return
        with self._lock:
            since, self._short_since = self._short_since, None
        if since is not None:
            logger.warning(
                "%s: min_replicas=%d is met again after %.1f s",
                self._location,
                self._count,
                time.monotonic() - since,
                extra={"anarchon": {"event": "replicas-met"}},
            )
