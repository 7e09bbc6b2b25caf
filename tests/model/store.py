"""The store as built, one atomic step per function: what each call answers, and the state after it.

Time is coarse here: a run takes less than half of the time between two slots, so that a slot behind a run that only we
delayed always waits. That longer runs let such slots be skipped is for the tests of the scheduler.
"""

from __future__ import annotations

from typing import Literal

from tests.model.world import (
    FALSE_SKIP,
    MAX_ATTEMPTS,
    MAX_COPIES,
    MISSED_AFTER_START,
    OPEN,
    PILE_UP,
    TWO_ENDS,
    Rules,
    Run,
    State,
    Status,
)

Way = Literal["free", "settle", "wait", "overlap"]


def grant(state: State, slot: int, run: Run) -> State:
    """Return the state with the run granted to a new holder, under the job's next token."""
    token = state.tokens + 1
    return state._replace(tokens=token).run(slot, run._replace(live=True, token=token))


def settle(state: State, slot: int, end: Status) -> State:
    """Return the state with the run ended, noting it if that run had ended or started already."""
    run = state.runs[slot]
    if run.status not in OPEN and run.status not in ("none", "lost"):
        state = state._replace(broken=TWO_ENDS)
    elif end in ("superseded", "late") and has_started(run):
        state = state._replace(broken=MISSED_AFTER_START)
    elif end == "superseded" and run.live:
        state = state._replace(broken=TWO_ENDS)
    elif end == "skipped" and not state.facts[slot].busy:
        state = state._replace(broken=FALSE_SKIP)
    return state.run(slot, run._replace(status=end, live=False))


def has_started(run: Run) -> bool:
    """Return whether some worker began the run, in this attempt or an earlier one."""
    return run.status == "running" or run.attempt > 1


def unstarted_claim(run: Run) -> bool:
    """Return whether the run is still in its first claim: nothing of it is on record as enqueued."""
    return run.status == "claimed" and run.attempt == 1 and not run.enqueued


# ---- claims of slots that are not on record


def claim(rules: Rules, state: State, slot: int, seen: int) -> tuple[str, State]:
    """Answer a claim that saw a floor and carries the slots between as missed."""
    if state.runs[slot].status != "none":
        if state.floor == seen <= slot:
            return "on the account now, running or done", _account(rules, state, slot, seen)
        return "running or done", state
    if slot < state.floor:
        return "done", state
    if rules.floor_compared and state.floor != seen:
        return f"moved({state.floor})", state
    brought_back = any(run.status != "none" for run in state.runs[state.floor : slot])
    if brought_back and rules.claims_brought_back_first:
        return "an older one first", state
    if slot < state.late:
        return "late", _account(rules, settle(state, slot, "late"), slot, seen)
    way = _way(rules, state, slot, seen)
    if way == "wait":
        return "wait", state
    if way == "overlap":
        return "overlap", _account(rules, settle(state, slot, "skipped"), slot, seen)
    if any(
        other.status == "lost" and not other.passed and older in state.messages
        for older, other in enumerate(state.runs)
    ):
        state = state._replace(broken=PILE_UP)
    state = _account(rules, _settle_unstarted(rules, state, slot), slot, seen)
    return f"won(attempt 1, token {state.tokens + 1})", grant(state, slot, Run("claimed", 1))


def settle_range(state: State, first: int, end: int) -> State:
    """Return the state with the slots from `first` to before `end` settled as missed."""
    for slot in range(first, end):
        state = settle(state, slot, "late" if slot < state.late else "superseded")
    return state


def _account(rules: Rules, state: State, slot: int, seen: int) -> State:
    if rules.ranges_not_after_win:
        state = settle_range(state, seen, slot)
    return state._replace(floor=max(state.floor, slot + 1))


def _way(rules: Rules, state: State, slot: int, seen: int) -> Way:
    """Say whether the other runs of the job leave the way free."""
    supersedes = any(older >= state.late for older in range(seen, slot))
    found: Way = "free"
    for other, run in enumerate(state.runs):
        if other == slot or run.status not in OPEN:
            continue
        way = _in_the_way(rules, run, slot, supersedes=supersedes)
        if way == "wait":
            return way
        if way == "overlap":
            found = way
    return found


def _in_the_way(rules: Rules, run: Run, slot: int, *, supersedes: bool) -> Way:
    if not run.live and not rules.overlap_counts_expired:
        return "free"
    if unstarted_claim(run):
        if not run.live:
            return "settle"
        return "wait" if rules.claimed_phase_waits else "overlap"
    if supersedes and rules.ranges_make_wait:
        return "wait"
    enqueued_when_due = run.enqueued <= slot
    return "overlap" if enqueued_when_due or not rules.delayed_run_makes_wait else "wait"


def _settle_unstarted(rules: Rules, state: State, slot: int) -> State:
    if not rules.winner_settles_unstarted:
        return state
    for older, run in enumerate(state.runs[:slot]):
        if unstarted_claim(run) and not run.live:
            state = settle(state, older, "superseded")
    return state


# ---- claims of runs that are on record, open, with their lease over


