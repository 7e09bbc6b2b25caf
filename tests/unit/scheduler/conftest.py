"""Fixtures of the core's tests."""

from __future__ import annotations

import pytest

from tests.unit.scheduler.kit import World


@pytest.fixture
def world() -> World:
    """A store with a clock that stands still."""
    return World()
