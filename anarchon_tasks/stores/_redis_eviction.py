"""A warning for servers that may throw our keys away when their memory is full."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Callable

logger = logging.getLogger("anarchon_tasks")

_SETTING = "maxmemory-policy"
_FIELD = "maxmemory_policy"
_EVICTS_ALL = "allkeys"  # volatile-* policies leave keys alone that carry no expiry, as ours


def warn_if_evicting(execute: Callable[..., Any], location: str) -> None:
    """Write one line to the log when the server's policy may evict keys that never expire.

    Args:
        execute: Sends one command. What it raises is no concern of the caller: many servers allow neither question.
        location: Where the server is, for people.

    """
    policy = _policy(execute)
    if policy is None or not policy.startswith(_EVICTS_ALL):
        return
    logger.warning(
        "%s has %s %s: when its memory is full it drops accounts of jobs, whose slots then run twice or never; set it "
        "to noeviction or a volatile-* policy, or use another server",
        location,
        _SETTING,
        policy,
        extra={"anarchon": {"event": "eviction", "policy": policy}},
    )


def _policy(execute: Callable[..., Any]) -> str | None:
    for question, read in (
        (("CONFIG", "GET", _SETTING), lambda reply: _pairs(reply).get(_SETTING)),
        (("INFO", "memory"), _from_info),
    ):
        try:
            policy = read(execute(*question))
        except StoreUnavailable:
            return None
        except StoreError:
            continue
        if policy:
            return policy
    return None


def _from_info(reply: object) -> str | None:
    """Read the policy out of what a driver made of INFO: its text, or a mapping."""
    if isinstance(reply, bytes | str):
        pairs = (line.partition(":") for line in _text(reply).splitlines())
        return {name: value for name, _, value in pairs}.get(_FIELD)
    return _pairs(reply).get(_FIELD)


def _pairs(reply: object) -> dict[str, str]:
    """Read names and values, which come as a mapping or one after the other."""
    if isinstance(reply, Mapping):
        return {_text(name): _text(value) for name, value in reply.items()}
    if isinstance(reply, list | tuple):
        texts = [_text(item) for item in reply]
        return dict(zip(texts[::2], texts[1::2], strict=False))
    return {}


def _text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)
