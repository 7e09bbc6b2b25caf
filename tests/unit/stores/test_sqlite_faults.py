"""The SQLite store on disks that fail: full, read-only, replaced, held by somebody else; and forgotten unclosed."""

from __future__ import annotations

import gc
import os
import shutil
import signal
import sqlite3
import subprocess
import tempfile
import warnings
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.clock import SystemClock
from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores.base import Claim, ClaimKind, Definition, Policy
from anarchon_tasks.stores.sqlite import SqliteStore

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.servers import ProcessOwner

NOBODY = 65_534
FLOOR = 1_750_000_000_000
SMALL_DISK = 600_000


def jobs(count: int, *, size: int = 2) -> list[Definition]:
    """Return definitions, each with a document of this size."""
    return [Definition(name=f"job-{at}", fingerprint="1", document="x" * size, floor=FLOOR) for at in range(count)]


def claims(count: int, claim_id: str = "claim") -> list[Claim]:
    """Return a claim for the first slot of each job."""
    return [
        Claim(
            ref=RunRef(f"job-{at}", FLOOR + 1_000),
            claim_id=claim_id,
            instance="i" * 1_000,
            policy=Policy(keep_ms=FLOOR),
            due_ms=FLOOR + 1_000,
            latest_ms=FLOOR * 2,
            floor=FLOOR,
        )
        for at in range(count)
    ]


def won(store: SqliteStore, asks: list[Claim]) -> int:
    """Claim, and return how many were won."""
    return sum(answer.kind is ClaimKind.WON for answer in store.claim(asks).answers)


def is_sound(path: Path) -> bool:
    """Let SQLite check the whole file."""
    with closing(sqlite3.connect(path)) as db:
        return db.execute("PRAGMA integrity_check").fetchall() == [("ok",)]


@contextmanager
def without_rights() -> Iterator[None]:
    """Be a user that file permissions apply to, also where the tests run as root. No imports in here."""
    if os.geteuid() != 0:
        yield
        return
    os.seteuid(NOBODY)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.fixture
def place() -> Iterator[Path]:
    """A directory that every user of this machine may enter and write, whoever runs the tests."""
    made = Path(tempfile.mkdtemp())
    made.chmod(0o777)
    try:
        yield made
    finally:
        made.chmod(0o777)
        shutil.rmtree(made)


@pytest.fixture
def made(place: Path) -> Path:
    """A store with a job in it, closed, that every user may write."""
    store = SqliteStore(place / "store.db")
    with without_rights():
        store.register(jobs(1))
        store.close()
    return place / "store.db"


