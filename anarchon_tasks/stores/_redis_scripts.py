"""The Lua scripts of the Redis store, put together from their files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from anarchon_tasks.errors import StoreError, StoreFormatError
from anarchon_tasks.stores import _wire as wire
from anarchon_tasks.stores.base import FORMAT

_USES = re.compile(r"\A-- uses: ([a-z_ ]+)\n")


@dataclass(frozen=True, slots=True)
class Script:
    """One operation as the server runs it."""

    name: str
    text: str
    sha: str
    """What the server calls the script."""


@cache
def script(name: str) -> Script:
    """Return an operation: its file `lua/<name>.lua`, behind the files that its first line says it uses."""
    body = _source(name)
    uses = _USES.match(body)
    if uses is None:
        raise LookupError(f"{name}.lua is not an operation: its first line does not say what it uses")
    text = "\n".join([*(_source(used) for used in uses[1].split()), body])
    return Script(name, text, hashlib.sha1(text.encode()).hexdigest())  # noqa: S324 - the server's choice


def read(said: Any, location: str, prefix: str) -> list[Any]:  # noqa: ANN401 - whatever a client returns
    """Return what a script replied.

    Raises:
        StoreFormatError: It is that the store was written by a newer version.
        StoreError: It is none of a script: the client changed it, or sends commands elsewhere.

    """
    try:
        reply = wire.loads(said)
    except (TypeError, ValueError):
        reply = None
    if isinstance(reply, dict):
        raise StoreFormatError(
            f"{location} holds format {reply.get('format')} under the prefix {prefix!r}, and this version reads up to "
            f"{FORMAT}: upgrade this instance. The store was left untouched."
        )
    if not (isinstance(reply, list) and reply and isinstance(reply[0], int)):
        raise StoreError(
            f"{location}: a script was answered with a {type(said).__name__} that is no answer of ours: hand in a "
            "client that returns replies as they come, as bytes or as UTF-8 text, with no callback for EVALSHA"
        )
    return reply


def _source(name: str) -> str:
    return files("anarchon_tasks.stores").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
