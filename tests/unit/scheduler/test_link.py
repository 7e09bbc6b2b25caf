"""The way to the store: its time, its outages, and the grace after them. And which queues report on their runs."""

from __future__ import annotations

import logging

import pytest

from anarchon_tasks import events
from anarchon_tasks._backoff import Backoff
from anarchon_tasks._loops.holding import Holding
from anarchon_tasks._loops.outages import ENDS_S, Outages
from anarchon_tasks.availability import Availability
from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.link import StoreLink
from anarchon_tasks.model import Reason, RunRef
from anarchon_tasks.stores.base import QueueNote
from anarchon_tasks.stores.memory import MemoryStore
from anarchon_tasks.testing import ManualClock
from anarchon_tasks.tracking import Tracking
from tests.unit.scheduler.kit import DAY, START, FlakyStore, make_job


class Way:
    """A link, its store, and both clocks."""

    def __init__(self, *, ahead_ms: int = 0) -> None:
        self.server, self.host = ManualClock(START), ManualClock(START + ahead_ms)
        self.store = FlakyStore(MemoryStore(clock=self.server))
        self.told: list[events.Event] = []
        tell = events.Events()
        tell.subscribe(self.told.append)
        self.link = StoreLink(
            self.store,  # type: ignore[arg-type]
            clock=self.host,
            tell=tell,
            lease_ms=30_000,
            heartbeat_ms=10_000,
        )

    def pass_time(self, seconds: float) -> None:
        """Let time pass on both sides."""
        self.server.advance(seconds)
        self.host.advance(seconds)

    def ask(self) -> None:
        """Make a call."""
        self.link.call(self.store.time)


@pytest.fixture
def way() -> Way:
    """A way to a store that answers."""
    return Way()


@pytest.mark.parametrize("ahead_ms", [3 * DAY, -3 * DAY, 0])
def test_the_stores_time_is_known_after_one_answer(ahead_ms: int) -> None:
    """Until then the host's clock has to do; afterwards it does not matter."""
    way = Way(ahead_ms=ahead_ms)
    assert way.link.time.now_ms() == START + ahead_ms
    way.ask()
    way.pass_time(5)
    way.host.set_wall(0)
    assert way.link.time.now_ms() == START + 5_000


def test_there_is_no_grace_at_the_start(way: Way) -> None:
    """A scheduler that just started takes over at once what nobody holds."""
    assert not way.link.in_grace


def test_runs_are_left_to_their_workers_at_the_start(way: Way) -> None:
    """The store may have come back a moment before: for a heartbeat and a second after the first answer."""
    way.pass_time(60)
    assert not way.link.may_take_over, "the store was never asked"
    way.ask()
    assert not way.link.may_take_over
    way.pass_time(10.9)
    way.ask()
    assert not way.link.may_take_over
    way.pass_time(0.2)
    assert way.link.may_take_over
    way.store.down = True
    with pytest.raises(StoreUnavailable):
        way.ask()
    assert not way.link.may_take_over
    way.store.down = False
    way.ask()
    way.pass_time(10.9)
    assert not way.link.may_take_over
    way.pass_time(0.2)
    assert way.link.may_take_over


def test_after_an_outage_there_is_a_grace(way: Way) -> None:
    """While the store is away, and for a heartbeat and a second after, nobody is taken over."""
    way.store.down = True
    with pytest.raises(StoreUnavailable):
        way.ask()
    assert way.link.in_grace
    way.store.down = False
    way.ask()
    way.pass_time(10.9)
    assert way.link.in_grace
    way.pass_time(0.2)
    assert not way.link.in_grace


@pytest.mark.parametrize(("jump_ms", "grace"), [(11_000, True), (-11_000, True), (9_000, False), (-9_000, False)])
def test_a_jump_of_the_stores_clock_by_a_third_of_the_lease_is_an_outage(
    way: Way, jump_ms: int, *, grace: bool
) -> None:
    """In either direction; less than that no lease can have lost by surprise."""
    way.ask()
    way.pass_time(1)
    way.server.set_wall(way.server.wall_ms() + jump_ms)
    way.ask()
    assert way.link.in_grace is grace
    way.pass_time(12)
    assert not way.link.in_grace


