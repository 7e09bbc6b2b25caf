"""The functions on the server decide as the rules do: the same random calls at the same instants, answered alike."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

import pytest

from tests.contract.machine import check_lost_run_that_begins, compare

pytest.importorskip("psycopg")

from tests.contract.postgres_adapter import PostgresDriver

if TYPE_CHECKING:
    from tests.contract.postgres_adapter import EmptyTables


def test_functions_answer_as_the_rules(postgres_tables: EmptyTables) -> None:
    """Every answer, every stored state and the history are the same after the same calls."""
    compare(partial(PostgresDriver, postgres_tables), examples=50, steps=50)


@pytest.mark.parametrize("newer", ["none", "queued", "running"])
def test_a_lost_run_that_still_begins(postgres_tables: EmptyTables, newer: str) -> None:
    """A path that random calls seldom find: a run given up as lost begins, unless a newer one is under way."""
    check_lost_run_that_begins(partial(PostgresDriver, postgres_tables), newer)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_functions_answer_as_the_rules_for_long(postgres_tables: EmptyTables) -> None:
    """The same, with many more and longer sequences."""
    compare(partial(PostgresDriver, postgres_tables), examples=250, steps=100)
