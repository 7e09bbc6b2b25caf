"""Measure a store: operations per second, as a ratio to `SET NX PX` pipelined by the same driver on the same server.

Absolute figures depend on the machine and its load; the ratios and the server's CPU time per operation do not, much.
Run it as `python benchmarks/stores.py redis://localhost:6379 valkey://localhost:6380`, best on servers that nobody else
uses. It works under a prefix of its own and removes what it wrote.
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

Rates = dict[str, tuple[float, float]]
"""By operation: how many per second, and the server's CPU time for one in microseconds."""

POLICY = Policy()
MESSAGE = Delivered(message_id="0a2f1c7b-5c8d-5e0c-9d53-6f3a4e900a2f", retries=0, worker="worker-1.example", pid=4711)


class Meter:
    """Measures work against one server."""

    def __init__(self, client: redis.Redis, count: int, size: int) -> None:
        self.client = client
        self.count = count
        self.size = size
        self.rates: Rates = {}

    def server_us(self) -> float:
        """Return the CPU time that the server has used."""
        used = self.client.info("cpu")
        return 1e6 * (used["used_cpu_user"] + used["used_cpu_sys"])

    def measure(self, name: str, items: Sequence[object], call: Callable[[Sequence[object]], object]) -> None:
        """Hand the items over in batches and note the rate."""
        used, started = self.server_us(), time.perf_counter()
        for first in range(0, len(items), self.size):
            call(items[first : first + self.size])
        took = time.perf_counter() - started
        self.rates[name] = len(items) / took, (self.server_us() - used) / len(items)


def limit(meter: Meter, head: str) -> None:
    """Measure the cheapest thing that lets one caller win: `SET NX PX`, pipelined."""

    def call(numbers: Sequence[object]) -> None:
        pipe = meter.client.pipeline(transaction=False)
        for number in numbers:
            pipe.set(f"{head}set:{number}", "claim-id-of-32-characters-000000", nx=True, px=60_000)
        pipe.execute()

    meter.measure("SET NX PX", list(range(meter.count)), call)


def operations(meter: Meter, store: LeaseStore) -> None:
    """Take fresh jobs through a run each and measure each operation."""
    jobs = [f"job-{number}" for number in range(meter.count)]
    floors = {}
    for first in range(0, meter.count, 100):
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
    won, begun = [], []

    def claim(batch: Sequence[object]) -> None:
        won.extend(store.claim(batch).answers)

    def begin(batch: Sequence[object]) -> None:
        begun.extend(store.begin(batch).answers)

    meter.measure("claim", claims, claim)
    assert all(answer.kind is ClaimKind.WON for answer in won)
    records = [
        Queued(ref=ask.ref, token=answer.token, policy=POLICY, task_id=MESSAGE.message_id)
        for ask, answer in zip(claims, won, strict=True)
    ]
    meter.measure("claim, lost", claims, store.claim)
    meter.measure("queued", records, store.queued)
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
    meter.measure("begin", asks, begin)
    assert all(answer.kind is BeginKind.OK for answer in begun)
    held = [(ask.ref, answer.token) for ask, answer in zip(asks, begun, strict=True)]
    beats = [Beat(ref=ref, token=token, lease_ms=600_000) for ref, token in held]
    meter.measure("beat", beats, store.beat)
    ends = [Finish(ref=ref, status=Status.SUCCEEDED, token=token) for ref, token in held]
    meter.measure("finish", ends, store.finish)


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


def median(rounds: Sequence[Rates], name: str, value: Callable[[Rates, str], float]) -> float:
    """Return the median over the rounds."""
    return statistics.median(value(rates, name) for rates in rounds)


def benchmark(url: str, size: int, count: int, rounds: int) -> None:
    """Print the medians of some rounds on one server."""
    client = redis.Redis.from_url(url.replace("valkey", "redis", 1), protocol=2)
    every: list[Rates] = []
    for _ in range(rounds):
        prefix = f"bench-{uuid.uuid4().hex[:8]}:"
        store, meter = from_url(url, prefix=prefix), Meter(client, count, size)
        try:
            limit(meter, prefix)
            operations(meter, store)
        finally:
            store.close()
            remove(client, prefix)
        every.append(meter.rates)
    client.close()
    print(f"{url}, batches of {size}\n  {'':12} ratio  per second  server us")
    for name in every[0]:
        ratio = median(every, name, lambda rates, name: rates[name][0] / rates["SET NX PX"][0])
        rate = median(every, name, lambda rates, name: rates[name][0])
        server = median(every, name, lambda rates, name: rates[name][1])
        print(f"  {name:12} {ratio:5.2f} {rate:11,.0f} {server:10.1f}")


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
        benchmark(url, 100, given.count, given.rounds)
        benchmark(url, 1, given.count // 5, given.rounds)


if __name__ == "__main__":
    main()
