"""A task's own retries keep their promises, and each rule for them is needed."""

from __future__ import annotations

import dataclasses
import inspect
import sys

import pytest

from tests.model.checks import assert_breaks, assert_keeps_every_promise
from tests.model.retries import BEGUN_BY_ANOTHER, END_REFUSED, Retries, RetryRules
from tests.model.world import FALSE_INTERRUPTED, FALSE_LOST, FENCED


def without(rule: str) -> Retries:
    """Return the model with two faults and one rule less."""
    return Retries(2, RetryRules().without(rule))


@pytest.mark.parametrize("budget", [0, 1, 2, 3])
def test_all_rules_keep_every_promise(budget: int) -> None:
    """With every rule no retry is begun twice or too early, no live worker is fenced and nothing gets stuck."""
    assert_keeps_every_promise(Retries(budget))


def test_the_model_reaches_every_end() -> None:
    """The promises are not kept by a model in which nothing happens."""
    report = assert_keeps_every_promise(Retries(3))
    assert report.ends == {"succeeded", "failed", "interrupted", "lost"}


@pytest.mark.slow
def test_all_rules_keep_every_promise_under_four_faults() -> None:
    """With every rule and one more fault the promises hold as well."""
    assert_keeps_every_promise(Retries(4))


def test_park_before_publish() -> None:
    """A lease ends between publish and park, the retry takes the run over, and waiting uses up the attempts."""
    assert_breaks(without("park_before_publish"), FALSE_INTERRUPTED)


def test_park_compares_token() -> None:
    """A worker that slept through its lease parks the run of its successor, who is in the middle of it."""
    assert_breaks(without("park_compares_token"), FENCED)


def test_parked_needs_token() -> None:
    """The first try's message, delivered again, begins a run whose retry was put off to a later time."""
    assert_breaks(without("parked_needs_token"), BEGUN_BY_ANOTHER)


def test_running_needs_token() -> None:
    """A second copy of the retry takes the run away from the live worker that began the first copy."""
    assert_breaks(without("running_needs_token"), FENCED)


def test_parked_timeout_is_new_attempt() -> None:
    """The retry is lost, the first try's message published in its place can't begin, and the run ends lost."""
    assert_breaks(without("parked_timeout_is_new_attempt"), FALSE_LOST)


def test_finish_while_parked() -> None:
    """A retry that can't be published fails the task, but the parked run does not accept its end."""
    assert_breaks(without("finish_while_parked"), END_REFUSED)


@pytest.mark.parametrize("rule", [field.name for field in dataclasses.fields(RetryRules)])
def test_every_rule_has_a_counterexample(rule: str) -> None:
    """No rule is in the model without a test that takes it out."""
    assert f'without("{rule}")' in inspect.getsource(sys.modules[__name__])
