"""The row that a claim writes, as the limits of SQL stores copy it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from anarchon_tasks.stores.base import ClaimKind, Definition
from store_bench.workload import claim_of

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore


def claimed_row(store: LeaseStore) -> None:
    """Claim one run in an empty store: the only row in its table of states."""
    now = store.time().now_ms
    [registered] = store.register([Definition(name="template", fingerprint="f", document="{}", floor=0)]).answers
    [answer] = store.claim([claim_of("template", registered.floor, now)]).answers
    if answer.kind is not ClaimKind.WON:
        raise AssertionError(answer)
