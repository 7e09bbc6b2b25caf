"""Claims, publishes and begins keep their promises, and each rule for them is needed."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
from typing import TYPE_CHECKING, get_args

import pytest

from tests.model.checks import assert_breaks, assert_keeps_every_promise
from tests.model.runs import Runs
from tests.model.world import (
    FALSE_ATTEMPT,
    FALSE_LOST,
    FALSE_SKIP,
    FALSE_SUPERSEDED,
    FENCED,
    MISSED_AFTER_START,
    NO_END,
    ORPHANED,
    OVERLAP,
    PILE_UP,
    TWICE,
    TWO_ENDS,
    Fault,
    Rules,
    World,
)

if TYPE_CHECKING:
    from tests.model.explorer import Report

EVERY: frozenset[Fault] = frozenset(get_args(Fault)) - {"failover"}
CRASHES: frozenset[Fault] = frozenset({"kill scheduler", "publish error", "kill worker"})

ONE_SLOT = World(slots=1, faults=EVERY, budget=2)
TWO_SLOTS = World(slots=2, faults=EVERY, budget=1)
THREE_SLOTS = World(slots=3, faults=frozenset(), budget=0)
BACKLOG = World(slots=2, faults=frozenset({"slow queue"}), budget=3)
ENQUEUE_ONLY = World(slots=1, faults=EVERY - {"late"}, budget=2, tracked=False)
AT_MOST_ONCE = World(slots=1, faults=EVERY - {"late", "duplicate"}, budget=2, tracked=False, at_most_once=True)
FAILOVER = World(slots=2, faults=frozenset({"failover"}), budget=1)

WORLDS = {
    "one slot, two faults": ONE_SLOT,
    "two slots, one fault": TWO_SLOTS,
    "three slots, no fault": THREE_SLOTS,
    "two slots, slow queue": BACKLOG,
    "one slot, enqueue-only, two faults": ENQUEUE_ONLY,
    "one slot, enqueue-only, at most once": AT_MOST_ONCE,
    "two slots, failover": FAILOVER,
}
BIG_WORLDS = {
    "one slot, three faults": World(slots=1, faults=EVERY, budget=3),
    "two slots, two faults": World(slots=2, faults=CRASHES, budget=2),
    "three slots, one fault": World(slots=3, faults=CRASHES, budget=1),
    "three slots, slow queue": World(slots=3, faults=frozenset({"slow queue"}), budget=1),
    "one slot, enqueue-only, four faults": World(slots=1, faults=EVERY, budget=4, tracked=False),
}


@functools.cache
def explored(world: World) -> Report:
    """Return the report of a world in which all rules hold and nothing is broken."""
    return assert_keeps_every_promise(Runs(world))


def without(rule: str) -> Rules:
    """Return the rules with one of them taken out."""
    return Rules().without(rule)


@pytest.mark.parametrize("world", WORLDS.values(), ids=WORLDS)
def test_all_rules_keep_every_promise(world: World) -> None:
    """With every rule no history of faults completes a slot twice, overlaps, gets stuck or loses a slot's end."""
    explored(world)


@pytest.mark.slow
@pytest.mark.timeout(400)
@pytest.mark.parametrize("world", BIG_WORLDS.values(), ids=BIG_WORLDS)
def test_all_rules_keep_every_promise_in_bigger_worlds(world: World) -> None:
    """With every rule the promises hold for more faults and more slots as well."""
    assert_keeps_every_promise(Runs(world))


def test_the_model_reaches_every_end() -> None:
    """The promises are not kept by a model in which nothing happens."""
    ends = {end for world in (ONE_SLOT, TWO_SLOTS, BACKLOG) for end in explored(world).ends}
    statuses = {status for end in ends for status in end.split()}
    assert statuses == {
        "succeeded", "interrupted", "lost", "skipped", "superseded", "late", "displaced", "trimmed",
    }  # fmt: skip


# ---- begin


def test_begin_while_claimed() -> None:
    """A worker faster than the record of the publish is refused, its message is gone, and the run ends lost."""
    assert_breaks(Runs(ONE_SLOT, without("begin_while_claimed")), FALSE_LOST)


def test_begin_has_id() -> None:
    """A begin whose reply was lost meets its own lease when repeated, and an attempt is used up by nobody's death."""
    assert_breaks(Runs(ONE_SLOT, without("begin_has_id")), FALSE_ATTEMPT)


def test_begin_id_outlives_lease() -> None:
    """The store goes away with the reply and comes back after the lease: the repeated begin must not be refused."""
    assert_breaks(Runs(ONE_SLOT, without("begin_id_outlives_lease")), FALSE_ATTEMPT)


def test_begin_busy_while_live() -> None:
    """A second copy of the message takes the run away from the worker that is in the middle of it."""
    assert_breaks(Runs(ONE_SLOT, without("begin_busy_while_live")), FENCED)


def test_begin_below_floor_is_done() -> None:
    """A failover forgets a slot, a newer claim settles it as missed, and then its message runs it."""
    assert_breaks(Runs(FAILOVER, without("begin_below_floor_is_done")), TWO_ENDS)


def test_begin_of_trimmed_is_done() -> None:
    """A message delivered again after the run's state was trimmed runs the slot a second time."""
    assert_breaks(Runs(ONE_SLOT, without("begin_of_trimmed_is_done")), TWICE)


def test_finish_compares_token() -> None:
    """A worker that slept through its lease ends the run of its successor, who is in the middle of it."""
    assert_breaks(Runs(ONE_SLOT, without("finish_compares_token")), FENCED)


