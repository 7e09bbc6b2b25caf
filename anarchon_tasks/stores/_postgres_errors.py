"""What the errors of PostgreSQL, of a pooler before it and of the driver mean for a store."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from anarchon_tasks.errors import StoreError, StoreUnavailable

if TYPE_CHECKING:
    from collections.abc import Collection

    from anarchon_tasks.stores._postgres_calls import Failed
    from anarchon_tasks.stores._postgres_schema import Names

AGAIN = frozenset({"40001", "40P01"})
"""The server undid the statement because of others: it can be repeated at once."""
MISSING = frozenset({"3F000", "42883", "42P01"})
"""No such schema, function or table: the store is not there, or not for this version."""
RENEW = frozenset({"25006", "0A000", "XX000"})
"""A new connection may do better: to a primary, or without what this one remembers of tables that were made anew."""

# Classes and states that mean: later it will work again.
_AWAY_CLASSES = frozenset({"08", "40", "53", "57", "58"})
_AWAY = frozenset({"25006", "55P03", "55006"})
_HINTS = {
    "22023": "correct the option, in what the store was given or in libpq's environment",
    "25006": "this server is a standby, or read-only: connect to the primary, for example with all hosts in the URL "
    "and target_session_attrs=read-write",
    "28000": "check the user, and the server's pg_hba.conf",
    "28P01": "check the user and the password",
    "3D000": "create the database, or correct its name in the URL",
    "53100": "free some space on the server's disk",
    "53300": "raise max_connections of the server, or put a pooler before it",
    "57014": "the statement was cancelled: look for a statement_timeout that is too short",
    "58030": "look at the server's disk",
}
# A refused connection has no state in the driver, only a text; so these are found by their English words.
_REFUSALS = (
    (re.compile(r"password authentication failed|no password supplied|authentication failed"), "28P01"),
    (
        re.compile(r"no pg_hba\.conf entry|role .* (does not exist|is not permitted)|permission denied for database"),
        "28000",
    ),
    (re.compile(r"database .* does not exist|no such database"), "3D000"),
    (re.compile(r"too many (clients|connections)|remaining connection slots|no more connections allowed"), "53300"),
    (re.compile(r"the database system is"), "57P03"),
    (re.compile(r"invalid \w+ value|invalid (port number|integer value)"), "22023"),
)

# What pgbouncer says, with the state of a lost connection, where it would never work.
_STATEMENT_MODE = re.compile(r"transaction blocks not allowed in statement pooling mode")


def state_of_refusal(text: str) -> str:
    """Return the state that a server meant when it refused a connection, as far as its words tell."""
    return next((state for words, state in _REFUSALS if words.search(text)), "")


def translate(failed: Failed, *, location: str, names: Names, secrets: Collection[str] = ()) -> StoreError:
    """Return our own error for a failed statement or connection, with no password in its text."""
    text = " ".join(failed.text.split())
    for secret in secrets:
        text = text.replace(secret, "***")
    state = failed.sqlstate
    hint = _hint(failed, names)
    said = f"{location}: {text}" + (f" [{state}]" if state else "") + (f"; {hint}" if hint else "")
    return StoreUnavailable(said) if is_passing(failed) else StoreError(said)


def _hint(failed: Failed, names: Names) -> str:
    state = failed.sqlstate
    if _STATEMENT_MODE.search(failed.text):
        return "set pool_mode of pgbouncer to transaction or session for this database"
    if state == "42501":
        return (
            f"this role lacks a privilege: grant it USAGE on the schema, SELECT, INSERT, UPDATE, DELETE on the "
            f"tables {', '.join(names.relations)}, and, where not everybody has it, EXECUTE ON ALL FUNCTIONS IN SCHEMA "
            f"{names.schema}; if the store is not there yet, or of an older version, make it with a role that may: "
            "anarchon migrate"
        )
    if state == "3F000" and f'"{names.schema}"' in failed.text:
        return f"create the schema {names.schema!r}, or name another in the option table"
    if state in MISSING:
        return (
            f"the functions of the store with table={names.table!r} look for what has another name now: rename the "
            "schema, table or function back, or drop the functions whose names begin with "
            f"{names.function_prefix!r}, which are then made anew"
        )
    return _HINTS.get(state, "")


def is_passing(failed: Failed) -> bool:
    """Tell whether the same call may work later without anybody changing anything in this process."""
    if _STATEMENT_MODE.search(failed.text):
        return False
    if not failed.sqlstate:
        return failed.broken or failed.late
    return failed.sqlstate in _AWAY or failed.sqlstate[:2] in _AWAY_CLASSES
