"""What `from anarchon_tasks import ...` gives, and what it costs."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import anarchon_tasks

PROMISED = {
    *("Scheduler", "Reader", "Job", "JobOptions", "every", "cron", "at", "current_run", "Run", "Status"),
    *("RedisBackend", "ValkeyBackend", "SqliteBackend", "MemoryBackend", "__version__"),
    *("AnarchonError", "ConfigError", "ScheduleError", "UnknownJob", "StoreError", "StoreUnavailable"),
    *("StoreFormatError", "PublishError", "RunRefused", "LeaseLost"),
}
HEAVY = {"redis", "valkey", "psycopg", "celery", "kombu", "dramatiq", "croniter", "sqlite3", "click"}


def loaded_by(code: str) -> tuple[set[str], int]:
    """Return the modules that code loads in a fresh interpreter, and how many threads run afterwards."""
    report = "import sys, threading, json; print(json.dumps([[*sys.modules], threading.active_count()]))"
    done = subprocess.run(
        [sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True, timeout=60
    )
    modules, threads = json.loads(done.stdout)
    return set(modules), threads


def test_every_promised_name_is_there() -> None:
    """The public names can be asked for, and `__all__` lists them."""
    assert set(anarchon_tasks.__all__) >= PROMISED
    assert all(getattr(anarchon_tasks, name) is not None for name in anarchon_tasks.__all__)


def test_all_is_sorted_and_equals_what_type_checkers_see() -> None:
    """The lazy names, the ones imported for type checkers, and `__all__` are the same."""
    assert anarchon_tasks.__all__ == sorted(anarchon_tasks.__all__)
    tree = ast.parse(Path(anarchon_tasks.__file__).read_text(encoding="utf-8"))
    (typed,) = [node for node in tree.body if isinstance(node, ast.If) and isinstance(node.test, ast.Name)]
    homes = {
        (alias.name, node.module) for node in typed.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }
    assert homes == {(name, f"anarchon_tasks.{home}") for name, home in anarchon_tasks._HOME.items()}
    assert {name for name, _ in homes} | {"__version__"} == set(anarchon_tasks.__all__)


def test_names_can_be_listed_before_they_are_loaded() -> None:
    """`dir()` shows the public names, as shells complete them."""
    assert set(anarchon_tasks.__all__) <= set(dir(anarchon_tasks))


def test_star_imports_give_the_public_names() -> None:
    """`from anarchon_tasks import *` works, with the lazy names."""
    modules, _ = loaded_by("from anarchon_tasks import *; Scheduler, every, SqliteBackend")
    assert "anarchon_tasks.scheduler" in modules


def test_importing_loads_nothing_and_starts_nothing() -> None:
    """No driver, no task framework, not even the cron engine; and no thread."""
    modules, threads = loaded_by("import anarchon_tasks")
    assert not HEAVY & modules
    assert {name for name in modules if name.startswith("anarchon_tasks")} == {"anarchon_tasks"}
    assert threads == 1


@pytest.mark.parametrize(
    "names", ["Scheduler, Reader, Job, every, cron, at, current_run, MemoryBackend, SqliteBackend"]
)
def test_the_core_loads_no_driver(names: str) -> None:
    """Everything but the Redis and Valkey backends comes without a driver and without a task framework."""
    modules, threads = loaded_by(f"from anarchon_tasks import {names}")
    assert not (HEAVY - {"croniter"}) & modules
    assert threads == 1


def test_errors_and_current_run_load_no_cron_engine() -> None:
    """A task that asks for its run does not pay for the schedules."""
    modules, _ = loaded_by("from anarchon_tasks import current_run, LeaseLost, StoreUnavailable")
    assert not HEAVY & modules


@pytest.mark.parametrize("name", ["NatsBackend", "nothing"])
def test_a_name_that_is_not_there_is_an_import_error(name: str) -> None:
    """A name that this version does not have fails at its import, with that name."""
    with pytest.raises(ImportError, match=name):
        exec(f"from anarchon_tasks import {name}")
