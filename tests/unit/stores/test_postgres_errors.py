"""What the errors of PostgreSQL mean: whether it may work later, what to do, and no password in any."""

from __future__ import annotations

import pytest

from anarchon_tasks.errors import StoreError, StoreUnavailable

pytest.importorskip("psycopg")

from anarchon_tasks.stores._postgres_calls import Failed
from anarchon_tasks.stores._postgres_errors import state_of_refusal, translate
from anarchon_tasks.stores._postgres_schema import Names

NAMES = Names("anarchon_runs")


def meaning(state: str, **more: bool) -> StoreError:
    """Return our error for a state."""
    return translate(Failed("it says so", sqlstate=state, **more), location="postgresql://db/x", names=NAMES)


@pytest.mark.parametrize(
    "state",
    [
        *("08000", "08003", "08006", "08001", "08004", "08P01"),  # connections, and what pgbouncer says
        *("53000", "53100", "53200", "53300", "53400"),  # no disk, no memory, too many connections
        *("57000", "57014", "57P01", "57P02", "57P03", "57P05"),  # cancelled, shut down, crashed, starting
        *("58000", "58030"),  # the disk fails
        *("40001", "40P01", "55P03", "25006"),  # still in conflict, locked, a standby
    ],
)
def test_what_may_work_later_is_unavailable(state: str) -> None:
    """The callers wait and ask again."""
    assert isinstance(meaning(state), StoreUnavailable)
    assert f"postgresql://db/x: it says so [{state}]" in str(meaning(state))


@pytest.mark.parametrize(
    "state",
    ["28P01", "28000", "3D000", "3F000", "42501", "42883", "42P01", "22P05", "54000", "XX000", "XX001", "0A000"],
)
def test_what_somebody_must_mend_is_an_error(state: str) -> None:
    """A password, a privilege, a database: waiting does not help."""
    assert not isinstance(meaning(state), StoreUnavailable)


@pytest.mark.parametrize(
    ("state", "advice"),
    [
        ("25006", "target_session_attrs=read-write"),
        ("28P01", "check the user and the password"),
        ("3D000", "create the database"),
        ("53100", "free some space"),
        ("53300", "raise max_connections"),
        ("57014", "statement_timeout"),
        ("42501", "anarchon migrate"),
        ("42501", "EXECUTE ON ALL FUNCTIONS"),
        ("42P01", "rename the schema, table or function back"),
    ],
)
def test_advice_is_given(state: str, advice: str) -> None:
    """The message says what to do next."""
    assert advice in str(meaning(state))


def test_a_pooler_in_statement_mode_is_an_error_with_advice() -> None:
    """It has the state of a lost connection, but no later call can make the store."""
    said = "transaction blocks not allowed in statement pooling mode"
    failed = Failed(said, sqlstate="08P01", broken=True)
    error = translate(failed, location="postgresql://db/x", names=NAMES)
    assert type(error) is StoreError
    assert f"{said} [08P01]; set pool_mode of pgbouncer to transaction or session" in str(error)


def test_a_lost_connection_and_a_late_answer_are_unavailable() -> None:
    """Errors of the driver have no state."""
    assert isinstance(meaning("", broken=True), StoreUnavailable)
    assert isinstance(meaning("", late=True), StoreUnavailable)
    assert not isinstance(meaning(""), StoreUnavailable)


def test_no_secret_is_in_a_message() -> None:
    """Whatever the driver says."""
    failed = Failed("cannot connect\n\twith hunter2")
    error = translate(failed, location="postgresql://db/x", names=NAMES, secrets={"hunter2"})
    assert str(error) == "postgresql://db/x: cannot connect with ***"


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ('FATAL: password authentication failed for user "app"', "28P01"),
        ("fe_sendauth: no password supplied", "28P01"),
        ('FATAL: no pg_hba.conf entry for host "::1"', "28000"),
        ('FATAL: role "app" does not exist', "28000"),
        ('FATAL: role "app" is not permitted to log in', "28000"),
        ('FATAL: database "shop" does not exist', "3D000"),
        ("FATAL: no such database: shop", "3D000"),
        ("FATAL: sorry, too many clients already", "53300"),
        ("FATAL: remaining connection slots are reserved for roles with the SUPERUSER attribute", "53300"),
        ("FATAL: no more connections allowed (max_client_conn)", "53300"),
        ("FATAL: the database system is starting up", "57P03"),
        ("FATAL: the database system is shutting down", "57P03"),
        ('invalid sslmode value: "bogus"', "22023"),
        ('invalid port number: "99999"', "22023"),
        ("Connection refused", ""),
    ],
)
def test_a_refused_connection_is_understood_by_its_words(text: str, state: str) -> None:
    """The driver has no state for it."""
    assert state_of_refusal(text) == state
