"""The nouns of a run."""

from __future__ import annotations

import json
import uuid
from dataclasses import FrozenInstanceError
from datetime import UTC, datetime

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks.model import OPEN, Run, RunRef, Status, iso, message_id

SLOT = 1_791_633_610_000


def run(**fields: object) -> Run:
    """Make a run of the job `sync`."""
    return Run(**({"job": "sync", "slot": SLOT, "status": Status.SUCCEEDED} | fields))  # type: ignore[arg-type]


@given(st.text(), st.integers(), st.text())
def test_a_run_has_a_name_within_its_job(job: str, slot: int, key: str) -> None:
    """The name of a run is read back as the same run, whatever its key."""
    ref = RunRef(job, slot, key)
    assert RunRef.parse(job, ref.run) == ref


def test_names_of_runs() -> None:
    """The name is the slot, and with a key both."""
    assert RunRef("sync", SLOT).run == "1791633610000"
    assert RunRef("sync", SLOT, "a:b").run == "1791633610000:a:b"


def test_message_ids() -> None:
    """Every publish of an attempt has the same id, and no other attempt, run, job or namespace has it."""
    ref = RunRef("sync", SLOT)
    ids = [
        message_id("cron:", ref, 1),
        message_id("cron:", ref, 2),
        message_id("other:", ref, 1),
        message_id("cron:", RunRef("sync", SLOT, "1"), 1),
        message_id("cron:", RunRef("sync", SLOT + 1), 1),
        message_id("cron:", RunRef("syn", SLOT), 1),
    ]
    assert len(set(ids)) == len(ids)
    assert message_id("cron:", ref, 1) == ids[0] == str(uuid.UUID(ids[0]))


def test_message_id_never_changes() -> None:
    """Two versions of the library publish the same attempt with the same id."""
    assert message_id("cron:", RunRef("sync", SLOT), 1) == "11ff85d9-2169-55eb-a5e5-b9c595ec95aa"


def test_job_and_key_do_not_run_together() -> None:
    """The parts of an id cannot be mistaken for each other."""
    assert message_id("a", RunRef("b,c", 1), 1) != message_id("a,b", RunRef("c", 1), 1)
    assert message_id("n", RunRef('j"', 1, ""), 1) != message_id("n", RunRef("j", 1, '"'), 1)


def test_iso() -> None:
    """Instants are written in UTC with milliseconds."""
    assert iso(SLOT) == "2026-10-10T12:00:10.000Z"
    assert iso(1) == "1970-01-01T00:00:00.001Z"
    assert iso(None) is None


def test_open_states() -> None:
    """A run has not ended while it is claimed, queued or running."""
    assert {Status.CLAIMED, Status.QUEUED, Status.RUNNING} == OPEN


@pytest.mark.parametrize(
    ("fields", "lateness"),
    [
        ({"enqueued_at": SLOT + 30}, 30),
        ({"enqueued_at": SLOT + 30, "due": SLOT + 20}, 10),
        ({"started_at": SLOT + 50}, 50),
        ({"enqueued_at": SLOT + 30, "started_at": SLOT + 50}, 30),
        ({}, None),
    ],
)
def test_lateness(fields: dict[str, object], lateness: int | None) -> None:
    """A run is as late as its message was enqueued after it was due; jitter is not lateness."""
    assert run(**fields).lateness_ms == lateness


def test_duration() -> None:
    """An attempt that started and ended has a duration, also one of nothing."""
    assert run(started_at=SLOT, finished_at=SLOT + 5).duration_ms == 5
    assert run(started_at=SLOT, finished_at=SLOT).duration_ms == 0
    assert run(started_at=SLOT).duration_ms is None
    assert run(finished_at=SLOT).duration_ms is None


def test_scheduled_for() -> None:
    """The slot is an aware datetime."""
    assert run().scheduled_for == datetime(2026, 10, 10, 12, 0, 10, tzinfo=UTC)


def test_json() -> None:
    """A run is told whole: every key is there, instants in ISO 8601, null where unknown."""
    told = json.loads(json.dumps(run(enqueued_at=SLOT + 30, reason="overlap").to_json()))
    needed = {"job", "slot", "scheduled_for", "trigger", "attempt", "status", "reason", "instance", "worker", "task_id"}
    needed |= {"enqueued_at", "started_at", "finished_at", "lateness_ms", "duration_ms", "error", "key", "token"}
    assert needed <= set(told)
    assert (told["slot"], told["scheduled_for"]) == (SLOT, "2026-10-10T12:00:10.000Z")
    assert (told["enqueued_at"], told["lateness_ms"]) == ("2026-10-10T12:00:10.030Z", 30)
    assert (told["status"], told["trigger"], told["reason"]) == ("succeeded", "schedule", "overlap")
    assert (told["started_at"], told["duration_ms"], told["error"]) == (None, None, None)


def test_runs_are_values() -> None:
    """A run cannot be changed, and equals another that tells the same."""
    assert run() == run()
    with pytest.raises(FrozenInstanceError):
        run().attempt = 2  # type: ignore[misc]
