"""An ordinary Celery app: a `beat_schedule`, one decorated task, and what each run did, on record.

The tasks write down what they did themselves, in a file of their own. The demo's verdict comes from that file alone.
"""

from __future__ import annotations

import json
import os
import time
from datetime import timedelta
from pathlib import Path

from celery import Celery

from anarchon_celery import Anarchon
from anarchon_tasks import current_run, every

EVIDENCE = Path(os.environ.get("DEMO_EVIDENCE", "evidence.jsonl"))
EXPORT_AT = int(os.environ.get("DEMO_EXPORT_AT", "0"))  # the second of each two minutes when the export is due
EXPORT_S = 5.0

app = Celery("shop", broker=os.environ.get("DEMO_BROKER", "redis://127.0.0.1:6379/0"))
app.conf.update(
    task_ignore_result=True,
    worker_prefetch_multiplier=1,
    broker_connection_retry_on_startup=True,
    beat_schedule={
        "count stock": {"task": "shop.count_stock", "schedule": 2.0},
        "refresh prices": {"task": "shop.refresh_prices", "schedule": timedelta(seconds=5)},
    },
    # Like plain beat: the next run is sent even while the one before it waits for a worker.
    anarchon_jobs={"count stock": {"overlap": "allow"}, "refresh prices": {"overlap": "allow"}},
)
anarchon = Anarchon(app, store=os.environ.get("DEMO_STORE", "sqlite:///demo.db"), lease="3s", heartbeat="1s")


def note(kind: str) -> None:
    """Append a line to the evidence, and make sure that it is on the disk."""
    run = current_run()
    if run is None:
        return
    line = {
        "kind": kind,
        "job": run.job,
        "slot": run.slot,
        "attempt": run.attempt,
        "token": run.token,
        "pid": os.getpid(),
        "at": time.time(),
    }
    with EVIDENCE.open("a") as file:
        file.write(json.dumps(line) + "\n")
        file.flush()
        os.fsync(file.fileno())


@app.task(name="shop.count_stock")
def count_stock() -> None:
    """Take no time."""
    note("start")
    note("end")


@app.task(name="shop.refresh_prices")
def refresh_prices() -> None:
    """Take a little time."""
    note("start")
    time.sleep(0.3)
    note("end")


@anarchon.every("3s", overlap="allow", name="sync carts")
@app.task(name="shop.sync_carts")
def sync_carts() -> None:
    """Run every three seconds, by a decorator."""
    note("start")
    note("end")


@app.task(name="shop.export")
def export() -> None:
    """Take long enough to be killed in the middle."""
    note("start")
    end = time.monotonic() + EXPORT_S
    while time.monotonic() < end:
        time.sleep(0.1)
        run = current_run()
        if run is not None:
            run.raise_if_lost()
    note("end")


anarchon.schedule("nightly export", every("2m", offset=EXPORT_AT), task="shop.export")
