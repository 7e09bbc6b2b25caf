"""The model of claims, publishes and begins: schedulers, workers, the broker and time around the store."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from tests.model import store
from tests.model.explorer import Step
from tests.model.world import (
    ALL_DROPPED,
    FALSE_ATTEMPT,
    FALSE_INTERRUPTED,
    FALSE_LOST,
    FALSE_SUPERSEDED,
    FENCED,
    MAX_ATTEMPTS,
    MAX_COPIES,
    NEVER_RAN,
    NO_END,
    NOBODY,
    OPEN,
    ORPHANED,
    OVERLAP,
    SETTLED_UNASKED,
    STUCK,
    TWICE,
    Facts,
    Fault,
    Rules,
    Run,
    Scheduler,
    State,
    Worker,
    World,
)

IDLE = Scheduler()
FREE = Worker()
Steps = Iterator[Step[State]]


class Runs:
    """Two schedulers and two workers that keep the given rules, in a world of the given faults."""

    def __init__(self, world: World, rules: Rules | None = None) -> None:
        """Remember the world and the rules."""
        self.world = world
        self.rules = rules or Rules()

    def initial(self) -> State:
        """Return the state in which the first slot is due and nobody has done anything."""
        slots = self.world.slots
        return State(
            runs=(Run(),) * slots,
            facts=(Facts(),) * slots,
            schedulers=(IDLE,) * self.world.schedulers,
            workers=(FREE,) * self.world.workers,
            faults=self.world.budget,
        )

    def key(self, state: State) -> Hashable:
        """Return the state with tokens as "current" or "stale", schedulers and workers in any order."""
        tokens = [run.token for run in state.runs]
        schedulers = sorted((*it[:-1], tokens[it.slot] == it.token) for it in state.schedulers)
        workers = sorted((*it[:-1], tokens[it.slot] == it.token) for it in state.workers)
        reports = tuple((slot, tokens[slot] == token) for slot, token in state.reports)
        runs = tuple([run[:-1] for run in state.runs])
        if state.replica is not None:  # tokens that are stale now may be current again
            return (
                state._replace(schedulers=(), workers=()),
                tuple(sorted(state.schedulers)),
                tuple(sorted(state.workers)),
            )
        return (
            runs, state.facts, tuple(schedulers), tuple(workers), state.messages, reports,
            state.floor, state.due, state.late, state.faults, state.outage, state.broken,
        )  # fmt: skip

    def end(self, state: State) -> str:
        """Return how the slots ended."""
        return " ".join(run.status for run in state.runs)

    def steps(self, state: State) -> list[Step[State]]:
        """Return everything that may happen next."""
        steps = list(self._time(state))
        for index, scheduler in enumerate(state.schedulers):
            if scheduler not in state.schedulers[:index]:
                steps.extend(self._scheduler(state, index))
        for index, worker in enumerate(state.workers):
            if worker not in state.workers[:index]:
                steps.extend(self._worker(state, index))
        if state.faults:
            steps.extend(self._faults(state))
        return steps

    def _may(self, state: State, fault: Fault) -> bool:
        return state.faults > 0 and fault in self.world.faults

    # ---- schedulers

    def _scheduler(self, state: State, index: int) -> Steps:
        scheduler = state.schedulers[index]
        if scheduler.phase == "idle":
            yield from self._plan(state, index)
            yield from self._recover(state, index)
            return
        yield from getattr(self, f"_phase_{scheduler.phase}")(state, index, scheduler)
        if self._may(state, "kill scheduler"):
            yield Step(f"S{index} killed", self._excuse(state, scheduler).scheduler(index, IDLE).fault(), fault=True)

    def _excuse(self, state: State, scheduler: Scheduler) -> State:
        """An enqueue-only job can't survive a fault between publish and record: nobody knows of the message."""
        excusable = scheduler.phase in ("published", "unknown", "failed") and not self.world.at_most_once
        if self.world.tracked or not excusable:
            return state
        return state.fact(scheduler.slot, state.facts[scheduler.slot]._replace(excused=True))

    def _plan(self, state: State, index: int) -> Steps:
        """Decide to claim a slot; the claim itself is another step, so that the plan may grow old."""
        for slot in range(state.floor, state.due):
            answer, _ = store.claim(self.rules, state, slot, state.floor)
            settles_first = slot > state.floor and not self.rules.ranges_not_before_win
            if answer[:3] == "won" or answer[:2] == "on" or answer in ("late", "overlap") or settles_first:
                yield Step(
                    f"S{index}: sees floor {state.floor}, means to claim slot {slot + 1}",
                    state.scheduler(index, Scheduler("plan", slot, state.floor)),
                )

    def _recover(self, state: State, index: int) -> Steps:
        """Claim an open run whose lease is over."""
        for slot, run in enumerate(state.runs):
            if run.live or run.status not in OPEN:
                continue
            if run.status == "running" and state.outage and self.rules.grace_after_outage:
                continue
            answer, after = store.recover(self.rules, state, slot, at_most_once=self.world.at_most_once)
            yield from self._answered(state, index, after, f"claims slot {slot + 1} again -> {answer}", slot, slot)

    def _answered(self, state: State, index: int, after: State, label: str, slot: int, seen: int) -> Steps:
        if after.tokens == state.tokens:
            yield Step(f"S{index}: {label}", after.scheduler(index, IDLE))
            return
        phase = "won" if self.rules.ranges_not_after_win or seen == slot else "settle"
        yield Step(f"S{index}: {label}", after.scheduler(index, Scheduler(phase, slot, seen, after.tokens)))
        if self._may(state, "lose claim reply"):
            asked = Scheduler("asked", slot, seen, after.tokens)
            yield Step(f"S{index}: {label}, reply lost", after.scheduler(index, asked).fault(), fault=True)

    def _phase_plan(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        _, slot, seen, _ = scheduler
        if seen < slot and not self.rules.ranges_not_before_win:
            if state.floor == seen:
                state = store.settle_range(state, seen, slot)._replace(floor=slot)
            label = f"S{index}: settles slots {seen + 1} to {slot} as superseded"
            yield Step(label, state.scheduler(index, Scheduler("plan", slot, slot)))
            return
        answer, after = store.claim(self.rules, state, slot, seen)
        carried = f", slots from {seen + 1} on as missed" if seen < slot else ""
        label = f"claims slot {slot + 1} (floor seen {seen}{carried}) -> {answer}"
        yield from self._answered(state, index, after, label, slot, seen)

    def _phase_asked(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        _, slot, seen, token = scheduler
        run = state.runs[slot]
        current = run.status == "claimed" and run.token == token and run.live
        label = f"S{index}: claims slot {slot + 1} by the same call"
        if current and self.rules.claim_has_id:
            yield Step(f"{label} -> won again", state.scheduler(index, Scheduler("won", slot, seen, token)))
        else:
            after = state._replace(broken=ORPHANED) if current else state
            yield Step(f"{label} -> running or done", after.scheduler(index, IDLE))

    def _phase_settle(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        _, slot, seen, token = scheduler
        after = store.settle_range(state, seen, slot).scheduler(index, Scheduler("won", slot, slot, token))
        yield Step(f"S{index}: settles slots {seen + 1} to {slot} as missed", after)

    def _phase_won(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        slot = scheduler.slot
        sent = state.send(slot)
        label = f"S{index}: publishes slot {slot + 1}"
        yield Step(label, sent.scheduler(index, scheduler._replace(phase="published")))
        if self._may(state, "publish error"):
            failed, unknown = scheduler._replace(phase="failed"), scheduler._replace(phase="unknown")
            taken = self._excuse(sent.scheduler(index, unknown), unknown)
            yield Step(f"{label}: no answer, though the broker took it", taken.fault(), fault=True)
            yield Step(f"{label}: error, not taken", state.scheduler(index, failed).fault(), fault=True)

    def _phase_overslept(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        if self.rules.claim_checked_before_publish:
            yield Step(
                f"S{index}: its claim of slot {scheduler.slot + 1} is over, drops it", state.scheduler(index, IDLE)
            )
        else:
            yield from self._phase_won(state, index, scheduler)

    def _phase_published(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        _, slot, _, token = scheduler
        answer, after = store.queued(self.rules, state, slot, token, tracked=self.world.tracked)
        yield Step(f"S{index}: queued(slot {slot + 1}, token {token}) -> {answer}", after.scheduler(index, IDLE))

    def _phase_failed(self, state: State, index: int, scheduler: Scheduler) -> Steps:
        _, slot, _, token = scheduler
        handed_back = self.world.at_most_once and scheduler.phase == "failed"
        answer, after = store.release(self.rules, state, slot, token, handed_back=handed_back)
        yield Step(f"S{index}: release(slot {slot + 1}, token {token}) -> {answer}", after.scheduler(index, IDLE))

    _phase_unknown = _phase_failed

    # ---- workers

    def _worker(self, state: State, index: int) -> Steps:
        worker = state.workers[index]
        if worker.phase == "idle":
            for slot in sorted(set(state.messages)):
                yield from self._receive(state, index, slot)
            return
        yield self._go_on(state, index, worker)
        if worker.phase == "finish" and self._may(state, "kill worker"):
            label, after, _ = self._go_on(state, index, worker)
            yield Step(
                f"{label}, killed before the ack, message redelivered", after.send(worker.slot).fault(), fault=True
            )
        if self._may(state, "kill worker"):
            yield from self._kill(state, index, worker, reported=False)
        if self._may(state, "report") and worker.token != NOBODY:
            yield from self._kill(state, index, worker, reported=True)

    def _receive(self, state: State, index: int, slot: int) -> Steps:
        taken = state.take(slot)
        if not self.world.tracked:
            yield Step(f"W{index}: runs the message of slot {slot + 1}", taken.worker(index, Worker("run", slot)))
            return
        answer, after = store.begin(self.rules, taken, slot)
        label = f"W{index}: begin slot {slot + 1} -> {answer}"
        if after is None:
            if answer.endswith("interrupted"):
                taken = store.settle(taken, slot, "interrupted")
            yield Step(f"{label}, drops the message", taken)
            return
        yield Step(label, after.worker(index, Worker("run", slot, token=after.tokens)))
        if self._may(state, "lose begin reply"):
            repeat = Worker("repeat", slot, token=after.tokens)
            yield Step(f"{label}, reply lost", after.worker(index, repeat).fault(), fault=True)

    def _go_on(self, state: State, index: int, worker: Worker) -> Step[State]:
        phase, slot, _, token = worker
        if phase == "repeat":
            return self._repeat(state, index, worker)
        if phase == "run":
            facts = state.facts[slot]
            after = state.fact(slot, facts._replace(bodies=min(facts.bodies + 1, 2)))
            follows = worker._replace(phase="finish") if self.world.tracked else FREE
            return Step(f"W{index}: the body of slot {slot + 1} ends", after.worker(index, follows))
        answer, after = store.finish(self.rules, state, slot, token)
        return Step(f"W{index}: finish slot {slot + 1} token {token} -> {answer}", after.worker(index, FREE))

    def _repeat(self, state: State, index: int, worker: Worker) -> Step[State]:
        _, slot, _, token = worker
        run = state.runs[slot]
        label = f"W{index}: begin slot {slot + 1} by the same call"
        current = run.status == "running" and run.token == token
        if self.rules.begin_has_id and current and (run.live or self.rules.begin_id_outlives_lease):
            after = state.run(slot, run._replace(live=True)).worker(index, worker._replace(phase="run"))
            return Step(f"{label} -> ok again", after)
        answer, begun = store.begin(self.rules, state, slot)
        if begun is None:
            return Step(f"{label} -> {answer}, drops the message", state.worker(index, FREE))
        return Step(f"{label} -> {answer}", begun.worker(index, Worker("run", slot, token=begun.tokens)))

    def _kill(self, state: State, index: int, worker: Worker, *, reported: bool) -> Steps:
        slot = worker.slot
        facts = state.facts[slot]
        facts = facts._replace(
            deaths=min(facts.deaths + 1, MAX_ATTEMPTS), excused=facts.excused or worker.phase == "finish"
        )
        state = state.worker(index, FREE).fault()
        if reported:
            state = state._replace(reports=tuple(sorted((*state.reports, (slot, worker.token)))))
        how = f"W{index} killed" + (", its parent will report it" if reported else "")
        yield Step(f"{how}, message redelivered", state.fact(slot, facts).send(slot), fault=True)
        facts = facts._replace(vanished=min(facts.vanished + 1, MAX_COPIES))
        yield Step(f"{how}, message gone (acknowledged early)", state.fact(slot, facts), fault=True)

    # ---- time

    def _time(self, state: State) -> Steps:
        if state.due < self.world.slots:
            yield self._becomes_due(state)
        for slot, run in enumerate(state.runs):
            if run.live and not self._held(state, slot, run):
                what = "start timeout" if run.status == "queued" else f"{run.status} lease"
                yield Step(f"the {what} of slot {slot + 1} runs out", state.run(slot, run._replace(live=False)))
        if state.outage:
            yield self._beat(state)
        for report in set(state.reports):
            yield self._report(state, report)
        passed = store.pass_by(state)
        if passed.runs is not state.runs:
            yield Step("a worker begins another job's message in the queue", passed)

    def _becomes_due(self, state: State) -> Step[State]:
        slot = state.due
        busy = bool(state.messages) or any(run.status in OPEN and run.enqueued for run in state.runs)
        facts = state.facts[slot]
        facts = facts._replace(busy=busy or facts.busy)
        return Step(f"slot {slot + 1} becomes due", state.fact(slot, facts)._replace(due=slot + 1))

    def _held(self, state: State, slot: int, run: Run) -> bool:
        """Say whether somebody renews the lease, or for a queued run, whether its message still waits."""
        if run.status == "queued":
            return slot in state.messages or any(it.phase == "repeat" and it.slot == slot for it in state.workers)
        if run.status == "claimed":
            return any(it.token == run.token for it in state.schedulers)
        return any(it.token == run.token for it in state.workers)

    def _beat(self, state: State) -> Step[State]:
        for worker in state.workers:
            run = state.runs[worker.slot]
            if worker.token == run.token and run.status == "running" and not run.live:
                return Step(
                    f"the worker of slot {worker.slot + 1} beats", state.run(worker.slot, run._replace(live=True))
                )
        return Step("all live workers have beaten", state._replace(outage=False))

    def _report(self, state: State, report: tuple[int, int]) -> Step[State]:
        slot, token = report
        reports = list(state.reports)
        reports.remove(report)
        answer, after = store.child_died(self.rules, state, slot, token)
        label = f"the report of the dead child of slot {slot + 1}, token {token} -> {answer}"
        return Step(label, after._replace(reports=tuple(reports)))

    # ---- faults of the broker, of the clocks and of the store

    def _faults(self, state: State) -> Steps:
        faults = self.world.faults
        for slot in set(state.messages):
            yield from self._broker_faults(state, slot)
        for slot, run in enumerate(state.runs):
            if run.live:
                yield from self._pauses(state, slot, run)
            elif run.status == "succeeded" and "trim" in faults:
                yield Step(f"slot {slot + 1} is trimmed", state.run(slot, Run("trimmed")).fault(), fault=True)
        if "late" in faults and state.late < state.due:
            label = f"max_late of slot {state.late + 1} ends"
            yield Step(label, state._replace(late=state.late + 1).fault(), fault=True)
        if "outage" in faults and any(run.live and run.status == "running" for run in state.runs):
            yield self._outage(state)
        if "failover" in faults:
            yield self._failover(state)

    def _broker_faults(self, state: State, slot: int) -> Steps:
        facts = state.facts[slot]
        if "duplicate" in self.world.faults:
            after = state if self.world.tracked else state.fact(slot, facts._replace(excused=True))
            yield Step(f"the broker duplicates a message of slot {slot + 1}", after.send(slot).fault(), fault=True)
        if "lose message" in self.world.faults:
            after = state.fact(slot, facts._replace(vanished=min(facts.vanished + 1, MAX_COPIES)))
            yield Step(f"the broker loses a message of slot {slot + 1}", after.take(slot).fault(), fault=True)

    def _pauses(self, state: State, slot: int, run: Run) -> Steps:
        faults = self.world.faults
        after = state.run(slot, run._replace(live=False)).fault()
        if run.status == "queued":
            if "slow queue" in faults and slot in state.messages:
                yield Step(f"the start timeout of slot {slot + 1} ends, its message still waits", after, fault=True)
        elif run.status == "claimed":
            if "pause scheduler" in faults:
                yield from self._pause_scheduler(after, slot, run.token)
        elif "pause worker" in faults:
            yield from self._pause_worker(after, slot, run.token)

    def _pause_scheduler(self, after: State, slot: int, token: int) -> Steps:
        for index, scheduler in enumerate(after.schedulers):
            if scheduler.token == token:
                phase = "overslept" if scheduler.phase in ("won", "settle") else scheduler.phase
                after = self._excuse(after, scheduler).scheduler(index, scheduler._replace(phase=phase))
                yield Step(f"S{index} pauses, its claim of slot {slot + 1} runs out", after, fault=True)

    def _pause_worker(self, after: State, slot: int, token: int) -> Steps:
        for index, worker in enumerate(after.workers):
            if worker.token == token and worker.phase in ("run", "finish"):
                facts = after.facts[slot]
                facts = facts._replace(deaths=min(facts.deaths + 1, MAX_ATTEMPTS), excused=True)
                after = after.fact(slot, facts).worker(index, worker._replace(paused=True))
                yield Step(f"W{index} pauses, its lease of slot {slot + 1} runs out", after, fault=True)

    def _outage(self, state: State) -> Step[State]:
        runs = tuple(run._replace(live=run.live and run.status != "running") for run in state.runs)
        label = "the store is away until all leases of running runs are over"
        return Step(label, state._replace(runs=runs, outage=True).fault(), fault=True)

    def _failover(self, state: State) -> Step[State]:
        """Let a replica fall behind, or fall back to it: what it forgot may run again, and beside other slots."""
        if state.replica is None:
            after = state._replace(replica=(state.runs, state.floor))
            return Step("the store's replica falls behind", after, fault=True)
        runs, floor = state.replica
        facts = tuple(it._replace(deaths=MAX_ATTEMPTS, busy=True, excused=True) for it in state.facts)
        workers = tuple(it._replace(paused=it != FREE) for it in state.workers)
        after = state._replace(runs=runs, floor=floor, facts=facts, workers=workers, replica=None).fault()
        return Step("the store fails over to its replica", after, fault=True)

    # ---- promises

    def violations(self, state: State, *, at_rest: bool) -> Iterator[str]:
        """Return the promises that the state breaks."""
        if state.broken:
            yield state.broken
        if any(facts.bodies > 1 and not facts.excused for facts in state.facts):
            yield TWICE
        if self.world.tracked:
            yield from self._live_violations(state)
        for run, facts in zip(state.runs, state.facts, strict=True):
            if run.status == "interrupted" and facts.deaths < MAX_ATTEMPTS:
                yield FALSE_INTERRUPTED
            elif run.attempt > 1 + facts.deaths:
                yield FALSE_ATTEMPT
        if at_rest:
            yield from self._rest_violations(state)

    def _live_violations(self, state: State) -> Iterator[str]:
        running: set[int] = set()
        for worker in state.workers:
            if worker.phase not in ("run", "finish"):
                continue
            run = state.runs[worker.slot]
            if run.token == worker.token and run.status == "running":
                if worker.phase == "run":
                    running.add(worker.slot)
            elif not worker.paused:
                yield FENCED
        failed_over = state.facts[0].busy
        if len(running) > 1 and not failed_over:
            yield OVERLAP

    def _rest_violations(self, state: State) -> Iterator[str]:
        statuses = [run.status for run in state.runs]
        for slot, (status, facts) in enumerate(zip(statuses, state.facts, strict=True)):
            if status in OPEN or (status == "none" and slot >= state.floor):
                yield STUCK
            elif status == "none":
                yield NO_END
            elif status == "superseded" and all(
                newer in SETTLED_UNASKED | {"superseded"} for newer in statuses[slot + 1 :]
            ):
                yield FALSE_SUPERSEDED
            elif self.world.at_most_once:
                continue
            elif status == "lost" and facts.vanished < MAX_COPIES and not any(it.bodies for it in state.facts):
                yield FALSE_LOST
        undisturbed = not any(facts.bodies or facts.deaths or facts.vanished for facts in state.facts)
        if undisturbed and not state.late and all(status in NEVER_RAN for status in statuses):
            yield ALL_DROPPED
