"""Sends scripts to the nodes of a cluster: a pipeline per node, through the cluster client that was handed in.

Imports no driver. The client is one of redis-py or valkey-py: their own pipelines for clusters know no scripts, or ask
a node for the keys of each command, which costs four times as much.
"""

from __future__ import annotations

import contextlib
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeAlias

from anarchon_tasks.errors import StoreUnavailable
from anarchon_tasks.stores._redis_client import as_bytes, translate
from anarchon_tasks.stores._redis_options import location_of

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Sequence

    from anarchon_tasks.errors import StoreError
    from anarchon_tasks.stores._redis_scripts import Script

FOLLOW_S = 1.0
"""How long one call goes after keys that are on their way to another node."""
_ROUNDS = 3
_WORTH_THREADS = 12
"""From how many calls on, nodes are asked at the same time: to start a thread takes as long as a few calls."""

Wait: TypeAlias = tuple[int, int]
"""For how many replicas a node waits, and for how many milliseconds at most."""
_Group: TypeAlias = "tuple[Any, list[Call]]"
"""A node, and the calls for it."""
_Done: TypeAlias = tuple[list[Any], int]
"""The replies of a node, errors among them, and how many of its replicas are in step."""

_NO_SCRIPT = "NoScriptError"
_BROKEN = frozenset({"ConnectionError", "OSError"})
_MOVING = frozenset({"AskError", "MovedError", "TryAgainError"})
_LOST_ON_THE_WAY = "TTL exhausted"  # a cluster client that was sent around too often; nothing was executed
_DOWN = "ClusterDownError"
_NO_CLUSTER = frozenset({"RedisClusterException", "ValkeyClusterException", _DOWN})


@dataclass(slots=True, eq=False)
class Call:
    """A script about keys of one slot, and what came of it: a reply, or an error."""

    script: Script
    keys: tuple[bytes, ...]
    args: tuple[bytes | int, ...]
    reply: bytes | str | None = None
    at: float = 0.0
    """When the reply was here, by our monotonic clock."""
    error: StoreError | None = None
    moving: bool = False
    """Whether the error is that the slot is on its way to another node."""
    replicas: int = 0
    """How many replicas are known to have what it wrote; asked for with `wait`."""

    def command(self) -> tuple[bytes | str | int, ...]:
        """Return the command for a node that should know the script."""
        return ("EVALSHA", self.script.sha, len(self.keys), *self.keys, *self.args)

    def whole(self) -> tuple[bytes | str | int, ...]:
        """Return the command for a node that may not know the script."""
        return ("EVAL", self.script.text, len(self.keys), *self.keys, *self.args)


def is_cluster(client: object) -> bool:
    """Tell whether a client is one of a cluster."""
    return hasattr(client, "get_node_from_key")


def kwargs_of(client: Any) -> dict[str, Any]:  # noqa: ANN401 - the drivers' own types
    """Return what a cluster client opens its connections with, as far as it tells, to the first node it was given."""
    kwargs = getattr(getattr(client, "nodes_manager", None), "connection_kwargs", None)
    node = next(iter(getattr(client, "startup_nodes", ()) or ()), None) or client.get_default_node()
    return {**(kwargs if isinstance(kwargs, dict) else {}), "host": node.host, "port": node.port}


