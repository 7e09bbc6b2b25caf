"""From a won claim to the broker, and the record of it."""

from __future__ import annotations

import pytest

from anarchon_tasks import events
from anarchon_tasks.header import Header
from anarchon_tasks.model import Status, message_id
from anarchon_tasks.publishing import Envelope, Sent
from tests.unit.scheduler.kit import MINUTE, START, Instance, World, make_job


def due(world: World, *names: str, period: str = "1m", **options: object) -> Instance:
    """Return an instance whose jobs are due now."""
    instance = world.instance().add(*(make_job(period, name=name, **options) for name in names or ("job",)))
    world.pass_time("60s")
    return instance


def test_the_message_carries_what_its_worker_needs(world: World) -> None:
    """Header, message id and deadline follow from job, slot and attempt."""
    world.store.announce("w", {"celery": 0})
    instance = due(world, start_deadline="30s", lease="9s", heartbeat="3s", max_attempts=5, start_timeout="2m")
    instance.tick()
    (envelope,) = instance.publisher.sent
    assert envelope.message_id == message_id("cron:", envelope.ref, 1)
    assert envelope.expires_ms is None, "the store decides at the begin, by its own clock"
    header = Header.parse(envelope.header.to_text(), envelope.message_id)
    assert header is not None
    assert (header.ref.slot, header.tracked, header.token) == (START + MINUTE, True, envelope.token)
    assert (header.lease_ms, header.heartbeat_ms, header.max_attempts) == (9_000, 3_000, 5)
    assert header.start_timeout_ms == 120_000


def test_a_message_that_nobody_tracks_expires_by_itself(world: World) -> None:
    """Without a begin that could refuse it, only the engine can keep a stale message from starting."""
    instance = due(world, start_deadline="30s", track=False)
    instance.tick()
    assert instance.publisher.sent[0].expires_ms == START + MINUTE + 30_000


def test_a_claim_that_ran_out_before_its_publish_is_dropped(world: World) -> None:
    """A process that was stopped between claim and publish sends nothing: another instance may hold the run."""
    instance = due(world, "a", "b", track=False)
    instance.publisher.during = lambda envelope: world.pass_time("6s") if envelope.ref.job == "a" else None
    instance.store.refused = {"beat"}
    instance.tick()
    instance.publisher.during = None
    assert [envelope.ref.job for envelope in instance.publisher.sent].count("a") >= 1
    first_b = next((e for e in instance.publisher.sent if e.ref.job == "b"), None)
    claims = [claim for claim in instance.store.asked("claim") if claim.ref.job == "b"]
    world.run(10)
    assert len(claims) >= 1
    assert first_b is None or first_b.token != min(e.token for e in instance.publisher.sent)
    assert [envelope.ref.job for envelope in instance.publisher.sent].count("b") == 1


def test_a_pause_before_the_first_publish_publishes_nothing_stale(world: World) -> None:
    """A 25 s pause of the whole process right after its claims were won sends nothing under the old tokens."""
    instance = due(world, "a", "b", "c", track=False)
    real = instance.scheduler._dispatch.publish
    stale: list[int] = []

    def paused(won: list[object]) -> None:
        if not stale:
            stale.extend(run.envelope.token for run in won)  # type: ignore[attr-defined]
            world.pass_time("25s")
        real(won)  # type: ignore[arg-type]

    instance.scheduler._dispatch.publish = paused  # type: ignore[method-assign,assignment]
    instance.tick()
    world.run(10)
    assert sorted(envelope.ref.job for envelope in instance.publisher.sent) == ["a", "b", "c"]
    assert not set(stale) & {envelope.token for envelope in instance.publisher.sent}


def test_celery_8845_a_broker_that_is_down_stops_the_claims(world: World) -> None:
    """No claim is made while the broker is away; it is probed once a second, and the newest slot runs on its return."""
    instance = due(world, track=False)
    instance.publisher.down = True
    instance.tick()
    asked = len(instance.store.asked("claim"))
    world.run(30)
    assert len(instance.store.asked("claim")) == asked
    assert 25 <= instance.publisher.probes <= 32
    instance.publisher.down = False
    world.run(40)
    assert instance.publisher.slots == [START + MINUTE, START + 2 * MINUTE]
    assert [event.what for event in instance.events(events.Down)] == ["broker"]
    assert len(instance.events(events.Up)) == 1


def test_what_was_not_published_is_handed_back(world: World) -> None:
    """When the broker fails in the middle, the claims behind it are given back at once, for another instance."""
    names = [f"job-{n}" for n in range(10)]
    second = world.instance().add(*(make_job("1m", name, track=False) for name in names))
    first = due(world, *names, track=False)
    sent = 0

    def fail_from_the_fourth(_: Envelope) -> None:
        nonlocal sent
        sent += 1
        first.publisher.down = sent > 3

    first.publisher.during = fail_from_the_fourth
    first.tick()
    assert len(first.publisher.sent) == 3
    released = first.store.asked("release")
    assert (len(released), sum(item.failed for item in released)) == (7, 1)
    second.tick()
    assert len(second.publisher.sent) == 6
    world.run(5)
    everyone = [e.ref for e in (*first.publisher.sent, *second.publisher.sent)]
    assert len(everyone) == len(set(everyone)) == 10


def test_celery_3409_a_publish_that_fails_is_tried_again_until_max_late(world: World) -> None:
    """A refused message hands the claim back; the run is published as soon as the broker takes it."""
    instance = due(world, track=False)
    instance.publisher.answer = lambda _: Sent.FAILED
    instance.tick()
    assert instance.events(events.PublishFailed)
    world.run(20)
    instance.publisher.answer = lambda _: Sent.CONFIRMED
    world.run(20)
    assert instance.publisher.slots == [START + MINUTE]
    assert instance.publisher.sent[0].attempt == 1


