"""The tables and functions of a PostgreSQL store: made once by whoever comes first, or by hand, never over others."""

from __future__ import annotations

import subprocess
import sys
import uuid
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

import pytest
from click.testing import CliRunner, Result

from anarchon_tasks.cli import main
from anarchon_tasks.errors import StoreError, StoreFormatError, StoreUnavailable
from anarchon_tasks.model import RunRef
from anarchon_tasks.stores import _postgres_schema as schema
from anarchon_tasks.stores import from_url, open_to_read
from anarchon_tasks.stores._postgres_schema import Names
from anarchon_tasks.stores.base import Claim, ClaimKind, Definition, Overlap, Policy
from tests.servers import PostgresServer, poll_until

psycopg = pytest.importorskip("psycopg")

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from psycopg import Connection

    from anarchon_tasks.stores.base import LeaseStore

INSTANCES = 8


@pytest.fixture
def database(postgres_server_url: str) -> Iterator[str]:
    """The address of an empty database."""
    name = f"t{uuid.uuid4().hex[:16]}"
    with psycopg.connect(postgres_server_url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")
        try:
            yield urlsplit(postgres_server_url)._replace(path=f"/{name}").geturl()
        finally:
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
def admin(database: str) -> Iterator[Connection[Any]]:
    """A connection beside the store, as the owner."""
    with psycopg.connect(database, autocommit=True) as connection:
        yield connection


@pytest.fixture
def role(admin: Connection[Any], database: str) -> Iterator[str]:
    """The address for a role that may connect, and nothing else."""
    name = f"r{uuid.uuid4().hex[:16]}"
    admin.execute(f"CREATE ROLE {name} LOGIN")
    admin.execute("REVOKE CREATE ON SCHEMA public FROM public")
    address = urlsplit(database)
    try:
        yield address._replace(netloc=f"{name}@{address.hostname}:{address.port}").geturl()
    finally:
        admin.execute(f"DROP OWNED BY {name}")
        admin.execute(f"DROP ROLE {name}")


@pytest.fixture
def opened() -> Iterator[Callable[..., LeaseStore]]:
    """Open stores that are closed afterwards."""
    stores: list[LeaseStore] = []

    def open_(url: str, **options: object) -> LeaseStore:
        stores.append(from_url(url, **options))
        return stores[-1]

    yield open_
    for store in stores:
        store.close()


def anarchon(*arguments: str) -> Result:
    """Run the command in this process."""
    return CliRunner().invoke(main, arguments, prog_name="anarchon")


def things(admin: Connection[Any]) -> set[str]:
    """Return the names of all relations and functions that are not the server's own."""
    ask = """
        SELECT n.nspname || '.' || c.relname FROM pg_class c JOIN pg_namespace n ON n.oid = c.relnamespace
        WHERE n.nspname !~ '^(pg_|information_schema)'
        UNION SELECT n.nspname || '.' || p.proname FROM pg_proc p JOIN pg_namespace n ON n.oid = p.pronamespace
        WHERE n.nspname !~ '^(pg_|information_schema)'"""
    return {name for (name,) in admin.execute(ask).fetchall()}


def use(store: LeaseStore, job: str = "a") -> None:
    """Make a call that reads and writes."""
    [answer] = store.register([Definition(name=job, fingerprint="x", document="{}")]).answers
    assert answer.error is None


def win(store: LeaseStore, job: str) -> None:
    """Take a slot, through functions that call others."""
    [known] = store.register([Definition(name=job, fingerprint="x", document="{}")]).answers
    claim = Claim(
        ref=RunRef(job, known.floor + 1),
        claim_id="c",
        instance="x",
        policy=Policy(overlap=Overlap.ALLOW, claim_lease_ms=60_000),
        due_ms=known.floor,
        latest_ms=known.floor + 3_600_000,
        floor=known.floor,
    )
    assert [answer.kind for answer in store.claim([claim]).answers] == [ClaimKind.WON]


class TestAutomatically:
    """The first call makes what is missing."""

    @pytest.mark.xdist_group("processes")
    def test_any_number_of_instances_may_come_at_once(self, database: str, admin: Connection[Any]) -> None:
        """Eight processes on an empty database: none fails, and there is one store."""
        code = (
            "import sys; from anarchon_tasks.stores import from_url; store = from_url(sys.argv[1], table=sys.argv[2]);"
            "print('ready', flush=True); sys.stdin.readline(); store.time(); store.time(); store.close()"
        )
        command = [sys.executable, "-c", code, database, "shipping.cron_runs"]
        started = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
            )
            for _ in range(INSTANCES)
        ]
        try:
            for process in started:
                assert process.stdout is not None
                assert process.stdout.readline() == "ready\n"
            for process in started:
                assert process.stdin is not None
                process.stdin.write("\n")
                process.stdin.flush()
            ended = [process.communicate(timeout=60)[0] for process in started]
        finally:
            for process in started:
                process.kill()
                process.wait()
        assert (ended, [process.returncode for process in started]) == ([""] * INSTANCES, [0] * INSTANCES)
        assert admin.execute("SELECT format FROM shipping.cron_runs_format").fetchall() == [(1,)]

    @pytest.mark.parametrize("table", ["anarchon_runs", 'We"ird.Table x', "UPPER.Üñï", "a'b.{c} %s $$ \\"])
    def test_a_name_is_taken_as_it_stands(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore], table: str
    ) -> None:
        """Nothing is folded, cut or left unquoted; the schema is made too."""
        store = opened(database, table=table)
        use(store)
        parts = table.split(".")
        found = admin.execute("SELECT nspname, relname FROM pg_class c JOIN pg_namespace n ON n.oid = relnamespace")
        assert (parts[0] if len(parts) == 2 else "public", parts[-1]) in found.fetchall()
        assert [definition.name for definition in opened(database, table=table).definitions().answers] == ["a"]

    def test_the_longest_name_works(self, database: str, opened: Callable[..., LeaseStore]) -> None:
        """Every name made from it has room."""
        longest = 63 - max(len(name) for name in Names("x").functions.values()) + 1
        use(opened(database, table="x" * longest))

    def test_several_tables_share_nothing(self, database: str, opened: Callable[..., LeaseStore]) -> None:
        """Also where one is called as a part of another is."""
        tables = ["anarchon_runs", "Anarchon_Runs", "other.anarchon_runs", "b"]
        for table in tables:
            use(opened(database, table=table), job=table)
        for table in tables:
            assert [found.name for found in opened(database, table=table).definitions().answers] == [table]

    @pytest.mark.parametrize("first", ["t", "longer"])
    def test_a_table_may_be_called_as_a_part_of_anothers_functions(
        self, database: str, opened: Callable[..., LeaseStore], first: str
    ) -> None:
        """`t` beside `t_claim` and others: each has its own functions, whoever comes first."""
        tables = ["t", *(f"t_{name}" for name in ("claim", "release", "begin", "one", "reply"))]
        for table in tables if first == "t" else reversed(tables):
            win(opened(database, table=table), job=table)
        for table in tables:
            use(opened(database, table=table), job=table)
            assert [found.name for found in opened(database, table=table).definitions().answers] == [table]

    def test_a_store_that_was_dropped_is_made_again(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """A store that was in use notices at its next call, as with a Redis that lost everything."""
        store = opened(database, table="s.t")
        use(store)
        admin.execute("DROP SCHEMA s CASCADE")
        use(store)
        tables = ", ".join(f's."{name}"' for name in Names("s.t").relations)
        admin.execute(f"DROP TABLE {tables} CASCADE")
        use(store)

    def test_functions_of_two_versions_stand_side_by_side(
        self,
        database: str,
        admin: Connection[Any],
        opened: Callable[..., LeaseStore],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """Instances of both work on one store, and neither touches the other's functions."""
        old = opened(database)
        use(old)
        before = things(admin)
        changed = {name: f"{text}\n -- changed" for name, text in schema.functions().items()}
        with monkeypatch.context() as patch:
            patch.setattr(schema, "functions", lambda: changed)
            schema.revision.cache_clear()
            new = opened(database)
            use(new, job="b")
        schema.revision.cache_clear()
        assert before < things(admin)
        assert len(things(admin)) == len(before) + len(schema.functions())
        use(old)
        assert [found.name for found in old.definitions().answers] == ["a", "b"]


class TestNewerFormats:
    """A migration of a newer version may come at any time."""

    @pytest.mark.parametrize("way", ["jobs", "format"])
    def test_a_call_that_waited_for_it_is_refused(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore], way: str
    ) -> None:
        """Whatever it waited for: it writes nothing, as one that comes later."""
        store = opened(database, timeout=60)
        use(store)
        calls: dict[str, Callable[[], object]] = {"register": lambda: use(store, job="b")}
        if way == "format":
            calls["announce"] = lambda: store.announce("w", {"q": 1})
            calls["expired"] = lambda: store.expired(limit=10)
            calls["definitions"] = store.definitions
            calls["time"] = store.time
        lock = {
            "jobs": "SELECT pg_advisory_xact_lock({namespace}, hashtext('b'))",
            "format": "LOCK TABLE {format} IN ACCESS EXCLUSIVE MODE",
        }[way]
        ask = "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND wait_event_type = 'Lock'"
        with ThreadPoolExecutor(len(calls)) as threads, psycopg.connect(database) as newer:
            newer.execute(Names("anarchon_runs").filled(lock).encode())
            waiting = {name: threads.submit(call) for name, call in calls.items()}
            poll_until(lambda: admin.execute(ask).fetchone() == (len(calls),), what="calls that wait")
            newer.execute("UPDATE anarchon_runs_format SET format = 2")
            newer.commit()
            for name, future in waiting.items():
                with pytest.raises(StoreFormatError, match=r"format 2 .*upgrade"):
                    raise AssertionError((name, future.result(60)))
        assert admin.execute("SELECT job FROM anarchon_runs_definitions").fetchall() == [("a",)]
        assert admin.execute("SELECT queue FROM anarchon_runs_queues").fetchall() == []

    def test_it_waits_for_the_calls_that_began(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """A call keeps the table of the format until it ends."""
        use(opened(database))
        with psycopg.connect(database) as caller:
            caller.execute(f"SELECT {Names('anarchon_runs').function('register')}('[]', 0, 1)".encode())
            with pytest.raises(psycopg.errors.LockNotAvailable), admin.transaction():
                admin.execute("LOCK TABLE anarchon_runs_format IN ACCESS EXCLUSIVE MODE NOWAIT")


class TestOthers:
    """What is not ours is left alone."""

    def test_a_newer_store_is_refused_and_left_untouched(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """By calls, by a migration, and by an instance whose functions are not there yet."""
        use(opened(database))
        admin.execute("UPDATE anarchon_runs_format SET format = 2")
        ways: list[Callable[[], object]] = [opened(database).time, lambda: use(opened(database), job="b")]
        for way in ways:
            with pytest.raises(StoreFormatError, match=r"format 2 .*'anarchon_runs'.* up to 1: upgrade"):
                way()
        assert anarchon("migrate", "--store", database).exit_code == 1
        for name in Names("anarchon_runs").functions.values():
            admin.execute(f'DROP FUNCTION "{name}" CASCADE')
        before = things(admin)
        for reads in (True, False):
            with (
                closing((open_to_read if reads else from_url)(database)) as store,
                pytest.raises(StoreFormatError, match="upgrade"),
            ):
                store.time()
        assert things(admin) == before
        assert admin.execute("SELECT job FROM anarchon_runs_definitions").fetchall() == [("a",)]

    @pytest.mark.parametrize(
        "foreign",
        [
            "CREATE TABLE anarchon_runs (id int)",
            "CREATE VIEW anarchon_runs_state AS SELECT 1",
            "CREATE INDEX anarchon_runs_state_open ON pg_temp.x (a)",
            "CREATE TABLE anarchon_runs_format (version int)",
            "; ".join(f"CREATE TABLE {name} (id int)" for name in Names("anarchon_runs").relations),
        ],
        ids=["table", "view", "index", "format", "all"],
    )
    def test_a_table_of_somebody_else_is_refused(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore], foreign: str
    ) -> None:
        """Whichever of our names it has: the error says which, and nothing is made or changed."""
        if "INDEX" in foreign:
            admin.execute("CREATE TABLE other (a int)")
            foreign = foreign.replace("pg_temp.x", "other")
        admin.execute(foreign)
        before = things(admin)
        with pytest.raises(StoreError, match=r"holds anarchon_runs.*choose another table name") as caught:
            opened(database).time()
        assert not isinstance(caught.value, StoreUnavailable)
        assert things(admin) == before

    @pytest.mark.parametrize("encoding", ["LATIN1", "SQL_ASCII"])
    def test_a_database_of_another_encoding_is_refused(
        self, database: str, opened: Callable[..., LeaseStore], encoding: str
    ) -> None:
        """It cannot hold every name: by a call, by the command, and by what `--sql` prints; nothing is made."""
        name = f"t{uuid.uuid4().hex[:16]}"
        url = urlsplit(database)._replace(path=f"/{name}").geturl()
        with psycopg.connect(database, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name} ENCODING '{encoding}' LOCALE 'C' TEMPLATE template0")
            try:
                with pytest.raises(StoreError, match=f"encoding {encoding}, .*needs UTF8.*CREATE DATABASE") as caught:
                    opened(url).time()
                assert not isinstance(caught.value, StoreUnavailable)
                told = anarchon("migrate", "--store", url)
                assert (told.exit_code, "needs UTF8" in told.stderr) == (1, True)
                with pytest.raises(AssertionError, match="needs UTF8"):
                    psql(url, anarchon("migrate", "--sql", "--store", url).stdout)
                with psycopg.connect(url) as there:
                    assert things(there) == set()
            finally:
                connection.execute(f"DROP DATABASE {name} WITH (FORCE)")

    def test_a_format_that_was_deleted_is_named(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """With the statement that restores it."""
        use(opened(database, table="s.runs"))
        admin.execute("DELETE FROM s.runs_format")
        told = anarchon("migrate", "--store", database, "--table", "s.runs")
        assert (told.exit_code, "row of the table runs_format is missing" in told.stderr) == (1, True), told.stderr
        admin.execute(told.stderr[told.stderr.index("INSERT INTO") :].partition(";")[0].replace("\n", " ").encode())
        assert "nothing to do" in anarchon("migrate", "--store", database, "--table", "s.runs").stdout

    def test_a_schema_that_was_renamed_or_is_missing_is_told_with_advice(
        self, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """The functions name the tables with their schema, so they do not follow it."""
        use(opened(database, table="old.runs"))
        admin.execute("ALTER SCHEMA old RENAME TO new")
        with pytest.raises(StoreError, match=r"rename.* back, or drop the functions .*runs_[0-9a-f]{8}_") as caught:
            use(opened(database, table="new.runs"))
        assert not isinstance(caught.value, StoreUnavailable)
        for name in Names("new.runs").functions.values():
            admin.execute(f'DROP FUNCTION new."{name}" CASCADE')
        use(opened(database, table="new.runs"))
        admin.execute("DROP SCHEMA public CASCADE")
        with pytest.raises(StoreError, match=r"3F000\]; .*create the schema 'public', or name another in the option"):
            opened(database).time()

    def test_the_store_of_a_table_that_ends_alike_is_not_taken_for_ours(
        self, database: str, opened: Callable[..., LeaseStore]
    ) -> None:
        """`a_format` of the store `a_format` is not the format of the store `a`, nor the other way round."""
        use(opened(database, table="a_format"))
        with pytest.raises(StoreError, match="choose another table name"):
            opened(database, table="a").time()
        use(opened(database, table="b"))
        with pytest.raises(StoreError, match="choose another table name"):
            opened(database, table="b_format").time()

    def test_a_reader_makes_nothing(self, database: str, admin: Connection[Any]) -> None:
        """It says that there is no store; with one of another version, what to run."""
        with closing(open_to_read(database)) as store:
            with pytest.raises(StoreUnavailable, match=r"holds no anarchon-tasks store .*anarchon migrate"):
                store.definitions()
            assert things(admin) == set()
            assert anarchon("jobs", "--store", database).exit_code == 1
            anarchon("migrate", "--store", database)
            assert store.definitions().answers == []
            function = Names("anarchon_runs").functions["definitions"]
            admin.execute(f'DROP FUNCTION "{function}"')
            before = things(admin)
            with pytest.raises(StoreError, match=r"not the functions of this version .*anarchon migrate"):
                store.definitions()
            assert things(admin) == before


class TestByHand:
    """A role that may not create works once another has migrated."""

    def grant(self, admin: Connection[Any], role: str, table: str = "public.anarchon_runs") -> None:
        """Give a role what the documentation says that it needs."""
        names = Names(table)
        tables = ", ".join(f'"{names.schema}"."{name}"' for name in names.relations)
        user = urlsplit(role).username
        admin.execute(f'GRANT USAGE ON SCHEMA "{names.schema}" TO {user}')
        admin.execute(f"GRANT SELECT, INSERT, UPDATE, DELETE ON {tables} TO {user}")

    def test_a_role_that_may_not_create_is_told_what_to_run(
        self, role: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """Before the migration, and then without the privileges; after both, it works."""
        with pytest.raises(StoreError, match=r"may not make it .*anarchon migrate.*--sql.*SELECT, INSERT"):
            opened(role).time()
        assert things(admin) == set()
        refused = anarchon("migrate", "--store", role)
        assert (refused.exit_code, "anarchon migrate" in refused.stderr) == (1, True)

    @pytest.mark.parametrize("way", ["command", "sql"])
    def test_it_works_after_somebody_else_has_migrated(
        self, role: str, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore], way: str
    ) -> None:
        """With the command, or with what `--sql` prints, run by hand by the owner, any number of times."""
        for _ in range(2):
            if way == "command":
                assert anarchon("migrate", "--store", database, "--table", "shop.runs").exit_code == 0
            else:
                printed = anarchon("migrate", "--sql", "--store", role, "--table", "shop.runs")
                psql(database, printed.stdout)
        with pytest.raises(StoreError, match=r"42501\]; this role lacks a privilege"):
            opened(role, table="shop.runs").time()
        self.grant(admin, role, "shop.runs")
        store = opened(role, table="shop.runs")
        use(store)
        store.time()
        assert store.expired(limit=10).answers == []
        assert "nothing to do" in anarchon("migrate", "--store", role, "--table", "shop.runs").stdout

    def test_a_role_that_may_not_execute_is_told_so(
        self, role: str, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """Where functions are not everybody's by default."""
        admin.execute("ALTER DEFAULT PRIVILEGES REVOKE EXECUTE ON FUNCTIONS FROM public")
        use(opened(database))
        self.grant(admin, role)
        with pytest.raises(StoreError, match=r"denied for function .*42501\]; .*EXECUTE ON ALL FUNCTIONS IN SCHEMA"):
            opened(role).time()
        admin.execute(f"GRANT EXECUTE ON ALL FUNCTIONS IN SCHEMA public TO {urlsplit(role).username}")
        use(opened(role))

    def test_a_role_that_may_only_read_reads(
        self, role: str, database: str, admin: Connection[Any], opened: Callable[..., LeaseStore]
    ) -> None:
        """SELECT is enough for readers; a write is refused with advice."""
        use(opened(database))
        tables = ", ".join(f'"{name}"' for name in Names("anarchon_runs").relations)
        admin.execute(f"GRANT SELECT ON {tables} TO {urlsplit(role).username}")
        store = opened(role)
        assert [found.name for found in store.definitions().answers] == ["a"]
        assert (store.history("a", limit=5).answers, store.queues().answers) == ([], [])
        with pytest.raises(StoreError, match=r"permission denied for table anarchon_runs_jobs.*this role lacks"):
            use(store, job="b")

    def test_the_command_says_what_it_made(self, database: str, admin: Connection[Any]) -> None:
        """First the tables, then that nothing is to do."""
        first = anarchon("migrate", "--store", database)
        assert first.exit_code == 0, first.stderr
        assert "namespace 'anarchon_runs': anarchon_runs, anarchon_runs_state" in first.stdout
        before = things(admin)
        assert "nothing to do" in anarchon("migrate", "--store", database).stdout
        assert things(admin) == before


def psql(url: str, script: str) -> None:
    """Run a script as a person would."""
    command = [str(PostgresServer.program("psql")), "-q", "-v", "ON_ERROR_STOP=1", url]
    done = subprocess.run(command, input=script, text=True, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