class Nodes:
    """The nodes of one cluster.

    Args:
        client: The cluster client. Its timeouts and retries are its own.
        location: Where it leads to, for messages.
        secrets: What no message may contain.

    """

    def __init__(self, client: Any, *, location: str, secrets: Collection[str] = ()) -> None:  # noqa: ANN401
        self._client = client
        self._location = location
        self._secrets = secrets
        self._kwargs = kwargs_of(client)
        self._as_bytes = as_bytes(self._kwargs)
        self._connection_to = getattr(client, "get_redis_connection", None) or client.get_valkey_connection

    def send(self, calls: Sequence[Call], *, wait: Wait | None = None) -> None:
        """Execute calls, at most a few times each, and note at each what came of it.

        A connection that a node closed is opened again, a node without the script gets it, and a key that has moved is
        followed. A node that does not answer in time is not asked twice.

        Args:
            calls: What to execute.
            wait: For which replicas each node waits. None are known of where a key was followed.

        """
        pending, follow = list(calls), list[Call]()
        for left in reversed(range(_ROUNDS)):
            repeated: list[Call] = []
            groups = self._by_node(pending)
            for (node, group), done in zip(groups, self._at_once(groups, wait), strict=True):
                self._sort_out(node, group, done, repeated if left else None, follow)
            if not repeated:
                break
            pending = repeated
        self._follow(follow)

    def primaries(self) -> dict[str, Callable[..., Any]]:
        """Return where each primary is, for people, and what sends it a command or raises an error of ours."""

        def sender(node: Any) -> Callable[..., Any]:  # noqa: ANN401
            def execute(*args: bytes | str | int) -> Any:  # noqa: ANN401
                try:
                    return self._connection_to(node).execute_command(*args)
                except Exception as error:  # noqa: BLE001 - each driver has its own
                    raise translate(error, self._where(node), self._secrets) from None

            return execute

        return {node.name: sender(node) for node in self._client.get_primaries()}

    def _by_node(self, calls: Iterable[Call]) -> list[_Group]:
        groups: dict[str, _Group] = {}
        nowhere = False
        for call in calls:
            try:
                node = self._client.get_node_from_key(call.keys[0])
            except Exception as error:  # noqa: BLE001 - each driver has its own
                nowhere = True
                self._note(call, error)
            else:
                groups.setdefault(node.name, (node, []))[1].append(call)
        if nowhere:
            self._refresh()
        return list(groups.values())

    def _at_once(self, groups: list[_Group], wait: Wait | None) -> list[_Done | Exception]:
        """Send each node its calls, and return what came of it. The nodes work at the same time."""
        done: list[_Done | Exception] = [Exception("not sent")] * len(groups)

        def send(place: int) -> None:
            try:
                done[place] = self._execute(*groups[place], wait)
            except Exception as error:  # noqa: BLE001 - each driver has its own
                done[place] = error

        threads: list[threading.Thread] = []
        if sum(len(calls) for _, calls in groups) >= _WORTH_THREADS:
            for place in range(1, len(groups)):
                thread = threading.Thread(target=send, args=(place,))
                try:
                    thread.start()
                except RuntimeError:  # a process that ends, or has too many, starts no more
                    break
                threads.append(thread)
        for place in range(len(groups)):
            if not 1 <= place <= len(threads):
                send(place)
        for thread in threads:
            thread.join()
        return done

    def _sort_out(
        self,
        node: Any,  # noqa: ANN401 - the drivers' own types
        calls: list[Call],
        done: _Done | Exception,
        again: list[Call] | None,
        follow: list[Call],
    ) -> None:
        """Note what came of calls to a node, and which are to be executed again, or on another one."""
        if isinstance(done, Exception):
            self._refresh(node)
            if again is not None and _names(done) & _BROKEN:
                again += calls
            for call in calls:
                self._note(call, done, node)
            return
        replies, replicas = done
        for call, reply in zip(calls, replies, strict=True):
            self._note(call, reply, node)
            call.replicas = replicas
            names = _names(reply)
            if again is not None and _NO_SCRIPT in names:
                again.append(call)
            elif names & _MOVING or _NO_SCRIPT in names:  # a call that is followed brings its script along
                follow.append(call)
        if any(_DOWN in _names(reply) for reply in replies):
            self._refresh()

    def _execute(self, node: Any, calls: list[Call], wait: Wait | None) -> _Done:  # noqa: ANN401
        """Send calls in one round trip; return their replies, errors among them, and how many replicas are in step.

        A node that lost its scripts (a restart, a failover) gets them again.
        """
        connection = self._connection_to(node)
        pipe = connection.pipeline(transaction=False)
        for call in calls:
            pipe.execute_command(*call.command(), **self._as_bytes)
        if wait is not None:
            pipe.execute_command("WAIT", *wait)
        replies: list[Any] = pipe.execute(raise_on_error=False)
        replicas = replies.pop() if wait is not None else 0
        if any(_NO_SCRIPT in _names(reply) for reply in replies):
            for text in {call.script.text for call in calls}:
                connection.execute_command("SCRIPT", "LOAD", text)
        return replies, replicas if isinstance(replicas, int) else 0

    def _follow(self, calls: list[Call]) -> None:
        """Execute calls through the cluster client, which goes after moved keys and learns where they are."""
        until = time.monotonic() + FOLLOW_S
        for call in calls:
            call.replicas = 0
            try:
                reply = self._client.execute_command(*call.whole(), **self._as_bytes)
            except Exception as error:  # noqa: BLE001 - each driver has its own
                self._note(call, error)
            else:
                self._note(call, reply)
            if time.monotonic() > until:
                return

    def _where(self, node: Any) -> str:  # noqa: ANN401 - the drivers' own types
        """Return where a node is, for people; None: the cluster."""
        if node is None:
            return self._location
        return location_of({**self._kwargs, "host": node.host, "port": node.port})

    def _note(self, call: Call, reply: Any, node: Any = None) -> None:  # noqa: ANN401 - the drivers' own types
        if not isinstance(reply, Exception):
            call.reply, call.at, call.error, call.moving = reply, time.monotonic(), None, False
            return
        names = _names(reply)
        call.moving = bool(names & _MOVING) or _LOST_ON_THE_WAY in str(reply)
        passing = call.moving or bool(names & _NO_CLUSTER)
        call.error = translate(reply, self._where(node), self._secrets, passing=passing)
        if call.moving:
            call.error = StoreUnavailable(f"{self._where(node)}: a slot is on its way to another node ({call.error})")

    def _refresh(self, node: Any = None) -> None:  # noqa: ANN401 - the drivers' own types
        """Leave the connections to a node that broke, and ask the others which nodes there are now."""
        with contextlib.suppress(Exception):
            if node is not None:
                self._connection_to(node).connection_pool.disconnect(inuse_connections=False)
        with contextlib.suppress(Exception):
            self._client.nodes_manager.initialize()


def _names(error: object) -> frozenset[str]:
    """Return the names of an exception's classes; none for a reply."""
    if not isinstance(error, Exception):
        return frozenset()
    return frozenset(cls.__name__ for cls in type(error).__mro__)
