"""What a Redis or Valkey backend may be told, and how it is shown to people."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import SplitResult, parse_qsl, quote, unquote, urlsplit

from anarchon_tasks._durations import Duration, to_ms
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _glide, _urls
from anarchon_tasks.stores import _redis_strategies as strategies
from anarchon_tasks.stores import _redis_values as values

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

DEFAULT_PREFIX = "cron:"
DEFAULT_REPLICAS_TIMEOUT = "100ms"
SOCKET_TIMEOUT_S = 2.0

DEFAULTS: dict[str, object] = {
    "prefix": DEFAULT_PREFIX,
    "strategy": strategies.DEFAULT,
    "min_replicas": 0,
    "min_replicas_timeout": DEFAULT_REPLICAS_TIMEOUT,
}
"""Our own options, which may stand in the query of a URL, too."""
_YES = {"1": True, "true": True, "yes": True, "on": True, "0": False, "false": False, "no": False, "off": False}


def _yes_or_no(text: str) -> bool:
    return _YES[text.lower()]


# The driver's options that may stand in a URL, and how their values are read there.
_IN_URL: dict[str, Callable[[str], object]] = {
    "client_name": str,
    "db": int,
    "health_check_interval": int,
    "max_connections": int,
    "protocol": int,
    "socket_connect_timeout": float,
    "socket_keepalive": _yes_or_no,
    "socket_timeout": float,
    "ssl_ca_certs": str,
    "ssl_ca_path": str,
    "ssl_cert_reqs": str,
    "ssl_certfile": str,
    "ssl_check_hostname": _yes_or_no,
    "ssl_keyfile": str,
}
_IN_MAPPING = frozenset(
    {
        *_IN_URL,
        "credential_provider",
        "host",
        "password",
        "port",
        "socket_keepalive_options",
        "ssl",
        "ssl_ca_data",
        "ssl_ciphers",
        "ssl_min_version",
        "ssl_password",
        "unix_socket_path",
        "username",
    }
)
_TLS = {"redis": False, "rediss": True, "valkey": False, "valkeys": True}
# Protocol 2 is all that scripts need, and servers before Redis 6 know no other. Without timeouts of its own a driver
# takes the process-wide default, which some frameworks set to half a minute.
_DEFAULTS: dict[str, object] = {
    "protocol": 2,
    "socket_timeout": SOCKET_TIMEOUT_S,
    "socket_connect_timeout": SOCKET_TIMEOUT_S,
}


def check_prefix(prefix: object) -> None:
    """Refuse a prefix that would let two pairs of prefix and job meet, or break the hash tag of keys.

    Raises:
        ConfigError: It is no text that ends in `:`, or has braces.

    """
    if not isinstance(prefix, str):
        raise ConfigError(f"prefix={prefix!r} is not a text: use {DEFAULT_PREFIX!r}")
    correct = prefix.replace("{", "").replace("}", "").rstrip(":")
    if prefix == f"{correct}:" and correct:
        return
    correct = f"{correct}:" if correct else DEFAULT_PREFIX
    raise ConfigError(f"prefix={prefix!r} must end in one ':' and have no braces: use {correct!r}")


def replicas(value: object) -> int:
    """Return how many replicas must have a grant, also when it was written as a text in a URL.

    Raises:
        ConfigError: It is no whole number, or negative.

    """
    count: object = int(value) if isinstance(value, str) and value.isdecimal() else value
    if isinstance(count, int) and not isinstance(count, bool) and count >= 0:
        return count
    raise ConfigError(f"min_replicas={value!r} is not a number of replicas: give 0 or more")


def replicas_timeout_ms(value: Duration, socket_timeout: object = None) -> int:
    """Return how long the server waits for its replicas.

    Args:
        value: The option.
        socket_timeout: After how many seconds the driver gives up; None: never.

    Raises:
        ConfigError: It is no duration, or does not end before the driver gives up.

    """
    timeout_ms = to_ms(value, option="min_replicas_timeout", minimum_ms=1)
    if isinstance(socket_timeout, int | float) and timeout_ms >= socket_timeout * 1_000:
        raise ConfigError(
            f"min_replicas_timeout={value!r} is too long: give less than the socket_timeout of {socket_timeout:g} s, "
            "after which a call counts as not answered"
        )
    return timeout_ms


def from_url(url: str, **given: object) -> tuple[str, dict[str, object]]:
    """Take our options out of a URL and check the rest.

    Raises:
        ConfigError: An option is not known or contradicts a given one, or the URL is not one of a server.

    """
    rest, found = _urls.split_options(url, ours=DEFAULTS, driver=_IN_URL)
    explicit = {name: value for name, value in given.items() if value != DEFAULTS[name]}
    arguments(rest)
    return rest, {**given, **_urls.merged(url, found, explicit)}


def checked(options: Mapping[str, object], name: str) -> dict[str, object]:
    """Return a copy of a mapping of driver options.

    Raises:
        ConfigError: It has one that is not known, or a value that cannot work.

    """
    for option in options:
        if option not in _IN_MAPPING:
            raise ConfigError(f"{option!r} is not an option of {name}; {_urls.known(_IN_MAPPING)}")
    return values.checked(options, name)


def arguments(target: str | Mapping[str, object] | None) -> dict[str, Any]:
    """Return what the driver's client is made with.

    Raises:
        ConfigError: The URL is not one of a server.

    """
    given = _url_arguments(target) if isinstance(target, str) else dict(target or {})
    return {**_DEFAULTS, **given}


def _url_arguments(url: str) -> dict[str, object]:
    shown = _urls.without_password(url)
    scheme = _urls.scheme_of(url)
    if scheme != "unix" and scheme not in _TLS:
        raise ConfigError(
            f"{shown} is not a URL of Redis or Valkey: use {', '.join(f'{s}://' for s in (*_TLS, 'unix'))}"
        )
    parts, port = _parsed(url, shown)
    found: dict[str, object] = {}
    if scheme == "unix":
        found["unix_socket_path"] = unquote(parts.path)
    else:
        found |= {"host": parts.hostname or "localhost", "port": 6379 if port is None else port}
        if _TLS[scheme]:
            found["ssl"] = True
        if parts.path not in {"", "/"}:
            found["db"] = _value("db", parts.path[1:], shown)
    for name, value in (("username", parts.username), ("password", parts.password)):
        if value:
            found[name] = unquote(value)
    for name, text in parse_qsl(parts.query):
        read = _value(name, text, shown)
        had = found.setdefault(name, read)
        if had is not read and had != read:
            raise ConfigError(f"{shown} gives {name} twice, {had!r} and {read!r}: give it once")
    return values.checked(found, shown)


def _parsed(url: str, shown: str) -> tuple[SplitResult, int | None]:
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError as error:
        if "out of range" in str(error):
            raise ConfigError(f"{shown}: the port is out of range: give one from 1 to 65535") from None
        raise ConfigError(f"{shown} cannot be read: percent-encode special characters of the password") from None
    if parts.scheme == "unix" and not parts.path.strip("/"):
        raise ConfigError(f"{shown} names no socket: use unix:///path/of/the.sock")
    if parts.scheme != "unix" and "://" not in url:
        raise ConfigError(f"{shown} names no host: use {parts.scheme}://HOST:PORT/DB")
    return parts, port


def _value(name: str, text: str, shown: str) -> object:
    try:
        return _IN_URL[name](text)
    except (KeyError, ValueError):
        raise ConfigError(f"{shown}: {name}={text!r} is not valid") from None


def check_files(kwargs: Mapping[str, Any]) -> None:
    """Refuse certificates that are not there: the driver would not say which.

    Raises:
        ConfigError: A file does not exist.

    """
    for option in ("ssl_ca_certs", "ssl_certfile", "ssl_keyfile"):
        path = kwargs.get(option)
        if path and not Path(path).is_file():
            raise ConfigError(f"{option}={str(path)!r} is not a file: give the path of a PEM file")


def of_client(client: object) -> dict[str, Any]:
    """Return what a client was made with, as far as it tells."""
    if _glide.is_glide(client):
        return _glide.arguments(client)
    pool = getattr(client, "connection_pool", None)
    kwargs = getattr(pool, "connection_kwargs", None)
    if not isinstance(kwargs, dict):
        return {"host": type(client).__name__, "port": None}
    found = dict(kwargs)
    if service := getattr(pool, "service_name", None):
        found["service"] = service
    if "SSL" in getattr(getattr(pool, "connection_class", None), "__name__", ""):
        found["ssl"] = True
    return found


def secrets(kwargs: Mapping[str, Any]) -> list[str]:
    """Return what no message may contain."""
    found = (kwargs.get(name) for name in ("password", "ssl_password"))
    texts = (secret.decode(errors="replace") if isinstance(secret, bytes) else secret for secret in found)
    return [secret for secret in texts if isinstance(secret, str)]


def location(target: str | Mapping[str, object] | None) -> str:
    """Return where a target leads to, for people."""
    return location_of(arguments(target))


def location_of(kwargs: Mapping[str, Any]) -> str:
    """Return where a client leads to, as a URL without a password."""
    user = f"{quote(str(kwargs['username']))}@" if kwargs.get("username") else ""
    db = kwargs.get("db") or 0
    if service := kwargs.get("service"):
        return f"sentinel://{user}{service}/{db}"
    if path := kwargs.get("unix_socket_path") or kwargs.get("path"):
        return f"unix://{user}{path}?db={db}"
    host, port = kwargs.get("host", "localhost"), kwargs.get("port", 6379)
    if port is None:
        return str(host)
    host = f"[{host}]" if ":" in str(host) else host
    return f"{'rediss' if kwargs.get('ssl') else 'redis'}://{user}{host}:{port}/{db}"
