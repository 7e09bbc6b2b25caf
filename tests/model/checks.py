"""What the tests of the models say: a world keeps every promise, or taking a rule out breaks a named one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.model.explorer import Model, Report, explore


def assert_keeps_every_promise(model: Model[Any]) -> Report:
    """Explore the whole model and fail with the traces of what it breaks; return the report otherwise."""
    report = explore(model)
    if report.violations or not report.complete:
        pytest.fail(f"the protocol is broken, or too big to explore:\n{report}", pytrace=False)
    return report


def assert_breaks(model: Model[Any], promise: str) -> None:
    """Explore until a promise is broken and fail, with the traces, unless it is the expected one."""
    report = explore(model, first_only=True)
    if promise not in report.violations:
        pytest.fail(f"expected a trace that ends in\n! {promise}\nbut found\n{report}", pytrace=False)
