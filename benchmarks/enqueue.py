"""Slots claimed and enqueued per second by one instance, as a ratio to a bare `send_task` loop on the same broker.

    python benchmarks/enqueue.py [--jobs 10000] [--broker redis://127.0.0.1:6379/0] [--store redis://127.0.0.1:6379/0]

Both loops run in turn, several times, in one process each time they publish, so that a machine that is busy with
something else slows both. The scheduler's part includes the claims, the records of the publishes and the upkeep.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import uuid

import redis
from celery import Celery

from anarchon_celery.publisher import CeleryPublisher
from anarchon_tasks import events
from anarchon_tasks.jobs import Job
from anarchon_tasks.scheduler import Scheduler
from anarchon_tasks.schedules import every
from anarchon_tasks.stores import from_url

QUEUE = "anarchon-bench"
GOAL = 0.8


def bare(app: Celery, count: int) -> float:
    """Send messages in a plain loop; return messages per second."""
    started = time.perf_counter()
    for number in range(count):
        app.send_task("bench.nothing", (number,), queue=QUEUE)
    return count / (time.perf_counter() - started)


def scheduled(app: Celery, store: str, count: int) -> tuple[float, list[int]]:
    """Let one scheduler enqueue a slot of each job; return slots per second, and the lateness of each in ms."""
    late: list[int] = []
    tell = events.Events()
    tell.subscribe(lambda event: late.append(event.lateness_ms) if isinstance(event, events.Enqueued) else None)
    prefix = f"bench-{uuid.uuid4().hex[:8]}:"
    url = f"{store}{'&' if '?' in store else '?'}prefix={prefix}"
    scheduler = Scheduler(backend=from_url(url), publisher=CeleryPublisher(app), tell=tell)
    warm_up = 2 + count // 2_000  # seconds in which the jobs are registered
    offset = int(time.time() + warm_up) % 3_600
    for number in range(count):
        scheduler.add_job(
            Job(name=f"tenant-{number}", schedule=every("1h", offset=f"{offset}s"), target="bench.nothing", queue=QUEUE)
        )
    scheduler.start()
    give_up = time.monotonic() + warm_up + 120
    while len(late) < count and time.monotonic() < give_up:
        time.sleep(0.02)
    scheduler.stop(10)
    forget(store, prefix)
    if len(late) < count:
        sys.exit(f"only {len(late)} of {count} slots were enqueued")
    return count / ((max(late) - min(late)) / 1000), sorted(late)


def forget(store: str, prefix: str) -> None:
    """Delete what a round left in the store."""
    with redis.Redis.from_url(store.partition("?")[0]) as client:
        for key in client.scan_iter(f"*{prefix}*", count=1_000):
            client.unlink(key)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--jobs", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--broker", default="redis://127.0.0.1:6379/0")
    parser.add_argument("--store", default="redis://127.0.0.1:6379/0")
    options = parser.parse_args()
    app = Celery("bench", broker=options.broker)
    app.conf.task_ignore_result = True
    ratios = []
    print(f"{options.jobs} jobs due in one second; broker {options.broker}, store {options.store.partition('?')[0]}")
    print(f"{'round':>5} {'bare/s':>8} {'slots/s':>8} {'ratio':>6} {'late p50':>9} {'p99':>7} {'last':>7}")
    try:
        for number in range(1, options.rounds + 1):
            limit = bare(app, options.jobs)
            rate, late = scheduled(app, options.store, options.jobs)
            ratios.append(rate / limit)
            p50, p99 = late[len(late) // 2], late[len(late) * 99 // 100]
            print(
                f"{number:>5} {limit:>8.0f} {rate:>8.0f} {rate / limit:>6.2f} {p50:>6} ms {p99:>4} ms {late[-1]:>4} ms"
            )
    finally:
        with app.connection_for_write() as connection:
            connection.default_channel.queue_purge(QUEUE)
    print(f"ratio, median of {len(ratios)}: {statistics.median(ratios):.2f} (goal: at least {GOAL})")


if __name__ == "__main__":
    main()
