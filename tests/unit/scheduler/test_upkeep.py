"""Registration, renewal, recovery and repair."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_tasks import events
from anarchon_tasks._loops import upkeep
from anarchon_tasks.jobs import Job
from anarchon_tasks.model import Status
from anarchon_tasks.stores.base import Beat, Claim, ClaimAnswer, ClaimKind, Registered, Reply
from tests.unit.scheduler.kit import HOUR, MINUTE, START, Instance, World, make_job

if TYPE_CHECKING:
    import pytest


def running(world: World, *names: str, **options: object) -> tuple[Instance, list[object]]:
    """Return an instance whose jobs' runs a worker has begun."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance().add(*(make_job("1h", name=name, **options) for name in names))
    world.pass_time("1h")
    instance.tick()
    return instance, [world.begin(envelope) for envelope in instance.publisher.sent]


def test_jobs_are_registered_in_pages(world: World) -> None:
    """A thousand jobs take ten calls."""
    instance = world.instance()
    instance.add(*(make_job("1h", name=f"job-{n}") for n in range(300)))
    sizes = [len(arguments[0]) for name, arguments in instance.store.calls if name == "register"]
    assert sum(sizes) == 300
    assert max(sizes) <= 100
    assert len(world.store.definitions().answers) == 300


def test_a_job_that_could_not_be_registered_is_tried_again(world: World) -> None:
    """One answer with an error is logged; the job is registered a while later, and the others at once."""
    instance, real = world.instance(), world.store.register

    def register(definitions: list[object]) -> Reply[Registered]:
        reply = real(definitions)  # type: ignore[arg-type]
        answers = [
            Registered(error="damaged") if item.name == "job" else answer  # type: ignore[attr-defined]
            for item, answer in zip(definitions, reply.answers, strict=True)
        ]
        return Reply(now_ms=reply.now_ms, answers=answers)

    instance.store.real.register = register  # type: ignore[method-assign,assignment]
    instance.add(make_job("1m", track=False), make_job("1m", name="good", track=False))
    world.run(59, step=1)
    refused = len(instance.store.asked("register"))
    instance.store.real.register = real  # type: ignore[method-assign]
    world.run(190, step=1)
    published = [envelope.ref.job for envelope in instance.publisher.sent]
    assert published.count("good") == 4
    assert published.count("job") >= 2
    assert refused < 10


def test_claims_are_renewed_while_their_messages_wait_to_be_sent(world: World) -> None:
    """A broker that takes seven seconds for a message loses no claim of those behind it."""
    instance = world.instance().add(*(make_job("1h", name=name, track=False) for name in "abc"))
    world.pass_time("1h")

    def slow(_: object) -> None:
        for _second in range(7):
            world.pass_time("1s")
            instance.scheduler._keep.step()

    instance.publisher.during = slow
    instance.tick()
    assert [envelope.ref.job for envelope in instance.publisher.sent] == ["a", "b", "c"]
    assert len(instance.store.asked("claim")) == 3
    assert instance.store.asked("beat")


def test_a_refused_renewal_drops_the_claim(world: World) -> None:
    """A claim that the store says is another's is not published."""
    instance = world.instance().add(make_job("1h", name="a", track=False), make_job("1h", name="b", track=False))
    world.pass_time("1h")

    def lose_the_other(_: object) -> None:
        instance.publisher.during = None
        account = world.store._accounts["b"]
        for state in account.states.values():
            state.token += 1
        world.pass_time("2s")
        instance.scheduler._keep.step()

    instance.publisher.during = lose_the_other
    instance.tick()
    assert [envelope.ref.job for envelope in instance.publisher.sent] == ["a"]


def test_a_dead_worker_is_taken_over_after_its_lease(world: World) -> None:
    """The next attempt is published within a second of the lease's end, under a higher token."""
    instance, (begun,) = running(world, "job")
    world.run(29)
    assert len(instance.publisher.sent) == 1
    world.run(2.5)
    first, second = instance.publisher.sent
    assert (first.attempt, second.attempt) == (1, 2)
    assert second.token > begun.token > first.token  # type: ignore[attr-defined]
    assert instance.events(events.TookOver)[0].attempt == 2
    assert world.account() == [("interrupted", "taken_over", 1), ("queued", None, 1)]


