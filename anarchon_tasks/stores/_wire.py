"""How questions and answers travel to a server that decides them: compact JSON lists, in the order that it unpacks.

Every question begins with the job, written by `key` as that server's store names it. Tokens travel as texts, because
the JSON library of Redis writes numbers with 14 digits.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import TYPE_CHECKING, Any, TypeAlias
from urllib.parse import quote, unquote

from anarchon_tasks.model import Reason, Run, RunRef, Status, Trigger
from anarchon_tasks.stores.base import BeginAnswer, BeginKind, ClaimAnswer, ClaimKind, Delivery, Registered

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from anarchon_tasks.stores.base import (
        Beat,
        Begin,
        Claim,
        Definition,
        Delivered,
        Finish,
        Park,
        Policy,
        Queued,
        Release,
    )

_LONE_SURROGATES = "surrogatepass"  # a name that is not valid Unicode still has a key of its own
_OPTIONAL = re.compile("[.~]")
_CLAIM_KINDS = {kind.value: kind for kind in ClaimKind}
_BEGIN_KINDS = {kind.value: kind for kind in BeginKind}
_STATUSES = {status.value: status for status in Status}
_TRIGGERS = {trigger.value: trigger for trigger in Trigger}
_ERROR = "error"

Key: TypeAlias = "Callable[[str], str]"
"""How a store writes the name of a job."""


@lru_cache(maxsize=16_384)
def job_key(name: str) -> str:
    """Write a job's name as it stands in keys: percent-encoded outside `A-Z a-z 0-9 _ -`."""
    return _OPTIONAL.sub(lambda found: f"%{ord(found[0]):02X}", quote(name, safe="", errors=_LONE_SURROGATES))


def job_name(key: str) -> str:
    """Read back what `job_key` wrote."""
    return unquote(key, errors=_LONE_SURROGATES)


def dumps(value: object) -> bytes:
    """Write a payload."""
    return json.dumps(value, separators=(",", ":"), ensure_ascii=False).encode("utf-8", _LONE_SURROGATES)


def loads(text: bytes | str) -> Any:  # noqa: ANN401 - JSON is of any type
    """Read a reply."""
    return json.loads(text)


# --- questions -------------------------------------------------------------------------------------------------------


def _policy(policy: Policy) -> list[object]:
    return [
        policy.overlap,
        policy.delivery,
        policy.max_attempts,
        policy.claim_lease_ms,
        policy.coalesce_ms,
        policy.start_timeout_ms,
        policy.start_deadline_ms,
        policy.takeover_delay_ms,
        policy.keep_ms,
        policy.history_size,
        policy.history_ttl_ms,
    ]


def claims(asks: Sequence[Claim], key: Key) -> list[object]:
    """Write claims: the distinct policies once, and each claim with the place of its own."""
    policies: list[object] = []
    places: dict[Policy, int] = {}
    seen: dict[int, int] = {}
    items: list[object] = []
    for ask in asks:
        place = seen.get(id(ask.policy))
        if place is None:
            place = seen[id(ask.policy)] = places.setdefault(ask.policy, len(policies))
            if place == len(policies):
                policies.append(_policy(ask.policy))
        items.append(_claim(ask, key, place))
    return [policies, items]


def _claim(ask: Claim, key: Key, policy: int) -> list[object]:
    ref = ask.ref
    return [
        key(ref.job),
        ref.run,
        ref.slot,
        ask.claim_id,
        ask.instance,
        policy,
        ask.due_ms,
        ask.latest_ms,
        ask.floor,
        [[r.first, r.last, r.count, r.status, r.reason] for r in ask.ranges],
        ask.tracked,
        ask.late_reason,
        ask.queue_begun_ms,
        ask.trigger,
        ask.gap_ms,
        ask.takeover,
    ]


def queued(record: Queued, key: Key) -> list[object]:
    """Write a confirmed publish."""
    policy = record.policy
    return [
        key(record.ref.job),
        record.ref.run,
        str(record.token),
        record.task_id,
        record.eta_ms,
        policy.start_timeout_ms,
        policy.history_size,
    ]


def release(record: Release, key: Key) -> list[object]:
    """Write a release."""
    return [
        key(record.ref.job),
        record.ref.run,
        str(record.token),
        record.failed,
        record.unknown,
        record.policy.delivery is Delivery.AT_MOST_ONCE,
        record.policy.history_size,
        record.error,
    ]