def recover(rules: Rules, state: State, slot: int, *, at_most_once: bool) -> tuple[str, State]:
    """Answer the claim of an open run whose lease is over."""
    run = state.runs[slot]
    if at_most_once and (run.status == "queued" or (rules.at_most_once_gives_up and not run.handed_back)):
        return "lost", settle(state, slot, "lost")
    if slot < state.late and (unstarted_claim(run) or not rules.takeover_ignores_late):
        return "late", settle(state, slot, "late")
    if run.status == "queued" and run.copies >= MAX_COPIES and (run.passed or not rules.lost_needs_a_begin):
        return "copies used up, lost", settle(state, slot, "lost")
    rises = run.status == "running" or not rules.reclaim_keeps_attempt
    if rises and run.attempt >= MAX_ATTEMPTS:
        return "attempts used up, interrupted", settle(state, slot, "interrupted")
    again = run._replace(
        status="claimed",
        attempt=run.attempt + rises,
        copies=0 if run.status == "running" else run.copies,
        handed_back=False,
        passed=run.passed and run.status != "running",
    )
    return f"was {run.status}: won(attempt {again.attempt}, token {state.tokens + 1})", grant(state, slot, again)


# ---- the outcome of a publish


def queued(rules: Rules, state: State, slot: int, token: int, *, tracked: bool) -> tuple[str, State]:
    """Record a confirmed publish, if the run is still claimed under the token."""
    run = state.runs[slot]
    if not _applies(run, token, compare=rules.queued_compares_token):
        return "stale", state
    status: Status = "queued" if tracked else "enqueued"
    enqueued = run.enqueued or state.due
    return "ok", state.run(
        slot, run._replace(status=status, live=tracked, copies=min(run.copies + 1, MAX_COPIES), enqueued=enqueued)
    )


def release(rules: Rules, state: State, slot: int, token: int, *, handed_back: bool = False) -> tuple[str, State]:
    """Hand a claim back, if the run is still claimed under the token."""
    run = state.runs[slot]
    if not _applies(run, token, compare=rules.release_compares_token):
        return "stale", state
    released = run._replace(status="claimed", live=False, handed_back=handed_back)
    return "ok", state.run(slot, released if rules.release_keeps_state else Run())


def _applies(run: Run, token: int, *, compare: bool) -> bool:
    return (run.status == "claimed" and run.token == token) if compare else run.status in OPEN


# ---- what workers ask


def begin(rules: Rules, state: State, slot: int) -> tuple[str, State | None]:
    """Answer a worker that received a message: the state in which it runs, or none and it drops the message."""
    run = state.runs[slot]
    if run.status == "queued" or (run.status == "claimed" and rules.begin_while_claimed):
        return _start(state, slot, run)
    if run.status == "running":
        if run.live:
            return ("busy", None) if rules.begin_busy_while_live else _start(state, slot, run)
        if state.outage and rules.grace_after_outage:
            return "busy", None
        if run.attempt < MAX_ATTEMPTS:
            return _start(state, slot, run._replace(attempt=run.attempt + 1))
        return "attempts used up, interrupted", None
    if run.status == "lost" and rules.lost_may_begin:
        return _start_lost(rules, state, slot)
    if run.status == "none" or (run.status == "trimmed" and not rules.begin_of_trimmed_is_done):
        return _start(state, slot, Run(attempt=1))
    if run.status in ("superseded", "late") and run.attempt == 0 and not rules.begin_below_floor_is_done:
        return _start(state._replace(broken=TWO_ENDS), slot, Run(attempt=1))
    return ("busy" if run.status in OPEN else "done"), None


def _start(state: State, slot: int, run: Run) -> tuple[str, State]:
    run = run._replace(status="running", enqueued=run.enqueued or state.due)
    state = pass_by(state)
    return f"ok(attempt {run.attempt}, token {state.tokens + 1})", grant(state, slot, run)


def pass_by(state: State) -> State:
    """Note that a message was begun in the queue in which the last copies of other runs wait."""
    for slot, run in enumerate(state.runs):
        if run.status == "queued" and run.copies == MAX_COPIES and not run.passed:
            state = state.run(slot, run._replace(passed=True))
    return state


def _start_lost(rules: Rules, state: State, slot: int) -> tuple[str, State | None]:
    others = [other for other, run in enumerate(state.runs) if other != slot and run.status in OPEN]
    if rules.lost_yields_to_started and any(has_started(state.runs[other]) for other in others):
        return "done", None
    for other in others:
        if rules.lost_displaces_unstarted:
            state = settle(state, other, "displaced")
    return _start(state, slot, state.runs[slot])


def finish(rules: Rules, state: State, slot: int, token: int) -> tuple[str, State]:
    """Record the end of a body, if the token is the current one."""
    run = state.runs[slot]
    if run.status != "running" or (rules.finish_compares_token and run.token != token):
        return "stale", state
    return "ok", settle(state, slot, "succeeded")


def child_died(rules: Rules, state: State, slot: int, token: int) -> tuple[str, State]:
    """Apply a parent's report that the child which made a begin is dead."""
    run = state.runs[slot]
    if run.status != "running" or (rules.report_matches_begin and run.token != token):
        return "stale", state
    if run.attempt >= MAX_ATTEMPTS:
        return "attempts used up, interrupted", settle(state, slot, "interrupted")
    return "ok, its lease is over", state.run(slot, run._replace(live=False))
