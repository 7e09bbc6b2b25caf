"""Valkey GLIDE's synchronous client, spoken to as every other client. GLIDE itself is not imported.

It takes a command as one list of texts and bytes (`custom_command([...])`), and tells the server's errors in its own
words: `NOSCRIPT ...` becomes `An error was signalled by the server: - NoScriptError: ...`. Here they get the server's
words back, by which the store knows what to do.
"""

from __future__ import annotations

import importlib
import inspect
import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Sequence

_SIGNALLED = "An error was signalled by the server: - "
_CODED = re.compile(r"(?P<code>[A-Za-z]+): (?P<text>.*)", re.DOTALL)
_CODES = {
    "Ask": "ASK",
    "BusyLoadingError": "LOADING",
    "ClusterDown": "CLUSTERDOWN",
    "CrossSlot": "CROSSSLOT",
    "ExecAbortError": "EXECABORT",
    "MasterDown": "MASTERDOWN",
    "Moved": "MOVED",
    "NoScriptError": "NOSCRIPT",
    "NotBusy": "NOTBUSY",
    "PermissionDenied": "NOPERM",
    "ReadOnly": "READONLY",
    "ResponseError": "ERR",
    "TryAgain": "TRYAGAIN",
}


class RefusedError(Exception):
    """What the server answered, in its own words."""


class GlideClient:
    """One of GLIDE's synchronous clients, with the methods of other drivers' clients."""

    def __init__(self, client: Any) -> None:  # noqa: ANN401 - GLIDE's own type
        self._client = client

    def execute_command(self, *args: bytes | str | int) -> Any:  # noqa: ANN401 - as drivers have it
        """Send a command and return its reply, or raise what the server answered."""
        try:
            return self._client.custom_command(_encoded(args))
        except Exception as error:
            plain = _plain(error)
            if plain is error:
                raise
            raise plain from error

    def execute_all(self, commands: Sequence[Sequence[bytes | str | int]]) -> list[Any]:
        """Send commands in one round trip and return their replies; an error stands in the place of its reply."""
        batch = importlib.import_module("glide_shared.commands.batch").Batch(is_atomic=False)
        for command in commands:
            batch.custom_command(_encoded(command))
        replies = self._client.exec(batch, raise_on_error=False)
        return [_plain(reply) if isinstance(reply, Exception) else reply for reply in replies]


def is_glide(client: object) -> bool:
    """Tell whether this is a client of GLIDE, of whichever kind."""
    return not isinstance(client, type) and callable(getattr(client, "custom_command", None))


def is_asynchronous(client: Any) -> bool:  # noqa: ANN401 - GLIDE's own type
    """Tell whether it is one for asyncio."""
    return inspect.iscoroutinefunction(client.custom_command)


def is_cluster(client: Any) -> bool:  # noqa: ANN401 - GLIDE's own type
    """Tell whether it is one of a cluster: those can be told which node to send a command to."""
    return "route" in inspect.signature(client.custom_command).parameters


def arguments(client: object) -> dict[str, Any]:
    """Return what a client was made with, in the words of the other drivers, as far as it tells."""
    config = getattr(client, "_config", None)
    addresses = getattr(config, "addresses", None)
    if not addresses:
        return {"host": type(client).__name__, "port": None}
    user = getattr(config, "credentials", None)
    return {
        "host": addresses[0].host,
        "port": addresses[0].port,
        "ssl": bool(getattr(config, "use_tls", False)),
        "db": getattr(config, "database_id", None),
        "username": getattr(user, "username", None),
        "password": getattr(user, "password", None),
    }


def _encoded(args: Sequence[bytes | str | int]) -> list[bytes | str]:
    return [str(arg) if isinstance(arg, int) else arg for arg in args]


def _plain(error: Exception) -> Exception:
    """Give a server's error its own words back; any other one stays as it is."""
    text = str(error)
    found = _CODED.fullmatch(text.removeprefix(_SIGNALLED))
    if found is None or not (text.startswith(_SIGNALLED) or found["code"].isupper()):
        return error
    return RefusedError(f"{_CODES.get(found['code'], found['code'])} {found['text']}")
