"""The model of a task's own retries: park, takeover and redelivery of one run, with two workers.

The scheduler's claim, publish and record are one step here; the model of runs takes them apart.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

from tests.model.explorer import Step
from tests.model.world import FALSE_INTERRUPTED, FALSE_LOST, FENCED, MAX_COPIES, NOBODY, STUCK, TWICE

MAX_ATTEMPTS = 3
MAX_RETRIES = 1
BEGUN_BY_ANOTHER = "PARKED RUN BEGUN BY ANOTHER MESSAGE, before the time its retry was put off to"
END_REFUSED = "END REFUSED: the holder of the current token could not say that the run is over"


@dataclass(frozen=True, slots=True, kw_only=True)
class RetryRules:
    """The rules for retries that the model can do without, each on unless a test takes it out."""

    park_before_publish: bool = True
    """A run is parked before its retry is published."""
    park_compares_token: bool = True
    """A park applies only while the run is running under its token."""
    parked_needs_token: bool = True
    """A parked run is begun only by a retry whose header carries the run's current token."""
    running_needs_token: bool = True
    """A running run whose park was lost is begun only by a retry whose header carries the current token."""
    parked_timeout_is_new_attempt: bool = True
    """A parked run that times out is published as a new attempt."""
    finish_while_parked: bool = True
    """The holder of the current token may end a parked run whose retry could not be published."""

    def without(self, rule: str) -> RetryRules:
        """Return the rules with one of them taken out."""
        return replace(self, **{rule: False})


Status = Literal["queued", "running", "succeeded", "failed", "interrupted", "lost"]


class Run(NamedTuple):
    """What the store knows of the run, the token last."""

    status: Status = "queued"
    attempt: int = 1
    live: bool = True
    parked: bool = False
    copies: int = 1
    token: int = 1


class Message(NamedTuple):
    """A message in the queue; a first try carries no token."""

    attempt: int
    retries: int = 0
    token: int = NOBODY


class Worker(NamedTuple):
    """What a worker is about to do: `run` the body, send the retry that it `parked`, or park what it `sent`."""

    phase: str
    message: Message
    paused: bool
    token: int


class State(NamedTuple):
    """Everything there is."""

    run: Run
    messages: tuple[Message, ...]
    workers: tuple[Worker | None, ...]
    tokens: int
    faults: int
    bodies: int = 0
    deaths: int = 0
    vanished: int = 0
    excused: bool = False
    broken: str = ""

    def send(self, message: Message) -> State:
        """Return the state with one more message in the queue."""
        return self._replace(messages=tuple(sorted((*self.messages, message))))

    def take(self, message: Message) -> State:
        """Return the state with the message out of the queue."""
        at = self.messages.index(message)
        return self._replace(messages=self.messages[:at] + self.messages[at + 1 :])

    def worker(self, index: int, worker: Worker | None) -> State:
        """Return the state with one worker replaced."""
        return self._replace(workers=(*self.workers[:index], worker, *self.workers[index + 1 :]))

    def fault(self) -> State:
        """Return the state with one fault less to come."""
        return self._replace(faults=self.faults - 1)

    def vanish(self) -> State:
        """Return the state with one message more that a fault destroyed."""
        return self._replace(vanished=min(self.vanished + 1, MAX_COPIES))


Steps = Iterator[Step[State]]


def _named(message: Message) -> str:
    return f"message(attempt {message.attempt}, retries {message.retries})"


