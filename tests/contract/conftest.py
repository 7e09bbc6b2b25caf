"""The suite is no test module, so its assertions must be told to explain themselves."""

from __future__ import annotations

import pytest

for _module in (
    "_lab",
    "_suite_claims",
    "_suite_overlap",
    "_suite_workers",
    "_suite_store",
    "_suite_repeats",
    "_repeats_scheduler",
    "_repeats_workers",
):
    pytest.register_assert_rewrite(f"anarchon_tasks.testing.{_module}")
