"""The SQLite store's own promises: its file, its errors, its indexes."""

from __future__ import annotations

import sqlite3
import threading
from contextlib import closing
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.errors import ConfigError, StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores import _sql, _sqlite_rows
from anarchon_tasks.stores.base import Begin, BeginKind, ClaimKind, Definition, Delivered, Overlap, Policy
from anarchon_tasks.stores.sqlite import SqliteStore
from anarchon_tasks.testing import Lab, ManualClock
from tests.contract.test_sqlite import SqliteAdapter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from anarchon_tasks.stores.rules import RunState


@pytest.fixture
def adapter(tmp_path: Path) -> Iterator[SqliteAdapter]:
    """An empty file."""
    made = SqliteAdapter(tmp_path / "store.db")
    yield made
    for store in made.opened:
        store.close()


@pytest.fixture
def path(adapter: SqliteAdapter) -> Path:
    """A file with a store and a job in it, closed."""
    lab = Lab(adapter)
    lab.job()
    lab.store.close()
    return adapter.path


def rows(path: Path, sql: str) -> list[tuple[object, ...]]:
    """Run a statement on the file."""
    with closing(sqlite3.connect(path)) as db:
        found = db.execute(sql).fetchall()
        db.commit()
    return found


def _begin(ref: RunRef, *, pid: int = 1) -> Begin:
    delivered = Delivered(message_id="m", retries=0, worker="w", pid=pid)
    return Begin(ref=ref, delivery_id=f"d-{pid}", delivered=delivered, attempt=1, token=1, lease_ms=5_000)


class TestFile:
    """What is in the file."""

    def test_written_through(self, adapter: SqliteAdapter) -> None:
        """Every commit is on the disk before the answer: a power loss takes no claim back."""
        store = adapter.store()
        with store._file.read() as db:
            assert db.execute("PRAGMA journal_mode").fetchone() == ("wal",)
            assert db.execute("PRAGMA synchronous").fetchone() == (2,)

    def test_newer_format_is_left_untouched(self, path: Path) -> None:
        """A store of a newer format is refused by every call, and not a byte of its file changes."""
        rows(path, "PRAGMA journal_mode = DELETE")
        rows(path, "UPDATE anarchon_runs_format SET format = 99")
        before = path.read_bytes()
        store = SqliteStore(path)
        job = Definition(name="job", fingerprint="1", document="{}")
        for call in (
            store.time,
            lambda: store.register([job]),
            lambda: store.forget(["job"]),
            lambda: store.expired(limit=1),
            lambda: store.history("job", limit=1),
        ):
            with pytest.raises(StoreFormatError, match="99"):
                call()
        store.close()
        assert path.read_bytes() == before
        assert [file.name for file in path.parent.iterdir()] == [path.name]

    def test_format_that_changes_meanwhile(self, path: Path) -> None:
        """A store that another process brought to a newer format is refused from then on."""
        store = SqliteStore(path)
        store.time()
        rows(path, "UPDATE anarchon_runs_format SET format = 99")
        with pytest.raises(StoreFormatError):
            store.time()
        store.close()

    @pytest.mark.parametrize("table", ["a b", 'q"uote', "semi;colon", "{state}", "ταμπλό", "main.x", "select", "a'b"])
    def test_any_name_of_a_table(self, adapter: SqliteAdapter, table: str) -> None:
        """Any text is a name."""
        store = adapter._open(table)
        store.register([Definition(name="job", fingerprint="1", document="{}")])
        begun = store.begin([_begin(RunRef("job", 1)), _begin(RunRef("job", 1), pid=2)]).answers
        assert [answer.kind for answer in begun] == [BeginKind.OK, BeginKind.BUSY]
        assert [d.name for d in store.definitions().answers] == ["job"]
        assert (table,) in rows(adapter.path, "SELECT name FROM sqlite_master")

    @pytest.mark.parametrize(("first", "second"), [("x", "x_state"), ("x_state", "x"), ("Runs", "runs")])
    def test_names_that_would_meet(self, adapter: SqliteAdapter, first: str, second: str) -> None:
        """A table whose names would meet those of another store in the file is refused, and harms nothing."""
        adapter._open(first).register([Definition(name="job", fingerprint="1", document="{}")])
        with pytest.raises(StoreError, match="choose another table name"):
            adapter._open(second).time()
        assert [d.name for d in adapter._open(first).definitions().answers] == ["job"]

    def test_table_of_somebody_else(self, tmp_path: Path) -> None:
        """A table that is not ours is refused and left alone."""
        rows(tmp_path / "app.db", "CREATE TABLE anarchon_runs (x)")
        with pytest.raises(StoreError, match="anarchon_runs, which are not tables of an anarchon-tasks store"):
            SqliteStore(tmp_path / "app.db").time()

    def test_file_that_is_replaced(self, adapter: SqliteAdapter) -> None:
        """A file that is deleted or replaced is opened anew, so that all processes keep using the same one."""
        lab = Lab(adapter)
        lab.job()
        for file in adapter.path.parent.iterdir():
            file.unlink()
        assert lab.store.definitions().answers == []
        other = adapter.store()
        lab.job()
        assert len(other.definitions().answers) == 1


