"""The SQLite store: one file, the processes of one host, and the host's clock.

Each batch is one transaction per hundred items: it takes the write lock, then reads the clock, then executes the rules
on the accounts that the items name, then commits. What a rule does not touch is not written.
"""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from anarchon_tasks.clock import Clock, SystemClock
from anarchon_tasks.model import Run, RunRef
from anarchon_tasks.stores import _sqlite_rows as rows
from anarchon_tasks.stores import rules
from anarchon_tasks.stores._backends import DEFAULT_TABLE, check_table
from anarchon_tasks.stores._sqlite_account import Account, Step
from anarchon_tasks.stores._sqlite_file import SqliteFile, log
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginAnswer,
    BeginKind,
    Capabilities,
    Claim,
    ClaimAnswer,
    ClaimKind,
    Definition,
    Finish,
    Park,
    Queued,
    QueueNote,
    Registered,
    Release,
    Reply,
)
from anarchon_tasks.stores.memory import history_order

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

Q = TypeVar("Q")
A = TypeVar("A")

CHUNK = 100
"""How many items one transaction takes at most: it bounds how long the others wait for the lock."""


class _ItemFailed(Exception):
    """An item cannot be stored, which its cause tells."""


class SqliteStore:
    """A store in an SQLite file.

    Args:
        path: The file. A relative path is taken from the directory that is current now.
        table: The name of the main table and the head of the names of the others.
        busy_timeout_s: How long a call waits for other processes before it raises `StoreUnavailable`.
        create: Make the file and its tables when they are missing.
        clock: What tells the time, for tests; the host's clock by default.

    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        table: str = DEFAULT_TABLE,
        busy_timeout_s: float = 5.0,
        create: bool = True,
        clock: Clock | None = None,
    ) -> None:
        check_table(table)
        self.namespace = table
        self.capabilities = Capabilities(server_clock=False, many_hosts=False)
        self._clock = clock or SystemClock()
        absolute = Path(os.path.abspath(path))  # noqa: PTH100
        self._file = SqliteFile(absolute, table=table, busy_timeout_s=busy_timeout_s, create=create)
        self.location = f"sqlite:///{self._file.path}"

    # --- the account -------------------------------------------------------------------------------------------------

    def register(self, definitions: Sequence[Definition]) -> Reply[Registered]:
        """Make jobs known."""

        def one(account: Account, definition: Definition, now: int) -> Registered:
            answer = rules.register(account, definition, now)
            row = (definition.name, definition.fingerprint, definition.document)
            account.execute("put_definition", row)
            return answer

        return self._each(definitions, lambda d: d.name, one, lambda error: Registered(error=error))

    def claim(self, claims: Sequence[Claim]) -> Reply[ClaimAnswer]:
        """Take runs."""
        failed = lambda error: ClaimAnswer(kind=ClaimKind.ERROR, error=error)  # noqa: E731
        return self._each(claims, lambda c: c.ref.job, rules.claim, failed)

    def queued(self, records: Sequence[Queued]) -> Reply[bool]:
        """Record confirmed publishes."""
        return self._each(records, lambda r: r.ref.job, rules.queued, _refused)

    def release(self, records: Sequence[Release]) -> Reply[bool]:
        """Hand claims back."""
        return self._each(records, lambda r: r.ref.job, rules.release, _refused)

    def beat(self, beats: Sequence[Beat]) -> Reply[bool]:
        """Push lease ends forward."""
        return self._each(beats, lambda b: b.ref.job, rules.beat, _refused)

    def begin(self, begins: Sequence[Begin]) -> Reply[BeginAnswer]:
        """Admit one execution per attempt and retry."""
        failed = lambda error: BeginAnswer(kind=BeginKind.ERROR, error=error)  # noqa: E731
        return self._each(begins, lambda b: b.ref.job, rules.begin, failed)

    def park(self, parks: Sequence[Park]) -> Reply[bool]:
        """Put running runs back into their queue."""
        return self._each(parks, lambda p: p.ref.job, rules.park, _refused)

    def finish(self, ends: Sequence[Finish]) -> Reply[bool]:
        """End runs or attempts."""
        return self._each(ends, lambda e: e.ref.job, rules.finish, _refused)

    def _each(
        self,
        items: Sequence[Q],
        job: Callable[[Q], str],
        do: Callable[[Account, Q, int], A],
        failed: Callable[[str], A],
    ) -> Reply[A]:
        now, answers = self._clock.wall_ms(), []
        for at in range(0, len(items), CHUNK):
            chunk = items[at : at + CHUNK]
            names = [job(item) for item in chunk]
            try:
                with self._file.write() as db:
                    now = self._clock.wall_ms()
                    answers += self._decide(db, names, chunk, do, now)
            except _ItemFailed:  # everything is as it was: find out which item it is
                with self._file.write() as db:
                    now = self._clock.wall_ms()
                    answers += [self._alone(db, *one, do, failed, now) for one in zip(names, chunk, strict=True)]
        return Reply(now_ms=now, answers=answers)

    def _decide(
        self,
        db: sqlite3.Connection,
        names: Sequence[str],
        items: Sequence[Q],
        do: Callable[[Account, Q, int], A],
        now: int,
    ) -> list[A]:
        """Decide some items and write what changed, or raise `_ItemFailed`."""
        try:
            step = Step(self._file, db, names)
            accounts = step.accounts
            answers = [do(accounts[name], item, now) for name, item in zip(names, items, strict=True)]
            step.flush()
        except Exception as error:
            if _concerns_the_store(error):
                raise
            raise _ItemFailed from error
        return answers

    def _alone(
        self,
        db: sqlite3.Connection,
        name: str,
        item: Q,
        do: Callable[[Account, Q, int], A],
        failed: Callable[[str], A],
        now: int,
    ) -> A:
        """Decide one item of a batch with one that fails; what fails leaves everything as it was."""
        db.execute("SAVEPOINT alone")
        try:
            answer = self._decide(db, [name], [item], do, now)[0]
        except _ItemFailed as error:
            log.warning("store_item_failed", extra={"store": self.location, "item": repr(item)}, exc_info=True)
            db.execute("ROLLBACK TO alone")
            answer = failed(f"{type(error.__cause__).__name__}: {error.__cause__}")
        db.execute("RELEASE alone")
        return answer

    # --- readers -----------------------------------------------------------------------------------------------------

    def time(self) -> Reply[None]:
        """Return the host's time, once the file has answered and its format can be read."""
        with self._file.read():
            return Reply(now_ms=self._clock.wall_ms(), answers=[])

    def forget(self, names: Sequence[str]) -> Reply[bool]:
        """Remove definitions from the list that readers see."""

        def one(account: Account, name: str, now: int) -> bool:
            del now
            return account.execute("drop_definition", (name,)) > 0

        return self._each(names, lambda name: name, one, _refused)

    def expired(self, *, limit: int) -> Reply[RunRef]:
        """Return runs whose lease is over, longest over first."""
        with self._file.read() as db:
            now = self._clock.wall_ms()
            found = db.execute(self._file.sql["expired"], (now, limit)).fetchall()
        return Reply(now_ms=now, answers=[RunRef(*row) for row in found])

    def repair(self, jobs: Sequence[str]) -> Reply[bool]:
        """Do nothing: the index is written in the transaction that changes the run."""
        return Reply(now_ms=self.time().now_ms, answers=[True for _ in jobs])

    def announce(self, worker: str, queues: Mapping[str, int]) -> Reply[None]:
        """Say that a worker with the integration consumes these queues."""
        del worker
        with self._file.write() as db:
            now = self._clock.wall_ms()
            db.executemany(self._file.sql["announce"], [(queue, now, begun) for queue, begun in queues.items()])
        return Reply(now_ms=now, answers=[])

    def queues(self) -> Reply[tuple[str, QueueNote]]:
        """Return what workers said of their queues, at most a day old."""
        with self._file.read() as db:
            now = self._clock.wall_ms()
            found = db.execute(self._file.sql["queues"], (now - rules.DAY_MS,)).fetchall()
        notes = [(queue, QueueNote(announced_ms=announced, begun_ms=begun)) for queue, announced, begun in found]
        return Reply(now_ms=now, answers=notes)

    def definitions(self) -> Reply[Definition]:
        """Return the stored definitions, by name."""
        with self._file.read() as db:
            now = self._clock.wall_ms()
            found = db.execute(self._file.sql["definitions"]).fetchall()
        answers = [Definition(name=name, fingerprint=mark, document=document) for name, mark, document in found]
        return Reply(now_ms=now, answers=answers)

    def history(self, job: str, *, limit: int) -> Reply[Run]:
        """Return the newest attempts and stretches of a job, newest first."""
        with self._file.read() as db:
            return Reply(now_ms=self._clock.wall_ms(), answers=self._newest(db, job, limit))

    def last_runs(self, jobs: Sequence[str]) -> Reply[Run | None]:
        """Return the newest entry of each job."""
        with self._file.read() as db:
            answers = [next(iter(self._newest(db, job, 1)), None) for job in jobs]
            return Reply(now_ms=self._clock.wall_ms(), answers=answers)

    def _newest(self, db: sqlite3.Connection, job: str, limit: int) -> list[Run]:
        """Read entries of the history; an open run's present attempt stands in place of what is recorded of it."""
        if not _is_unicode(job):
            return []
        kept = [rows.row_entry(row) for row in db.execute(self._file.sql["history"], (job, limit))]
        alive = [rows.row_state(row).entry() for row in db.execute(self._file.sql["open"], (job,))]
        entries = {history_order(entry): entry for entry in (*kept, *alive)}
        return [entries[order] for order in sorted(entries, reverse=True)[:limit]]

    def stored_format(self) -> int:
        """Return the format that the file says it has."""
        with self._file.read() as db:
            return int(db.execute(self._file.sql["format"]).fetchone()[0])

    def close(self) -> None:
        """Close the connections. A later call opens the file again."""
        self._file.close()


def _refused(error: str) -> bool:
    del error
    return False


def _concerns_the_store(error: Exception) -> bool:
    """Tell a store that fails from an item that cannot be stored, as a text that is no Unicode."""
    return isinstance(error, sqlite3.OperationalError) or type(error) is sqlite3.DatabaseError


def _is_unicode(text: str) -> bool:
    """Tell whether a text can be stored; one that cannot has nothing on record."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True
