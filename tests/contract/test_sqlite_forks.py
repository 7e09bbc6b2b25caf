"""One SQLite file over forks: every process has its own locks, and what a call acknowledged stays."""

from __future__ import annotations

import sqlite3
import sys
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from pathlib import Path

    from tests.servers import ProcessOwner

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="no fork on this system")

PROGRAM = """
import ctypes, logging, os, subprocess, sys, threading, traceback
from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores.base import Definition
from anarchon_tasks.stores.sqlite import SqliteStore
logging.basicConfig(format="LOG %(message)s")
path = sys.argv[1]
late = []  # what is done as the last thing before a fork
os.register_at_fork(before=lambda: [do() for do in late])

def add(store, *names):
    store.register([Definition(name=name, fingerprint="1", document="{}", floor=1) for name in names])

def forked(child, fork=os.fork):
    pid = fork()
    if pid == 0:
        try:
            child()
        except BaseException:
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    return pid

def ended(pid):
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0

def refused(do, why):
    try:
        do()
    except StoreUnavailable as error:
        assert why in str(error), error
    else:
        raise AssertionError("it was not refused")

def elsewhere(code):
    head = "import sys; from anarchon_tasks.stores.sqlite import SqliteStore; s = SqliteStore(sys.argv[1]);"
    subprocess.run([sys.executable, "-c", head + code, path], check=True)

class Signal:
    def __init__(self):
        self.reader, self.writer = os.pipe()
    def send(self):
        os.write(self.writer, b"x")
    def wait(self):
        assert os.read(self.reader, 1) == b"x"

store = SqliteStore(path, busy_timeout_s=TIMEOUT)
add(store, "parent")
"""

PARENT_CLOSES = """
first, closed = Signal(), Signal()

def child():
    add(store, "child-1")
    first.send()
    closed.wait()
    add(store, "child-2")

pid = forked(child)
first.wait()
store.close()
elsewhere("s.time(); s.close()")
assert os.path.exists(path + "-wal"), "the child holds no lock"
closed.send()
ended(pid)
"""

TRANSACTION_ELSEWHERE = """
begun, end = threading.Event(), threading.Event()

def work():
    with store._file.write():
        begun.set()
        end.wait(30)

thread = threading.Thread(target=work)
thread.start()
begun.wait(30)
timer = threading.Timer(0.3, end.set)
timer.start()
ended(forked(lambda: [add(store, f"child-{at}") for at in (1, 2)]))
thread.join()
timer.join()
add(store, "afterwards")
"""

LOCKS = """
second = SqliteStore(path)
add(second, "second")
held, done = Signal(), Signal()

def child():
    with second._file.write():
        held.send()
        done.wait()
    ended(forked(lambda: add(store, "grandchild")))

pid = forked(child)
held.wait()
refused(lambda: add(store, "too early"), "locked by another process")
done.send()
ended(pid)
add(second, "second again")
"""

BUSY = """
stop, told = threading.Event(), []

def busy(who):
    own = SqliteStore(path, busy_timeout_s=TIMEOUT) if who else store
    at = 0
    while not stop.is_set():
        add(own, f"busy-{who}-{at % 20}")
        at += 1
    own.close()

def fork_some(who):
    for at in range(12):
        names = [f"child-{who}-{at}-{call}" for call in range(3)]
        ended(forked(lambda: [add(store, name) for name in names]))
        told.extend(names)

workers = [threading.Thread(target=busy, args=(who,)) for who in range(3)]
forkers = [threading.Thread(target=fork_some, args=(who,)) for who in range(2)]
for thread in workers + forkers:
    thread.start()
for thread in forkers:
    thread.join()
stop.set()
for thread in workers:
    thread.join()
assert len(told) == 72
assert set(told) <= {d.name for d in store.definitions().answers}
elsewhere("s.time(); s.close()")
"""

OWN_TRANSACTION = """
def fork_inside():
    child = 0
    try:
        with store._file.write() as db:
            db.execute("UPDATE anarchon_runs_definitions SET fingerprint = '2'")
            child = os.fork()
            if child == 0:
                refused(lambda: add(store, "child"), "has no transaction under way")
    except StoreUnavailable as error:
        os._exit(0 if child == 0 and "belongs to the process that this was forked from" in str(error) else 1)
    except BaseException:
        traceback.print_exc()
        os._exit(1)
    return child

ended(fork_inside())
assert [d.fingerprint for d in store.definitions().answers] == ["2"]
add(store, "afterwards")
"""

