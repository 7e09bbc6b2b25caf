"""Conformance: a store that a newer version has written."""
# ruff: noqa: S101 - tests: assertions are what they are for

from __future__ import annotations

import unittest
from typing import TYPE_CHECKING, Any, Protocol, runtime_checkable

from anarchon_tasks.errors import StoreFormatError
from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import (
    FORMAT,
    Beat,
    Begin,
    Definition,
    Delivered,
    Finish,
    LeaseStore,
    Park,
    Policy,
    Queued,
    Release,
)
from anarchon_tasks.testing._lab import Lab

if TYPE_CHECKING:
    from collections.abc import Callable

    from anarchon_tasks.testing._lab import StoreAdapter

NEWER = FORMAT + 98


@runtime_checkable
class FormatAdapter(Protocol):
    """What an adapter has in addition when its store outlives the program."""

    def write_format(self, number: int) -> None:
        """Let the store of this test's namespace, which is there, be of this format, as if a newer version had come.

        Change nothing else, and return when open clients notice it by their next call.
        """
        ...


class FormatTests:
    """What an older version does with a newer store: nothing."""

    def test_newer_format_is_refused_untouched(self, adapter: StoreAdapter) -> None:
        """Every call is refused by name, by a client that was open as by a new one, and nothing changes."""
        if not isinstance(adapter, FormatAdapter):
            raise unittest.SkipTest("this store does not outlive the program, so it has no format")
        lab = Lab(adapter)
        lab.job()
        lab.store.announce("worker", {"mail": 5})
        calls = _calls(lab)
        before = _seen(lab.store)
        adapter.write_format(NEWER)
        try:
            fresh = adapter.store()
            for store in (lab.store, fresh):
                for name, call in calls.items():
                    refusal = _refusal(call, store)
                    assert refusal is not None, f"{name} was not refused"
                    assert str(NEWER) in str(refusal), name
                    assert str(FORMAT) in str(refusal), name
        finally:
            adapter.write_format(FORMAT)
        assert _seen(lab.store) == before
        assert calls["queued"](lab.store).answers == [True]
        assert calls["beat"](fresh).answers == [True]


def _refusal(call: Callable[[LeaseStore], Any], store: LeaseStore) -> StoreFormatError | None:
    try:
        call(store)
    except StoreFormatError as error:
        return error
    return None


def _seen(store: LeaseStore) -> list[Any]:
    """Return what readers see."""
    readers = (store.definitions(), store.queues(), store.expired(limit=9), store.history("job", limit=9))
    return [reply.answers for reply in readers]


def _calls(lab: Lab) -> dict[str, Callable[[LeaseStore], Any]]:
    """Prepare every call of the interface, each of which would change or tell something."""
    names = ("claimed", "running", "ended")
    for name in names:
        lab.job(name)
    claimed, running, ended = (lab.ref(1_000, name) for name in names)
    token = lab.won(claimed).token
    begun = lab.running(running).token
    last = lab.running(ended).token
    delivered = Delivered(message_id="m", retries=0, worker="w", pid=1)
    begin = Begin(ref=claimed, delivery_id="d", delivered=delivered, attempt=1, token=token, lease_ms=1_000)
    ask, new = lab.ask(lab.ref(500)), Definition(name="new", fingerprint="1", document="{}")
    return {
        "time": lambda s: s.time(),
        "register": lambda s: s.register([new]),
        "forget": lambda s: s.forget(["job"]),
        "claim": lambda s: s.claim([ask]),
        "release": lambda s: s.release([Release(ref=claimed, token=token)]),
        "begin": lambda s: s.begin([begin]),
        "park": lambda s: s.park([Park(ref=ended, token=last, eta_ms=0, start_timeout_ms=1)]),
        "finish": lambda s: s.finish([Finish(ref=ended, status=Status.SUCCEEDED, token=last)]),
        "queued": lambda s: s.queued([Queued(ref=claimed, token=token, policy=Policy(), task_id="t")]),
        "beat": lambda s: s.beat([Beat(ref=running, token=begun, lease_ms=60_000)]),
        "expired": lambda s: s.expired(limit=1),
        "repair": lambda s: s.repair(["job"]),
        "announce": lambda s: s.announce("worker", {"mail": 7}),
        "queues": lambda s: s.queues(),
        "definitions": lambda s: s.definitions(),
        "history": lambda s: s.history("job", limit=1),
        "last_runs": lambda s: s.last_runs(["job"]),
    }
