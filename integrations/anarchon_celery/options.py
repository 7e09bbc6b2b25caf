"""Which options of a job are ours and which go to `apply_async`: two lists, and nothing outside of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from anarchon_tasks._durations import to_ms
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.jobs import NOT_YET, OPTION_NAMES, JobOptions

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from celery.schedules import BaseSchedule

SEND_OPTIONS = frozenset(
    {
        "add_to_parent",
        "argsrepr",
        "compression",
        "countdown",
        "delivery_mode",
        "exchange",
        "exchange_type",
        "expires",
        "headers",
        "ignore_result",
        "kwargsrepr",
        "link",
        "link_error",
        "mandatory",
        "priority",
        "queue",
        "reply_to",
        "routing_key",
        "serializer",
        "shadow",
        "soft_time_limit",
        "stamped_headers",
        "time_limit",
    }
)
"""What a decorator passes on to `apply_async`."""

OURS = frozenset({"task_id", "producer", "publisher", "connection", "retry", "retry_policy"})
"""What `apply_async` takes, too, and what is the scheduler's own business."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """What a job sends: the payload of a `Job`."""

    name: str
    task: str
    args: Sequence[Any] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    options: Mapping[str, Any] = field(default_factory=dict)
    """For `apply_async`, but for what the next two take out of it."""
    countdown_ms: int = 0
    """How long after its due time a run is to start."""
    expires: datetime | None = None
    """An instant after which no run of the job is to start."""
    schedule: BaseSchedule | None = None
    """Celery's object, where the job came with one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sorted:
    """Options, each in its place."""

    job: JobOptions
    send: dict[str, Any]
    countdown_ms: int
    expires: datetime | None


def split(name: str, given: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Tell our options from those of `apply_async`.

    Raises:
        ConfigError: An option is neither; the message names it, its value and the job.

    """
    ours: dict[str, Any] = {}
    send: dict[str, Any] = {}
    for option, value in given.items():
        if option in SEND_OPTIONS:
            send[option] = value
        elif option in OURS:
            raise ConfigError(f"job {name!r}: {option}={value!r} is not yours to give: the scheduler sets it")
        else:  # ours, or unknown: JobOptions knows which
            ours[option] = value
    unknown = ours.keys() - OPTION_NAMES - NOT_YET
    for option in sorted(unknown):
        known = ", ".join(sorted(OPTION_NAMES | SEND_OPTIONS))
        raise ConfigError(f"job {name!r}: unknown option {option}={ours[option]!r}; known are {known}")
    return ours, send


def sort(
    name: str, ours: Mapping[str, Any], send: Mapping[str, Any], *, defaults: Mapping[str, Any] | None = None
) -> Sorted:
    """Check options and turn those about time into what the scheduler applies.

    `expires` as a number or a timedelta counts from the slot, and bounds its first start; as a datetime it ends the
    job. `countdown` counts from the slot, too.

    Args:
        name: The job's name.
        ours: Options of the job, as people write them.
        send: Options of `apply_async`.
        defaults: The task's own attributes, for those that are not among them.

    Raises:
        ConfigError: An option or its value makes no sense.

    """
    rest = dict(send)
    countdown = rest.pop("countdown", None)
    expires = rest.pop("expires", None)
    if expires is None:
        expires = (defaults or {}).get("expires")
    if isinstance(expires, str):
        expires = _instant(expires)
    ours, ends = dict(ours), None
    if isinstance(expires, datetime):
        ends = expires if expires.tzinfo else expires.replace(tzinfo=UTC)
    elif expires is not None and ours.get("start_deadline") is None:
        ours["start_deadline"] = _checked(name, "expires", expires, minimum_ms=1) / 1_000
    countdown_ms = _checked(name, "countdown", countdown) if countdown else 0
    job = JobOptions.build(name, ours)
    if job.start_deadline_ms is not None and countdown_ms >= job.start_deadline_ms:
        raise ConfigError(f"job {name!r}: countdown={countdown!r} lets no run start before it expires")
    return Sorted(
        job=job,
        send=rest,
        countdown_ms=countdown_ms,
        expires=ends,
    )


def _checked(name: str, option: str, value: Any, *, minimum_ms: int = 0) -> int:  # noqa: ANN401 - as given
    try:
        return to_ms(value, option=option, minimum_ms=minimum_ms)
    except ConfigError as error:
        raise ConfigError(f"job {name!r}: {error}") from None


def _instant(text: str) -> datetime | str:
    try:
        return datetime.fromisoformat(text)
    except ValueError:
        return text  # a duration, or wrong