class Retries:
    """One published run, two workers and a scheduler that recovers it, under the given rules."""

    def __init__(self, budget: int, rules: RetryRules | None = None) -> None:
        """Remember how many faults may happen, and the rules."""
        self.budget = budget
        self.rules = rules or RetryRules()

    def initial(self) -> State:
        """Return the state in which the first message waits in the queue."""
        return State(run=Run(), messages=(Message(1),), workers=(None, None), tokens=1, faults=self.budget)

    def key(self, state: State) -> Hashable:
        """Return the state with tokens as "current" or "stale", and workers in any order."""
        token = state.run.token
        messages = tuple(sorted((it.attempt, it.retries, it.token == token) for it in state.messages))
        workers = sorted(
            (it.phase, it.message[:2], it.message.token == token, it.paused, it.token == token) if it else ()
            for it in state.workers
        )
        return (state.run[:-1], messages, tuple(workers), state[4:])

    def end(self, state: State) -> str:
        """Return how the run ended."""
        return state.run.status

    def steps(self, state: State) -> list[Step[State]]:
        """Return everything that may happen next."""
        steps = [*self._recover(state), *self._time(state)]
        for index, worker in enumerate(state.workers):
            if worker in state.workers[:index]:
                continue
            if worker is None:
                steps.extend(self._receive(state, index, message) for message in sorted(set(state.messages)))
                continue
            steps.extend(self._go_on(state, index, worker))
            if state.faults:
                steps.extend(self._kill(state, index, worker))
        if state.faults:
            steps.extend(self._broker_faults(state))
        return steps

    # ---- the scheduler and time

    def _recover(self, state: State) -> Steps:
        run = state.run
        if run.live or run.status not in ("queued", "running"):
            return
        if run.status == "running" or (run.parked and self.rules.parked_timeout_is_new_attempt):
            if run.attempt >= MAX_ATTEMPTS:
                yield self._ends(state, "S: attempts used up -> interrupted", "interrupted")
                return
            token = state.tokens + 1
            after = state._replace(run=Run(attempt=run.attempt + 1, token=token), tokens=token)
            why = "takes over" if run.status == "running" else "the parked run timed out"
            yield Step(f"S: {why}, publishes attempt {run.attempt + 1}", after.send(Message(run.attempt + 1)))
        elif run.copies >= MAX_COPIES:
            yield self._ends(state, "S: copies used up -> lost", "lost")
        else:
            after = state._replace(run=run._replace(live=True, copies=run.copies + 1))
            yield Step(f"S: publishes attempt {run.attempt} again", after.send(Message(run.attempt)))

    def _ends(self, state: State, label: str, status: Status) -> Step[State]:
        return Step(label, state._replace(run=state.run._replace(status=status, live=False, parked=False)))

    def _time(self, state: State) -> Steps:
        run = state.run
        over = state._replace(run=run._replace(live=False))
        if not run.live:
            return
        if run.status == "running" and not any(
            it and it.phase == "run" and it.token == run.token for it in state.workers
        ):
            yield Step("the lease of the running run runs out", over)
        if run.status == "queued" and not state.messages and not any(state.workers):
            yield Step("the start timeout of the queued run ends", over)

    # ---- workers

    def _receive(self, state: State, index: int, message: Message) -> Step[State]:
        run, taken = state.run, state.take(message)
        label = f"W{index}: begin {_named(message)}"
        refusal, attempt = self._begin(run, message)
        if refusal:
            return Step(f"{label} -> {refusal}, dropped", taken)
        token = state.tokens + 1
        after = taken.worker(index, Worker("run", message, paused=False, token=token))
        if run.parked and run.live and message.token != run.token:
            after = after._replace(broken=BEGUN_BY_ANOTHER)
        started = run._replace(status="running", attempt=attempt, live=True, parked=False, token=token)
        return Step(f"{label} -> ok(attempt {attempt}, token {token})", after._replace(run=started, tokens=token))

    def _begin(self, run: Run, message: Message) -> tuple[str, int]:
        """Answer a begin: why not, or the attempt that starts."""
        of_this_try = message.retries > 0 and message.token == run.token
        if run.status == "queued":
            if run.parked and self.rules.parked_needs_token and not of_this_try:
                return "busy", 0
            return "", run.attempt
        if run.status != "running":
            return "done", 0
        if of_this_try or (message.retries > 0 and not self.rules.running_needs_token):
            return "", run.attempt
        if run.live:
            return "busy", 0
        return ("", run.attempt + 1) if run.attempt < MAX_ATTEMPTS else ("busy", 0)

    def _go_on(self, state: State, index: int, worker: Worker) -> Steps:
        phase, message, _, token = worker
        retry = Message(message.attempt, message.retries + 1, token)
        if phase == "run":
            yield self._finish(state, index, worker, "succeeded")
            if message.retries < MAX_RETRIES:
                yield from self._retry(state, index, worker, retry)
        elif phase == "parked":
            yield Step(f"W{index}: {_named(retry)} published", state.send(retry).worker(index, None))
            if state.faults:
                failed = self._finish(state.fault(), index, worker, "failed")
                yield Step(f"W{index}: the retry can't be published; {failed.label}", failed.after, fault=True)
        else:
            answer, after = self._park(state, worker)
            yield Step(f"W{index}: park -> {answer}", after.worker(index, None))

    def _finish(self, state: State, index: int, worker: Worker, status: Status) -> Step[State]:
        run = state.run
        accepted = ("running", "queued") if self.rules.finish_while_parked else ("running",)
        applies = run.status in accepted and run.token == worker.token
        label = f"W{index}: finish {status}, token {worker.token} -> {'ok' if applies else 'stale'}"
        after = state.worker(index, None)
        if applies:
            after = after._replace(run=run._replace(status=status, live=False, parked=False))
        elif run.token == worker.token and not worker.paused:
            after = after._replace(broken=END_REFUSED)
        return Step(label, after._replace(bodies=min(state.bodies + (status == "succeeded"), 2)))

    def _retry(self, state: State, index: int, worker: Worker, retry: Message) -> Steps:
        if not self.rules.park_before_publish:
            after = state.send(retry).worker(index, worker._replace(phase="sent"))
            yield Step(f"W{index}: retries: {_named(retry)} published, to be parked", after)
            return
        answer, after = self._park(state, worker)
        yield Step(f"W{index}: retries: park -> {answer}", after.worker(index, worker._replace(phase="parked")))
        if state.faults:
            after = state.send(retry).worker(index, None).fault()
            yield Step(f"W{index}: retries: park fails, {_named(retry)} published all the same", after, fault=True)

    def _park(self, state: State, worker: Worker) -> tuple[str, State]:
        run = state.run
        if run.status != "running" or (self.rules.park_compares_token and run.token != worker.token):
            return "stale", state
        return "ok", state._replace(run=run._replace(status="queued", live=True, parked=True, copies=1))

    # ---- faults

    def _kill(self, state: State, index: int, worker: Worker) -> Steps:
        run = state.run
        dead = state.worker(index, None)._replace(deaths=min(state.deaths + 1, MAX_ATTEMPTS)).fault()
        yield Step(f"W{index} killed, {_named(worker.message)} redelivered", dead.send(worker.message), fault=True)
        yield Step(f"W{index} killed, {_named(worker.message)} gone", dead.vanish(), fault=True)
        if worker.phase == "run" and run.status == "running" and run.token == worker.token and run.live:
            after = state.worker(index, worker._replace(paused=True))._replace(
                run=run._replace(live=False), deaths=min(state.deaths + 1, MAX_ATTEMPTS), excused=True
            )
            yield Step(f"W{index} pauses, its lease runs out", after.fault(), fault=True)

    def _broker_faults(self, state: State) -> Steps:
        for message in sorted(set(state.messages)):
            yield Step(f"the broker duplicates {_named(message)}", state.send(message).fault(), fault=True)
            yield Step(f"the broker loses {_named(message)}", state.take(message).vanish().fault(), fault=True)

    # ---- promises

    def violations(self, state: State, *, at_rest: bool) -> Iterator[str]:
        """Return the promises that the state breaks."""
        run = state.run
        if state.broken:
            yield state.broken
        if state.bodies > 1 and not state.excused:
            yield TWICE
        for worker in state.workers:
            holds = worker and run.status == "running" and run.token == worker.token
            if worker and worker.phase == "run" and not worker.paused and not holds:
                yield FENCED
        if run.status == "lost" and state.vanished < MAX_COPIES:
            yield FALSE_LOST
        if run.status == "interrupted" and self.budget - state.faults < MAX_ATTEMPTS:
            yield FALSE_INTERRUPTED
        if at_rest and run.status in ("queued", "running"):
            yield STUCK
