"""What the tests of the core work with: clocks that obey, a store that fails on demand, a publisher that remembers."""
# ruff: noqa: ANN401 - calls and options of any kind are handed on

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anarchon_tasks.clock import SystemClock
from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.events import Event, Events
from anarchon_tasks.jobs import Job, JobOptions
from anarchon_tasks.publishing import Envelope, Outcome, Sent
from anarchon_tasks.scheduler import Scheduler
from anarchon_tasks.schedules import Schedule, every
from anarchon_tasks.stores.base import Begin, BeginAnswer, Delivered, Finish
from anarchon_tasks.stores.memory import MemoryStore
from anarchon_tasks.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

    from anarchon_tasks._loops.loop import Stepper
    from anarchon_tasks.model import Run, Status

START = 1_749_999_600_000
"""A full hour."""
SECOND, MINUTE, HOUR, DAY = 1_000, 60_000, 3_600_000, 86_400_000
LONGEST_TICK = 400
PATIENCE_S = 10.0


def until(condition: Callable[[], object]) -> bool:
    """Wait for what other threads do, at most ten seconds."""
    clock, pause = SystemClock(), threading.Event()
    give_up = clock.monotonic() + PATIENCE_S
    while not condition():
        if clock.monotonic() > give_up:
            return False
        clock.wait(pause, 0.002)
    return True


class FlakyStore:
    """One instance's way to a store. It fails when it is told to."""

    def __init__(self, store: MemoryStore) -> None:
        self.real = store
        self.namespace, self.location = store.namespace, store.location
        self.calls: list[tuple[str, tuple[Any, ...]]] = []
        self.down = False
        self.refused: set[str] = set()
        """Calls that never arrive."""
        self.lost: list[str] = []
        """Calls whose next reply is lost on the way back."""
        self.hang: threading.Event | None = None
        """Calls wait until this is set."""
        self.hanging = threading.Event()
        self.during: Callable[[str], None] | None = None
        self.closed = 0

    def close(self) -> None:
        """Count how often it was closed."""
        self.closed += 1

    def asked(self, name: str) -> list[Any]:
        """Return the items of every call of that name, in order."""
        return [item for call, arguments in self.calls if call == name for item in (arguments[0] if arguments else [])]

    def __getattr__(self, name: str) -> Any:
        operation = getattr(self.real, name)
        if not callable(operation):
            return operation

        def call(*arguments: Any, **options: Any) -> Any:
            self.calls.append((name, arguments))
            if self.hang is not None:
                self.hanging.set()
                assert self.hang.wait(20)
            if self.down or name in self.refused:
                raise StoreUnavailable("connection refused")
            if self.during is not None:
                self.during(name)
            reply = operation(*arguments, **options)
            if name in self.lost:
                self.lost.remove(name)
                raise StoreUnavailable("connection reset")
            return reply

        call.__name__ = name
        return call


class RecordingPublisher:
    """Remembers what it was asked to publish."""

    def __init__(self) -> None:
        self.sent: list[Envelope] = []
        self.answer: Callable[[Envelope], Sent] = lambda _: Sent.CONFIRMED
        self.down = False
        self.during: Callable[[Envelope], None] | None = None
        self.probes = 0
        self.closed = 0

    def publish(self, envelopes: Iterable[Envelope]) -> Iterator[Outcome]:
        """Send each envelope when it is drawn."""
        for envelope in envelopes:
            if self.during is not None:
                self.during(envelope)
            if self.down:
                yield Outcome(envelope=envelope, sent=Sent.FAILED, error="broker is away", broker_down=True)
                continue
            sent = self.answer(envelope)
            if sent is not Sent.FAILED:
                self.sent.append(envelope)
            yield Outcome(envelope=envelope, sent=sent, task_id=envelope.message_id, error=None if sent else "no")

    def probe(self) -> str | None:
        """Tell whether the broker answers."""
        self.probes += 1
        return "broker is away" if self.down else None

    def close(self) -> None:
        """Count how often it was closed."""
        self.closed += 1

    @property
    def slots(self) -> list[int]:
        """The slots that were published, in order."""
        return [envelope.ref.slot for envelope in self.sent]


def _step(loop: Stepper) -> float | None:
    """Step a loop; None when the store did not answer, which its thread would wait for."""
    try:
        return loop.step()
    except StoreUnavailable:
        return None


