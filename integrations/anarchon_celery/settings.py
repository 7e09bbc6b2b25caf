"""Where the settings come from: arguments, then the environment, then Celery's settings, then what the broker tells.

Everything here is a function of what is handed in. A setting that nobody gave stays None, so that "not given" and
"given as its default" remain two things: stores have defaults of their own, and refuse options that they do not have.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from anarchon_tasks.errors import ConfigError, StoreError
from anarchon_tasks.jobs import LEASE_MS, check_timezone, lease_and_heartbeat
from anarchon_tasks.stores import open_store

if TYPE_CHECKING:
    from collections.abc import Mapping

    from anarchon_tasks.stores import Backend
    from anarchon_tasks.stores.base import LeaseStore

NAMES = ("store", "prefix", "table", "timezone", "lease", "heartbeat", "instance_id", "jobs")
ENVIRONMENT = frozenset({"store", "prefix", "table", "timezone", "lease", "heartbeat", "instance_id"})
BROKER_STORES = {
    "redis": "redis",
    "rediss": "rediss",
    "valkey": "valkey",
    "valkeys": "valkeys",
}
"""The schemes of brokers that can serve as the store, and the scheme of that store."""

LINE = 'app.conf.anarchon_store = "redis://host:6379/1"'


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """The settings of one app, checked."""

    store: str | Backend | LeaseStore = field(repr=False)
    store_options: dict[str, Any] = field(default_factory=dict)
    """The prefix or the table, where one was given."""
    from_broker: bool = False
    """The store is the broker, because no store was named."""
    timezone: str | None = None
    """None: the app's."""
    lease_ms: int = LEASE_MS
    heartbeat_ms: int = LEASE_MS // 3
    instance_id: str | None = None
    jobs: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    """Options of jobs by the names of their entries."""

    def open_store(self) -> LeaseStore:
        """Return the store. It connects at its first call.

        Raises:
            ConfigError: The URL or one of its options is not valid, or the driver is not installed.

        """
        return open_store(self.store, **self.store_options)

    def check_store(self) -> None:
        """Refuse a store that can never be opened. Nothing connects.

        Raises:
            ConfigError: As `open_store`.

        """
        with suppress(StoreError):  # that may pass
            store = self.open_store()
            if self.owns_store:
                store.close()

    @property
    def owns_store(self) -> bool:
        """Whether the store that `open_store` returns is ours to close."""
        return isinstance(self.store, str) or not hasattr(self.store, "claim")


def layered(*, arguments: Mapping[str, Any], environment: Mapping[str, str], conf: Mapping[str, Any]) -> dict[str, Any]:
    """Return every setting that was given, from the first of the layers that gives it.

    None, and an empty variable of the environment, give nothing.
    """
    found: dict[str, Any] = {}
    for name in NAMES:
        variable = environment.get(f"ANARCHON_{name.upper()}") if name in ENVIRONMENT else None
        for value in (arguments.get(name), variable or None, conf.get(f"anarchon_{name}")):
            if value is not None:
                found[name] = value
                break
    return found


def resolve(given: Mapping[str, Any], *, broker_url: str | None) -> Settings:
    """Check what was given, and fill in the rest.

    Args:
        given: What `layered` returned.
        broker_url: The address of the broker, with its password, should it have to serve as the store.

    Raises:
        ConfigError: A value makes no sense, or there is no store; the message says what to write where.

    """
    store = given.get("store")
    lease_ms, heartbeat_ms = leases(given)
    return Settings(
        store=store if store is not None else _of_broker(broker_url),
        store_options={name: given[name] for name in ("prefix", "table") if name in given},
        from_broker=store is None,
        timezone=check_timezone(given["timezone"]) if "timezone" in given else None,
        lease_ms=lease_ms,
        heartbeat_ms=heartbeat_ms,
        instance_id=str(given["instance_id"]) if "instance_id" in given else None,
        jobs=_jobs(given.get("jobs", {})),
    )


def leases(given: Mapping[str, Any]) -> tuple[int, int]:
    """Return the lease and the heartbeat in milliseconds; the one that was not given follows from the other.

    Raises:
        ConfigError: One is no duration, or the heartbeat is too slow for the lease.

    """
    return lease_and_heartbeat(_seconds(given.get("lease")), _seconds(given.get("heartbeat")))


def _seconds(value: Any) -> Any:  # noqa: ANN401 - whatever the user wrote
    """Let the environment's `30` mean seconds, as the number does."""
    if isinstance(value, str) and value.strip().replace(".", "", 1).isdecimal():
        return float(value)
    return value


def _jobs(value: Any) -> Mapping[str, Mapping[str, Any]]:  # noqa: ANN401 - whatever the user wrote
    if not isinstance(value, dict) or not all(isinstance(options, dict) for options in value.values()):
        raise ConfigError(
            f"anarchon_jobs={value!r} must be options by the names of entries, such as "
            "{'nightly': {'overlap': 'allow', 'max_late': '30m'}}"
        )
    return value


def _of_broker(url: str | None) -> str:
    scheme, mark, rest = (url or "").partition("://")
    if mark and scheme in BROKER_STORES:
        return f"{BROKER_STORES[scheme]}://{rest}"
    what = f"the broker, {scheme}://, cannot be one" if mark else "there is no broker that could be one"
    raise ConfigError(
        f"there is no store: {what}. Add {LINE} (or sqlite:///path/to/jobs.db where all runs on one host), or set "
        "ANARCHON_STORE"
    )
