"""One SQLite file and several processes: started at once, forked, or killed."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING

from anarchon_tasks.clock import SystemClock
from anarchon_tasks.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import ProcessOwner

HEAD = """
import json, os, sys
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores.base import Claim, ClaimKind, Definition, Policy
from anarchon_tasks.stores.sqlite import SqliteStore

def ask(job, slot, floor, claim_id):
    return Claim(ref=RunRef(job, slot), claim_id=claim_id, instance=claim_id, policy=Policy(), due_ms=slot,
                 latest_ms=slot + 10**9, floor=floor)
"""

RACER = (
    HEAD
    + """
path, who, base = sys.argv[1], sys.argv[2], int(sys.argv[3])
store = SqliteStore(path)
names = [f"job-{at}" for at in range(500)]
won = []
for at in range(0, 500, 50):
    part = names[at : at + 50]
    store.register([Definition(name=n, fingerprint="1", document="{}", floor=base - 5_000) for n in part])
    asks = [ask(name, base - 1_000, base - 5_000, f"{who}-{name}") for name in part]
    won += [a.ref.job for a, answer in zip(asks, store.claim(asks).answers) if answer.kind is ClaimKind.WON]
print("won " + json.dumps(won), flush=True)
"""
)

PASSER_BY = (
    HEAD
    + """
path, who, base = sys.argv[1], sys.argv[2], int(sys.argv[3])
for at in range(25):
    store = SqliteStore(path)
    name = f"{who}-{at}"
    store.register([Definition(name=name, fingerprint="1", document="{}", floor=base - 5_000)])
    [answer] = store.claim([ask(name, base - 1_000, base - 5_000, name)]).answers
    assert answer.kind is ClaimKind.WON, answer
    store.close()
"""
)

FORKER = (
    HEAD
    + """
path, base = sys.argv[1], int(sys.argv[2])
store = SqliteStore(path)
store.register([Definition(name=n, fingerprint="1", document="{}", floor=base - 5_000) for n in ("a", "b", "c")])

def won(job):
    return store.claim([ask(job, base - 1_000, base - 5_000, job)]).answers[0].kind is ClaimKind.WON

for job, leave in (("a", os._exit), ("b", sys.exit)):
    pid = os.fork()
    if pid == 0:
        ok = won(job)
        store.close()
        leave(0 if ok else 2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, job
    assert len(store.definitions().answers) == 3
assert won("c")
"""
)

KILLED = (
    HEAD
    + """
from anarchon_tasks.stores import sqlite
path, base = sys.argv[1], int(sys.argv[2])
store = SqliteStore(path)
store.register([Definition(name=n, fingerprint="1", document="{}", floor=base - 5_000) for n in ("a", "b")])
decide = sqlite.rules.claim

def die_at_b(account, item, now):
    if item.ref.job == "b":
        os.kill(os.getpid(), 9)
    return decide(account, item, now)

sqlite.rules.claim = die_at_b
store.claim([ask(job, base - 1_000, base - 5_000, job) for job in "ab"])
"""
)


def test_one_winner_among_processes(processes: ProcessOwner, tmp_path: Path) -> None:
    """Four processes that create the file, register and claim at once: each of 500 runs has one winner."""
    base = SystemClock().wall_ms()
    racers = [processes.python("-c", RACER, tmp_path / "store.db", str(at), str(base)) for at in range(4)]
    for racer in racers:
        assert racer.wait(60) == 0, racer.tail()
    won = [
        json.loads(line.removeprefix("won "))
        for racer in racers
        for line in racer.output().splitlines()
        if line.startswith("won ")
    ]
    assert len(won) == len(racers)
    assert sorted(name for names in won for name in names) == sorted(f"job-{at}" for at in range(500))


def test_the_last_one_out_folds_the_log(processes: ProcessOwner, tmp_path: Path) -> None:
    """Processes that open and close the file all the time lose nothing of each other's, and leave one sound file."""
    path, base = tmp_path / "data" / "store.db", SystemClock().wall_ms()
    path.parent.mkdir()
    passers = [processes.python("-c", PASSER_BY, path, str(who), str(base)) for who in range(3)]
    for passer in passers:
        assert passer.wait(60) == 0, passer.tail()
    assert [file.name for file in path.parent.iterdir()] == ["store.db"]
    store = SqliteStore(path)
    jobs = [f"{who}-{at}" for who in range(3) for at in range(25)]
    assert [run and run.job for run in store.last_runs(jobs).answers] == jobs
    store.close()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


def test_connections_do_not_cross_a_fork(processes: ProcessOwner, tmp_path: Path) -> None:
    """A child that was forked opens its own connection, and its end takes nothing from its parent."""
    forker = processes.python("-W", "error", "-c", FORKER, tmp_path / "store.db", str(SystemClock().wall_ms()))
    assert forker.wait(60) == 0, forker.tail()


def test_killed_in_the_middle_of_a_batch(processes: ProcessOwner, tmp_path: Path) -> None:
    """A batch of a process that is killed has happened whole or not at all, and keeps nobody waiting."""
    base = SystemClock().wall_ms()
    assert processes.python("-c", KILLED, tmp_path / "store.db", str(base)).wait(60) == -9
    store = SqliteStore(tmp_path / "store.db")
    assert [store.history(job, limit=5).answers for job in "ab"] == [[], []]
    assert len(store.definitions().answers) == 2
    store.close()
