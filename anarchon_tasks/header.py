"""What travels with the message of a run: one flat header of compact JSON text."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

from anarchon_tasks.model import RunRef, Trigger

HEADER = "anarchon"
"""The name of the header or option."""

VERSION = 1

# What a worker needs to know of the job and does not know by itself. Written only where it differs from the default.
_EXTRAS: dict[str, Any] = {
    "queue": "",
    "max_attempts": 3,
    "history_size": 1_000,
    "lease_ms": 0,
    "heartbeat_ms": 0,
    "start_timeout_ms": 3_600_000,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Header:
    """The header of one message."""

    id: str
    """The id of the message that is the run. Others inherit headers (chord bodies, group members) and are not."""
    namespace: str
    ref: RunRef
    attempt: int
    token: int
    trigger: Trigger = Trigger.SCHEDULE
    tracked: bool = True
    queue: str = ""
    max_attempts: int = 3
    history_size: int = 1_000
    lease_ms: int = 0
    """The job's own lease; 0: the worker's default."""
    heartbeat_ms: int = 0
    start_timeout_ms: int = 3_600_000

    def to_text(self) -> str:
        """Write the header."""
        data: dict[str, Any] = {
            "v": VERSION,
            "id": self.id,
            "namespace": self.namespace,
            "job": self.ref.job,
            "slot": self.ref.slot,
            "key": self.ref.key,
            "attempt": self.attempt,
            "token": self.token,
            "trigger": self.trigger.value,
            "tracked": self.tracked,
        }
        data |= {name: value for name, usual in _EXTRAS.items() if (value := getattr(self, name)) != usual}
        return json.dumps(data, separators=(",", ":"))

    @classmethod
    def parse(cls, text: object, message_id: object) -> Header | None:
        """Return the header of a message that is a run; None for any other message.

        A header that this version cannot read is none: the message then runs as a plain call.
        """
        if not isinstance(text, str):
            return None
        try:
            data = json.loads(text)
            if data["v"] != VERSION or data["id"] != message_id:
                return None
            return cls(
                id=data["id"],
                namespace=data["namespace"],
                ref=RunRef(data["job"], int(data["slot"]), data["key"]),
                attempt=int(data["attempt"]),
                token=int(data["token"]),
                trigger=Trigger(data["trigger"]),
                tracked=bool(data["tracked"]),
                **{name: data[name] for name in _EXTRAS if name in data},
            )
        except (ValueError, KeyError, TypeError):
            return None