class TestErrors:
    """What is said when it does not work."""

    @pytest.mark.parametrize(
        ("place", "error", "message"),
        [
            ("nothing/store.db", StoreUnavailable, "the directory .*nothing does not exist: create it"),
            (".", StoreUnavailable, "is a directory: give the path of a file in it"),
            ("text.db", StoreError, "is not an SQLite database"),
        ],
    )
    def test_wrong_place(self, tmp_path: Path, place: str, error: type[StoreError], message: str) -> None:
        """A place that cannot hold a store is named, with what to do."""
        (tmp_path / "text.db").write_text("no database\n" * 100)
        with pytest.raises(error, match=message):
            SqliteStore(tmp_path / place).time()

    def test_locked(self, path: Path) -> None:
        """A lock that another process holds is waited for no longer than told, and the store works again after it."""
        store = SqliteStore(path, busy_timeout_s=0.05)
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            with pytest.raises(StoreUnavailable, match=r"locked by another process for 0.05 s"):
                store.forget(["job"])
            assert [d.name for d in store.definitions().answers] == ["job"], "readers wait for nobody"
            other.execute("ROLLBACK")
        assert store.forget(["job"]).answers == [True]
        store.close()

    def test_full(self, path: Path) -> None:
        """A full disk is said to be full, the batch leaves nothing behind, and the store works again with space."""
        store = SqliteStore(path)
        with store._file.read() as db:
            pages = db.execute("PRAGMA page_count").fetchone()[0]
        store._file._own_pool()._idle[0].db.execute(f"PRAGMA max_page_count = {pages + 1}")
        big = [Definition(name=f"job-{at}", fingerprint="1", document="x" * 5_000) for at in range(50)]
        with pytest.raises(StoreUnavailable, match=r"no space is left .*: free some"):
            store.register(big)
        assert [d.name for d in store.definitions().answers] == ["job"]
        store._file._own_pool()._idle[0].db.execute("PRAGMA max_page_count = 1000000")
        assert store.register(big).answers[0].changed
        store.close()

    @pytest.mark.parametrize(
        ("code", "kind", "hint"),
        [
            (sqlite3.SQLITE_READONLY, StoreUnavailable, "permission"),
            (sqlite3.SQLITE_CANTOPEN, StoreUnavailable, "permission"),
            (sqlite3.SQLITE_IOERR | 10 << 8, StoreUnavailable, "look at its disk"),
            (sqlite3.SQLITE_CORRUPT, StoreError, "restore it"),
            (sqlite3.SQLITE_ERROR, StoreError, "said"),
        ],
    )
    def test_codes(self, tmp_path: Path, code: int, kind: type[StoreError], hint: str) -> None:
        """Every error names the file and what to do, extended codes like plain ones."""
        error = sqlite3.OperationalError("what it said")
        error.sqlite_errorcode = code
        meant = SqliteStore(tmp_path / "x.db")._file._meaning(error)
        assert type(meant) is kind
        assert "x.db" in str(meant)
        assert hint in str(meant)

    def test_table_name_is_checked(self, tmp_path: Path) -> None:
        """A name that SQLite keeps for itself is refused at once."""
        with pytest.raises(ConfigError):
            SqliteStore(tmp_path / "x.db", table="SQLITE_x")


class TestItems:
    """What becomes of an item that cannot be stored."""

    def test_others_are_not_spoiled(self, adapter: SqliteAdapter) -> None:
        """An item that fails answers with its error, and the others of its batch as if it were not there."""
        lab = Lab(adapter)
        names = ("a", "no \ud800 unicode", "b")
        registered = lab.store.register(
            [Definition(name=n, fingerprint="1", document="{}", floor=lab.base - 5_000) for n in names]
        )
        assert [bool(a.error) for a in registered.answers] == [False, True, False]
        asks = [lab.ask(lab.ref(1_000, name), floor=lab.base - 5_000) for name in names]
        answers = lab.claim_all(asks)
        assert [a.kind for a in answers] == [ClaimKind.WON, ClaimKind.ERROR, ClaimKind.WON]
        assert "UnicodeEncodeError" in str(answers[1].error)
        assert lab.finish(RunRef("\ud800", 1), 1) is False
        assert lab.store.forget(["\ud800", "a"]).answers == [False, True]
        assert lab.store.last_runs(["\ud800"]).answers == [None]
        begins = [_begin(RunRef("a", slot)) for slot in (1, 2**63)]
        assert [a.kind for a in lab.store.begin(begins).answers] == [BeginKind.OK, BeginKind.ERROR]


