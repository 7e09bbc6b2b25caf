"""Jobs: a name, a schedule, a target and its options, checked once when they are made."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar
from zoneinfo import ZoneInfo

from anarchon_tasks._durations import Duration, to_ms, to_text
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.schedules.stored import details
from anarchon_tasks.stores.base import Definition, Delivery, Overlap, Policy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from enum import StrEnum

    from anarchon_tasks.schedules import Schedule

MINUTE_MS = 60_000
HOUR_MS = 3_600_000
DAY_MS = 86_400_000
LEASE_MS = 30_000
NAME_LIMIT = 1_000
COUNT_LIMIT = 1_000_000

NOT_YET = frozenset({"catch_up", "catch_up_limit", "timeout", "exclude", "persist"})
"""Options of the design that this version does not have: refused by name, never ignored."""

E = TypeVar("E", bound="StrEnum")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobOptions:
    """The options of a job. None: take the default.

    Durations are in milliseconds here; `JobOptions.build` takes them as people write them.
    """

    jitter_ms: int = 0
    """Moves the start of each slot by up to this much, differently for each slot, alike on every instance."""
    spread_ms: int = 0
    """Moves all slots of the job by up to this much, differently for each job, alike on every instance."""
    max_late_ms: int | None = None
    """How long after its time a slot may still start. Default: until the job's next slot, 60 s to 24 h."""
    coalesce_after_ms: int = 10_000
    """Slots up to this late all run; of older ones only the newest does."""
    overlap: Overlap = Overlap.SKIP
    delivery: Delivery = Delivery.AT_LEAST_ONCE
    max_attempts: int = 3
    start_timeout_ms: int | None = None
    """After this long in its queue a message is published again. Default: three periods, a minute to an hour."""
    start_deadline_ms: int | None = None
    """Not to be started for the first time later than this after its due time."""
    takeover_delay_ms: int = 0
    lease_ms: int | None = None
    heartbeat_ms: int | None = None
    history_size: int = 1_000
    history_ttl_ms: int | None = None
    """Entries of slots older than this leave the history at the job's next claim. Default: no limit by age."""
    track: bool | None = None
    """False: being enqueued is the end of the run. Default: tracked where the workers load the integration."""
    enabled: bool = True
    tags: tuple[str, ...] = ()

    @classmethod
    def build(cls, job: str, given: Mapping[str, Any]) -> JobOptions:
        """Check options as people write them: durations as text, numbers or timedeltas, overlap as a word.

        Raises:
            ConfigError: An option is unknown or its value makes no sense; the message names the job, the option and
                the value.

        """
        try:
            return _build(given)
        except ConfigError as error:
            message = f"job {job!r}: {error}"
            raise ConfigError(message) from None


_DURATIONS = {
    "jitter": 0,
    "spread": 0,
    "max_late": 1,
    "coalesce_after": 0,
    "start_timeout": 1_000,
    "start_deadline": 1,
    "takeover_delay": 0,
    "lease": 1_000,
    "heartbeat": 100,
    "history_ttl": 1_000,
}
OPTION_NAMES = frozenset(
    {*_DURATIONS, "overlap", "delivery", "max_attempts", "history_size", "track", "enabled", "tags"}
)


def _build(given: Mapping[str, Any]) -> JobOptions:
    values: dict[str, Any] = {}
    for name, value in given.items():
        if name in NOT_YET:
            message = f"{name}={value!r} is not available in this version; leave it out"
            raise ConfigError(message)
        if name not in OPTION_NAMES:
            message = f"unknown option {name}={value!r}; known are {', '.join(sorted(OPTION_NAMES))}"
            raise ConfigError(message)
        if value is not None:
            key, checked = _check(name, value)
            values[key] = checked
    options = JobOptions(**values)
    _check_lease(options)
    return options


def _check(name: str, value: Any) -> tuple[str, Any]:  # noqa: ANN401 - whatever the user wrote
    if name in _DURATIONS:
        return f"{name}_ms", to_ms(value, option=name, minimum_ms=_DURATIONS[name])
    match name:
        case "overlap":
            return name, _word(name, value, Overlap)
        case "delivery":
            return name, _word(name, value, Delivery)
        case "max_attempts" | "history_size":
            return name, _count(name, value)
        case "tags":
            return name, _tags(value)
    if not isinstance(value, bool):
        message = f"{name}={value!r} must be True or False"
        raise ConfigError(message)
    return name, value


def _word(name: str, value: object, kind: type[E]) -> E:
    try:
        return kind(str(value))
    except ValueError:
        known = ", ".join(repr(member.value) for member in kind)
        later = " ('buffer' and 'replace' are not available in this version)" if kind is Overlap else ""
        message = f"{name}={value!r} must be one of {known}{later}"
        raise ConfigError(message) from None


def _count(name: str, value: object) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= COUNT_LIMIT:
        message = f"{name}={value!r} must be a whole number from 1 to {COUNT_LIMIT}"
        raise ConfigError(message)
    return value


def _tags(value: object) -> tuple[str, ...]:
    if isinstance(value, str) or not isinstance(value, (list, tuple, set, frozenset)):
        message = f"tags={value!r} must be a list of words"
        raise ConfigError(message)
    return tuple(str(tag) for tag in value)


