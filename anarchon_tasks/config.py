"""Settings in layers: what is given explicitly, then the environment, then defaults.

A setting that nobody gave is None until the very end, so that "not given" and "given as its default" remain two things:
stores have defaults of their own, and refuse options that they do not have.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

if TYPE_CHECKING:
    from collections.abc import Mapping

DEFAULT_TIMEZONE = "UTC"


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Settings:
    """One layer of settings, or several that were merged. None: not given. Never shown: a URL may hold a password."""

    store: str | None = None
    """The store's URL."""
    prefix: str | None = None
    table: str | None = None
    timezone: str | None = None

    @classmethod
    def from_environment(cls, environ: Mapping[str, str]) -> Settings:
        """Read `ANARCHON_STORE`, `ANARCHON_PREFIX`, `ANARCHON_TABLE` and `ANARCHON_TIMEZONE`; empty is not given."""
        return cls(**{item.name: environ.get(variable(item.name)) or None for item in fields(cls)})

    def over(self, lower: Settings) -> Settings:
        """Return what is given here, and for the rest what a lower layer gives.

        An option in the query of this layer's URL is given here too, so the lower layer's is left out.
        """
        in_url = {name for name, _ in parse_qsl((self.store or "").partition("?")[2])}
        inherited = {
            item.name: getattr(lower, item.name)
            for item in fields(self)
            if getattr(self, item.name) is None and item.name not in in_url
        }
        return replace(self, **inherited)

    def store_options(self) -> dict[str, str]:
        """Return the options of the store that were given."""
        given = {"prefix": self.prefix, "table": self.table}
        return {name: value for name, value in given.items() if value is not None}

    def zone(self) -> str:
        """Return the time zone that was given, or the default."""
        return DEFAULT_TIMEZONE if self.timezone is None else self.timezone


def variable(name: str) -> str:
    """Return the environment variable of a setting."""
    return f"ANARCHON_{name.upper()}"