def beat(item: Beat, key: Key) -> list[object]:
    """Write a heartbeat."""
    return [key(item.ref.job), item.ref.run, str(item.token), item.lease_ms, item.phase]


def _delivered(delivered: Delivered) -> list[object]:
    return [delivered.message_id, delivered.retries, delivered.worker, delivered.pid]


def begin(ask: Begin, key: Key) -> list[object]:
    """Write a begin."""
    return [
        key(ask.ref.job),
        ask.ref.run,
        ask.delivery_id,
        _delivered(ask.delivered),
        ask.attempt,
        str(ask.token),
        ask.lease_ms,
        ask.max_attempts,
        ask.history_size,
        ask.trigger,
        ask.takeover,
    ]


def park(item: Park, key: Key) -> list[object]:
    """Write a park."""
    return [key(item.ref.job), item.ref.run, str(item.token), item.eta_ms, item.start_timeout_ms]


def finish(end: Finish, key: Key) -> list[object]:
    """Write an end."""
    return [
        key(end.ref.job),
        end.ref.run,
        end.status,
        str(end.token),
        None if end.delivered is None else _delivered(end.delivered),
        end.attempt,
        str(end.header_token),
        end.reason,
        end.error,
        end.max_attempts,
        end.history_size,
    ]


def definition(item: Definition, key: Key) -> list[object]:
    """Write a definition: for the account, and as readers get it back."""
    readers = dumps([item.fingerprint, item.document]).decode("utf-8", _LONE_SURROGATES)
    return [key(item.name), item.name, item.fingerprint, item.floor, readers, item.since]


# --- answers ---------------------------------------------------------------------------------------------------------


def yes(answer: object) -> bool:
    """Read a yes or no; an item that failed is a no."""
    return answer is True


def claimed(answer: list[Any]) -> ClaimAnswer:
    """Read the answer to a claim."""
    kind = _CLAIM_KINDS[answer[0]]
    if kind is ClaimKind.ERROR:
        return ClaimAnswer(kind=kind, error=answer[1])
    if len(answer) == 3:  # noqa: PLR2004 - an answer without a run
        return ClaimAnswer(kind=kind, floor=answer[1], until=answer[2])
    _, floor, until, attempt, token, status, run, tracked, trigger, reason = answer
    return ClaimAnswer(
        kind=kind,
        floor=floor,
        attempt=attempt,
        token=int(token),
        until=until,
        status=_STATUSES[status],
        run=run,
        tracked=tracked,
        trigger=_TRIGGERS[trigger],
        reason=None if reason is None else Reason(reason),
    )


def begun(answer: list[Any]) -> BeginAnswer:
    """Read the answer to a begin."""
    kind = _BEGIN_KINDS[answer[0]]
    if kind is BeginKind.ERROR:
        return BeginAnswer(kind=kind, error=answer[1])
    status = None if answer[1] is None else _STATUSES[answer[1]]
    if kind is not BeginKind.OK:
        return BeginAnswer(kind=kind, status=status, until=answer[2])
    return BeginAnswer(kind=kind, status=status, until=answer[2], attempt=answer[3], token=int(answer[4]))


def registered(answer: list[Any]) -> Registered:
    """Read the answer to a definition."""
    if answer[0] == _ERROR:
        return Registered(error=answer[1])
    return Registered(floor=answer[0], changed=answer[1])


_ENTRY = (
    "token",
    "refused",
    "slot",
    "key",
    "attempt",
    "trigger",
    "status",
    "reason",
    "tracked",
    "due",
    "instance",
    "worker",
    "pid",
    "claimed_at",
    "enqueued_at",
    "started_at",
    "finished_at",
    "publishes",
    "retries",
    "task_id",
    "error",
    "count",
    "first_slot",
)


def runs(job: str, entries: list[list[Any]], limit: int) -> list[Run]:
    """Read the entries of a job, newest slot, key and attempt first; a later one replaces an earlier one."""
    newest = {(entry[2], entry[3], entry[4]): entry for entry in entries}
    return [_run(job, newest[order]) for order in sorted(newest, reverse=True)[: max(limit, 0)]]


def _run(job: str, entry: list[Any]) -> Run:
    fields = dict(zip(_ENTRY, entry, strict=True))
    fields["token"] = int(fields["token"])
    fields["status"], fields["trigger"] = Status(fields["status"]), Trigger(fields["trigger"])
    return Run(job=job, **fields)


def index_ref(member: str) -> RunRef:
    """Read a member of the index of lease ends."""
    job, _, run = member.partition(":")
    return RunRef.parse(job_name(job), run)