class TestPermissions:
    """Who may not write is told so, and what to do about it."""

    @pytest.mark.parametrize(("file", "directory"), [(0o444, 0o777), (0o666, 0o555), (0o444, 0o555), (0o000, 0o777)])
    def test_read_only(self, made: Path, file: int, directory: int) -> None:
        """A file or a directory that cannot be written is named, nothing changes, and the same call works later."""
        made.chmod(file)
        made.parent.chmod(directory)
        before = made.read_bytes() if os.geteuid() == 0 or file else b""
        store = SqliteStore(made)
        with without_rights():
            with pytest.raises(
                StoreUnavailable, match=r"store\.db cannot be (written|opened) .*: give this user .*perm"
            ):
                won(store, claims(1))
            store.close()
        if before:
            assert made.read_bytes() == before
        made.parent.chmod(0o777)
        for left in made.parent.iterdir():
            left.chmod(0o666)
        with without_rights():
            assert won(store, claims(1)) == 1
            store.close()

    @pytest.mark.parametrize("directory", [0o555, 0o000])
    def test_no_place_for_a_new_file(self, place: Path, directory: int) -> None:
        """A file that cannot be made is named, and made when it can be."""
        place.chmod(directory)
        store = SqliteStore(place / "store.db")
        refused = pytest.raises(StoreUnavailable, match=r"store\.db cannot be (opened|reached) .*: give this user")
        with without_rights(), refused:
            store.register(jobs(1))
        place.chmod(0o777)
        with without_rights():
            assert store.register(jobs(1)).answers[0].changed
            store.close()

    def test_directory_that_is_missing(self, tmp_path: Path) -> None:
        """A directory that is missing is named, and the same call works once it is there."""
        store = SqliteStore(tmp_path / "data" / "store.db")
        with pytest.raises(StoreUnavailable, match=r"the directory .*data does not exist: create it"):
            store.register(jobs(1))
        (tmp_path / "data").mkdir()
        assert store.register(jobs(1)).answers[0].changed
        store.close()

    def test_directory_that_goes_away(self, tmp_path: Path) -> None:
        """A directory that vanishes under a running store is named too."""
        (tmp_path / "data").mkdir()
        store = SqliteStore(tmp_path / "data" / "store.db")
        store.register(jobs(1))
        (tmp_path / "data").rename(tmp_path / "elsewhere")
        with pytest.raises(StoreUnavailable, match=r"the directory .*data does not exist"):
            won(store, claims(1))
        (tmp_path / "elsewhere").rename(tmp_path / "data")
        assert won(store, claims(1)) == 1
        store.close()


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own that is soon full. Only root can have one."""
    directory = tmp_path / "disk"
    directory.mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={SMALL_DISK}", "tmpfs", str(directory)]
    if os.geteuid() != 0 or shutil.which("mount") is None:
        pytest.skip("only root can mount a small disk; test_limit_on_the_size_of_files covers the same store")
    done = subprocess.run(mount, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"a small disk cannot be mounted here: {done.stderr}")
    try:
        yield directory
    finally:
        subprocess.run(["umount", str(directory)], check=True)


def fill(directory: Path) -> Path:
    """Use all the space that a disk has left."""
    filler = directory / "filler"
    with filler.open("wb", buffering=0) as file:
        for size in (4_096, 1):
            try:
                while file.write(b"x" * size):
                    pass
            except OSError:
                continue
    return filler


class TestFullDisk:
    """A disk without space: a clear error, nothing lost, nothing half-written, and then it goes on."""

    def test_full(self, small_disk: Path) -> None:
        """A call that finds no space says so, what was there stays, and the same call works when there is space."""
        store = SqliteStore(small_disk / "store.db")
        store.register(jobs(60))
        assert won(store, claims(20)) == 20
        filler = fill(small_disk)
        with pytest.raises(StoreUnavailable, match=r"no space is left for .*store\.db .*: free some on its disk"):
            store.claim(claims(60, "other"))
        assert len(store.definitions().answers) == 60
        assert store.last_runs(["job-0", "job-59"]).answers[1] is None, "a part of a batch was written"
        filler.unlink()
        assert won(store, claims(60)) == 60, "the first twenty by repetition, the others anew"
        store.close()
        assert is_sound(small_disk / "store.db")

    def test_full_at_the_first_use(self, small_disk: Path) -> None:
        """A store that finds no space to be made in leaves nothing that stands in its way later."""
        filler = fill(small_disk)
        store = SqliteStore(small_disk / "store.db")
        with pytest.raises(StoreUnavailable, match=r"no space is left for .*|store\.db cannot be (opened|read)"):
            store.register(jobs(1))
        filler.unlink()
        assert store.register(jobs(1)).answers[0].changed
        store.close()

    def test_limit_on_the_size_of_files(self, processes: ProcessOwner, tmp_path: Path) -> None:
        """A process that may not write larger files is told so, and works again with a higher limit."""
        full = processes.python("-c", LIMITED, tmp_path / "store.db")
        assert full.wait(60) == 0, full.tail()
        assert is_sound(tmp_path / "store.db")


LIMITED = f"""
import resource, sys
from tests.unit.stores import test_sqlite_faults as faults
from anarchon_tasks.errors import StoreUnavailable
store = faults.SqliteStore(sys.argv[1])
store.register(faults.jobs(60))
assert faults.won(store, faults.claims(20)) == 20
resource.setrlimit(resource.RLIMIT_FSIZE, ({SMALL_DISK}, resource.RLIM_INFINITY))
try:
    for at in range(200):
        store.register(faults.jobs(60, size=at))
except StoreUnavailable as error:
    assert "look at its disk" in str(error) or "no space is left" in str(error), error
else:
    raise AssertionError("the limit did nothing")
assert len(store.definitions().answers) == 60
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
assert faults.won(store, faults.claims(60)) == 60
store.close()
"""


class TestOtherProcesses:
    """What another process does to the file."""

    def test_lock_held_too_long(self, processes: ProcessOwner, made: Path) -> None:
        """A lock that another process holds is waited for as long as told; readers go on; its death frees the lock."""
        holder = processes.python("-c", HOLDER, made)
        holder.wait_for_output("held")
        store, clock = SqliteStore(made, busy_timeout_s=0.2), SystemClock()
        started = clock.monotonic()
        with pytest.raises(StoreUnavailable, match=r"was locked by another process for 0\.2 s"):
            won(store, claims(1))
        assert clock.monotonic() - started >= 0.2
        assert len(store.definitions().answers) == 1
        os.kill(holder.pid, signal.SIGKILL)
        holder.wait(10)
        assert won(store, claims(1)) == 1
        store.close()

    def test_lock_held_for_a_while(self, processes: ProcessOwner, made: Path) -> None:
        """A call that waits for another process goes on as soon as that has committed."""
        holder = processes.python("-c", HOLDER.replace("wait(60)", "wait(0.3); db.execute('COMMIT')"), made)
        holder.wait_for_output("held")
        store = SqliteStore(made, busy_timeout_s=30)
        assert won(store, claims(1)) == 1
        store.close()

    def test_killed_while_it_writes(self, processes: ProcessOwner, made: Path) -> None:
        """A batch that was half in the log when its process was killed has not happened, and keeps nobody waiting."""
        store = SqliteStore(made)
        store.register(jobs(100))
        killed = processes.python("-c", KILLED, made)
        assert killed.wait(60) == -signal.SIGKILL, killed.tail()
        assert made.with_name("store.db-wal").stat().st_size > 100_000, "nothing is half-written"
        assert store.last_runs([f"job-{at}" for at in range(100)]).answers == [None] * 100
        assert won(store, claims(100)) == 100
        store.close()
        assert is_sound(made)


HOLDER = """
import sqlite3, sys, threading
db = sqlite3.connect(sys.argv[1], isolation_level=None)
db.execute("BEGIN IMMEDIATE")
print("held", flush=True)
held = threading.Event()
held.wait(60)
"""

KILLED = """
import os, sys
from tests.unit.stores import test_sqlite_faults as faults
store = faults.SqliteStore(sys.argv[1])
with store._file.read() as db:
    db.execute("PRAGMA cache_size = 1")  # what does not fit goes to the log before the commit