BOUND = """
begun, end = threading.Event(), threading.Event()

def work():
    with store._file.write() as db:
        begun.set()
        end.wait(30)
        db.execute("UPDATE anarchon_runs_definitions SET fingerprint = '2'")

thread = threading.Thread(target=work)
thread.start()
begun.wait(30)
pid = forked(lambda: refused(lambda: add(store, "child"), "forked while the file was in use"))
ended(pid)
end.set()
thread.join()
assert [d.fingerprint for d in store.definitions().answers] == ["2"]
ended(forked(lambda: add(store, "child of a quiet moment")))
"""

WAITING = """
shut, opened = threading.Event(), []
late.append(lambda: (shut.set(), thread.join(0.2)))
thread = threading.Thread(target=lambda: (shut.wait(30), add(store, "held back"), opened.append(1)))
thread.start()

def child():
    assert shut.is_set()
    assert opened == [], "a use began while the process was being forked"
    add(store, "child")

pid = forked(child)
thread.join()
ended(pid)
"""

UNTOLD = """
ended(forked(lambda: refused(lambda: add(store, "child"), "forked while the file was in use"), ctypes.PyDLL(None).fork))
add(store, "afterwards")
"""


def run(processes: ProcessOwner, path: Path, program: str, *, timeout_s: float = 5.0) -> tuple[str, set[str]]:
    """Run a program that forks, check that the file is sound, and return the output and the names of the jobs."""
    code = (PROGRAM + program).replace("TIMEOUT", str(timeout_s))
    process = processes.python("-W", "error", "-W", "ignore::DeprecationWarning", "-c", code, path)
    assert process.wait(60) == 0, process.tail()
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
    store = SqliteStore(path)
    names = {definition.name for definition in store.definitions().answers}
    store.close()
    return process.output(), names


def test_what_a_child_was_told_stays(processes: ProcessOwner, tmp_path: Path) -> None:
    """A write of a child is there for all, also when its parent closed the store and others came and went."""
    output, names = run(processes, tmp_path / "store.db", PARENT_CLOSES)
    assert (output, names) == ("", {"parent", "child-1", "child-2"})


def test_a_fork_during_a_transaction_of_another_thread(processes: ProcessOwner, tmp_path: Path) -> None:
    """The fork waits for the transaction, so the child is not locked out of the file for ever."""
    output, names = run(processes, tmp_path / "store.db", TRANSACTION_ELSEWHERE)
    assert (output, names) == ("", {"parent", "child-1", "child-2", "afterwards"})


def test_children_hold_locks(processes: ProcessOwner, tmp_path: Path) -> None:
    """A transaction of a child keeps others out, with two stores on one file, and for children of children."""
    output, names = run(processes, tmp_path / "store.db", LOCKS, timeout_s=0.2)
    assert (output, names) == ("", {"parent", "second", "grandchild", "second again"})


def test_many_forks_of_a_busy_parent(processes: ProcessOwner, tmp_path: Path) -> None:
    """Threads fork while others write: every call of every child succeeds, and all they were told is there."""
    output, names = run(processes, tmp_path / "store.db", BUSY, timeout_s=20)
    assert output == ""
    assert len({name for name in names if name.startswith("child")}) == 72


def test_a_fork_inside_a_transaction(processes: ProcessOwner, tmp_path: Path) -> None:
    """It waits for nothing; the parent's transaction goes on, and the child can neither end it nor use the file."""
    output, names = run(processes, tmp_path / "store.db", OWN_TRANSACTION)
    assert (output, names) == ("", {"parent", "afterwards"})


def test_a_fork_does_not_wait_for_ever(processes: ProcessOwner, tmp_path: Path) -> None:
    """A transaction that does not end is told once; the child is refused the file, and loses nothing."""
    output, names = run(processes, tmp_path / "store.db", BOUND, timeout_s=0.2)
    assert output.count("LOG") == 1
    assert "sqlite_open_at_fork: " in output
    assert "store.db was in use for more than 1.2 s" in output
    assert names == {"parent", "child of a quiet moment"}


def test_nothing_begins_while_a_process_is_forked(processes: ProcessOwner, tmp_path: Path) -> None:
    """A call of another thread waits until the fork is over, in the parent only: the child is free to go."""
    output, names = run(processes, tmp_path / "store.db", WAITING)
    assert (output, names) == ("", {"parent", "child", "held back"})


@pytest.mark.skipif(sys.platform != "linux", reason="the C library is found another way")
def test_a_fork_that_python_does_not_know_of(processes: ProcessOwner, tmp_path: Path) -> None:
    """A child of a program that forks in C while the file is open is refused it, and so loses nothing."""
    output, names = run(processes, tmp_path / "store.db", UNTOLD)
    assert (output, names) == ("", {"parent", "afterwards"})