@dataclass
class Instance:
    """A scheduler whose loops are stepped by hand."""

    host: ManualClock
    store: FlakyStore
    publisher: RecordingPublisher
    scheduler: Scheduler
    told: list[Event]

    def add(self, *jobs: Job) -> Instance:
        """Register jobs, here and in the store."""
        for job in jobs:
            self.scheduler.add_job(job)
        self.tick()
        return self

    def tick(self) -> bool:
        """Step both loops until nothing is due; return whether the store answered."""
        keep, claimer = self.scheduler._keep, self.scheduler._claimer
        for at in range(LONGEST_TICK):
            kept, claimed = _step(keep), _step(claimer)
            if kept is None or claimed is None:
                return False
            if claimed > 0 and kept > 0 and at > 1 and not claimer._inbox:
                return True
        raise AssertionError("the loops find no rest")

    def events(self, kind: type[Event]) -> list[Any]:
        """Return the events of one kind."""
        return [event for event in self.told if isinstance(event, kind)]


@dataclass
class World:
    """A store, its clock, and instances that share them."""

    server: ManualClock = field(default_factory=lambda: ManualClock(START))
    instances: list[Instance] = field(default_factory=list)
    store: MemoryStore = field(init=False)

    def __post_init__(self) -> None:
        self.store = MemoryStore(clock=self.server)

    @property
    def now(self) -> int:
        """The store's time."""
        return self.server.wall_ms()

    def instance(self, *, ahead_ms: int = 0, **options: Any) -> Instance:
        """Make an instance whose host's clock is ahead of the store's by that much."""
        host, told, tell = ManualClock(self.now + ahead_ms), [], Events()
        tell.subscribe(told.append)
        flaky, publisher = FlakyStore(self.store), RecordingPublisher()
        scheduler = Scheduler(backend=flaky, publisher=publisher, clock=host, tell=tell, **options)  # type: ignore[arg-type]
        made = Instance(host, flaky, publisher, scheduler, told)
        self.instances.append(made)
        return made

    def kill(self, instance: Instance) -> None:
        """End an instance without a word."""
        self.instances.remove(instance)

    def pass_time(self, duration: str | float) -> None:
        """Let time pass while nobody does anything."""
        for clock in (self.server, *(instance.host for instance in self.instances)):
            clock.advance(duration)

    def run(self, seconds: float, *, step: float = 0.25) -> None:
        """Let time pass in steps, each instance working after each."""
        for _ in range(round(seconds / step)):
            self.pass_time(step)
            for instance in list(self.instances):
                instance.tick()

    def history(self, name: str = "job") -> list[Run]:
        """Return a job's history, oldest first."""
        return self.store.history(name, limit=10_000).answers[::-1]

    def account(self, name: str = "job") -> list[tuple[str, str | None, int]]:
        """Return status, reason and number of slots of each entry, oldest first."""
        return [(run.status.value, run.reason, run.count) for run in self.history(name)]

    def begin(self, envelope: Envelope, *, lease_ms: int = 30_000, retries: int = 0) -> BeginAnswer:
        """Let a worker begin the run of a message."""
        ask = Begin(
            ref=envelope.ref,
            delivery_id=f"d{envelope.token}-{retries}",
            delivered=self.delivery(envelope, retries),
            attempt=envelope.attempt,
            token=envelope.token,
            lease_ms=lease_ms,
            max_attempts=envelope.header.max_attempts,
        )
        return self.store.begin([ask]).answers[0]

    def finish(self, envelope: Envelope, begun: BeginAnswer, status: Status) -> bool:
        """Let the worker finish."""
        return self.store.finish([Finish(ref=envelope.ref, status=status, token=begun.token)]).answers[0]

    @staticmethod
    def delivery(envelope: Envelope, retries: int = 0) -> Delivered:
        """Return one delivery of a message."""
        return Delivered(message_id=envelope.message_id, retries=retries, worker="w1@host", pid=7)


def make_job(schedule: Schedule | str = "10s", name: str = "job", **options: Any) -> Job:
    """Return a job; options as people write them."""
    plan = every(schedule) if isinstance(schedule, str) else schedule
    return Job(name=name, schedule=plan, target="t", queue="celery", options=JobOptions.build(name, options))