def test_shedlock_1596_a_worker_that_beats_is_left_alone(world: World) -> None:
    """A run far longer than its lease is one attempt as long as its worker beats."""
    instance, (begun,) = running(world, "job")
    ref = instance.publisher.sent[0].ref
    for _ in range(30):
        world.run(10, step=1)
        assert world.store.beat([Beat(ref=ref, token=begun.token, lease_ms=30_000)]).answers == [True]  # type: ignore[attr-defined]
    assert len(instance.publisher.sent) == 1


def test_nobody_is_taken_over_in_the_grace_after_an_outage(world: World) -> None:
    """When the store returns, live workers beat first: takeovers wait for a heartbeat and a second."""
    instance, _ = running(world, "job")
    instance.store.down = True
    world.run(60)
    instance.store.down = False
    world.run(10.5)
    assert len(instance.publisher.sent) == 1
    world.run(3)
    assert [envelope.attempt for envelope in instance.publisher.sent] == [1, 2]


def test_a_claim_that_dies_just_after_an_outage_waits_for_its_own_end_alone(world: World) -> None:
    """The grace is for workers: a slot whose winner was killed is late by its claim, also when the store was away."""
    first, second = (world.instance().add(make_job("10s", track=False)) for _ in range(2))
    for instance in (first, second):
        instance.store.down = True
    world.run(9)
    for instance in (first, second):
        instance.store.down = False
    first.publisher.during = lambda _: world.kill(first)
    first.publisher.down = True
    first.store.refused = {"release", "beat"}
    world.pass_time(1)
    first.tick()
    assert first not in world.instances
    world.run(6)
    assert second.publisher.slots == [START + 10_000]
    world.run(10)
    assert {status for status, _, _ in world.account()} == {"enqueued"}


def test_nobody_is_taken_over_when_the_stores_clock_jumps(world: World) -> None:
    """A store whose clock leaps forward has not made its workers die."""
    instance, _ = running(world, "job")
    world.server.set_wall(world.now + 10 * MINUTE)
    world.run(10)
    assert len(instance.publisher.sent) == 1
    world.run(5)
    assert len(instance.publisher.sent) == 2


def test_an_instance_leaves_the_runs_of_jobs_it_lacks(world: World) -> None:
    """Who does not have the job does not touch its runs; who has it takes them over."""
    owner, _ = running(world, "mine")
    stranger = world.instance().add(make_job("1h", name="other"))
    world.kill(owner)
    world.run(60, step=1)
    assert all(ask.ref.job == "other" for ask in stranger.store.asked("claim"))
    heir = world.instance().add(make_job("1h", name="mine"))
    world.run(13)
    assert [envelope.attempt for envelope in heir.publisher.sent] == [2]


def test_a_scheduler_that_just_started_leaves_runs_to_their_workers(world: World) -> None:
    """It cannot know whether the store was away until now: live workers beat first, and keep their runs."""
    owner, begun = running(world, "alive", "dead")
    alive = next(envelope for envelope in owner.publisher.sent if envelope.ref.job == "alive")
    token = begun[owner.publisher.sent.index(alive)].token  # type: ignore[attr-defined]
    world.kill(owner)
    world.pass_time("60s")
    heir = world.instance().add(make_job("1h", name="alive"), make_job("1h", name="dead"))
    world.run(10.5)
    assert world.store.beat([Beat(ref=alive.ref, token=token, lease_ms=30_000)]).answers == [True]
    assert heir.publisher.sent == []
    world.run(3)
    assert [(envelope.ref.job, envelope.attempt) for envelope in heir.publisher.sent] == [("dead", 2)]


def test_a_scheduler_that_just_started_takes_claims_over_at_once(world: World) -> None:
    """A claim and a message have no worker that could beat for them: nothing is gained by waiting."""
    owner = world.instance().add(make_job("1h"))
    owner.publisher.during = lambda _: world.kill(owner)
    owner.publisher.down = True
    owner.store.refused = {"release", "beat"}
    world.pass_time("1h")
    owner.tick()
    world.pass_time("6s")
    heir = world.instance().add(make_job("1h"))
    world.run(1)
    assert [envelope.attempt for envelope in heir.publisher.sent] == [1]