def test_a_broker_that_refuses_for_too_long_is_the_reason(world: World) -> None:
    """A slot whose message was refused until its `max_late` is missed as `publish_failed`."""
    instance = due(world, period="10m", track=False, max_late="30s")
    world.pass_time("9m")
    instance.publisher.answer = lambda _: Sent.FAILED
    instance.tick()
    world.run(120)
    assert world.account() == [("missed", "publish_failed", 1)]


def test_a_broker_that_is_away_for_too_long_is_the_reason(world: World) -> None:
    """Slots that became too late while the broker did not answer are missed as `publish_failed`."""
    instance = due(world, "other", period="1m", track=False)
    instance.scheduler.add_job(make_job("10s", max_late="5s", track=False))
    instance.publisher.down = True
    instance.tick()
    world.run(65)
    instance.publisher.down = False
    world.run(5)
    assert {run.reason for run in world.history() if run.status is Status.MISSED} == {"publish_failed"}


def test_records_survive_an_outage_of_the_store(world: World) -> None:
    """What was published while the store went away is recorded when it returns, and is not published again."""
    instance = due(world, track=False)
    instance.publisher.during = lambda _: setattr(instance.store, "down", True)
    instance.tick()
    assert len(instance.publisher.sent) == 1
    world.run(3)
    instance.publisher.during = None
    instance.store.down = False
    world.run(20)
    assert len(instance.publisher.sent) == 1
    assert world.account() == [("enqueued", None, 1)]


def test_a_record_whose_reply_was_lost_is_written_again(world: World) -> None:
    """Repeating the record of a publish changes nothing."""
    instance = due(world, track=False)
    instance.store.lost = ["queued"]
    instance.tick()
    world.run(5)
    assert (world.account(), len(instance.publisher.sent)) == ([("enqueued", None, 1)], 1)
    assert world.history()[0].publishes == 1


@pytest.mark.parametrize("delivery", ["at_least_once", "at_most_once"])
def test_an_unknown_publish_is_repeated_or_not_as_the_job_asks(world: World, delivery: str) -> None:
    """At least once: the same message id again. At most once: never again, and the account says why."""
    instance = due(world, track=False, delivery=delivery, period="10m")
    world.pass_time("9m")
    instance.publisher.answer = lambda _: Sent.UNKNOWN
    instance.tick()
    instance.publisher.answer = lambda _: Sent.CONFIRMED
    world.run(10)
    ids = {envelope.message_id for envelope in instance.publisher.sent}
    assert len(ids) == 1
    if delivery == "at_most_once":
        assert len(instance.publisher.sent) == 1
        assert world.account() == [("lost", "publish_unknown", 1)]
    else:
        assert len(instance.publisher.sent) == 2
        assert world.account() == [("enqueued", None, 1)]


def test_a_publisher_that_raises_holds_nothing_back(world: World) -> None:
    """A publisher must not raise; if it does, its claims are handed back and the runs are published all the same."""
    instance = due(world, "a", "b", track=False)

    def raise_once(_: Envelope) -> None:
        instance.publisher.during = None
        raise RuntimeError("a bug")

    instance.publisher.during = raise_once
    with pytest.raises(RuntimeError, match="a bug"):
        instance.tick()
    world.run(15)
    assert sorted(envelope.ref.job for envelope in instance.publisher.sent) == ["a", "b"]
    assert instance.scheduler._dispatch._holding.to_renew(after_s=0) == []


def test_a_publisher_that_raises_does_not_break_at_most_once(world: World) -> None:
    """The message that was being sent when it raised may be out: it is not sent again."""
    instance = due(world, period="10m", track=False, delivery="at_most_once")
    world.pass_time("9m")

    def raise_once(_: Envelope) -> None:
        instance.publisher.during = None
        raise RuntimeError("a bug")

    instance.publisher.during = raise_once
    with pytest.raises(RuntimeError):
        instance.tick()
    world.run(15)
    assert instance.publisher.sent == []
    assert world.account() == [("lost", "publish_unknown", 1)]


def test_a_stop_hands_back_what_is_not_published(world: World) -> None:
    """Between two messages a stop is noticed: the rest is given back, and nothing is lost."""
    names = [f"job-{n}" for n in range(5)]
    first = due(world, *names, track=False)
    first.publisher.during = lambda _: first.scheduler._claims.ask_to_stop()
    first.scheduler._claimer.step()
    first.scheduler._claimer.finish()
    world.kill(first)
    assert len(first.publisher.sent) == 1
    second = world.instance().add(*(make_job("1m", name, track=False) for name in names))
    assert len(second.publisher.sent) == 4


def test_dcb_958_a_slow_broker_is_given_few_claims_at_a_time(world: World) -> None:
    """How much is claimed at once follows from how fast messages go out: claims do not run out in the hand."""
    instance = due(world, *(f"job-{n}" for n in range(60)), track=False)
    instance.publisher.during = lambda _: world.pass_time("400ms")
    instance.tick()
    world.run(10)
    assert instance.scheduler._dispatch.chunk() <= 10
    refs = [envelope.ref for envelope in instance.publisher.sent if envelope.ref.slot == START + MINUTE]
    assert len(refs) == len(set(refs))


def test_nothing_is_kept_of_what_was_published(world: World) -> None:
    """After a thousand runs no list in the scheduler has grown."""
    instance = world.instance().add(make_job("1s", track=False))
    world.run(1_000, step=1)
    assert len(instance.publisher.sent) == 1_000
    dispatch, claimer = instance.scheduler._dispatch, instance.scheduler._claimer
    assert (dispatch._queued, dispatch._released, dispatch._holding._held) == ([], [], {})
    assert len(claimer._heap) <= 2
