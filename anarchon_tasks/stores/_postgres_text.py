"""Texts that PostgreSQL cannot hold: U+0000 and lone surrogates travel and are stored in another form.

Each becomes U+FFFF, which no text means by itself, and its four hexadecimal digits; U+FFFF itself becomes that too. So
two texts are equal there if and only if they are equal here.
"""

from __future__ import annotations

import re
from typing import Any

from anarchon_tasks.stores import _wire as wire

_MARK = "\uffff"
_MARK_BYTES = _MARK.encode()
# In JSON: the escape of U+0000; any other escape, so that the second half of `\\` does not begin one; a lone surrogate
# as three bytes; the mark.
_UNFIT = re.compile(rb"\\u0000|\\.|\xed[\xa0-\xbf][\x80-\xbf]|\xef\xbf\xbf", re.DOTALL)
_SUSPECT = re.compile(rb"\\u0000|\xed[\xa0-\xbf]|\xef\xbf\xbf")
_WRITTEN = re.compile(_MARK + "([0-9a-f]{4})")


def dumps(value: object) -> bytes:
    """Write a payload as JSON that PostgreSQL can hold."""
    text = wire.dumps(value)
    return _UNFIT.sub(_write, text) if _SUSPECT.search(text) else text


def loads(text: str) -> Any:  # noqa: ANN401 - JSON is of any type
    """Read a reply as JSON, with the characters that `dumps` replaced."""
    return wire.loads(_WRITTEN.sub(_read, text) if _MARK in text else text)


def _write(found: re.Match[bytes]) -> bytes:
    unfit = found[0]
    if unfit == b"\\u0000":
        return _MARK_BYTES + b"0000"
    if unfit.startswith(b"\\"):
        return unfit
    return _MARK_BYTES + f"{ord(unfit.decode('utf-8', 'surrogatepass')):04x}".encode()


def _read(found: re.Match[str]) -> str:
    return "\\u0000" if found[1] == "0000" else chr(int(found[1], 16))