def test_a_silent_run_that_the_index_lost_is_found_by_the_slot_that_it_blocks(world: World) -> None:
    """The answer to that slot names the run in its way: a lost index entry cannot block a job for ever."""
    instance, _ = running(world, "job")
    world.store.expired = lambda **_: Reply(now_ms=world.now, answers=[])  # type: ignore[method-assign]
    world.run(60, step=1)
    assert len(instance.publisher.sent) == 1
    world.pass_time("1h")
    world.run(2)
    assert [(envelope.ref.slot, envelope.attempt) for envelope in instance.publisher.sent] == [
        (START + HOUR, 1),
        (START + HOUR, 2),
    ]
    assert world.account()[-1] == ("skipped", "overlap", 1)


def test_a_claim_that_an_outage_interrupted_takes_nobody_over_afterwards(world: World) -> None:
    """A recovery that got no answer is asked for again when the store is back, and leaves live workers their runs."""
    instance, _ = running(world, "job")
    world.pass_time("31s")
    instance.store.refused = {"claim"}
    world.run(2)
    assert instance.store.asked("claim")
    instance.store.refused = set()
    world.run(8)
    assert len(instance.publisher.sent) == 1
    world.run(6)
    assert [envelope.attempt for envelope in instance.publisher.sent] == [1, 2]


def test_runs_that_nobody_owns_do_not_hide_those_that_somebody_does(world: World) -> None:
    """Hundreds of abandoned runs at the head of the index do not stop the recovery of the others."""
    names = [f"gone-{n}" for n in range(450)]
    owner, _ = running(world, *names)
    world.kill(owner)
    world.run(1)
    instance = world.instance().add(make_job("1m"))
    world.pass_time("1m")
    instance.tick()
    begun = world.begin(next(e for e in instance.publisher.sent if e.ref.job == "job"))
    assert begun.kind.value == "ok"
    world.run(45, step=0.5)
    assert 2 in {envelope.attempt for envelope in instance.publisher.sent}


def test_runs_of_disabled_jobs_do_not_hide_those_of_others(world: World) -> None:
    """Hundreds of dead runs of jobs that were disabled meanwhile are skipped; that of an enabled job is taken over."""
    names = [f"off-{n}" for n in range(250)]
    owner, _ = running(world, *names)
    world.kill(owner)
    instance = world.instance().add(*(make_job("1h", name=name, enabled=False) for name in names), make_job("1m"))
    world.pass_time("1m")
    instance.tick()
    assert world.begin(instance.publisher.sent[-1]).kind.value == "ok"
    world.run(45, step=0.5)
    assert 2 in {envelope.attempt for envelope in instance.publisher.sent}
    assert {envelope.ref.job for envelope in instance.publisher.sent} == {"job"}


def test_a_run_that_cannot_be_taken_over_is_told_and_put_off(world: World, caplog: pytest.LogCaptureFixture) -> None:
    """A damaged account is an error in the log, once a minute, and no loop; mended, the run goes on."""
    instance, _ = running(world, "job")
    real = world.store.claim

    def damaged(claims: list[Claim]) -> Reply[ClaimAnswer]:
        return Reply(now_ms=world.now, answers=[ClaimAnswer(kind=ClaimKind.ERROR, error="damaged") for _ in claims])

    instance.store.real.claim = damaged  # type: ignore[method-assign,assignment]
    instance.store.calls.clear()
    world.run(100, step=0.5)
    assert len(instance.store.asked("claim")) == 2
    assert [record.getMessage() for record in caplog.records] == ["a claim of job 'job' failed: damaged"] * 2
    instance.store.real.claim = real  # type: ignore[method-assign]
    world.run(60, step=0.5)
    assert [envelope.attempt for envelope in instance.publisher.sent] == [1, 2]


def test_which_queues_report_is_known_before_the_first_claim(world: World) -> None:
    """A store that does not answer the very first question makes no run untracked."""
    world.store.announce("w", {"celery": 0})
    instance = world.instance()
    instance.store.refused = {"queues"}
    world.pass_time(9.8)
    instance.add(make_job("10s"))
    instance.store.refused = set()
    instance.tick()
    world.pass_time(0.2)
    instance.tick()
    assert [envelope.header.tracked for envelope in instance.publisher.sent] == [True]


