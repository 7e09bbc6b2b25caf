"""The PostgreSQL store: how its questions and answers travel."""

from __future__ import annotations

from typing import Any

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import Beat
from anarchon_tasks.stores.postgres import PostgresStore


class Answering:
    """A database that answers what it was told to."""

    def __init__(self, reply: list[Any]) -> None:
        self.reply = reply
        self.asked: list[tuple[str, object]] = []
        self.closed = 0

    def run(self, operation: str, payload: object) -> list[Any]:
        """Answer, and remember the question."""
        self.asked.append((operation, payload))
        return self.reply

    def close(self) -> None:
        """Count."""
        self.closed += 1


def test_names_of_jobs_travel_as_they_are() -> None:
    """No part of a name is written in another way: the column `job` holds what people read."""
    database = Answering([5, [True]])
    store = PostgresStore(database, namespace="t", location="postgresql://db")
    ref = RunRef('a b:{%} "κ"', 7, "k")
    assert store.beat([Beat(ref=ref, token=3, lease_ms=9)]).answers == [True]
    assert database.asked == [("beat", [[ref.job, "7:k", "3", 9, Status.RUNNING]])]
    assert (store.namespace, store.location) == ("t", "postgresql://db")


def test_runs_whose_lease_is_over_come_with_job_and_run() -> None:
    """Those over longest come first, and a colon in the name of a job is no end of it."""
    database = Answering([5, [[4, ["b", "7"]], [2, ["a:1", "7:x:y"]]], False])
    store = PostgresStore(database, namespace="t", location="")
    assert store.expired(limit=10).answers == [RunRef("a:1", 7, "x:y"), RunRef("b", 7)]


def test_close_closes_what_was_opened() -> None:
    """The connections are the database's affair."""
    database = Answering([])
    PostgresStore(database, namespace="t", location="").close()
    assert database.closed == 1
