"""What a job and its runs cost a Redis server in memory: bytes of `used_memory`, for docs/reference/stores.md.

    python benchmarks/redis_memory.py [SERVER_PROGRAM]...

Starts each server on a free port, without persistence. The clock is moved by hand, so that slots pass quickly.
"""

from __future__ import annotations

import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from typing import TYPE_CHECKING

import redis

from anarchon_tasks import every
from anarchon_tasks.jobs import Job, JobOptions
from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores._redis_client import Connection
from anarchon_tasks.stores.base import Begin, Claim, Definition, Delivered, Finish, Queued
from anarchon_tasks.stores.redis import RedisStore

if TYPE_CHECKING:
    from anarchon_tasks.stores.base import LeaseStore

MINUTE = 60_000
START = 1_800_000_000_000


class Clock:
    """An instant that is moved by hand."""

    now = START

    def wall_ms(self) -> int:
        """Return it."""
        return self.now


def definition_of(name: str) -> tuple[Definition, object]:
    """Return a job as the store is told of it, and its policy."""
    job = Job(name=name, schedule=every("1m"), target="shop.tasks.sync_carts", options=JobOptions())
    return job.definition(), job.policy(MINUTE)


class Jobs:
    """The jobs of one store, and the lives of their runs."""

    def __init__(self, store: LeaseStore, clock: Clock) -> None:
        self.store = store
        self.clock = clock
        self.floor: dict[str, int] = {}

    def register(self, names: list[str]) -> object:
        """Make jobs known and return their policy."""
        made = [definition_of(name) for name in names]
        self.store.register([replace(item, floor=self.clock.now - MINUTE) for item, _ in made])
        self.floor.update((name, self.clock.now - MINUTE) for name in names)
        return made[0][1]

    def run(self, names: list[str], policy: object) -> None:
        """Take one slot of each job from its claim to its end."""
        slot = self.clock.now // MINUTE * MINUTE
        asks = [
            Claim(
                ref=RunRef(name, slot),
                claim_id=f"{n:032x}",
                instance=f"{n % 3:032x}",
                policy=policy,
                due_ms=slot,
                latest_ms=slot + MINUTE,
                floor=self.floor[name],
            )
            for n, name in enumerate(names)
        ]
        won = self.store.claim(asks).answers
        assert {answer.kind for answer in won} == {"won"}, won[0]
        self.floor.update((name, slot) for name in names)
        tasks = [f"anarchon-{name}-{slot}-{n:012x}" for n, name in enumerate(names)]
        self.clock.now += 20
        self.store.queued(
            [
                Queued(ref=ask.ref, token=answer.token, policy=policy, task_id=task)
                for ask, answer, task in zip(asks, won, tasks, strict=True)
            ]
        )
        self.clock.now += 20
        begun = self.store.begin(
            [
                Begin(
                    ref=ask.ref,
                    delivery_id=f"{n:032x}",
                    delivered=Delivered(message_id=task, retries=0, worker="celery@worker-1", pid=1234),
                    attempt=1,
                    token=answer.token,
                    lease_ms=30_000,
                )
                for n, (ask, answer, task) in enumerate(zip(asks, won, tasks, strict=True))
            ]
        ).answers
        self.clock.now += 1_500
        ends = [
            Finish(ref=ask.ref, status=Status.SUCCEEDED, token=answer.token)
            for ask, answer in zip(asks, begun, strict=True)
        ]
        assert all(self.store.finish(ends).answers)


class Server(Jobs):
    """One server with one store."""

    def __init__(self, program: str) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            port = probe.getsockname()[1]
        command = [program, "--port", str(port), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"]
        self.process = subprocess.Popen([*command, "--dir", tempfile.mkdtemp()], stdout=subprocess.DEVNULL)
        self.client = redis.Redis(port=port, protocol=2)
        for _ in range(200):
            try:
                self.client.ping()
                break
            except redis.ConnectionError:
                time.sleep(0.05)
        clock = Clock()
        super().__init__(RedisStore(Connection(client=self.client, location="here"), clock=clock), clock)
        info = self.client.info("server")
        name = info.get("server_name", "redis")
        self.name = f"{name} {info.get(f'{name}_version', info['redis_version'])}"

    def used(self) -> int:
        """Return the bytes in use."""
        self.client.execute_command("MEMORY", "PURGE")
        return int(self.client.info("memory")["used_memory"])


def measure(program: str) -> None:
    """Print what jobs and runs cost on one server."""
    server = Server(program)
    try:
        server.store.claim([])
        warm = [f"warm-{n}" for n in range(100)]
        server.run(warm, server.register(warm))
        empty = server.used()
        names = [f"tenant-{n:05}" for n in range(2_000)]
        policy = server.register(names)
        known = server.used()
        server.run(names, policy)
        one = server.used()
        print(
            f"{server.name}: a job that is known {(known - empty) / 2_000:.0f} bytes, with its first run "
            f"{(one - empty) / 2_000:.0f}"
        )
        few = names[:20]
        sizes = []
        for count in range(1, 1_021):
            server.clock.now += MINUTE - 1_540
            server.run(few, policy)
            if count in (20, 120, 1_020):
                sizes.append(server.used())
        states = server.client.hlen(f"{{cron:{few[0]}}}:state")
        print(
            f"  runs in the state of a job each minute: {states - 6}; in its history "
            f"{server.client.zcard(f'{{cron:{few[0]}}}:results')}"
        )
        print(
            f"  a run in the history: {(sizes[1] - sizes[0]) / 20 / 100:.0f} bytes among 100, "
            f"{(sizes[2] - sizes[1]) / 20 / 900:.0f} among 1000"
        )
        for kind in ("state", "slots", "active", "runs", "results"):
            usage = server.client.memory_usage(f"{{cron:{few[0]}}}:{kind}", samples=0)
            print(f"    :{kind} {usage or 0}")
        before = server.used()
        long = replace(policy, keep_ms=10**12)
        for _ in range(200):
            server.clock.now += MINUTE - 1_540
            server.run(few, long)
        print(f"  a run that a late claim could still ask for: {(server.used() - before) / 20 / 200:.0f} bytes more")
    finally:
        server.process.kill()


if __name__ == "__main__":
    for each in sys.argv[1:] or ["redis-server"]:
        measure(each)
