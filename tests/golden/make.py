"""Makes the golden stores of the present format: the fixed story, told to each store, and its end written down.

    python -m tests.golden.make redis://localhost:6379 postgresql://localhost/scratch

Needed once for each format. A change of these files in a later version means that it would read stores of its
predecessors differently.
"""

from __future__ import annotations

import argparse
import json
import tempfile
import uuid
from pathlib import Path

from anarchon_tasks.stores import PostgresBackend
from anarchon_tasks.stores.base import FORMAT, LeaseStore
from anarchon_tasks.stores.memory import MemoryStore
from anarchon_tasks.stores.sqlite import SqliteStore
from anarchon_tasks.testing import ManualClock
from tests.golden import dumps, scenario

HERE = Path(__file__).parent


def told(store: LeaseStore, clock: ManualClock) -> str:
    """Play the story and return everything that can be read of it."""
    known = scenario.play(store, clock)
    document = {"now": clock.wall_ms(), "known": known, **scenario.read(store)}
    store.close()
    return json.dumps(document, indent=1, ensure_ascii=False) + "\n"


def make_sqlite(expected: str) -> str:
    """Tell the story to a file."""
    with tempfile.TemporaryDirectory() as directory:
        path, clock = Path(directory) / "store.db", ManualClock(scenario.START)
        same(expected, told(SqliteStore(path, clock=clock), clock))
        return dumps.dump_sqlite(path)


def make_redis(expected: str, url: str) -> str:
    """Tell the story to a prefix of a server."""
    import redis

    from anarchon_tasks.stores._redis_client import Connection
    from anarchon_tasks.stores.redis import RedisStore

    client, prefix = redis.Redis.from_url(url), f"golden-{uuid.uuid4().hex}:"
    clock = ManualClock(scenario.START)
    try:
        same(expected, told(RedisStore(Connection(client=client, location=url), prefix=prefix, clock=clock), clock))
        return dumps.dump_redis(client, prefix)
    finally:
        for key in client.scan_iter(match=f"*{prefix}*"):
            client.delete(key)
        client.close()


def make_postgres(expected: str, url: str) -> str:
    """Tell the story to a table of a database."""
    import psycopg

    name, clock = f"golden_{uuid.uuid4().hex[:12]}", ManualClock(scenario.START)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'CREATE SCHEMA "{name}"')
        try:
            backend = PostgresBackend(url, table=f"{name}.{name}", clock=clock)
            same(expected, told(backend.open(), clock))
            return dumps.dump_postgres(connection, name)
        finally:
            connection.execute(f'DROP SCHEMA "{name}" CASCADE')


def same(expected: str, found: str) -> None:
    """Refuse to write down a store that tells another story than the memory store."""
    if expected != found:
        raise SystemExit("this store tells another story than the memory store")


def main() -> None:
    """Make all for which there is a server."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("urls", nargs="*", help="a Redis, a PostgreSQL")
    clock = ManualClock(scenario.START)
    expected = told(MemoryStore(clock=clock), clock)
    (HERE / f"expected-{FORMAT}.json").write_text(expected, encoding="utf-8")
    (HERE / f"sqlite-{FORMAT}.sql").write_text(make_sqlite(expected), encoding="utf-8")
    for url in parser.parse_args().urls:
        if url.startswith("redis"):
            (HERE / f"redis-{FORMAT}.json").write_text(make_redis(expected, url), encoding="utf-8")
        else:
            (HERE / f"postgres-{FORMAT}.sql").write_text(make_postgres(expected, url), encoding="utf-8")


if __name__ == "__main__":
    main()