def test_report_matches_begin() -> None:
    """A parent reports its dead child late, and the report ends the run of the worker that took over."""
    assert_breaks(Runs(ONE_SLOT, without("report_matches_begin")), FENCED)


def test_grace_after_outage() -> None:
    """The store returns with every lease over, and runs are taken from live workers before they can beat."""
    assert_breaks(Runs(ONE_SLOT, without("grace_after_outage")), FENCED)


# ---- claim, publish, release


def test_claim_has_id() -> None:
    """A claim whose reply was lost is refused when repeated, and nobody publishes while it lasts."""
    assert_breaks(Runs(ONE_SLOT, without("claim_has_id")), ORPHANED)


def test_claim_checked_before_publish() -> None:
    """An instance wakes up after its claim and publishes what another one published: an untracked job runs twice."""
    assert_breaks(Runs(ENQUEUE_ONLY, without("claim_checked_before_publish")), TWICE)


def test_at_most_once_gives_up() -> None:
    """An instance dies between publish and record, another publishes again, and what may run once runs twice."""
    assert_breaks(Runs(AT_MOST_ONCE, without("at_most_once_gives_up")), TWICE)


def test_queued_compares_token() -> None:
    """The record of a publish arrives after the begin and turns a running run back into a queued one."""
    assert_breaks(Runs(ONE_SLOT, without("queued_compares_token")), FENCED)


def test_release_compares_token() -> None:
    """A publish fails though the broker took it, and the release throws away the run that has begun."""
    assert_breaks(Runs(ONE_SLOT, without("release_compares_token")), FENCED)


def test_release_keeps_state() -> None:
    """A released run is deleted, the floor is above its slot already, and nobody ever claims or settles it."""
    assert_breaks(Runs(ONE_SLOT, without("release_keeps_state")), NO_END)


def test_reclaim_keeps_attempt() -> None:
    """A failed publish uses up an attempt of a run that no worker has seen."""
    assert_breaks(Runs(ONE_SLOT, without("reclaim_keeps_attempt")), FALSE_ATTEMPT)


def test_takeover_ignores_late() -> None:
    """A worker dies after `max_late`, and the run it had started is settled as missed instead of taken over."""
    assert_breaks(Runs(ONE_SLOT, without("takeover_ignores_late")), MISSED_AFTER_START)


# ---- overlap


def test_overlap_counts_expired() -> None:
    """A run whose lease is over is not counted, the next slot is published, and then both are begun."""
    assert_breaks(Runs(TWO_SLOTS, without("overlap_counts_expired")), OVERLAP)


def test_claimed_phase_waits() -> None:
    """A slot is skipped for an older one that is only claimed and may never be published."""
    assert_breaks(Runs(TWO_SLOTS, without("claimed_phase_waits")), FALSE_SKIP)


def test_delayed_run_makes_wait() -> None:
    """A slot is skipped for an older one that was enqueued late, by our own fault, when nothing was in its way."""
    assert_breaks(Runs(TWO_SLOTS, without("delayed_run_makes_wait")), FALSE_SKIP)


def test_lost_needs_a_begin() -> None:
    """Workers are away, the waiting run is given up, and each further slot puts one more message into the queue."""
    assert_breaks(Runs(BACKLOG, without("lost_needs_a_begin")), PILE_UP)


def test_lost_may_begin() -> None:
    """A queue slower than every start timeout makes the run lost, and its message is refused when it comes."""
    assert_breaks(Runs(BACKLOG, without("lost_may_begin")), FALSE_LOST)


def test_lost_yields_to_started() -> None:
    """The message of a lost run comes while the next slot is running, and its begin settles that run."""
    assert_breaks(Runs(BACKLOG, without("lost_yields_to_started")), FENCED)


def test_lost_displaces_unstarted() -> None:
    """The message of a lost run comes while the next slot is queued, and then both are begun."""
    assert_breaks(Runs(BACKLOG, without("lost_displaces_unstarted")), OVERLAP)


# ---- the account: floor and missed slots


def test_winner_settles_unstarted() -> None:
    """An expired claim is neither settled nor in the way, and both it and the next slot are published."""
    assert_breaks(Runs(TWO_SLOTS, without("winner_settles_unstarted")), OVERLAP)


def test_ranges_make_wait() -> None:
    """A slot is skipped for an overlap and takes the older slots that it stood for with it."""
    assert_breaks(Runs(THREE_SLOTS, without("ranges_make_wait")), FALSE_SUPERSEDED)


def test_ranges_not_before_win() -> None:
    """Older slots are settled in favour of a newer one that is then skipped for an overlap."""
    assert_breaks(Runs(THREE_SLOTS, without("ranges_not_before_win")), FALSE_SUPERSEDED)


def test_ranges_not_after_win() -> None:
    """The winner dies before it settles the older slots, which are below the floor from then on."""
    assert_breaks(Runs(TWO_SLOTS, without("ranges_not_after_win")), NO_END)


def test_floor_compared() -> None:
    """A claim based on an old floor settles a slot as missed that another instance has won meanwhile."""
    assert_breaks(Runs(TWO_SLOTS, without("floor_compared")), TWO_ENDS)


def test_claims_brought_back_first() -> None:
    """A failover forgets a slot, its message brings it back, and a newer claim settles it as missed although it ran."""
    assert_breaks(Runs(FAILOVER, without("claims_brought_back_first")), TWO_ENDS)


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(Rules)])
def test_every_rule_has_a_counterexample(rule: str) -> None:
    """No rule is in the model without a test that takes it out."""
    assert f'without("{rule}")' in inspect.getsource(sys.modules[__name__])