def test_a_store_that_can_only_be_read_is_away(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """A locked file, a full memory: that reads are answered is no return, and is not told as one."""
    caplog.set_level(logging.INFO)
    way.store.refused = {"beat"}
    for _ in range(3):
        with pytest.raises(StoreUnavailable):
            way.link.call(way.store.beat, [])
        way.pass_time(1)
        way.ask()
    assert way.link.availability.down
    way.store.refused = set()
    way.link.call(way.store.beat, [])
    assert not way.link.availability.down
    assert [type(event) for event in way.told] == [events.Down, events.Up]
    assert len(caplog.records) == 2


def test_a_call_that_was_under_way_changes_nothing(way: Way) -> None:
    """A call that hung while another one was answered again does not begin a second outage when it fails."""
    way.store.down = True
    with pytest.raises(StoreUnavailable):
        way.ask()
    hung = way.host.monotonic()
    way.store.down = False
    way.pass_time(1)
    way.ask()
    way.link.availability.failed("timed out", sent=hung)
    assert not way.link.availability.down
    way.link.availability.failed("gone again")
    way.link.availability.answered(sent=way.host.monotonic() - 0.5)
    assert way.link.availability.down
    assert [type(event) for event in way.told] == [events.Down, events.Up, events.Down]


def test_an_outage_is_told_twice(way: Way, caplog: pytest.LogCaptureFixture) -> None:
    """Once when it begins and once when it ends, with its length, however many calls failed."""
    caplog.set_level(logging.INFO)
    way.store.down = True
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            way.ask()
        way.pass_time(2)
    way.store.down = False
    for _ in range(3):
        way.ask()
    assert [type(event) for event in way.told] == [events.Down, events.Up]
    assert [record.getMessage() for record in caplog.records] == [
        "store does not answer: connection refused",
        "store answers again after 10.0 s",
    ]


def test_availability_knows_for_how_long() -> None:
    """Down since the first failure, up since the first answer after it, for ever when it never failed."""
    clock = ManualClock()
    state = Availability("broker", clock=clock, tell=events.Events())
    state.answered()
    assert (state.down, state.up_for()) == (False, float("inf"))
    state.failed("x")
    clock.advance(3)
    state.failed("y")
    clock.advance(2)
    assert state.down
    state.answered()
    clock.advance(7)
    assert (state.down, state.up_for()) == (False, 7.0)


# --- what an instance saw --------------------------------------------------------------------------------------------


def test_an_outage_covers_its_failures_and_a_moment_after() -> None:
    """Failures close together are one outage; a new one later forgets it."""
    clock = ManualClock()
    seen = Outages(clock=clock)
    clock.advance(100)
    for _ in range(4):
        seen.note(Reason.STORE_UNAVAILABLE)
        clock.advance(4)
    assert [seen.at(at) for at in (99.9, 100.0, 106.0, 112.0 + ENDS_S, 117.1)] == [
        *(None, Reason.STORE_UNAVAILABLE, Reason.STORE_UNAVAILABLE),
        *(Reason.STORE_UNAVAILABLE, None),
    ]
    clock.advance(60)
    seen.note(Reason.STORE_UNAVAILABLE)
    assert seen.at(106.0) is None


def test_a_held_claim_is_trusted_for_nine_tenths_of_its_lease() -> None:
    """From when the claim, or its renewal, was sent; and only under its own token."""
    clock = ManualClock()
    holding = Holding(clock=clock, lease_s=5.0)
    ref = RunRef("job", 1)
    holding.add(ref, 7, granted=clock.monotonic())
    clock.advance("4400ms")
    assert holding.mine(ref, 7)
    assert not holding.mine(ref, 8)
    assert not holding.mine(RunRef("other", 1), 7)
    holding.renewed(ref, 7, sent=2.0)
    clock.advance("2000ms")
    assert holding.mine(ref, 7)
    clock.advance("200ms")
    assert not holding.mine(ref, 7)
    assert holding.to_renew(after_s=1.0) == [(ref, 7)]
    holding.drop(ref, 8)
    assert holding.to_renew(after_s=1.0)
    holding.drop(ref, 7)
    assert holding.to_renew(after_s=0.0) == []


# --- tracking --------------------------------------------------------------------------------------------------------


def test_a_run_is_tracked_where_workers_report() -> None:
    """Not before a worker announced itself for the job's queue, and not when the job or the scheduler says no."""
    tracking = Tracking(enabled=True)
    job, never = make_job(), make_job(track=False)
    assert (tracking.tracked(job), tracking.hopes_for([job]), tracking.hopes_for([never])) == (False, True, False)
    tracking.learn([("other", QueueNote(announced_ms=1))], now_ms=1)
    assert not tracking.tracked(job)
    tracking.learn([("celery", QueueNote(announced_ms=1, begun_ms=5))], now_ms=1)
    assert (tracking.tracked(job), tracking.tracked(never), tracking.hopes_for([job])) == (True, False, False)
    assert (tracking.begun_ms("celery"), tracking.begun_ms("other")) == (5, 0)


def test_a_scheduler_that_tracks_nothing_hopes_for_nothing() -> None:
    """Claim-only use asks for no queues more than needed."""
    tracking = Tracking(enabled=False)
    tracking.learn([("celery", QueueNote(announced_ms=1))], now_ms=1)
    assert not tracking.tracked(make_job())
    assert not tracking.hopes_for([make_job()])


# --- backoff ---------------------------------------------------------------------------------------------------------


def test_pauses_double_up_to_a_bound() -> None:
    """Each pause lies within its jitter, also after a million failures."""
    backoff = Backoff(first_s=0.2, most_s=5.0, jitter=0.2)
    for failures, exact in ((1, 0.2), (2, 0.4), (3, 0.8), (6, 5.0), (10**6, 5.0)):
        for _ in range(20):
            assert exact * 0.8 <= backoff.seconds(failures) <= exact


def test_a_store_that_lost_the_announcements_stops_no_tracking() -> None:
    """What a worker once said of its queue holds for a day, also when the store has come back empty meanwhile."""
    tracking = Tracking(enabled=True)
    job = make_job()
    tracking.learn([("celery", QueueNote(announced_ms=START))], now_ms=START)
    tracking.learn([], now_ms=START + 60_000)
    assert tracking.tracked(job)
    tracking.learn([], now_ms=START + DAY + 1)
    assert not tracking.tracked(job)
