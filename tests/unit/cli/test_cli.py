"""The command `anarchon`: what it prints, and how it fails."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from datetime import datetime
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import pytest
from click.testing import CliRunner, Result

from anarchon_tasks.cli import main
from anarchon_tasks.jobs import Job
from anarchon_tasks.model import RunRef, Status, message_id
from anarchon_tasks.schedules import Schedule, cron, every
from anarchon_tasks.stores.base import Begin, Claim, Definition, Delivered, Finish, Policy, Queued, SlotRange
from anarchon_tasks.stores.sqlite import SqliteStore
from anarchon_tasks.testing import ManualClock

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

START = 1_750_000_000_000
HOUR = 3_600_000
EXPLAIN = ("explain", "0 8 * * 1-5", "--tz", "Europe/Athens", "--from", "2026-10-23T00:00:00Z", "-n", "3")

Anarchon = "Callable[..., Result]"


@pytest.fixture(autouse=True)
def _no_settings(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep the environment of whoever runs the tests out of them."""
    for name in [name for name in os.environ if name.startswith("ANARCHON_")]:
        monkeypatch.delenv(name)


@pytest.fixture
def anarchon() -> Callable[..., Result]:
    """Run the command in this process."""

    def run(*arguments: str, env: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(main, arguments, env=env, prog_name="anarchon")

    return run


def job(name: str, schedule: Schedule) -> Job:
    """Return a job of a shop."""
    return Job(name=name, schedule=schedule.for_job(name), target=f"shop.{name}", queue="celery")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """Return the file of a store with three jobs, one of which ran at 15:26:40 + 1 h and was missed before."""
    clock = ManualClock(START)
    file = tmp_path / "store.db"
    store = SqliteStore(file, clock=clock)
    sync, digest = job("sync", every("1h")), job("digest", cron("30 2 * * *", timezone="Europe/Athens"))
    solar = Definition(name="solar", fingerprint="x", document='{"schedule": "solar sunrise 38 24", "kind": "solar"}')
    store.register([sync.definition(), digest.definition(), solar])
    run_once(store, clock, sync)
    store.close()
    return file


def run_once(store: SqliteStore, clock: ManualClock, what: Job) -> None:
    """Claim, publish, begin and finish the newest of three due slots."""
    clock.advance("3h")
    last = clock.wall_ms() // HOUR * HOUR
    ref = RunRef(what.name, last)
    missed = SlotRange(
        first=last - 2 * HOUR,
        last=last - HOUR,
        count=2,
        status=Status.MISSED,
        reason="no_instance",  # type: ignore[arg-type]
    )
    claim = Claim(
        ref=ref,
        claim_id="c",
        instance="host:1/abcd",
        policy=Policy(),
        due_ms=last,
        latest_ms=last + HOUR,
        floor=START,
        ranges=(missed,),
    )
    token = store.claim([claim]).answers[0].token
    clock.advance("250ms")
    identity = message_id("anarchon_runs", ref, 1)
    store.queued([Queued(ref=ref, token=token, policy=Policy(), task_id=identity)])
    delivered = Delivered(message_id=identity, retries=0, worker="w1@host", pid=7)
    begin = Begin(ref=ref, delivery_id="d", delivered=delivered, attempt=1, token=token, lease_ms=30_000)
    begun = store.begin([begin]).answers[0]
    clock.advance("2500ms")
    store.finish([Finish(ref=ref, status=Status.FAILED, token=begun.token, error="Boom(\n'pieces')")])


def data(result: Result) -> Any:  # noqa: ANN401 - JSON
    """Return the JSON that a command printed, which must be all it printed."""
    assert (result.exit_code, result.stderr) == (0, "")
    return json.loads(result.stdout)


# --- explain ---------------------------------------------------------------------------------------------------------


def test_explain_lists_slots_in_utc_and_on_the_wall(anarchon: Callable[..., Result]) -> None:
    """The instant of --from is not listed, and the clock change between the slots shows in both columns."""
    found = data(anarchon(*EXPLAIN, "--json"))
    assert {key: found[key] for key in ("expression", "timezone", "words")} == {
        "expression": "0 8 * * 1-5",
        "timezone": "Europe/Athens",
        "words": "At 08:00, Monday to Friday",
    }
    assert found["slots"] == [
        {"utc": "2026-10-23T05:00:00Z", "local": "2026-10-23T08:00:00+03:00", "note": None},
        {"utc": "2026-10-26T06:00:00Z", "local": "2026-10-26T08:00:00+02:00", "note": None},
        {"utc": "2026-10-27T06:00:00Z", "local": "2026-10-27T08:00:00+02:00", "note": None},
    ]
    again = data(anarchon(*EXPLAIN[:4], "--from", "2026-10-23T05:00:00Z", "-n", "1", "--json"))
    assert again["slots"][0]["utc"] == "2026-10-26T06:00:00Z"


def test_explain_says_what_a_clock_change_does(anarchon: Callable[..., Result]) -> None:
    """A slot in the repeated hour carries a note, in JSON and for people."""
    arguments = ("explain", "30 3 * * *", "--tz", "Europe/Athens", "--from", "2026-10-24T12:00:00Z", "-n", "1")
    assert "occurs twice" in data(anarchon(*arguments, "--json"))["slots"][0]["note"]
    assert "occurs twice" in anarchon(*arguments).stdout


def test_explain_prints_aligned_columns(anarchon: Callable[..., Result]) -> None:
    """People see words, then a table; a column without content is left out."""
    assert anarchon(*EXPLAIN).stdout.splitlines() == [
        "cron 0 8 * * 1-5: At 08:00, Monday to Friday",
        "UTC                   Europe/Athens",
        "2026-10-23T05:00:00Z  2026-10-23T08:00:00+03:00",
        "2026-10-26T06:00:00Z  2026-10-26T08:00:00+02:00",
        "2026-10-27T06:00:00Z  2026-10-27T08:00:00+02:00",
    ]


def test_explain_takes_the_zone_from_option_environment_or_default(anarchon: Callable[..., Result]) -> None:
    """--tz beats ANARCHON_TIMEZONE, which beats UTC; an empty variable is not given."""
    env = {"ANARCHON_TIMEZONE": "Asia/Tokyo"}
    ask = ("explain", "@daily", "--json", "--from", "2026-01-01T00:00:00Z")
    zones = [
        data(anarchon(*ask, "--tz", "Europe/Athens", env=env))["timezone"],
        data(anarchon(*ask, env=env))["timezone"],
        data(anarchon(*ask, env={"ANARCHON_TIMEZONE": ""}))["timezone"],
    ]
    assert zones == ["Europe/Athens", "Asia/Tokyo", "UTC"]


def test_explain_hashes_with_the_name_of_the_job(anarchon: Callable[..., Result]) -> None:
    """An expression with H needs --job, and the message says so."""
    ask = ("explain", "H H * * *", "--from", "2026-01-01T00:00:00Z", "-n", "1", "--json")
    assert "--job" in anarchon(*ask).stderr
    slots = {data(anarchon(*ask, "--job", name))["slots"][0]["utc"] for name in ("a", "b", "c")}
    assert len(slots) > 1


def test_explain_of_a_past_instant_has_no_slots(anarchon: Callable[..., Result]) -> None:
    """A one-off that is over is said to be over."""
    arguments = ("explain", "at 2020-01-01T00:00:00Z", "--from", "2026-01-01T00:00:00Z")
    assert data(anarchon(*arguments, "--json"))["slots"] == []
    assert "no slots any more" in anarchon(*arguments).stdout


@pytest.mark.parametrize("instant", ["2026-10-23T00:00:00", "2026-10-23", "yesterday", ""])
def test_an_instant_without_an_offset_is_refused(anarchon: Callable[..., Result], instant: str) -> None:
    """--from is never read in a zone that nobody named."""
    result = anarchon("explain", "@daily", "--from", instant)
    assert (result.exit_code, result.stdout) == (2, "")
    assert f"--from={instant!r}" in result.stderr


@pytest.mark.parametrize(
    "arguments",
    [
        ("explain", "61 * * * *"),
        ("explain", "0 0 31 2 *"),
        ("explain", ""),
        ("explain", "@daily", "--tz", "Europe/Atlantis"),
        ("explain", "@daily", "-n", "0"),
        ("explain",),
        ("nothing",),
        ("history", "sync", "-n", "0", "--store", "memory://"),
        ("jobs",),
        ("jobs", "--store", "nonsense"),
        ("jobs", "--store", "nats://h"),
        ("jobs", "--store", "memory://", "--prefix", "a:"),
        ("next", "sync", "--store", "memory://", "--tz", "Mars"),
    ],
)
def test_wrong_usage_ends_with_2_and_one_message(anarchon: Callable[..., Result], arguments: tuple[str, ...]) -> None:
    """Usage and configuration errors go to standard error, without a traceback."""
    result = anarchon(*arguments)
    assert (result.exit_code, result.stdout) == (2, "")
    assert "Error: " in result.stderr
    assert "Traceback" not in result.stderr


# --- next ------------------------------------------------------------------------------------------------------------


def test_next_needs_no_user_code(anarchon: Callable[..., Result], path: Path) -> None:
    """The slots come from the stored definition, in the zone of the schedule or in one that was asked for."""
    ask = ("next", "digest", "-n", "2", "--from", "2026-10-24T00:00:00Z", "--store", f"sqlite:///{path}", "--json")
    found = data(anarchon(*ask))
    assert (found["job"], found["timezone"]) == ("digest", "Europe/Athens")
    assert [slot["local"] for slot in found["slots"]] == ["2026-10-25T02:30:00+03:00", "2026-10-26T02:30:00+02:00"]
    elsewhere = data(anarchon(*ask, "--tz", "Asia/Tokyo"))
    assert [slot["utc"] for slot in elsewhere["slots"]] == [slot["utc"] for slot in found["slots"]]
    assert elsewhere["slots"][0]["local"] == "2026-10-25T08:30:00+09:00"


def test_next_starts_now_by_default(anarchon: Callable[..., Result], path: Path) -> None:
    """Without --from the slots are those after the store's present time."""
    found = data(anarchon("next", "sync", "-n", "1", "--store", f"sqlite:///{path}", "--json"))
    slot = datetime.fromisoformat(found["slots"][0]["utc"])
    assert 0 <= (slot - datetime.now(ZoneInfo("UTC"))).total_seconds() + 60 <= 3_660


def test_next_says_plainly_that_a_schedule_is_not_known_here(anarchon: Callable[..., Result], path: Path) -> None:
    """A schedule that only user code can compute is not guessed."""
    result = anarchon("next", "solar", "--store", f"sqlite:///{path}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "solar sunrise 38 24" in result.stderr
    assert "cannot be computed here" in result.stderr


# --- jobs and history ------------------------------------------------------------------------------------------------


def test_jobs_lists_what_the_store_knows(anarchon: Callable[..., Result], path: Path) -> None:
    """Each job has all keys, its last run, and its next slot where that can be computed."""
    digest, solar, sync = data(anarchon("jobs", "--store", f"sqlite:///{path}", "--json"))
    assert set(digest) == set(solar) == set(sync)
    assert (digest["name"], digest["target"], digest["timezone"]) == ("digest", "shop.digest", "Europe/Athens")
    assert (digest["last_run"], solar["next"]) == (None, None)
    assert sync["last_run"]["status"] == "failed"
    assert sync["next"].endswith(":00:00.000Z")


def test_jobs_prints_a_table(anarchon: Callable[..., Result], path: Path) -> None:
    """People see one line per job, under heads, in columns."""
    lines = anarchon("jobs", "--store", f"sqlite:///{path}").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["NAME", "digest", "solar", "sync"]
    at = lines[0].index("STATUS")
    assert lines[3][at:].startswith("failed")


def test_history_lists_the_newest_first(anarchon: Callable[..., Result], path: Path) -> None:
    """Every key is there, null where unknown; instants are in ISO 8601 with Z."""
    run, missed = data(anarchon("history", "sync", "--store", f"sqlite:///{path}", "--json"))
    promised = {
        *("job", "slot", "scheduled_for", "trigger", "attempt", "status", "reason", "instance", "worker"),
        *("enqueued_at", "started_at", "finished_at", "lateness_ms", "duration_ms", "task_id", "error"),
    }
    assert promised <= set(run) == set(missed)
    assert (run["status"], run["duration_ms"], run["worker"]) == ("failed", 2_500, "w1@host")
    assert run["scheduled_for"].endswith("T18:00:00.000Z")
    assert (missed["status"], missed["reason"], missed["count"], missed["started_at"]) == (
        *("missed", "no_instance"),
        *(2, None),
    )


def test_history_for_people_has_no_line_breaks_in_cells(anarchon: Callable[..., Result], path: Path) -> None:
    """An error's text cannot tear the table apart."""
    lines = anarchon("history", "sync", "--store", f"sqlite:///{path}").stdout.splitlines()
    assert len(lines) == 3
    assert "Boom( 'pieces')" in lines[1]
    assert "2.5s" in lines[1]


def test_history_takes_a_limit(anarchon: Callable[..., Result], path: Path) -> None:
    """-n and --limit are the same."""
    store = ("--store", f"sqlite:///{path}", "--json")
    assert len(data(anarchon("history", "sync", "-n", "1", *store))) == 1
    assert len(data(anarchon("history", "sync", "--limit", "1", *store))) == 1


def test_a_job_without_runs_is_no_error(anarchon: Callable[..., Result], path: Path) -> None:
    """A known job that never ran has an empty history."""
    store = ("--store", f"sqlite:///{path}")
    assert data(anarchon("history", "digest", *store, "--json")) == []
    assert "no runs of digest yet" in anarchon("history", "digest", *store).stdout


@pytest.mark.parametrize("verb", ["history", "next"])
def test_an_unknown_job_is_named_with_similar_ones(anarchon: Callable[..., Result], path: Path, verb: str) -> None:
    """A typing error ends with 1 and the name that was meant."""
    result = anarchon(verb, "digset", "--store", f"sqlite:///{path}")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "no job named 'digset'; did you mean 'digest'?" in result.stderr


def test_the_environment_names_the_store(anarchon: Callable[..., Result], path: Path) -> None:
    """ANARCHON_STORE and ANARCHON_TABLE do what the options do, and an option beats its variable."""
    env = {"ANARCHON_STORE": f"sqlite:///{path}", "ANARCHON_TABLE": "other"}
    missing = anarchon("jobs", env=env)
    assert (missing.exit_code, "table='other'" in missing.stderr) == (1, True)
    assert len(data(anarchon("jobs", "--json", "--table", "anarchon_runs", env=env))) == 3


def test_a_setting_from_the_environment_is_named_when_it_is_refused(anarchon: Callable[..., Result]) -> None:
    """Who did not write the option learns where it came from."""
    result = anarchon("jobs", "--store", "memory://", env={"ANARCHON_PREFIX": "shop:"})
    assert result.exit_code == 2
    assert "prefix='shop:'" in result.stderr
    assert "ANARCHON_PREFIX" in result.stderr


@pytest.mark.parametrize("verb", [("jobs",), ("history", "sync"), ("next", "sync")])
def test_reading_never_makes_a_store(anarchon: Callable[..., Result], tmp_path: Path, verb: tuple[str, ...]) -> None:
    """A mistyped path is an error, and leaves no file behind."""
    result = anarchon(*verb, "--store", f"sqlite:///{tmp_path}/typo.db")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "typo.db" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("verb", [("jobs",), ("history", "sync"), ("next", "sync")])
@pytest.mark.parametrize(
    "url",
    [
        "redis://user:pa55word@127.0.0.1:1/0",
        "redis://:pa55word@127.0.0.1:1/0",
        "redis://:pa55%77ord@127.0.0.1:1/0",
        "redis://127.0.0.1:1/0?password=pa55word",
        "foo://user:pa55word@h/0",
        "redis://user:pa55word/x@h:1/0",
    ],
)
def test_a_password_is_never_shown(anarchon: Callable[..., Result], verb: tuple[str, ...], url: str) -> None:
    """Whether the store is away or the URL is wrong: an error message, exit code 1 or 2, and no password in it."""
    result = anarchon(*verb, "--store", url)
    assert result.exit_code in {1, 2}
    assert result.stdout == ""
    assert "pa55" not in result.stderr
    assert "Traceback" not in result.stderr


def test_a_password_in_the_wrong_place_is_not_shown(anarchon: Callable[..., Result]) -> None:
    """A URL that was taken for another argument is shown without its password too."""
    for arguments in (("jobs", "redis://:pa55word@h/0"), ("redis://:pa55word@h/0",)):
        result = anarchon(*arguments)
        assert result.exit_code == 2
        assert "pa55" not in result.stderr
        assert "redis://:***@h/0" in result.stderr


def test_an_error_that_nobody_foresaw_is_a_message(
    anarchon: Callable[..., Result], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Exit code 1, the kind of the error, no traceback, no password."""

    def broken(*_: object, **__: object) -> None:
        raise RuntimeError("cannot reach pa55word")

    monkeypatch.setattr("anarchon_tasks.cli._store.Reader", broken)
    result = anarchon("jobs", "--store", "redis://:pa55word@h/0")
    assert (result.exit_code, result.stdout) == (1, "")
    assert "unexpected RuntimeError: cannot reach ***" in result.stderr
    again = anarchon("jobs", "--store", "redis://:pa55word@h/0", env={"ANARCHON_DEBUG": "1"})
    assert isinstance(again.exception, RuntimeError)


# --- the program -----------------------------------------------------------------------------------------------------


def test_help_names_every_command_and_the_exit_codes(anarchon: Callable[..., Result]) -> None:
    """`anarchon --help` says what there is, how to name a store, and what the exit codes mean."""
    text = anarchon("--help").stdout
    assert all(
        word in text for word in ("explain", "history", "jobs", "next", "ANARCHON_STORE", "--json", "Exit codes")
    )
    assert all(anarchon(verb, "--help").exit_code == 0 for verb in ("explain", "history", "jobs", "next"))


def test_the_version_is_that_of_the_distribution(anarchon: Callable[..., Result]) -> None:
    """`--version` prints one line."""
    from anarchon_tasks import __version__

    assert anarchon("--version").stdout == f"anarchon-tasks {__version__}\n"


def test_the_program_runs_by_itself(path: Path) -> None:
    """As a program: JSON alone on standard output, nothing else written, no driver loaded."""
    code = (
        "import sys; from anarchon_tasks.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "finally: print(*sorted({'redis', 'valkey', 'psycopg', 'celery'} & {*sys.modules}), file=sys.stderr)"
    )
    command = [sys.executable, "-c", code, "history", "sync", "--json", "--store", f"sqlite:///{path}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stderr.strip()) == (0, "")
    assert len(json.loads(done.stdout)) == 2


@pytest.mark.parametrize("name", ["\x1b[31mred", "two\nlines", "tab\there", "ζεύς", "a b"])
def test_odd_names_do_not_reach_the_terminal_raw(anarchon: Callable[..., Result], tmp_path: Path, name: str) -> None:
    """A job's name cannot colour or tear the table; JSON has it unchanged."""
    store = SqliteStore(tmp_path / "s.db")
    store.register([job(name, every("1h")).definition()])
    store.close()
    url = ("--store", f"sqlite:///{tmp_path}/s.db")
    lines = anarchon("jobs", *url).stdout.splitlines()
    assert len(lines) == 2
    assert lines[1].isprintable()
    assert data(anarchon("jobs", *url, "--json"))[0]["name"] == name
    for verb, count in (("history", 1), ("next", 4)):
        shown = anarchon(verb, name, *url, *(("-n", "2") if verb == "next" else ())).stdout.splitlines()
        assert len(shown) == count
        assert all(line.isprintable() for line in shown)