def _check_lease(options: JobOptions) -> None:
    lease, beat = options.lease_ms, options.heartbeat_ms
    check_lease(lease or 3 * (beat or 0), beat or (lease or 0) // 3)


def lease_and_heartbeat(lease: Duration | None, heartbeat: Duration | None) -> tuple[int, int]:
    """Return a worker's lease and heartbeat in milliseconds; the one that was not given follows from the other.

    Raises:
        ConfigError: One is no duration or too short, or the heartbeat is too slow for the lease.

    """
    beat = None if heartbeat is None else to_ms(heartbeat, option="heartbeat", minimum_ms=_DURATIONS["heartbeat"])
    if lease is None:
        lease_ms = max(LEASE_MS, 3 * (beat or 0))
    else:
        lease_ms = to_ms(lease, option="lease", minimum_ms=_DURATIONS["lease"])
    heartbeat_ms = lease_ms // 3 if beat is None else beat
    check_lease(lease_ms, heartbeat_ms)
    return lease_ms, heartbeat_ms


def check_lease(lease_ms: int, heartbeat_ms: int) -> None:
    """Refuse a heartbeat that is too slow for its lease.

    Raises:
        ConfigError: The heartbeat is longer than a third of the lease.

    """
    if heartbeat_ms * 3 > lease_ms:
        message = (
            f"heartbeat={to_text(heartbeat_ms)!r} is too slow for lease={to_text(lease_ms)!r}: "
            f"give a lease of at least three heartbeats, {to_text(heartbeat_ms * 3)!r}"
        )
        raise ConfigError(message)


def check_name(name: object) -> str:
    """Accept a job's name: any text of 1 to 1000 characters that can be written as UTF-8.

    Raises:
        ConfigError: It is none.

    """
    if not isinstance(name, str) or not name or len(name) > NAME_LIMIT:
        message = f"name={name!r} is not a job's name: give a text of 1 to {NAME_LIMIT} characters"
        raise ConfigError(message)
    try:
        name.encode()
    except UnicodeEncodeError:
        message = f"name={name!r} is not a job's name: it holds characters that UTF-8 cannot write"
        raise ConfigError(message) from None
    return name


def check_timezone(name: object) -> str:
    """Accept the name of a time zone.

    Raises:
        ConfigError: The zone is not known here.

    """
    try:
        return ZoneInfo(str(name)).key
    except (ValueError, OSError, LookupError):
        message = f"timezone={name!r} is not known here: give an IANA name such as 'Europe/Athens' or 'UTC'"
        raise ConfigError(message) from None


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """A job as an instance runs it."""

    name: str
    schedule: Schedule
    target: str
    """The name of the task, actor or function that runs."""
    queue: str = ""
    """Where its messages go; empty when the publisher does not say."""
    options: JobOptions = field(default_factory=JobOptions)
    payload: Any = field(default=None, repr=False)
    """What the publisher needs to send the message; nobody else looks at it, and it is never stored."""

    def due_ms(self, slot: int, namespace: str) -> int:
        """Return when a slot is to be enqueued: its time, moved by spread and jitter."""
        due, jitter_ms = slot + self.shift_ms(namespace), self.options.jitter_ms
        if jitter_ms:
            due += _hash(namespace, self.name, slot) % max(1, min(jitter_ms, self.gap_ms(slot)))
        return due

    def shift_ms(self, namespace: str) -> int:
        """Return by how much the spread moves every slot of this job."""
        spread_ms = self.options.spread_ms
        return _hash(namespace, self.name) % spread_ms if spread_ms else 0

    def gap_ms(self, slot: int) -> int:
        """Return the time from a slot to the job's next one; a day when there is none."""
        following = self.schedule.next(slot)
        return DAY_MS if following is None else following - slot

    def max_late_ms(self, gap_ms: int) -> int:
        """Return for how long after its due time a slot may be claimed, given the time to the next one."""
        if self.options.max_late_ms is not None:
            return self.options.max_late_ms
        return min(max(gap_ms, MINUTE_MS), DAY_MS)

    def start_timeout_ms(self, gap_ms: int) -> int:
        """Return for how long a message may wait in its queue."""
        if self.options.start_timeout_ms is not None:
            return self.options.start_timeout_ms
        return min(max(3 * gap_ms, MINUTE_MS), HOUR_MS)

    def policy(self, gap_ms: int) -> Policy:
        """Return the job's rules, as far as the store applies them."""
        options = self.options
        late = self.max_late_ms(gap_ms)
        return Policy(
            overlap=options.overlap,
            delivery=options.delivery,
            max_attempts=1 if options.delivery is Delivery.AT_MOST_ONCE else options.max_attempts,
            coalesce_ms=min(options.coalesce_after_ms, late),
            start_timeout_ms=self.start_timeout_ms(gap_ms),
            start_deadline_ms=options.start_deadline_ms,
            takeover_delay_ms=options.takeover_delay_ms,
            keep_ms=late + options.jitter_ms + options.spread_ms + 10 * MINUTE_MS,
            history_size=options.history_size,
            history_ttl_ms=options.history_ttl_ms,
        )

    def definition(self) -> Definition:
        """Return what the store is told of the job: no arguments of tasks."""
        options = {
            item.name: getattr(self.options, item.name)
            for item in fields(JobOptions)
            if getattr(self.options, item.name) != item.default
        }
        document = {
            "schedule": self.schedule.text,
            "kind": self.schedule.kind,
            "timezone": self.schedule.timezone,
            "describe": self.schedule.describe(),
            "target": self.target,
            "queue": self.queue,
            "options": options,
        }
        more = details(self.schedule)
        if more:
            document["details"] = more
        return Definition(
            name=self.name,
            fingerprint=fingerprint(self.schedule),
            document=json.dumps(document, separators=(",", ":"), default=str),
        )


def _hash(*parts: object) -> int:
    return int.from_bytes(hashlib.blake2b(json.dumps(parts).encode(), digest_size=8).digest(), "big")


def fingerprint(schedule: Schedule) -> str:
    """Return what the store compares to see whether a job's slots may have changed."""
    return hashlib.blake2b(schedule.fingerprint.encode(), digest_size=12).hexdigest()
