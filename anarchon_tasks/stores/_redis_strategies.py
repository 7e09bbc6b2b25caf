"""The strategies of the Redis and Valkey backends: their names, and which settings each of them has."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from anarchon_tasks.errors import ConfigError

if TYPE_CHECKING:
    from collections.abc import Collection

DEFAULT = "lease"
SETTINGS: dict[str, tuple[str, ...]] = {
    "lease": (),
    "stream-id": (),
    "idmp": ("duration", "max_size"),
    "script": ("window",),
}
"""What each strategy may be told."""
NOT_YET = frozenset(SETTINGS) - {DEFAULT}
NOT_ON_VALKEY = {"idmp": "Valkey has no XADD IDMP"}


@dataclass(frozen=True, slots=True)
class Strategy:
    """How one winner is picked."""

    name: str
    settings: Mapping[str, object] = field(default_factory=dict)


def parse(strategy: object, *, refused: Mapping[str, str] | None = None) -> Strategy:
    """Read the option `strategy`: a name, or a mapping of `name` and that strategy's own settings.

    Args:
        strategy: The option.
        refused: Strategies that the kind of server cannot have, and why.

    Raises:
        ConfigError: The strategy does not exist, cannot work there or is not available yet, or has a setting that is
            not its own.

    """
    if isinstance(strategy, Mapping):
        settings = dict(strategy)
        if "name" not in settings:
            raise ConfigError(f"strategy={strategy!r} has no name: write {{'name': {DEFAULT!r}}}; {_known()}")
        name = settings.pop("name")
    else:
        name, settings = strategy, {}
    if not isinstance(name, str) or name not in SETTINGS:
        raise ConfigError(f"strategy={name!r} does not exist; {_known()}")
    if refused and name in refused:
        possible = " or ".join(repr(other) for other in SETTINGS if other not in NOT_YET and other not in refused)
        raise ConfigError(f"strategy={name!r} cannot be used here: {refused[name]}. Use {possible}")
    _check_settings(name, settings)
    if name in NOT_YET:
        raise ConfigError(f"strategy={name!r} is not available in this version: use {DEFAULT!r}")
    return Strategy(name, settings)


def _check_settings(name: str, settings: Collection[object]) -> None:
    own = SETTINGS[name]
    has = f"the settings of {name} are: {', '.join(own)}" if own else f"{name} has no settings"
    for setting in settings:
        if setting in own:
            continue
        owners = [other for other, names in SETTINGS.items() if setting in names]
        if owners:
            raise ConfigError(f"{setting} is a setting of {' and '.join(owners)}, not of {name}; {has}")
        raise ConfigError(f"{setting!r} is not a setting of a strategy; {has}")


def _known() -> str:
    return f"the strategies are: {', '.join(SETTINGS)}"