class TestSpeed:
    """What keeps a big store fast."""

    def test_no_statement_scans_a_table(self, adapter: SqliteAdapter) -> None:
        """Every statement of the daily work finds its rows by an index, except those that list everything."""
        store = adapter.store()
        whole = {"present", "definitions", "queues", "format"}
        with store._file.read() as db:
            for name, text in store._file.sql.items():
                plan = [row[3] for row in db.execute("EXPLAIN QUERY PLAN " + text, ("",) * text.count("?"))]
                scans = [step for step in plan if step.startswith("SCAN") and "CONSTANT ROW" not in step]
                sorts = [step for step in plan if "TEMP B-TREE FOR ORDER BY" in step]
                assert name in whole or not scans, (name, plan)
                assert name in whole | {"expired"} or not sorts, (name, plan)

    def test_history_is_trimmed_in_bounded_steps(self, adapter: SqliteAdapter) -> None:
        """A history that is to be much shorter shrinks a step at a time, and is right in the end."""
        lab = Lab(adapter)
        lab.job()
        for ago in range(300, 0, -1):
            begun = lab.begin(lab.ref(ago), 1)
            lab.finish(lab.ref(ago), begun.token)
        assert len(lab.history()) == 300
        left = []
        for ahead in range(4):
            ref = RunRef("job", lab.base + ahead)
            lab.finish(ref, lab.begin(ref, 1).token, history_size=10)
            left.append(len(lab.history()))
        assert left == [201, 102, 10, 10]
        assert rows(adapter.path, "SELECT entries FROM anarchon_runs_jobs") == [(10,)]

    def test_connections_are_shared_in_turn(self, adapter: SqliteAdapter) -> None:
        """One thread after the other uses the same connection; at the same time each has its own."""
        store = adapter.store()
        for _ in range(3):
            thread = threading.Thread(target=store.time)
            thread.start()
            thread.join()
        assert len(store._file._own_pool()._idle) == 1
        with store._file.read():
            store.time()
        assert len(store._file._own_pool()._idle) == 2

    def test_close_in_use(self, adapter: SqliteAdapter) -> None:
        """A connection that is in use when the store closes is closed after its use."""
        store = adapter.store()
        with store._file.read() as db:
            store.close()
            db.execute("SELECT 1")
        with pytest.raises(sqlite3.ProgrammingError):
            db.execute("SELECT 1")
        store.time()


def test_open_run_stands_in_place_of_its_entry(adapter: SqliteAdapter) -> None:
    """A run that was given up and began after all is shown once."""
    lab = Lab(adapter)
    lab.job()
    ref = lab.ref(1_000)
    begun = lab.running(ref)
    lab.finish(ref, begun.token)
    assert [r.status for r in lab.history()] == [Status.SUCCEEDED]


def test_a_claim_beside_many_waiting_runs_does_not_read_them_all(
    adapter: SqliteAdapter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job whose runs may overlap can have thousands in its queue: only claims of it are looked at."""
    lab, policy = Lab(adapter), Policy(overlap=Overlap.ALLOW)
    lab.job()
    for ago_ms in range(9_000, 8_900, -1):
        lab.waiting(lab.ref(ago_ms), policy=policy)
    decoded, real = 0, _sqlite_rows.row_state

    def counted(row: _sqlite_rows.Row) -> RunState:
        nonlocal decoded
        decoded += 1
        return real(row)

    monkeypatch.setattr(_sqlite_rows, "row_state", counted)
    lab.won(lab.ref(1_000), policy=policy)
    assert decoded < 10


def test_statements_have_names() -> None:
    """Every statement of the files has a name, and none is empty."""
    for file in ("sqlite/schema.sql", "sqlite/statements.sql"):
        statements = _sql.load(file)
        assert all(statements.values())
        assert all(";" not in text for text in statements.values())


def test_clock_is_read_after_the_lock(tmp_path: Path) -> None:
    """The time of a decision is read when the lock is held, not before the wait for it."""
    clock = ManualClock()
    store = SqliteStore(tmp_path / "store.db", clock=clock)
    store.time()
    before = clock.wall_ms()
    with closing(sqlite3.connect(tmp_path / "store.db", isolation_level=None, check_same_thread=False)) as other:
        other.execute("BEGIN IMMEDIATE")
        thread = threading.Timer(0.1, lambda: (clock.advance(7), other.execute("ROLLBACK")))
        thread.start()
        reply = store.register([Definition(name="job", fingerprint="1", document="{}")])
        thread.join()
    assert reply.now_ms == before + 7_000
    assert reply.answers[0].floor == before + 7_000
    store.close()
