"""A desk that plays the scheduler for the worker tests: it claims, publishes, and reads what became of a run."""

# ruff: noqa: ANN401 - Celery's tasks and requests have no types
from __future__ import annotations

import itertools
import json
import threading
import uuid
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import redis
from celery import Celery

from anarchon_tasks.header import HEADER, Header
from anarchon_tasks.model import Run, RunRef, Status, message_id
from anarchon_tasks.stores import from_url
from anarchon_tasks.stores.base import Claim, ClaimKind, Definition, Delivered, Finish, Policy, Queued
from tests.servers import OwnedProcess, ProcessOwner, RedisServer, poll_until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

APP = "tests.integrations.celery.apps.worker_app"
ENDED = {"succeeded", "failed", "interrupted", "lost", "expired", "cancelled"}


@dataclass(frozen=True)
class Sent:
    """A run that was claimed, and its message."""

    task: str
    ref: RunRef
    header: Header
    args: tuple[object, ...]

    @property
    def id(self) -> str:
        """The message's id."""
        return self.header.id


class Desk:
    """One broker, one store and the workers of one test module or test."""

    def __init__(self, directory: Path, broker: str, owner: ProcessOwner, *, store_url: str | None = None) -> None:
        self.directory = directory
        self.owner = owner
        self.broker = broker
        self.evidence_file = directory / "evidence.jsonl"
        self.store_url = store_url or f"sqlite:///{directory / 'store.db'}"
        self.store = from_url(self.store_url)
        self.app = Celery("desk", broker=broker, set_as_current=False)
        self.app.conf.task_default_queue = "work"
        self.redis = redis.Redis.from_url(broker)
        self.seen_types: list[tuple[str, str]] = []
        self.worker: OwnedProcess | None = None
        self.pool = ""
        self._numbers = itertools.count(1)
        self._gates: list[Path] = []
        self._stop = threading.Event()
        self._listener: threading.Thread | None = None

    def start_worker(
        self,
        pool: str,
        *args: str,
        concurrency: int = 2,
        app: str = APP,
        conf: dict[str, Any] | None = None,
        env: dict[str, str] | None = None,
    ) -> OwnedProcess:
        """Start a worker and return once it is ready."""
        self.pool = pool
        name = f"{pool}{next(self._numbers)}@desk"
        command = ["-m", "celery", "-q", "-A", app, "worker", "-P", pool, "-c", str(concurrency), "-n", name]
        command += ["--without-gossip", "--without-mingle", "--without-heartbeat"]  # they cost a second at each start
        variables = {
            "BROKER": self.broker,
            "STORE": self.store_url,
            "EVIDENCE": str(self.evidence_file),
            "CONF": json.dumps(conf or {}),
            **(env or {}),
        }
        self.worker = self.owner.python(*command, "-E", "-l", "INFO", *args, name=name, env=variables)
        self.worker.wait_for_output(" ready.", timeout=30)
        return self.worker

    # --- the scheduler's part ----------------------------------------------------------------------------------------

    def claim(self, task: str, *args: object) -> Sent:
        """Register a job of its own and claim a run of it."""
        job = f"{task}-{uuid.uuid4().hex[:8]}"
        slot = self.store.time().now_ms
        self.store.register([Definition(name=job, fingerprint="1", document="{}", floor=slot - 1)])
        ref = RunRef(job, slot)
        answer = self.take(ref)
        assert answer.kind is ClaimKind.WON, answer
        return self._sent(task, ref, answer.attempt, answer.token, args)

    def take(self, ref: RunRef) -> Any:
        """Ask once for the run."""
        claim = Claim(
            ref=ref,
            claim_id=uuid.uuid4().hex,
            instance="desk",
            policy=Policy(),
            due_ms=ref.slot,
            latest_ms=ref.slot + 3_600_000,
            floor=ref.slot - 1,
        )
        return self.store.claim([claim]).answers[0]

    def take_over(self, sent: Sent, timeout: float = 15.0) -> Sent:
        """Claim the run again as soon as that is possible."""
        answer = poll_until(
            lambda: answer if (answer := self.take(sent.ref)).kind is ClaimKind.WON else None,
            timeout,
            what=lambda: f"a claim of {self.entries(sent)}\n{self.tail()}",
        )
        return self._sent(sent.task, sent.ref, answer.attempt, answer.token, sent.args)

    def _sent(self, task: str, ref: RunRef, attempt: int, token: int, args: tuple[object, ...]) -> Sent:
        namespace = self.store.namespace
        name = message_id(namespace, ref, attempt)
        header = Header(id=name, namespace=namespace, ref=ref, attempt=attempt, token=token, queue="work")
        return Sent(task, ref, header, args)

    def publish(self, sent: Sent, **options: Any) -> Sent:
        """Publish the run's message and record that."""
        self.copy(sent, **options)
        record = Queued(ref=sent.ref, token=sent.header.token, policy=Policy(), task_id=sent.id)
        self.store.queued([record])
        return sent

    def copy(self, sent: Sent, *, header: Header | None = None, **options: Any) -> None:
        """Publish a message of the run and record nothing."""
        headers = {HEADER: (header or sent.header).to_text()}
        self.app.send_task(sent.task, sent.args, task_id=sent.id, headers=headers, **options)

    def run(self, task: str, *args: object, **options: Any) -> Sent:
        """Claim a run and publish it."""
        return self.publish(self.claim(task, *args), **options)

    def end(self, sent: Sent, status: Status) -> None:
        """Decide a run that has not started, whatever becomes of its message."""
        delivered = Delivered(message_id=sent.id, retries=0, worker="", pid=0)
        end = Finish(ref=sent.ref, status=status, delivered=delivered, attempt=1, header_token=sent.header.token)
        assert self.store.finish([end]).answers == [True]

    def cancel(self, sent: Sent) -> None:
        """Take a running run away from its worker."""
        end = Finish(ref=sent.ref, status=Status.CANCELLED, token=self.entry(sent).token)
        assert self.store.finish([end]).answers == [True]

    def waits_for(self, condition: Callable[[], object], timeout: float = 15.0) -> None:
        """Return once the condition holds."""
        poll_until(condition, timeout, what=self.tail)

    def gate(self) -> Path:
        """Return a file that is not there yet, for tasks to wait for."""
        self._gates.append(self.directory / f"gate-{next(self._numbers)}")
        return self._gates[-1]

    def open_gates(self) -> None:
        """Let every task that still waits go on."""
        while self._gates:
            self._gates.pop().touch()

    # --- what became of it -------------------------------------------------------------------------------------------

    def entries(self, sent: Sent) -> list[Run]:
        """Return the run's attempts, newest first."""
        return self.store.history(sent.ref.job, limit=20).answers

    def entry(self, sent: Sent) -> Run:
        """Return the run's newest attempt."""
        return self.entries(sent)[0]

    def ended(self, sent: Sent, timeout: float = 15.0) -> Run:
        """Return the run once it has ended."""
        return self.until(sent, lambda run: run.status.value in ENDED and run, timeout)

    def until(self, sent: Sent, judge: Callable[[Run], Any], timeout: float = 15.0) -> Any:
        """Return the first true judgement on the run's newest attempt."""
        return poll_until(
            lambda: judge(self.entry(sent)), timeout, interval=0.05, what=lambda: f"{self.entries(sent)}\n{self.tail()}"
        )

    def evidence(self, what: str, sent: Sent | str) -> list[dict[str, Any]]:
        """Return what tasks wrote down under this heading, for a message."""
        if not self.evidence_file.exists():
            return []
        name = sent if isinstance(sent, str) else sent.id
        complete, _, _ = self.evidence_file.read_text().rpartition("\n")
        lines = map(json.loads, complete.splitlines())
        return [line for line in lines if line["what"] == what and name in {line["id"], line["task"]}]

    def seen(self, what: str, sent: Sent | str, count: int = 1, timeout: float = 15.0) -> list[dict[str, Any]]:
        """Return what tasks wrote down, once there is so much of it."""
        return poll_until(
            lambda: found if len(found := self.evidence(what, sent)) >= count else [],
            timeout,
            interval=0.05,
            what=lambda: f"{count} x {what!r}: {self.evidence(what, sent)}\n{self.tail()}",
        )

    def body_pid(self, sent: Sent) -> int:
        """Return the process that executes the run, once it does."""
        return int(self.seen("body", sent)[-1]["pid"])

    def result(self, sent: Sent | str) -> str | None:
        """Return Celery's stored state of the message."""
        raw = self.redis.get(f"celery-task-meta-{sent if isinstance(sent, str) else sent.id}")
        return json.loads(raw)["status"] if raw else None

    def refused(self, sent: Sent, count: int = 1, timeout: float = 15.0) -> None:
        """Return once the worker has refused so many messages of this id."""
        self.logged(f"message {sent.id} not started", count, timeout)

    def logged(self, text: str, count: int = 1, timeout: float = 15.0) -> None:
        """Return once the newest worker has said so, this often."""
        poll_until(
            lambda: self.worker is not None and self.worker.output().count(text) >= count,
            timeout,
            what=lambda: f"{count} x {text!r}\n{self.tail()}",
        )

    def by_hand(self, task: str, *args: object, **options: Any) -> str:
        """Send a task as any user would, and return its id."""
        return self.app.send_task(task, args, **options).id

    def tail(self) -> str:
        """Return the end of the newest worker's output."""
        return self.worker.tail() if self.worker else ""

    # --- Celery's events ---------------------------------------------------------------------------------------------

    def listen(self) -> None:
        """Collect the events of workers from now on."""
        ready = threading.Event()

        def collect() -> None:
            with self.app.connection_for_read() as connection:
                receiver = self.app.events.Receiver(connection, handlers={"*": self._on_event})
                with receiver.consumer_context(wakeup=False) as (drained, _, _):
                    ready.set()
                    while not self._stop.is_set():
                        try:
                            drained.drain_events(timeout=0.2)
                        except TimeoutError:
                            continue

        self._listener = threading.Thread(target=collect, daemon=True)
        self._listener.start()
        assert ready.wait(10)

    def _on_event(self, event: dict[str, Any]) -> None:
        self.seen_types.append((event["type"], event.get("uuid", "")))

    def events(self, sent: Sent) -> list[str]:
        """Return the types of the events of a message so far, in their order."""
        return [kind for kind, name in list(self.seen_types) if name == sent.id]

    def event(self, kind: str, sent: Sent, timeout: float = 10.0) -> None:
        """Return once the event has come."""
        poll_until(lambda: kind in self.events(sent), timeout, what=lambda: f"{kind}: {self.events(sent)}")

    def close(self) -> None:
        """Let go of everything."""
        self._stop.set()
        if self._listener is not None:
            self._listener.join(5)
        self.app.close()
        self.redis.close()
        self.store.close()


@contextmanager
def open_desk(directory: Path, *, store_url: str | None = None) -> Iterator[Desk]:
    """Start a broker of its own and a desk; end everything afterwards."""
    directory.mkdir(parents=True, exist_ok=True)
    server = RedisServer(directory / "redis")
    owner = ProcessOwner(directory)
    desk = None
    try:
        desk = Desk(directory, server.start().redis_url, owner, store_url=store_url)
        yield desk
    finally:
        owner.close()
        if desk is not None:
            desk.close()
        server.kill()


def older(header: Header) -> Header:
    """Return the header of an older grant of the same attempt."""
    return replace(header, token=header.token - 1)
