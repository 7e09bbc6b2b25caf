"""The Lua scripts of the Redis store, put together from their files."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass
from functools import cache
from importlib.resources import files
from typing import Any

from anarchon_tasks.errors import StoreFormatError
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


def checked(reply: Any, location: str, prefix: str) -> list[Any]:  # noqa: ANN401 - JSON is of any type
    """Return what a script replied.

    Raises:
        StoreFormatError: It is that the store was written by a newer version.

    """
    if isinstance(reply, dict):
        raise StoreFormatError(
            f"{location} holds format {reply.get('format')} under the prefix {prefix!r}, and this version reads up to "
            f"{FORMAT}: upgrade this instance. The store was left untouched."
        )
    result: list[Any] = reply
    return result


def _source(name: str) -> str:
    return files("anarchon_tasks.stores").joinpath("lua", f"{name}.lua").read_text(encoding="utf-8")
