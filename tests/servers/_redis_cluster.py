"""Redis and Valkey clusters of the tests' own."""

from __future__ import annotations

import contextlib
import subprocess
import time
from typing import TYPE_CHECKING, Any, Self

from tests.servers._missing import missing
from tests.servers._ports import HOST, free_port
from tests.servers._redis import RedisServer
from tests.servers._waiting import poll_until

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path
    from types import TracebackType

    import redis

SLOTS = 16_384
_HIGHEST_PORT = 55_535  # the nodes talk to each other at the port that is higher by 10000
_NODE_TIMEOUT_MS = 2_000
_START_TIMEOUT_S = 30.0


class RedisCluster:
    """A cluster of primaries, each with some replicas, on 127.0.0.1.

    Args:
        directory: Holds a directory for each node.
        primaries: How many; they share the slots in equal parts.
        replicas: How many each primary has.
        server: The kind of server.
    """

    def __init__(
        self, directory: Path, *, primaries: int = 3, replicas: int = 0, server: type[RedisServer] = RedisServer
    ) -> None:
        self.directory = directory
        self.primaries = primaries
        self.replicas = replicas
        self.server = server
        self.nodes: list[RedisServer] = []
        """Every server, the first primaries first."""

    @property
    def port(self) -> int:
        """The port of one node that runs: a client learns of the others there."""
        return next(node.port for node in self.nodes if node.running)

    def start(self) -> Self:
        """Start every node, make them one cluster, and return once it takes writes and the replicas are in step."""
        if self.server.binary() is None:
            missing(self.server.name, self.server.how_to_have())
        try:
            for number in range(self.primaries * (1 + self.replicas)):
                self.nodes.append(self._node(number).start())
            self._join()
        except BaseException:
            self.stop()
            raise
        return self

    def _node(self, number: int) -> RedisServer:
        options = ["--cluster-enabled", "yes", "--cluster-config-file", "nodes.conf"]
        options += ["--cluster-node-timeout", str(_NODE_TIMEOUT_MS), "--repl-diskless-sync-delay", "0"]
        port = free_port()
        while port > _HIGHEST_PORT:
            port = free_port()
        return self.server(self.directory / str(number), port=port, options=options)

    def _join(self) -> None:
        """Share out the slots and introduce the nodes to each other, as `redis-cli --cluster create` would."""
        first = self.nodes[0]
        for number, node in enumerate(self.nodes):
            with self.client(node) as client:
                client.execute_command("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
                if number < self.primaries:
                    low, high = (SLOTS * n // self.primaries for n in (number, number + 1))
                    client.execute_command("CLUSTER", "ADDSLOTS", *range(low, high))
                client.execute_command("CLUSTER", "MEET", HOST, first.port)
        poll_until(self._know_each_other, _START_TIMEOUT_S, what="nodes that know each other")
        for number, node in enumerate(self.nodes[self.primaries :]):
            with self.client(node) as client:
                client.execute_command("CLUSTER", "REPLICATE", self.node_id(self.nodes[number % self.primaries]))
        poll_until(self.healthy, _START_TIMEOUT_S, what="a cluster that takes writes")

    def _know_each_other(self) -> bool:
        return all(int(self._info(node)["cluster_known_nodes"]) == len(self.nodes) for node in self.nodes)

    def _info(self, node: RedisServer) -> dict[str, str]:
        with self.client(node) as client:
            text = client.execute_command("CLUSTER", "INFO")
        lines = text.decode() if isinstance(text, bytes) else text
        if isinstance(lines, dict):
            return {str(name): str(value) for name, value in lines.items()}
        return dict(line.split(":", 1) for line in lines.split())

    def healthy(self) -> bool:
        """Tell whether every running node sees a cluster that takes writes, and the replicas are in step."""
        running = [node for node in self.nodes if node.running]
        if any(self._info(node)["cluster_state"] != "ok" for node in running):
            return False
        replicas = 0
        for node in running:
            with self.client(node) as client:
                about: dict[str, Any] = client.info("replication")
            if about["role"] == "slave":
                replicas += 1
                if about["master_link_status"] != "up":
                    return False
        return replicas >= min(self.primaries * self.replicas, len(running) - self.primaries)

    def client(self, node: RedisServer) -> redis.Redis:
        """Open a client of one node."""
        import redis

        return redis.Redis(host=HOST, port=node.port, socket_timeout=5, protocol=2)

    def node_id(self, node: RedisServer) -> str:
        """Return what the cluster calls a node."""
        with self.client(node) as client:
            found = client.execute_command("CLUSTER", "MYID")
        return found.decode() if isinstance(found, bytes) else str(found)

    def primary_of(self, key: str) -> RedisServer:
        """Return the node that has the slot of a key now."""
        with self.client(self._running()[0]) as client:
            slot = int(client.execute_command("CLUSTER", "KEYSLOT", key))
            ranges = client.execute_command("CLUSTER", "SLOTS")
        ports = _ports(ranges, slot)
        return next(node for node in self.nodes if node.port == ports)

    def _running(self) -> Sequence[RedisServer]:
        return [node for node in self.nodes if node.running]

    def move(self, slot: int, target: RedisServer, *, pace_s: float = 0.0) -> None:
        """Move a slot with its keys to another primary, key by key, as `redis-cli --cluster reshard` does.

        Args:
            slot: Which one.
            target: Where to.
            pace_s: How long to pause after each key, so that clients meet a slot on its way.
        """
        with self.client(self._running()[0]) as client:
            port = _ports(client.execute_command("CLUSTER", "SLOTS"), slot)
        source = next(node for node in self.nodes if node.port == port)
        ids = self.node_id(source), self.node_id(target)
        with self.client(source) as here, self.client(target) as there:
            there.execute_command("CLUSTER", "SETSLOT", slot, "IMPORTING", ids[0])
            here.execute_command("CLUSTER", "SETSLOT", slot, "MIGRATING", ids[1])
            while keys := here.execute_command("CLUSTER", "GETKEYSINSLOT", slot, 1):
                here.execute_command("MIGRATE", HOST, target.port, "", 0, 5_000, "KEYS", *keys)
                time.sleep(pace_s)
            there.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
            here.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])
        for node in self._running():
            with contextlib.suppress(Exception), self.client(node) as client:  # replicas refuse
                client.execute_command("CLUSTER", "SETSLOT", slot, "NODE", ids[1])

    def stop(self) -> None:
        """End every node with SIGKILL: a cluster that is going down needs no farewells."""
        for node in self.nodes:
            with contextlib.suppress(subprocess.SubprocessError):
                node.kill()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.stop()


def _ports(ranges: Any, slot: int) -> int:  # noqa: ANN401 - the driver's shapes
    """Return the port of the primary that has a slot, from the reply to CLUSTER SLOTS."""
    if isinstance(ranges, dict):
        return next(int(found["primary"][1]) for (low, high), found in ranges.items() if low <= slot <= high)
    return next(int(found[2][1]) for found in ranges if found[0] <= slot <= found[1])
