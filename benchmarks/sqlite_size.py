"""What a job and its runs take of an SQLite file: bytes of its pages, for docs/reference/stores.md.

    python benchmarks/sqlite_size.py

The clock is moved by hand, so that slots pass quickly.
"""

from __future__ import annotations

import sqlite3
import tempfile
from contextlib import closing
from dataclasses import replace
from pathlib import Path

from redis_memory import MINUTE, Clock, Jobs

from anarchon_tasks.stores.sqlite import SqliteStore

MANY, FEW = 2_000, 20
STEP = MINUTE - 1_540
"""From the end of a run to the next slot."""


def used(path: Path) -> int:
    """Return the bytes of the pages in use."""
    with closing(sqlite3.connect(path)) as db:
        pages, free, size = (
            db.execute(f"PRAGMA {n}").fetchone()[0] for n in ("page_count", "freelist_count", "page_size")
        )
    return int((pages - free) * size)


def main() -> None:
    """Measure and print."""
    with tempfile.TemporaryDirectory() as directory:
        path, clock = Path(directory) / "store.db", Clock()
        jobs = Jobs(SqliteStore(path, clock=clock), clock)
        warm = [f"warm-{n}" for n in range(100)]
        jobs.run(warm, jobs.register(warm))
        empty = used(path)
        names = [f"tenant-{n:05}" for n in range(MANY)]
        policy = jobs.register(names)
        known = used(path)
        jobs.run(names, policy)
        one = used(path)
        print(f"a job that is known {(known - empty) / MANY:.0f} bytes, with its first run {(one - empty) / MANY:.0f}")
        few, sizes = names[:FEW], []
        for count in range(1, 1_021):
            clock.now += STEP
            jobs.run(few, policy)
            if count in {20, 120, 1_020}:
                sizes.append(used(path))
        among = [(sizes[at + 1] - sizes[at]) / FEW / runs for at, runs in enumerate((100, 900))]
        print(f"a run in the history {among[0]:.0f} bytes among 100, {among[1]:.0f} among 1000")
        before = used(path)
        for _ in range(200):
            clock.now += STEP
            jobs.run(few, replace(policy, keep_ms=10**12))
        print(f"a run that a late claim could still ask for {(used(path) - before) / FEW / 200:.0f} bytes more")
        jobs.store.close()


if __name__ == "__main__":
    main()
