"""The app under fault. Its tasks write down what they did, in files that the product never sees."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path

from celery import Celery
from celery.schedules import crontab

from anarchon_celery import Anarchon
from anarchon_tasks import current_run, every

EVIDENCE = Path(os.environ["CLUSTER_EVIDENCE"])

app = Celery("cluster", broker=os.environ["CLUSTER_BROKER"])
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    broker_transport_options={"socket_timeout": 2, "socket_connect_timeout": 2},
    beat_schedule={
        "second": {"task": "cluster.quick", "schedule": 1.0},
        "minute": {"task": "cluster.quick", "schedule": crontab()},
    },
)
anarchon = Anarchon(
    app,
    store=os.environ["CLUSTER_STORE"],
    lease=os.environ.get("CLUSTER_LEASE", "3s"),
    heartbeat=os.environ.get("CLUSTER_HEARTBEAT", "1s"),
)


def note(kind: str, **more: object) -> None:
    """Append a line of evidence, in one write."""
    run = current_run()
    line = {"kind": kind, "pid": os.getpid(), "at": time.time(), **more}
    if run is not None:
        line |= {"job": run.job, "slot": run.slot, "attempt": run.attempt, "token": run.token}
    with EVIDENCE.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


@app.task(name="cluster.quick")
def quick() -> None:
    """Take no time."""
    note("start")
    note("end")


@app.task(name="cluster.slow")
def slow(seconds: float) -> None:
    """Take a while."""
    note("start")
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        time.sleep(0.05)
    note("end")


# One run in each test that asks for it: the test says at which second of which period.
if slow_every := os.environ.get("CLUSTER_SLOW_EVERY"):
    anarchon.schedule(
        "slow",
        every(slow_every, offset=os.environ.get("CLUSTER_SLOW_OFFSET", "0s")),
        task="cluster.slow",
        args=(float(os.environ.get("CLUSTER_SLOW_SECONDS", "5")),),
        overlap="allow",
    )

# A job each second of which no slot may be given up for a newer one.
if os.environ.get("CLUSTER_KEPT"):
    anarchon.schedule("kept", every("1s"), task="cluster.quick", overlap="allow", coalesce_after="1m", max_late="5m")
