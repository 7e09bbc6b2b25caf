"""The app that the worker tests run: tasks that end in every way there is, and write down what they saw.

What they saw is one line of JSON per event in the file that `EVIDENCE` names, written through to the disk.
"""

# ruff: noqa: ANN401, ARG002 - Celery's tasks and requests have no types
from __future__ import annotations

import json
import logging
import os
import sys
import threading
import time
from pathlib import Path
from typing import Any

from celery import Celery, Task, chord, group, shared_task
from celery.exceptions import Ignore, Reject, SoftTimeLimitExceeded
from celery.worker.request import Request

from anarchon_celery.worker import install
from anarchon_tasks.current import current_run
from anarchon_tasks.stores import from_url

BROKER = os.environ["BROKER"]
EVIDENCE = os.environ["EVIDENCE"]

app = Celery("worker_app", broker=BROKER, backend=BROKER)
app.conf.update(
    broker_connection_retry_on_startup=True,
    task_default_queue="work",
    worker_prefetch_multiplier=1,
    **json.loads(os.environ.get("CONF", "{}")),
)
install(
    app,
    lambda: from_url(os.environ["STORE"]),
    lease_ms=int(os.environ.get("LEASE_MS", "30000")),
    heartbeat_ms=int(os.environ.get("HEARTBEAT_MS", "500")),
    patience_s=float(os.environ.get("PATIENCE_S", "20")),
)


