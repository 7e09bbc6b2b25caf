"""Store URLs: their options, and a form that can be shown to people."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from anarchon_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable

HIDDEN = "***"

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(//)?")
_SECRET = re.compile(r"(\w*(?:password|passwd|secret)\s*=\s*)('(?:[^'\\]|\\.)*'?|(?:[^\s\\]|\\.)+)", re.IGNORECASE)
_WITHOUT_USERS = frozenset({"sqlite", "memory"})


def scheme_of(url: str) -> str:
    """Return the scheme in lower case, or an empty text when there is none."""
    found = _SCHEME.match(url)
    return found[1].lower() if found else ""


def without_password(url: str) -> str:
    """Return the URL with its passwords replaced, in the part for users as in the query.

    Meant for messages, so it never fails and rather hides too much: also in a URL that cannot be parsed, as one whose
    password holds an unescaped slash.
    """
    if not scheme_of(url):
        return _SECRET.sub(rf"\1{HIDDEN}", url)  # pairs of key=value, as libpq reads them
    base, mark, query = url.partition("?")
    if mark and "@" in query and "@" not in base and _is_broken(base):
        base, mark, query = url, "", ""
    return _hide_user(base) + mark + "&".join(_hide_value(pair) for pair in query.split("&"))


def _hide_user(base: str) -> str:
    found = _SCHEME.match(base)
    if found is None or scheme_of(base) in _WITHOUT_USERS:
        return base
    head, rest = base[: found.end()], base[found.end() :]
    authority = re.split(r"[/#]", rest, maxsplit=1)[0]
    end = authority.rfind("@") if "@" in authority or not _is_broken(base) else rest.rfind("@")
    if end < 0:
        return base
    user, colon, _ = rest[:end].partition(":")
    return f"{head}{user}{colon}{HIDDEN if colon else ''}{rest[end:]}"


def _is_broken(base: str) -> bool:
    """Tell whether what stands in the place of a port is none: then it is the first part of a password."""
    found = _SCHEME.match(base)
    authority = re.split(r"[/#]", base[found.end() if found else 0 :], maxsplit=1)[0]
    return not re.fullmatch(r"([^:@]*|\[[^\]@]*\])(:\d*)?", authority) and "@" not in authority


def _hide_value(pair: str) -> str:
    name, equals, _ = pair.partition("=")
    secret = name.lower().endswith(("password", "passwd", "secret"))
    return f"{name}{equals}{HIDDEN}" if secret and equals else pair


def split_options(
    url: str, *, ours: Collection[str], driver: Collection[str] | None = ()
) -> tuple[str, dict[str, str]]:
    """Take our own options off the query of a URL.

    Args:
        url: The URL.
        ours: The names of our options; they are returned, decoded.
        driver: The names that stay in the URL, because the driver reads them. None: all the others stay.

    Returns:
        The URL without our options, and their values by name.

    Raises:
        ConfigError: The query has a name that is neither, or one of ours twice.

    """
    base, mark, query = url.partition("?")
    options: dict[str, str] = {}
    kept: list[str] = []
    for pair in filter(None, query.split("&")):
        name, value = parse_qsl(pair, keep_blank_values=True)[0]
        if name in ours:
            if name in options:
                raise ConfigError(f"{without_password(url)} gives {name} twice: give it once")
            options[name] = value
        elif driver is None or name in driver:
            kept.append(pair)  # as it is: drivers differ in what a `+` means
        else:
            shown = _hide_value(f"{name}={value}")
            raise ConfigError(f"{shown} is not an option of {scheme_of(url)}:// URLs; {known(ours, driver)}")
    return base + (mark + "&".join(kept) if kept else ""), options


def known(*names: Iterable[str]) -> str:
    """Say which options there are."""
    every = sorted({name for group in names for name in group})
    return f"the options are: {', '.join(every)}" if every else "it has no options"


def merged(url: str, in_url: dict[str, str], given: dict[str, object]) -> dict[str, object]:
    """Join the options of a URL with those given as arguments.

    Raises:
        ConfigError: An option is given in both and differs.

    """
    for name in in_url.keys() & given.keys():
        if str(given[name]) != in_url[name]:
            both = f"{name}={given[name]!r} contradicts {name}={in_url[name]!r}"
            raise ConfigError(f"{both} in {without_password(url)}: give one of them")
    return {**in_url, **given}