write = store._file.states.write

def die_afterwards(db, changes):
    write(db, changes)
    os.kill(os.getpid(), 9)

store._file.states.write = die_afterwards
faults.won(store, faults.claims(100))
"""


def remove(path: Path, *endings: str) -> None:
    """Delete a store's file, or those beside it."""
    for ending in endings:
        path.with_name(path.name + ending).unlink(missing_ok=True)


class TestAnotherFile:
    """The file is deleted, or another one takes its place, while stores use it."""

    @pytest.mark.parametrize("endings", [("",), ("", "-wal", "-shm")])
    def test_deleted(self, made: Path, endings: tuple[str, ...]) -> None:
        """A file that is deleted is made anew, and all stores move to the new one and share it."""
        stores = [SqliteStore(made) for _ in range(2)]
        for store in stores:
            assert len(store.definitions().answers) == 1
        won(stores[0], claims(1))
        remove(made, *endings)
        for store in stores:
            store.register(jobs(1))
        assert won(stores[0], claims(1)) == 1
        assert stores[1].claim(claims(1, "other")).answers[0].kind is ClaimKind.RUNNING
        for store in stores:
            store.close()
        assert is_sound(made)

    def test_replaced(self, made: Path, tmp_path: Path) -> None:
        """A copy that takes the file's place, as from a backup, is what the stores see from then on."""
        shutil.copy(made, tmp_path / "backup.db")
        store = SqliteStore(made)
        store.register(jobs(5))
        assert won(store, claims(5)) == 5
        remove(made, "-wal", "-shm")
        (tmp_path / "backup.db").replace(made)
        assert len(store.definitions().answers) == 1
        assert won(store, claims(1, "again")) == 1
        store.close()
        assert is_sound(made)


class TestForgotten:
    """A store that nobody closed."""

    def test_closes_its_connections(self, made: Path) -> None:
        """A store that is no longer used gives its connections back, without a warning."""
        with warnings.catch_warnings(record=True) as told:
            warnings.simplefilter("always")
            store = SqliteStore(made)
            store.time()
            beside = made.with_name("store.db-wal")
            assert beside.exists()
            del store
            gc.collect()
        assert told == []
        assert not beside.exists(), "the connection is still open"

    def test_end_of_the_program(self, processes: ProcessOwner, made: Path) -> None:
        """A program that ends without closing closes by itself, and says nothing."""
        program = processes.python("-X", "dev", "-W", "error", "-c", FORGETFUL, made)
        assert program.wait(60) == 0, program.tail()
        assert program.output() == ""
        assert not made.with_name("store.db-wal").exists()

    @pytest.mark.parametrize("child", ["pass", "del store", "store.close()", "store.time()"])
    def test_fork(self, processes: ProcessOwner, made: Path, child: str) -> None:
        """A forked child takes nothing from its parent, whatever it does and however it ends, and says nothing."""
        program = processes.python("-X", "dev", "-W", "error", "-c", FORKED.replace("CHILD", child), made)
        assert program.wait(60) == 0, program.tail()
        assert program.output() == ""


FORGETFUL = """
import sys
from anarchon_tasks.stores.sqlite import SqliteStore
store = SqliteStore(sys.argv[1])
store.time()
"""

FORKED = """
import os, sys
from anarchon_tasks.stores.sqlite import SqliteStore
from tests.unit.stores import test_sqlite_faults as faults
store = SqliteStore(sys.argv[1])
assert faults.won(store, faults.claims(1)) == 1
ready, go = os.pipe()
child = os.fork()
if child == 0:
    os.read(ready, 1)
    CHILD
    sys.exit(0)
assert faults.won(store, faults.claims(1)) == 1
os.write(go, b"x")
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert os.path.exists(sys.argv[1] + "-wal"), "the child removed the log of its parent"
assert faults.won(store, faults.claims(1)) == 1
"""
