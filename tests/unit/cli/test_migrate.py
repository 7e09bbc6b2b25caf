"""`anarchon migrate` makes a store of any kind, and says what it did."""

from __future__ import annotations

import importlib.util
import json
import os
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

import pytest
from click.testing import CliRunner, Result

from anarchon_tasks.cli import main
from anarchon_tasks.stores import open_to_read

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment of whoever runs the tests out of them."""
    for name in [name for name in os.environ if name.startswith("ANARCHON_")]:
        monkeypatch.delenv(name)


def migrate(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, ("migrate", *arguments), prog_name="anarchon")


def test_an_sqlite_store_is_made_once(tmp_path: Path) -> None:
    """Readers find it then; the second time nothing is to do."""
    url = f"sqlite:///{tmp_path}/x.db"
    made = migrate("--store", url, "--table", "cron")
    assert (made.exit_code, made.stdout) == (0, f"made in {url}, namespace 'cron': cron\n")
    reader = open_to_read(url, table="cron")
    reader.time()
    reader.close()
    again = migrate("--store", url, "--table", "cron")
    assert (again.exit_code, again.stdout) == (0, f"nothing to do: {url}, namespace 'cron', is in format 1\n")
    assert json.loads(migrate("--store", url, "--table", "cron", "--json").stdout) == {
        "store": url,
        "namespace": "cron",
        "format": 1,
        "made": [],
    }


@pytest.mark.skipif(importlib.util.find_spec("redis") is None, reason="the driver is not installed")
def test_a_redis_store_gets_its_format(redis_url: str, redis_prefix: str) -> None:
    """The key is there before any scheduler has run, which is said; the second time nothing is to do."""
    import redis

    arguments = ("--store", redis_url, "--prefix", redis_prefix)
    done = migrate(*arguments)
    assert done.exit_code == 0, done.stderr
    assert (done.stdout.startswith("made in "), done.stdout.endswith(f": {redis_prefix}\n")) == (True, True)
    with redis.Redis.from_url(redis_url) as client:
        assert client.get(f"{redis_prefix}format") == b"1"
        again = migrate(*arguments).stdout
        assert (again.startswith("nothing to do: "), again.endswith(" is in format 1\n")) == (True, True)
        client.delete(f"{redis_prefix}format")
    found = json.loads(migrate(*arguments, "--json").stdout)
    assert (found["format"], found["made"]) == (1, [redis_prefix])
    assert json.loads(migrate(*arguments, "--json").stdout)["made"] == []


def test_the_format_is_the_stored_one(tmp_path: Path) -> None:
    """What a store says that it is in is what is told, and not what this version would write."""
    url = f"sqlite:///{tmp_path}/x.db"
    migrate("--store", url)
    with closing(sqlite3.connect(tmp_path / "x.db")) as db:
        db.execute("UPDATE anarchon_runs_format SET format = 0")
        db.commit()
    assert migrate("--store", url).stdout.endswith(" is in format 0\n")
    assert json.loads(migrate("--store", url, "--json").stdout)["format"] == 0


def test_a_store_in_memory_has_nothing_to_make() -> None:
    """It is no error either."""
    assert "nothing to do" in migrate("--store", "memory://").stdout


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        ((), 2, "no store is named: give --store URL"),
        (("--sql", "--store", "sqlite:///x.db"), 2, "--sql is for PostgreSQL: SqliteBackend"),
        (("--store", "sqlite:////no/such/folder/x.db"), 1, "create it"),
        (("--store", "sqlite:///x.db", "--prefix", "a:"), 2, "prefix='a:' is not an option of sqlite://"),
    ],
)
def test_what_cannot_be_done_is_told(arguments: tuple[str, ...], code: int, message: str) -> None:
    """Exit codes as everywhere: 2 for a mistake, 1 for a store that cannot be had."""
    result = migrate(*arguments)
    assert (result.exit_code, result.stdout) == (code, "")
    assert message in result.stderr


def test_a_missing_driver_is_told_with_the_extra() -> None:
    """Without psycopg, the command says what to install; with it, that there is no such server."""
    result = migrate("--store", "postgresql://127.0.0.1:1/x")
    assert result.exit_code in {1, 2}
    assert ("anarchon-tasks[postgres]" in result.stderr) == (result.exit_code == 2)


def test_the_sql_needs_no_server() -> None:
    """It is one transaction, whole, for exactly the table that was asked for."""
    pytest.importorskip("psycopg")
    arguments = ("--sql", "--store", "postgresql://nowhere/x", "--table", "shipping.cron_runs")
    text = migrate(*arguments).stdout
    lines = [line for line in text.splitlines() if line]
    assert (lines[1], lines[-1]) == ("BEGIN;", "COMMIT;")
    assert 'CREATE TABLE IF NOT EXISTS "shipping"."cron_runs_state"' in text
    assert "anarchon_runs" not in text
    statements = json.loads(migrate(*arguments, "--json").stdout)["statements"]
    assert all(statement in text for statement in statements)
