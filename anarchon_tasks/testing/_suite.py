"""The conformance suite of lease stores."""

from __future__ import annotations

from anarchon_tasks.testing._suite_claims import ClaimTests, RegisterTests
from anarchon_tasks.testing._suite_format import FormatTests
from anarchon_tasks.testing._suite_names import NameTests
from anarchon_tasks.testing._suite_overlap import OverlapTests, PublishTests
from anarchon_tasks.testing._suite_repeats import RepeatTests
from anarchon_tasks.testing._suite_store import (
    BatchTests,
    ConnectionTests,
    HistoryTests,
    IndexTests,
    TrimTests,
)
from anarchon_tasks.testing._suite_workers import BeginTests, FinishTests, RetryTests


class LeaseStoreSuite(
    RegisterTests,
    ClaimTests,
    OverlapTests,
    PublishTests,
    BeginTests,
    RetryTests,
    FinishTests,
    HistoryTests,
    TrimTests,
    IndexTests,
    BatchTests,
    RepeatTests,
    NameTests,
    ConnectionTests,
    FormatTests,
):
    """One test per guarantee of the store interface.

    Derive a test class and give it a fixture `adapter` that makes a `StoreAdapter` in a fresh namespace; and a
    `FormatAdapter` where the store outlives the program.
    """