def note(what: str, task: Any, **more: object) -> None:
    """Write down what a task sees."""
    run = current_run()
    line = {
        "what": what,
        "task": task.name,
        "id": task.request.id,
        "retries": task.request.retries,
        "pid": os.getpid(),
        "thread": threading.get_ident(),
        "run": run
        and {
            "job": run.job,
            "slot": run.slot,
            "attempt": run.attempt,
            "token": run.token,
            "trigger": run.trigger.value,
            "scheduled_for": run.scheduled_for.isoformat(),
            "lost": run.lost,
        },
        **more,
    }
    file = os.open(EVIDENCE, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
        os.fsync(file)
    finally:
        os.close(file)


@app.task(bind=True, name="ok")
def ok(self: Any, value: int = 1) -> int:
    """Succeed."""
    note("body", self)
    return value


@app.task(bind=True, name="fails")
def fails(self: Any) -> None:
    """Raise."""
    note("body", self)
    raise ValueError("no such thing: " + "x" * 2000)


@app.task(bind=True, name="retries", max_retries=5)
def retries(self: Any, times: int, countdown: float) -> None:
    """Ask for retries."""
    note("body", self)
    if self.request.retries < times:
        raise self.retry(countdown=countdown)


@app.task(bind=True, name="gives-up", max_retries=1)
def gives_up(self: Any) -> None:
    """Ask for more retries than there are."""
    note("body", self)
    raise self.retry(countdown=0, exc=KeyError("still not there"))


@app.task(bind=True, name="autoretries", autoretry_for=(ValueError,), retry_backoff=False, default_retry_delay=0)
def autoretries(self: Any) -> None:
    """Raise once."""
    note("body", self)
    if not self.request.retries:
        raise ValueError("once")


@app.task(bind=True, name="ignores")
def ignores(self: Any) -> None:
    """Raise Ignore."""
    note("body", self)
    raise Ignore("not today")


@app.task(bind=True, name="rejects")
def rejects(self: Any) -> None:
    """Reject the message for good."""
    note("body", self)
    raise Reject("broken", requeue=False)


@app.task(bind=True, name="requeues", acks_late=True)
def requeues(self: Any) -> None:
    """Put the message back into its queue, once."""
    note("body", self)
    if not (self.request.delivery_info or {}).get("redelivered"):
        raise Reject("later", requeue=True)


@app.task(bind=True, name="requeues-then-retries", acks_late=True, max_retries=5)
def requeues_then_retries(self: Any) -> None:
    """Put the message back into its queue, then ask for a retry, then succeed."""
    note("body", self)
    if not self.request.retries:
        if (self.request.delivery_info or {}).get("redelivered"):
            raise self.retry(countdown=0)
        raise Reject("later", requeue=True)


@app.task(bind=True, name="comes-back", acks_late=True, reject_on_worker_lost=True)
def comes_back(self: Any) -> None:
    """Wait to be killed; on the next delivery succeed."""
    note("body", self)
    if not (self.request.delivery_info or {}).get("redelivered"):
        spend(60)


@app.task(bind=True, name="replaces")
def replaces(self: Any) -> None:
    """Become another task."""
    note("body", self)
    raise self.replace(ok.s(7))


@app.task(bind=True, name="calls")
def calls(self: Any) -> None:
    """Call another task."""
    note("body", self)
    ok.delay()


@app.task(bind=True, name="spreads")
def spreads(self: Any, header: str) -> None:
    """Call a group and a chord whose messages inherit the header of a run."""
    note("body", self)
    group([ok.s(1), ok.s(2)]).apply_async(headers={"anarchon": header})
    chord([ok.s(3), ok.s(4)], ok.s()).apply_async(headers={"anarchon": header})


@app.task(bind=True, name="limited")
def limited(self: Any, seconds: float) -> None:
    """Run into a time limit."""
    note("body", self)
    try:
        spend(seconds)
    except SoftTimeLimitExceeded:
        note("soft-limit", self)
        raise


@app.task(bind=True, name="exits")
def exits(self: Any, code: int) -> None:
    """Leave the interpreter."""
    note("body", self)
    sys.exit(code)


@app.task(bind=True, name="waits")
def waits(self: Any, gate: str, watch: bool = False) -> None:
    """Run until a file is there; with `watch`, or until the lease is lost."""
    note("body", self)
    while not Path(gate).exists():
        run = current_run()
        if watch and run is not None and run.lost:
            note("lost", self)
            run.raise_if_lost()
        time.sleep(0.02)
    note("end", self)


@app.task(bind=True, name="retries-at")
def retries_at(self: Any, gate: str) -> None:
    """Wait for a file, then ask for one retry."""
    note("body", self)
    while not Path(gate).exists():
        time.sleep(0.02)
    if not self.request.retries:
        raise self.retry(countdown=0)


@app.task(bind=True, name="waits-late", acks_late=True)
def waits_late(self: Any, gate: str) -> None:
    """Run until a file is there; the message is acknowledged at the end."""
    note("body", self)
    while not Path(gate).exists():
        time.sleep(0.02)
    note("end", self)


class OwnRequest(Request):
    """A request class of the user's own."""

    def on_accepted(self, *args: Any, **kwargs: Any) -> Any:
        """Tell, and go on."""
        note("own-request", self.task, id=self.id)
        return super().on_accepted(*args, **kwargs)


class OwnBase(Task):
    """A base class of the user's own, with hooks."""

    Request = OwnRequest

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Tell, with the run in sight."""
        note("own-before-start", self)


@app.task(bind=True, base=OwnBase, name="own")
def own(self: Any) -> None:
    """Succeed, with hooks."""
    note("body", self)


class ClassTask(OwnBase):
    """A class task whose base is registered too, and which calls that base's hook."""

    name = "class-task"

    def before_start(self, task_id: str, args: Any, kwargs: Any) -> None:
        """Tell, then let the base tell."""
        note("class-before-start", self)
        super().before_start(task_id, args, kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Tell that the instance is called."""
        note("own-call", self)
        return self.run(*args, **kwargs)

    def run(self) -> None:
        """Succeed."""
        note("body", self)


class Derived(ClassTask):
    """A class task below another one."""

    name = "derived-task"


app.register_task(ClassTask())
app.register_task(Derived())


@shared_task(bind=True, name="shared")
def shared(self: Any) -> None:
    """Succeed, as a task of no app in particular."""
    note("body", self)


def spend(seconds: float) -> None:
    """Spend time in Python code, where a signal can interrupt."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.02)


logging.captureWarnings(capture=True)
