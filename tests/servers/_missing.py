"""What happens when a server that a test needs is not there."""

from __future__ import annotations

import os
from typing import NoReturn

import pytest


def missing(what: str, how: str) -> NoReturn:
    """Skip the test on a laptop; fail it where `CI` is set, so that no suite is green because nothing ran.

    Args:
        what: The server that is missing.
        how: What to do to have it.
    """
    message = f"{what} is missing: {how}"
    if os.environ.get("CI"):
        pytest.fail(message, pytrace=False)
    pytest.skip(message)