def test_a_worker_that_announces_itself_makes_runs_tracked(world: World) -> None:
    """Before any worker reports, being enqueued is the end; soon after one does, runs are followed to theirs."""
    instance = world.instance().add(make_job("10s"))
    world.run(10)
    assert world.account() == [("enqueued", None, 1)]
    world.store.announce("w", {"celery": 0})
    world.run(10)
    assert world.account()[-1] == ("queued", None, 1)
    assert [envelope.header.tracked for envelope in instance.publisher.sent] == [False, True]


def test_jobs_are_repaired_in_pages_once_a_minute(world: World) -> None:
    """The index of lease ends is only a hint: each job is put right once a minute, a page per call."""
    instance = world.instance().add(*(make_job("1h", name=f"job-{n}") for n in range(250)))
    world.run(55)
    instance.store.calls.clear()
    world.run(61)
    repaired = instance.store.asked("repair")
    assert len(repaired) == len(set(repaired)) == 250
    assert max(len(arguments[0]) for name, arguments in instance.store.calls if name == "repair") <= 100


def test_every_one_of_many_jobs_is_repaired(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """A round that is longer than its minute is not cut off: the pages grow, and the last jobs have their turn."""
    instance = world.instance().add(*(make_job("1h", name=f"job-{n}") for n in range(1_000)))
    world.run(55)
    instance.store.calls.clear()
    monkeypatch.setattr(upkeep, "PAGE", 1)
    world.run(75)
    repaired = instance.store.asked("repair")
    assert len(set(repaired)) == 1_000
    assert len(repaired) <= 2_000


def test_a_removed_job_leaves_the_list_and_keeps_its_history(world: World) -> None:
    """Its definition goes, what it did stays, and an open run of it is left alone."""
    instance = world.instance().add(make_job("10s", track=False))
    world.run(10)
    instance.scheduler.remove("job")
    world.run(30)
    assert (len(instance.publisher.sent), len(world.history())) == (1, 1)
    assert world.store.definitions().answers == []


def test_a_job_that_was_added_and_removed_at_once_is_not_listed(world: World) -> None:
    """Whatever the loops had noticed of it: nothing of the job is left in the list that readers see."""
    instance = world.instance()
    instance.scheduler.add_job(make_job())
    instance.scheduler.remove("job")
    instance.tick()
    world.run(2)
    assert world.store.definitions().answers == []
    assert instance.scheduler._keep._unregistered == {}


def test_a_job_that_was_removed_and_added_again_runs(world: World) -> None:
    """Also when the first registration was under way: the new one gets its floor."""
    instance, job = world.instance(), make_job("10s", track=False)
    instance.scheduler.add_job(job)
    instance.scheduler._claimer.step()

    def meanwhile(name: str) -> None:
        if name == "register":
            instance.store.during = None
            instance.scheduler.remove("job")
            instance.scheduler.add_job(make_job("10s", track=False))
            instance.scheduler._claimer.step()

    instance.store.during = meanwhile
    instance.scheduler._keep.step()
    world.run(15)
    assert instance.publisher.slots == [START + 10_000]
    assert [d.name for d in world.store.definitions().answers] == ["job"]


def test_an_idle_scheduler_asks_little(world: World) -> None:
    """With one hourly job an instance makes at most three calls a second."""
    instance = world.instance().add(make_job("1h", track=False))
    world.run(30)
    instance.store.calls.clear()
    world.run(60)
    assert len(instance.store.calls) <= 180


def test_interrupted_after_the_last_attempt(world: World) -> None:
    """A job whose workers always die is tried as often as it may, and then ends on the account."""
    instance, _ = running(world, "job", max_attempts=2)
    world.run(33)
    world.begin(instance.publisher.sent[1])
    world.run(33)
    assert [envelope.attempt for envelope in instance.publisher.sent] == [1, 2]
    assert world.account() == [("interrupted", "taken_over", 1), ("interrupted", "taken_over", 1)]
    world.run(5)
    assert world.history()[-1].status is Status.INTERRUPTED
    assert world.now < START + 2 * HOUR


def test_the_definition_is_readable_without_user_code(world: World) -> None:
    """Schedule, zone, target and queue are in the store; arguments of tasks are not."""
    job = Job(name="job", schedule=make_job().schedule, target="shop.sync", queue="mail", payload={"secret": "pa55"})
    world.instance().add(job)
    (definition,) = world.store.definitions().answers
    assert "shop.sync" in definition.document
    assert "pa55" not in definition.document
