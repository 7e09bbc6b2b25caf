"""Where the settings come from."""

from __future__ import annotations

from typing import Any

import pytest

from anarchon_celery.settings import layered, resolve
from anarchon_tasks.errors import ConfigError


def test_argument_wins_over_environment_wins_over_settings() -> None:
    """Each setting is taken from the first layer that gives it, apart from the others."""
    given = layered(
        arguments={"store": "redis://argument", "prefix": None},
        environment={"ANARCHON_STORE": "redis://environment", "ANARCHON_PREFIX": "env:", "ANARCHON_LEASE": ""},
        conf={"anarchon_store": "redis://conf", "anarchon_prefix": "conf:", "anarchon_lease": "1m"},
    )
    assert given == {"store": "redis://argument", "prefix": "env:", "lease": "1m"}


def test_not_given_is_not_the_default() -> None:
    """A prefix that nobody gave does not reach a store that has none; one that was given does, and is refused there."""
    bare = resolve({"store": "memory://"}, broker_url=None)
    assert bare.store_options == {}
    bare.open_store().close()
    with pytest.raises(ConfigError, match="prefix='cron:'"):
        resolve({"store": "memory://", "prefix": "cron:"}, broker_url=None).open_store()


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, (30_000, 10_000)),
        ({"lease": "1m"}, (60_000, 20_000)),
        ({"lease": "30"}, (30_000, 10_000)),
        ({"heartbeat": 5}, (30_000, 5_000)),
        ({"heartbeat": "20s"}, (60_000, 20_000)),
        ({"lease": 9, "heartbeat": 1}, (9_000, 1_000)),
    ],
)
def test_lease_and_heartbeat_follow_from_each_other(given: dict[str, Any], expected: tuple[int, int]) -> None:
    """The one that was not given fits the one that was."""
    settings = resolve({"store": "memory://", **given}, broker_url=None)
    assert (settings.lease_ms, settings.heartbeat_ms) == expected


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"lease": "ten"}, "lease='ten'"),
        ({"lease": "10s", "heartbeat": "9s"}, "heartbeat='9s' is too slow for lease='10s'"),
        ({"timezone": "Mars/Olympus"}, "timezone='Mars/Olympus'"),
        ({"jobs": ["nightly"]}, "anarchon_jobs="),
    ],
)
def test_redbeat_92_timings_that_do_not_fit_are_refused(given: dict[str, Any], words: str) -> None:
    """What makes no sense is named with its value before anything starts."""
    with pytest.raises(ConfigError, match=words):
        resolve({"store": "memory://", **given}, broker_url=None)


@pytest.mark.parametrize("scheme", ["redis", "rediss", "valkey"])
def test_a_redis_broker_serves_as_the_store(scheme: str) -> None:
    """Nobody has to set anything to try it out."""
    settings = resolve({}, broker_url=f"{scheme}://:pw@host:6379/0")
    assert settings.from_broker
    assert settings.store == f"{scheme}://:pw@host:6379/0"


@pytest.mark.parametrize("url", ["amqp://guest:pw@host//", "sqs://", "memory://", None])
def test_without_a_store_the_line_to_add_is_named(url: str | None) -> None:
    """Any other broker cannot be the account of runs, and the error says what to write."""
    with pytest.raises(ConfigError, match=r'app\.conf\.anarchon_store = "redis://') as caught:
        resolve({}, broker_url=url)
    assert "pw" not in str(caught.value)
