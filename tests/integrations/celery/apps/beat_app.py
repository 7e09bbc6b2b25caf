"""The app that beat's tests run: entries of every kind, on tasks that write down what they were sent.

The environment says where everything is; what the tasks saw is one line of JSON each in the file `EVIDENCE`.
"""

from __future__ import annotations

import json
import os
from datetime import datetime, timedelta
from typing import Any

from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import BaseSchedule, crontab, schedule

from anarchon_celery import Anarchon
from anarchon_tasks.current import current_run
from anarchon_tasks.schedules import every

app = Celery("beat_app", broker=os.environ["BROKER"])
app.conf.update(
    anarchon_store=os.environ.get("STORE"),
    anarchon_lease="30s",
    broker_connection_retry_on_startup=True,
    worker_prefetch_multiplier=1,
)
anarchon = Anarchon(app) if os.environ.get("EXTENSION", "1") == "1" else None


class Seconds(BaseSchedule):
    """A schedule of the user's own."""

    def remaining_estimate(self, last_run_at: datetime) -> timedelta:
        """Say when the next full second is."""
        return last_run_at.replace(microsecond=0) + timedelta(seconds=1) - self.now()


def write(task: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a task
    """Write down what came."""
    run = current_run()
    line = {
        "id": task.request.id,
        "args": args,
        "kwargs": kwargs,
        "headers": {key: task.request.get(key) for key in ("anarchon", "celery_beat_task", "periodic_task_name", "x")},
        "queue": task.request.delivery_info["routing_key"],
        "slot": run.slot if run else None,
    }
    file = os.open(os.environ["EVIDENCE"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, (json.dumps(line) + "\n").encode())
    finally:
        os.close(file)


@app.task(bind=True, name="note")
def note(self: Any, *args: object, **kwargs: object) -> None:  # noqa: ANN401 - a task
    """Write down what came."""
    write(self, *args, **kwargs)


if os.environ.get("ENTRIES", "1") == "1":
    app.conf.beat_schedule = {
        "a number": {"task": "note", "schedule": 1, "args": (1, "two"), "kwargs": {"three": [3]}},
        "a timedelta": {"task": "note", "schedule": timedelta(seconds=1)},
        "schedule(...)": {"task": "note", "schedule": schedule(1.0), "relative": True},
        "κείμενο": {"task": "note", "schedule": "* * * * * *"},
        "crontab": {"task": "note", "schedule": crontab()},
        "of the user's own": {"task": "note", "schedule": Seconds()},
        "lazy": {"task": "note", "schedule": 1.0, "args": (BeatLazyFunc(lambda: "computed"),)},
        "options": {
            "task": "note",
            "schedule": 1.0,
            "options": {"queue": "other", "headers": {"x": "y"}, "expires": 30, "task_id": "fixed"},
        },
        "broken": {"task": "note", "schedule": object()},
    }

    @app.on_after_configure.connect
    def add(sender: Celery, **_: object) -> None:
        """Add an entry as Celery's documentation does."""
        sender.add_periodic_task(1.0, note.s("added"), name="added")


if anarchon is not None:

    @anarchon.every("1s", name="decorated", kwargs={"by": "decorator"})
    @app.task(bind=True, name="other")
    def other(self: Any, by: str) -> None:  # noqa: ANN401 - a task
        """Be decorated."""
        write(self, by)

    anarchon.schedule("declared", every("1s"), task="note", args=("declared",))
