"""What a PostgreSQL backend may be told, and how it is shown to people."""

from __future__ import annotations

import inspect
import os
import re
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _urls

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from psycopg import Connection

    from anarchon_tasks.stores._postgres_pool import Pool

    Factory: TypeAlias = Callable[[], Connection[Any]]
    Target: TypeAlias = str | Mapping[str, object] | Pool | Factory | None

SCHEMES = ("postgres", "postgresql")
INSTALL = 'the driver is not installed: pip install "anarchon-tasks[postgres]"'

_PASSWORDS = ("password", "sslpassword", "oauth_client_secret", "scram_client_key", "scram_server_key")
# What libpq would not do by itself: give up on a host that does not answer, notice that an idle connection is lost.
_DEFAULTS: dict[str, object] = {
    "connect_timeout": 2,
    "fallback_application_name": "anarchon",
    "keepalives_idle": 30,
    "keepalives_interval": 10,
    "keepalives_count": 3,
}
_ALWAYS = {"client_encoding": "utf8"}
_WORDS = {
    "sslmode": ("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
    "channel_binding": ("disable", "prefer", "require"),
    "gssencmode": ("disable", "prefer", "require"),
    "target_session_attrs": ("any", "read-write", "read-only", "primary", "standby", "prefer-standby"),
}
_NUMBERS = ("connect_timeout", "keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count")
_PORTS = range(1, 65_536)
_ENCODE = "percent-encode special characters of the user, the password and the database (@ is %40, / is %2F, ? is %3F)"
_ALSO_IN_URL = frozenset({"ssl"})  # what JDBC writes, and libpq reads


def parameters(target: str | Mapping[str, object] | None) -> dict[str, Any]:
    """Return what libpq is told: a URL, a text of `key=value` pairs or a mapping, with our defaults below.

    Raises:
        ConfigError: A name or a value is not one of libpq, the text cannot be read, or the driver is not installed.

    """
    given = _from_text(target) if isinstance(target, str) else _from_mapping(target or {})
    _check_values(given)
    own = {name: value for name, value in _DEFAULTS.items() if f"PG{name.upper()}" not in os.environ}
    return {**own, **given, **_ALWAYS}


def check_url(url: str) -> None:
    """Refuse a URL in which libpq would take a part of the password for a host, or a host for a part of it.

    Raises:
        ConfigError: A special character is not encoded. The message shows nothing of the URL: any part may be secret.

    """
    rest = url.partition("://")[2]
    base = rest.partition("?")[0]
    authority, _, path = base.partition("/")
    end = re.search(r"[@/]", rest)  # where libpq ends the user and password, if it is an @
    if "@" in path or authority.count("@") > 1 or (end and end[0] == "@" and "?" in rest[: end.start()]):
        raise ConfigError(f"the {_urls.scheme_of(url)}:// URL has an @ or ? where none can be: {_ENCODE}")


def _check_values(given: Mapping[str, Any]) -> None:
    """Refuse values that no server will ever be reached with."""
    hosts = str(given.get("host") or "").split(",")
    if any("@" in host[1:] for host in hosts):  # the first of an abstract socket
        raise ConfigError(f"the host of postgres holds an @: give the host alone, and in a URL {_ENCODE}")
    for port in filter(None, str(given.get("port") or "").split(",")):
        if not port.strip().isdecimal() or int(port) not in _PORTS:
            raise ConfigError(f"port={given['port']!r} is not a port: give numbers from 1 to {_PORTS[-1]}")
    for name, words in _WORDS.items():
        if (value := given.get(name)) and value not in words:
            raise ConfigError(f"{name}={value!r} is not known: use one of {', '.join(words)}")
    for name in _NUMBERS:
        if (value := given.get(name)) is not None and not re.fullmatch(r"\s*-?\d+\s*", str(value)):
            raise ConfigError(f"{name}={value!r} is not a whole number")


def _keywords() -> list[str]:
    try:
        from psycopg import pq  # noqa: PLC0415 - an optional driver
    except ModuleNotFoundError:
        raise ConfigError(INSTALL) from None
    return [option.keyword.decode() for option in pq.Conninfo.get_defaults()]


def _from_mapping(given: Mapping[str, object]) -> dict[str, Any]:
    known = _keywords()
    for name in given:
        if name not in known:
            raise ConfigError(f"{name!r} is not an option of postgres; {_urls.known(known)}")
    return {name: value for name, value in given.items() if value is not None}


def _from_text(text: str) -> dict[str, Any]:
    known = _keywords()
    shown = _urls.without_password(text)
    scheme = _urls.scheme_of(text)
    if scheme in SCHEMES:
        check_url(text)
        for pair in filter(None, text.partition("?")[2].split("&")):
            name = unquote(pair.partition("=")[0])
            if name not in known and name not in _ALSO_IN_URL:
                raise ConfigError(f"{name!r} in {shown} is not an option of {scheme}:// URLs; {_urls.known(known)}")
        text = f"{scheme}{text[len(scheme) :]}"  # libpq knows it in lower case alone
    elif "=" not in text:
        raise ConfigError(f"{shown} is not a URL of PostgreSQL: use {', '.join(f'{s}://' for s in SCHEMES)}")
    from psycopg import ProgrammingError  # noqa: PLC0415 - an optional driver
    from psycopg.conninfo import conninfo_to_dict  # noqa: PLC0415

    try:
        found = dict(conninfo_to_dict(text))
        if re.fullmatch(r"[\d,]*", str(found.get("port") or "")):
            return found
    except (ProgrammingError, UnicodeError):
        pass
    # The driver's own words may hold a part of the password.
    advice = "percent-encode special characters of the password" if scheme else "write key='value' pairs"
    raise ConfigError(f"{shown} cannot be read: {advice}")


def check_target(target: object) -> None:
    """Refuse what is no way to a server.

    Raises:
        ConfigError: It is neither a URL, nor a mapping, nor a synchronous pool or function.

    """
    if target is None or isinstance(target, str) or hasattr(target, "keys"):
        parameters(target)  # type: ignore[arg-type]
        return
    kind = getattr(target, "__name__", None) or type(target).__name__
    given_parameters(target)
    asked = [target, *(getattr(target, name, None) for name in ("connection", "getconn", "__call__"))]
    if any(inspect.iscoroutinefunction(function) for function in asked):
        raise ConfigError(f"postgres={kind} is asynchronous: give a synchronous pool or function, or a URL")
    if isinstance(target, type) or not (is_pool(target) or callable(target)):
        raise ConfigError(
            f"postgres={kind} is not a way to a server: give a URL, a mapping of libpq's options, a pool with a "
            "context manager connection(), or a function that opens a connection of psycopg 3"
        )


def is_pool(target: object) -> bool:
    """Tell whether something lends connections."""
    return callable(getattr(target, "connection", None))


def given_parameters(target: object) -> dict[str, Any]:
    """Return what a pool of the user's connects with, as far as it tells."""
    text, more = getattr(target, "conninfo", None), getattr(target, "kwargs", None)
    found = _from_text(text) if isinstance(text, str) and text else {}
    found = {**found, **more} if isinstance(more, dict) else found
    _check_values(found)
    return found


def secrets(found: Mapping[str, Any], target: object = None) -> list[str]:
    """Return what no message may contain."""
    values = [found.get(name) for name in _PASSWORDS] + [os.environ.get("PGPASSWORD")]
    if isinstance(target, str) and (raw := re.match(r"\w+://[^/?#@:]*:([^/?#@]+)@", target)):
        values.append(raw[1])
    return [value for value in values if isinstance(value, str) and value]


def location(found: Mapping[str, Any]) -> str:
    """Return where parameters lead to, as a URL without a password."""
    user = f"{quote(str(found['user']), safe='')}@" if found.get("user") else ""
    hosts = str(found.get("host") or found.get("hostaddr") or "").split(",")
    ports = str(found.get("port") or "").split(",")
    ports = ports * len(hosts) if len(ports) == 1 else ports
    database = f"/{quote(str(found['dbname']), safe='')}" if found.get("dbname") else "/"
    extra = [f"service={quote(str(found['service']))}"] if found.get("service") else []
    if any(host.startswith(("/", "@")) for host in hosts):
        extra += [f"host={','.join(hosts)}", *([f"port={found['port']}"] if found.get("port") else [])]
        hosts, ports = [""], [""]
    pairs = zip(hosts, ports, strict=False)
    where = ",".join((f"[{host}]" if ":" in host else host) + (f":{port}" if port else "") for host, port in pairs)
    return f"postgresql://{user}{where}{database}" + (f"?{'&'.join(extra)}" if extra else "")
