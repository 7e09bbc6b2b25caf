"""Client processes that do the same step at the same time, and tell when each began and ended."""

from __future__ import annotations

import multiprocessing
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from store_bench.servers import server_of
from store_bench.workload import Lives

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from multiprocessing.connection import Connection

_LEAD_S = 0.02
"""How long before their start the clients are told of it."""
_PATIENCE_S = 300


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """What a client is to do: a limit, or an operation of the store."""

    name: str
    limit: bool
    place: str
    count: int
    size: int


class Clients:
    """Some processes, each with its own connections and jobs."""

    def __init__(self, url: str, number: int) -> None:
        context = multiprocessing.get_context("spawn")
        self._pipes: list[Connection] = []
        self._processes = []
        for at in range(number):
            ours, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(theirs, url, at), daemon=True)
            process.start()
            theirs.close()
            self._pipes.append(ours)
            self._processes.append(process)

    def prepare(self, step: Step) -> None:
        """Let every client get ready for a step."""
        self._all([("prepare", step)] * len(self._pipes))

    def run(self) -> float:
        """Let them all do it at once; return the seconds from the first beginning to the last end."""
        at = time.monotonic() + _LEAD_S
        told = self._all([("run", at)] * len(self._pipes))
        return max(end for _, end in told) - min(begin for begin, _ in told)

    def leave(self) -> None:
        """Let them close what they opened in this place."""
        self._all([("leave", None)] * len(self._pipes))

    def _all(self, messages: Sequence[tuple[str, Any]]) -> list[Any]:
        for pipe, message in zip(self._pipes, messages, strict=True):
            pipe.send(message)
        answers = []
        for pipe in self._pipes:
            if not pipe.poll(_PATIENCE_S):
                raise SystemExit(f"a client did not answer within {_PATIENCE_S} s")
            answers.append(pipe.recv())
        return answers

    def close(self) -> None:
        """End the processes."""
        for pipe in self._pipes:
            pipe.close()
        for process in self._processes:
            process.join(10)


class _Client:
    """One process's side."""

    def __init__(self, url: str, number: int) -> None:
        self._server = server_of(url)
        self._head = f"job-{number}"
        self._lives: Lives | None = None
        self._limits: dict[str, Any] = {}
        self._batches: Sequence[Any] = ()
        self._call: Callable[[Any], Any] = print

    def prepare(self, step: Step) -> None:
        if step.limit:
            self._limits = self._limits or self._server.limits(step.place, self._head)
            self._batches, self._call = self._limits[step.name].prepare(step.count, step.size)
            return
        if self._lives is None:
            self._lives = Lives(self._server.store(step.place), self._head, step.count)
        items, self._call = self._lives.prepare(step.name)
        self._batches = [items[first : first + step.size] for first in range(0, len(items), step.size)]

    def run(self, at: float) -> tuple[float, float]:
        time.sleep(max(0.0, at - time.monotonic()))
        begin = time.monotonic()
        for batch in self._batches:
            self._call(batch)
        return begin, time.monotonic()

    def leave(self, _: object) -> None:
        if self._lives is not None:
            self._lives.store.close()
        for limit in self._limits.values():
            limit.close()
        self._lives, self._limits, self._batches = None, {}, ()


def _serve(pipe: Connection, url: str, number: int) -> None:
    client = _Client(url, number)
    while True:
        try:
            name, argument = pipe.recv()
        except (EOFError, KeyboardInterrupt):
            return
        pipe.send(getattr(client, name)(argument))
