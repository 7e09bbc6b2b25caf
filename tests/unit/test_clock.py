"""Clocks: the host's, the store's as seen from here, and the one for tests."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks.clock import StoreClock, SystemClock
from anarchon_tasks.testing import ManualClock
from tests.servers import poll_until

if TYPE_CHECKING:
    from anarchon_tasks.clock import Clock

YEAR_2020_MS = 1_577_836_800_000


class TestSystemClock:
    """The clocks of the operating system."""

    def test_times(self) -> None:
        """The wall clock is of this age, and the monotonic one does not go back."""
        clock = SystemClock()
        assert clock.wall_ms() > YEAR_2020_MS
        assert clock.monotonic() <= clock.monotonic()

    def test_wait(self) -> None:
        """Waiting tells whether the event was set, also with no time left."""
        clock, event = SystemClock(), threading.Event()
        assert clock.wait(event, 0.001) is False
        assert clock.wait(event, -5) is False
        event.set()
        assert clock.wait(event, 60) is True


class TestStoreClock:
    """The store's clock as this process sees it."""

    def test_host_until_the_store_answered(self) -> None:
        """Before the store has told its time, the host's clock is all there is."""
        store = StoreClock(ManualClock(5_000))
        assert store.now_ms() == 5_000

    def test_store_decides(self) -> None:
        """Once the store has told its time, a host whose clock is wrong follows it."""
        clock = ManualClock(5_000)
        store = StoreClock(clock)
        assert store.observe(1_000_000, sent=clock.monotonic(), received=clock.monotonic()) == 0
        assert store.now_ms() == 1_000_000
        clock.advance(3)
        assert store.now_ms() == 1_003_000

    def test_jump_of_the_host_changes_nothing(self) -> None:
        """A jump of the host's wall clock does not move the store's."""
        clock = ManualClock(5_000)
        store = StoreClock(clock)
        store.observe(5_000, sent=0.0, received=0.0)
        clock.set_wall(99_999_999)
        assert store.now_ms() == 5_000

    def test_round_trip_is_halved(self) -> None:
        """A reply was stamped half-way between sending and receiving, as far as anybody knows."""
        clock = ManualClock()
        clock.advance(10)
        store = StoreClock(clock)
        store.observe(1_000, sent=9.0, received=10.0)
        assert store.now_ms() == 1_500

    def test_slow_reply_does_not_spoil_a_good_one(self) -> None:
        """A reply that took long is less exact than an earlier quick one, and is not believed in its stead."""
        clock = ManualClock()
        store = StoreClock(clock)
        store.observe(1_000, sent=0.0, received=0.0)
        clock.advance(4)
        assert store.observe(4_900, sent=0.0, received=4.0) == 0
        assert store.now_ms() == 5_000

    @pytest.mark.parametrize("by_ms", [60_000, -60_000])
    def test_jump_of_the_store(self, by_ms: int) -> None:
        """A step of the store's own clock is told and followed."""
        clock = ManualClock()
        store = StoreClock(clock)
        store.observe(100_000, sent=0.0, received=0.0)
        clock.advance(1)
        assert store.observe(101_000 + by_ms, sent=1.0, received=1.0) == by_ms
        assert store.now_ms() == 101_000 + by_ms

    def test_drift_is_no_jump(self) -> None:
        """Clocks that drift by a little are followed without a word."""
        clock = ManualClock()
        store = StoreClock(clock)
        store.observe(0, sent=0.0, received=0.002)
        for minute in range(1, 10):
            clock.advance(60)
            at = minute * 60.0
            assert store.observe(minute * 60_003, sent=at, received=at + 0.002) == 0
        assert abs(store.now_ms() - 9 * 60_003) <= 10


class TestManualClock:
    """The clock for tests."""

    def test_is_a_clock(self) -> None:
        """It stands in for the host's clock."""
        clock: Clock = ManualClock(1_000)
        assert (clock.wall_ms(), clock.monotonic()) == (1_000, 0.0)

    def test_advance(self) -> None:
        """Both of its clocks advance together, by any kind of duration."""
        clock = ManualClock(1_000)
        assert clock.advance("1m") == 61_000
        assert clock.advance(0.5) == 61_500
        assert clock.monotonic() == 60.5

    def test_set_wall(self) -> None:
        """The wall clock can jump both ways; the monotonic one does not see it."""
        clock = ManualClock(1_000)
        clock.advance(1)
        clock.set_wall(500)
        assert (clock.wall_ms(), clock.monotonic()) == (500, 1.0)
        clock.advance(1)
        assert clock.wall_ms() == 1_500

    def test_wait_without_time(self) -> None:
        """Waiting for no time returns at once, as does waiting for what has happened."""
        clock, event = ManualClock(), threading.Event()
        assert clock.wait(event, 0) is False
        event.set()
        assert clock.wait(event, 60) is True

    def test_event_ends_the_wait(self) -> None:
        """Setting the event ends a wait though no time passes."""
        clock, event = ManualClock(), threading.Event()
        answers: list[bool] = []
        waiter = threading.Thread(target=lambda: answers.append(clock.wait(event, 3_600)))
        waiter.start()
        poll_until(lambda: clock.waiting == 1, 5)
        event.set()
        waiter.join(5)
        assert answers == [True]

    def test_waiters_wake_in_order(self) -> None:
        """Advancing wakes each waiter at its own time, in order, and none whose time has not come."""
        clock, event = ManualClock(0), threading.Event()
        woken: list[tuple[int, int]] = []

        def wait(seconds: int) -> None:
            clock.wait(event, seconds)
            woken.append((seconds, clock.wall_ms()))

        threads = {s: threading.Thread(target=wait, args=(s,)) for s in (30, 10, 20, 99)}
        for thread in threads.values():
            thread.start()
        poll_until(lambda: clock.waiting == len(threads), 5)
        clock.advance(40)
        for seconds in (10, 20, 30):
            threads[seconds].join(5)
        assert sorted(seconds for seconds, _ in woken) == [10, 20, 30]
        assert clock.waiting == 1
        event.set()
        threads[99].join(5)
