"""Runs that a scheduler ends because nobody executes them: told once, by the instance whose claim decided it."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

import pytest

from anarchon_tasks import events
from anarchon_tasks.publishing import Sent
from tests.unit.scheduler.kit import HOUR, START, Instance, World, make_job

if TYPE_CHECKING:
    from collections.abc import Callable


def published(world: World, **options: object) -> list[Instance]:
    """Return two instances of which the first has published the run of a job."""
    world.store.announce("w", {"celery": 0})
    two = [world.instance().add(make_job("1h", **options)) for _ in range(2)]
    world.pass_time("1h")
    two[0].tick()
    assert len(two[0].publisher.sent) == 1
    return two


def killed(world: World, **options: object) -> list[Instance]:
    """Return two instances; a third one was killed when it had won a claim."""
    owner, *two = [world.instance().add(make_job("1h", track=False, **options)) for _ in range(3)]
    owner.publisher.during = lambda _: world.kill(owner)
    owner.publisher.down = True
    owner.store.refused = {"release", "beat"}
    world.pass_time("1h")
    owner.tick()
    return two


def interrupted(world: World) -> list[Instance]:
    """The worker of the only attempt falls silent."""
    two = published(world, max_attempts=1)
    world.begin(two[0].publisher.sent[0])
    return two


def expired(world: World) -> list[Instance]:
    """The message waits past its deadline."""
    return published(world, start_deadline="20s")


def lost(world: World) -> list[Instance]:
    """The only message that the job allows waits for its whole time, while other runs of its queue begin."""
    two = published(world, max_attempts=1, start_timeout="1m")
    world.run(5, step=1)
    world.store.announce("w", {"celery": world.now})
    return two


def perhaps_published(world: World) -> list[Instance]:
    """The holder of a claim dies, and the job asks for at most one message."""
    return killed(world, delivery="at_most_once")


ENDS = {
    interrupted: ("interrupted", "taken_over"),
    expired: ("expired", "deadline"),
    lost: ("lost", "never_started"),
    perhaps_published: ("lost", "publish_unknown"),
}


def lines(caplog: pytest.LogCaptureFixture, event: str) -> list[str]:
    """Return the log's lines of one kind."""
    return [record.getMessage() for record in caplog.records if getattr(record, "anarchon", {}).get("event") == event]


@pytest.mark.parametrize("bring_about", ENDS, ids=lambda bring_about: bring_about.__name__)
@pytest.mark.parametrize("reply_lost", [False, True])
def test_an_end_by_recovery_is_told_once(
    world: World,
    caplog: pytest.LogCaptureFixture,
    bring_about: Callable[[World], list[Instance]],
    *,
    reply_lost: bool,
) -> None:
    """One event and one line, though two instances look for such runs, and also when the reply of the claim is lost."""
    caplog.set_level(logging.WARNING)
    two = bring_about(world)
    for instance in two:
        instance.store.lost = ["claim"] if reply_lost else []
    world.run(70, step=1)
    told = [event for instance in two for event in instance.events(events.Ended)]
    status, reason = ENDS[bring_about]
    assert [(event.status, event.reason, event.accepted) for event in told] == [(status, reason, True)]
    assert (told[0].ref.slot, told[0].attempt) == (START + HOUR, 1)
    assert world.account() == [(status, reason, 1)]
    assert lines(caplog, "ended") == [f"job slot {START + HOUR} attempt 1 ended: {status} ({reason})"]


def test_a_claim_that_nobody_published_in_time_is_told_as_missed(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """Its holder died, and when the claim was over it was too late: a settled slot like any other."""
    caplog.set_level(logging.WARNING)
    two = killed(world, max_late="2s")
    world.run(10, step=1)
    told = [event for instance in two for event in instance.events(events.Settled)]
    assert [(event.first, event.count, event.status, event.reason) for event in told] == [
        (START + HOUR, 1, "missed", "no_instance")
    ]
    assert lines(caplog, "settled") == ["job: 1 slot(s) missed (no_instance)"]


def test_a_publish_of_unknown_outcome_that_is_not_repeated_is_told_as_lost(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    """The job asks for at most one message: the instance that sent it tells the end, also when a reply is lost."""
    caplog.set_level(logging.WARNING)
    instance = world.instance().add(make_job("1h", track=False, delivery="at_most_once"))
    world.pass_time("1h")
    instance.publisher.answer = lambda _: Sent.UNKNOWN
    instance.store.lost = ["release"]
    instance.tick()
    world.run(5)
    told = instance.events(events.Ended)
    assert [(event.status, event.reason, event.attempt) for event in told] == [("lost", "publish_unknown", 1)]
    assert len(lines(caplog, "ended")) == 1
