"""Measure a store: operations per second, as a ratio to `SET NX PX` pipelined by the same driver on the same server.

Absolute figures depend on the machine and its load; the ratios do not, much. Run it as
`python benchmarks/stores.py redis://localhost:6379 valkey://localhost:6380`. It works under a prefix of its own and
removes what it wrote.
"""

from __future__ import annotations

import argparse
import statistics
import time
import uuid
from typing import TYPE_CHECKING

import redis

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores import from_url
from anarchon_tasks.stores.base import (
    Beat,
    Begin,
    BeginKind,
    Claim,
    ClaimKind,
    Definition,
    Delivered,
    Finish,
    Policy,
    Queued,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import LeaseStore

POLICY = Policy()
MESSAGE = Delivered(message_id="0a2f1c7b-5c8d-5e0c-9d53-6f3a4e900a2f", retries=0, worker="worker-1.example", pid=4711)


def per_second(count: int, work: Callable[[], None]) -> float:
    """Run some work and return how many operations it did per second."""
    started = time.perf_counter()
    work()
    return count / (time.perf_counter() - started)


def in_batches(items: Sequence[object], size: int, call: Callable[[Sequence[object]], None]) -> Callable[[], None]:
    """Return work that hands the items over in batches."""

    def work() -> None:
        for first in range(0, len(items), size):
            call(items[first : first + size])

    return work


def limit(client: redis.Redis, head: str, count: int, size: int) -> float:
    """Return the rate of the cheapest thing that lets one caller win: `SET NX PX`, pipelined."""

    def call(names: Sequence[object]) -> None:
        pipe = client.pipeline(transaction=False)
        for name in names:
            pipe.set(f"{head}set:{name}", "claim-id-of-32-characters-000000", nx=True, px=60_000)
        pipe.execute()

    return per_second(count, in_batches(list(range(count)), size, call))


def operations(store: LeaseStore, count: int, size: int) -> dict[str, float]:
    """Take fresh jobs through a run each and return the rate of each operation."""
    jobs = [f"job-{number}" for number in range(count)]
    floors = {}
    for first in range(0, count, 100):
        names = jobs[first : first + 100]
        reply = store.register([Definition(name=name, fingerprint="f", document="{}", floor=0) for name in names])
        floors.update(zip(names, (answer.floor for answer in reply.answers), strict=True))
    now = store.time().now_ms
    claims = [
        Claim(
            ref=RunRef(job, now - 10),
            claim_id=uuid.uuid4().hex,
            instance="scheduler-1.example:1",
            policy=POLICY,
            due_ms=now - 10,
            latest_ms=now + 3_600_000,
            floor=floors[job],
        )
        for job in jobs
    ]
    won, begun, rates = [], [], {}

    def claim(batch: Sequence[object]) -> None:
        won.extend(store.claim(batch).answers)

    def begin(batch: Sequence[object]) -> None:
        begun.extend(store.begin(batch).answers)

    rates["claim"] = per_second(count, in_batches(claims, size, claim))
    assert all(answer.kind is ClaimKind.WON for answer in won)
    records = [
        Queued(ref=ask.ref, token=answer.token, policy=POLICY, task_id=MESSAGE.message_id)
        for ask, answer in zip(claims, won, strict=True)
    ]
    rates["claim, lost"] = per_second(count, in_batches(claims, size, store.claim))
    rates["queued"] = per_second(count, in_batches(records, size, store.queued))
    asks = [
        Begin(
            ref=record.ref,
            delivery_id=uuid.uuid4().hex,
            delivered=MESSAGE,
            attempt=1,
            token=record.token,
            lease_ms=600_000,
        )
        for record in records
    ]
    rates["begin"] = per_second(count, in_batches(asks, size, begin))
    assert all(answer.kind is BeginKind.OK for answer in begun)
    held = [(ask.ref, answer.token) for ask, answer in zip(asks, begun, strict=True)]
    beats = [Beat(ref=ref, token=token, lease_ms=600_000) for ref, token in held]
    rates["beat"] = per_second(count, in_batches(beats, size, store.beat))
    ends = [Finish(ref=ref, status=Status.SUCCEEDED, token=token) for ref, token in held]
    rates["finish"] = per_second(count, in_batches(ends, size, store.finish))
    return rates


def remove(client: redis.Redis, prefix: str) -> None:
    """Delete every key of the benchmark."""
    keys: list[object] = []
    for key in client.scan_iter(match=f"*{prefix}*", count=1_000):
        keys.append(key)
        if len(keys) == 500:  # noqa: PLR2004 - a batch
            client.unlink(*keys)
            keys.clear()
    if keys:
        client.unlink(*keys)


def measure(url: str, size: int, count: int, rounds: int) -> None:
    """Print the medians of some rounds on one server."""
    plain = url.replace("valkey", "redis", 1)
    client = redis.Redis.from_url(plain, protocol=2)
    limits: list[float] = []
    rates: dict[str, list[float]] = {}
    for _ in range(rounds):
        prefix = f"bench-{uuid.uuid4().hex[:8]}:"
        store = from_url(url, prefix=prefix)
        try:
            limits.append(limit(client, prefix, count, size))
            for name, rate in operations(store, count, size).items():
                rates.setdefault(name, []).append(rate / limits[-1])
        finally:
            store.close()
            remove(client, prefix)
    client.close()
    base = statistics.median(limits)
    print(f"{url}  batches of {size}: SET NX PX {base:,.0f}/s")
    for name, ratios in rates.items():
        ratio = statistics.median(ratios)
        print(f"  {name:12} {ratio:5.2f}   about {ratio * base:8,.0f}/s")


def main() -> None:
    """Read the command line and measure each server."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("urls", nargs="+", help="servers to measure: redis://host:port or valkey://host:port")
    parser.add_argument(
        "--count", type=int, default=5_000, help="jobs per round in batches of 100 (a fifth one by one)"
    )
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    for url in given.urls:
        measure(url, 100, given.count, given.rounds)
        measure(url, 1, given.count // 5, given.rounds)


if __name__ == "__main__":
    main()
