"""Whether the driver's options can work: what kind of value each takes, and in which bounds."""

from __future__ import annotations

import math
import os
import ssl
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Callable

_HIGHEST_PORT = 65_535
_CERT_REQS = ("none", "optional", "required")
_HIDDEN = frozenset({"password", "ssl_password", "username"})
_NONE_MEANS_SOMETHING = frozenset({"socket_connect_timeout", "socket_timeout", "ssl_cert_reqs"})


def _is_whole(value: Any, *, least: int) -> bool:  # noqa: ANN401 - whatever was given
    return isinstance(value, int) and not isinstance(value, bool) and value >= least


def _is_seconds(value: Any) -> bool:  # noqa: ANN401 - whatever was given
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value) and value >= 0


def _is_text(value: Any) -> bool:  # noqa: ANN401 - whatever was given
    return isinstance(value, str)


def _is_path(value: Any) -> bool:  # noqa: ANN401 - whatever was given
    return isinstance(value, str | os.PathLike) and bool(os.fspath(value))


def _is_text_or_bytes(value: Any) -> bool:  # noqa: ANN401 - whatever was given
    return isinstance(value, str | bytes)


_Kind = tuple["Callable[[Any], bool]", str]
_BOOLEAN: _Kind = (lambda value: isinstance(value, bool), "True or False")
_PATH: _Kind = (_is_path, "a path")
_SECRET: _Kind = (_is_text_or_bytes, "a text")
_TEXT: _Kind = (_is_text, "a text")
_TIMEOUT: _Kind = (lambda value: value is None or (_is_seconds(value) and value > 0), "seconds, more than 0")
_KINDS: dict[str, _Kind] = {
    "client_name": _TEXT,
    "db": (lambda value: _is_whole(value, least=0), "a whole number, 0 or more"),
    "health_check_interval": (_is_seconds, "seconds, 0 or more"),
    "host": _TEXT,
    "max_connections": (lambda value: _is_whole(value, least=1), "a whole number, 1 or more"),
    "password": _SECRET,
    "port": (lambda value: _is_whole(value, least=1) and value <= _HIGHEST_PORT, f"a port, 1 to {_HIGHEST_PORT}"),
    "protocol": (lambda value: _is_whole(value, least=2) and value <= 3, "2 or 3"),  # noqa: PLR2004 - the newest
    "socket_connect_timeout": _TIMEOUT,
    "socket_keepalive": _BOOLEAN,
    "socket_keepalive_options": (lambda value: isinstance(value, Mapping), "a mapping"),
    "socket_timeout": _TIMEOUT,
    "ssl": _BOOLEAN,
    "ssl_ca_certs": _PATH,
    "ssl_ca_data": _SECRET,
    "ssl_ca_path": _PATH,
    "ssl_cert_reqs": (
        lambda value: isinstance(value, ssl.VerifyMode) or value in _CERT_REQS,
        f"one of {', '.join(_CERT_REQS)}",
    ),
    "ssl_certfile": _PATH,
    "ssl_check_hostname": _BOOLEAN,
    "ssl_ciphers": _TEXT,
    "ssl_keyfile": _PATH,
    "ssl_min_version": (lambda value: isinstance(value, int), "an ssl.TLSVersion"),
    "ssl_password": _SECRET,
    "unix_socket_path": _PATH,
    "username": _SECRET,
}


def checked(options: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return options as the driver takes them, without those that are None and so the driver's own.

    Args:
        options: By name.
        where: The beginning of each message: a URL to be shown to people, or the name of the argument.

    Raises:
        ConfigError: A value is of the wrong kind or out of bounds, or is for TLS where there is none.

    """
    found = {name: value for name, value in options.items() if value is not None or name in _NONE_MEANS_SOMETHING}
    if "ssl_cert_reqs" in found:
        found["ssl_cert_reqs"] = _cert_reqs(found["ssl_cert_reqs"])
    for name, value in found.items():
        fits, what = _KINDS.get(name, (None, ""))
        if fits is not None and not fits(value):
            shown = f"<{type(value).__name__}>" if name in _HIDDEN else repr(value)
            raise ConfigError(f"{where}: {name}={shown} is not valid: give {what}")
    for_tls = sorted(name for name in found if name.startswith("ssl_"))
    if for_tls and not found.get("ssl"):
        raise ConfigError(
            f"{where}: {', '.join(for_tls)} can only be given with TLS: use rediss:// or valkeys://, or ssl=True in a "
            "mapping"
        )
    return found


def _cert_reqs(value: object) -> object:
    """Read it as other programs write it, too: `CERT_NONE`, or None."""
    if value is None:
        return "none"
    return value.lower().removeprefix("cert_") if isinstance(value, str) else value
