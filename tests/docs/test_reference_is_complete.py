"""The reference names everything that the code has, and nothing that it has not."""

from __future__ import annotations

import inspect
import re
from dataclasses import fields
from typing import TYPE_CHECKING

import click
import pytest

import anarchon_tasks
from anarchon_celery import Anarchon, entries
from anarchon_celery import settings as celery_settings
from anarchon_celery.options import OURS, SEND_OPTIONS
from anarchon_tasks import config, errors, events
from anarchon_tasks._durations import to_text
from anarchon_tasks.cli import main
from anarchon_tasks.jobs import NOT_YET, OPTION_NAMES, JobOptions
from anarchon_tasks.model import Reason, Run, Status, Trigger
from anarchon_tasks.stores import PostgresBackend, _backends, _postgres_schema, _redis_options, _sqlite_file
from anarchon_tasks.stores.redis import RedisBackend
from tests.docs.snippets import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from enum import StrEnum
    from pathlib import Path

REFERENCE = ROOT / "docs" / "reference"
LUA = ROOT / "anarchon_tasks" / "stores" / "lua"
ROW = re.compile(r"^\|(?P<cells>.*)\|$")
CODE = re.compile(r"`([^`]+)`")
LIBPQ = "URL, mapping, text"


def section(page: str, heading: str = "") -> str:
    """Return a page, or what stands under one of its headings, up to the next heading of any level."""
    text = (REFERENCE / page).read_text(encoding="utf-8")
    if not heading:
        return text
    _, found, rest = text.partition(f"\n{heading}\n")
    assert found, f"{page} has no heading {heading!r}"
    return re.split(r"\n#+ ", rest, maxsplit=1)[0]


def rows(text: str) -> Iterator[list[str]]:
    """Return the cells of all tables of a text, without their heads."""
    head = True
    for line in text.splitlines():
        found = ROW.match(line)
        if found is None:
            head = True
        elif head:
            head = False
        elif not re.fullmatch(r"[|\s:-]+", line):
            yield [cell.strip() for cell in re.split(r"(?<!\\)\|", found["cells"])]


def table(text: str) -> dict[str, list[str]]:
    """Return the rows of all tables of a text by the names in their first cells; a cell may have several."""
    return {name: row[1:] for row in rows(text) for name in CODE.findall(row[0])}


def same(documented: Iterable[str], real: Iterable[str]) -> None:
    """Compare two lists of names so that the difference is easy to read."""
    found, there = set(documented), set(real)
    assert {"missing": sorted(there - found), "too many": sorted(found - there)} == {"missing": [], "too many": []}


class TestJobOptions:
    """`job-options.md`."""

    PAGE = "job-options.md"

    def test_every_option_has_a_row(self) -> None:
        """The first column is the list of options."""
        same(table(section(self.PAGE)), OPTION_NAMES)

    @pytest.mark.parametrize("name", sorted(OPTION_NAMES))
    def test_the_default_is_that_of_the_code(self, name: str) -> None:
        """The second column is what a job has that says nothing."""
        plain = JobOptions()
        if hasattr(plain, f"{name}_ms"):
            value = getattr(plain, f"{name}_ms")
            real = "0" if value == 0 else value if value is None else to_text(value)
        else:
            real = getattr(plain, name)
        assert CODE.findall(table(section(self.PAGE))[name][0]) == [str(real)]

    def test_what_is_refused_for_now(self) -> None:
        """The options of later versions."""
        same(CODE.findall(section(self.PAGE, "## Refused for now")), NOT_YET)

    def test_the_options_of_the_message(self) -> None:
        """What is passed on, and what is the scheduler's own."""
        words = " ".join(section(self.PAGE, "## Options of the message").split())
        passed_on, _, rest = words.partition(". `countdown`")
        same(CODE.findall(passed_on.partition("pass them on: ")[2]), SEND_OPTIONS)
        same(CODE.findall(rest.rpartition("ends the job.")[2]), OURS)


class TestSettings:
    """`settings.md`."""

    def test_every_setting_has_a_row(self) -> None:
        """The four names of each setting are right."""
        found = table(section("settings.md", "## With Celery"))
        same(found, celery_settings.NAMES)
        arguments = inspect.signature(Anarchon).parameters
        for name, (argument, variable, setting, *_) in found.items():
            assert argument == f"`{name}=`"
            assert name in arguments
            assert variable == (f"`{config.variable(name)}`" if name in celery_settings.ENVIRONMENT else "none")
            assert setting == f"`anarchon_{name}`"

    def test_every_variable_of_the_command(self) -> None:
        """The environment of `anarchon`."""
        text = section("settings.md", "## For the command `anarchon`")
        known = {config.variable(item.name) for item in fields(config.Settings)}
        same(re.findall(r"`(ANARCHON_\w+)`", text), {*known, "ANARCHON_DEBUG"})

    def test_the_defaults_of_the_namespaces(self) -> None:
        """A prefix and a table."""
        found = table(section("settings.md", "## With Celery"))
        assert found["prefix"][3] == f"`{_redis_options.DEFAULT_PREFIX}`"
        assert found["table"][3] == f"`{_backends.DEFAULT_TABLE}`"


class TestCommand:
    """`cli.md`."""

    def test_every_verb_has_a_heading(self) -> None:
        """The headings are the verbs."""
        same(re.findall(r"^## `anarchon ([\w-]+)", section("cli.md"), re.MULTILINE), main.commands)

    @pytest.mark.parametrize("verb", sorted(main.commands))
    def test_every_option_has_a_row(self, verb: str) -> None:
        """The options of a verb are in its table."""
        (heading,) = re.findall(rf"^## `anarchon {verb}.*$", section("cli.md"), re.MULTILINE)
        text = section("cli.md", heading)
        documented = re.findall(r"(?<![\w-])-{1,2}[a-z]+", " ".join(row[0] for row in rows(text)))
        options = [option for option in main.commands[verb].params if isinstance(option, click.Option)]
        same(documented, [name for option in options for name in option.opts])


class TestRunRecord:
    """`run-record.md`."""

    def test_every_key_has_a_row(self) -> None:
        """The first table is the JSON, key by key."""
        before, _, _ = section("run-record.md").partition("\n## Status")
        same(table(before), Run(job="job", slot=0, status=Status.QUEUED).to_json())

    @pytest.mark.parametrize(
        ("heading", "words"), [("## Status", Status), ("## Reason", Reason), ("## Trigger", Trigger)]
    )
    def test_every_word_has_a_row(self, heading: str, words: type[StrEnum]) -> None:
        """Statuses, reasons and triggers."""
        same(table(section("run-record.md", heading)), [word.value for word in words])

    def test_the_statuses_of_a_reason_exist(self) -> None:
        """The second column of the reasons names statuses."""
        named = {
            name for cells in table(section("run-record.md", "## Reason")).values() for name in CODE.findall(cells[0])
        }
        assert named <= {status.value for status in Status}


def test_every_event_and_its_fields() -> None:
    """`events.md` has a row for each event, with its fields in order."""
    real = {
        kind.__name__: [item.name for item in fields(kind)]
        for kind in vars(events).values()
        if inspect.isclass(kind) and issubclass(kind, events.Event) and kind not in {events.Event, events.RunEvent}
    }
    found = {name: CODE.findall(cells[0]) for name, cells in table(section("events.md")).items()}
    assert found == real


def test_every_error_and_its_code() -> None:
    """`errors.md` has a row for each error, with its code and its bases."""
    real = {
        kind.__name__: (kind.code, [base.__name__ for base in kind.__bases__])
        for kind in vars(errors).values()
        if inspect.isclass(kind) and issubclass(kind, errors.AnarchonError)
    }
    found = {
        name: (*CODE.findall(cells[0]), CODE.findall(cells[1])) for name, cells in table(section("errors.md")).items()
    }
    assert found == real


class TestStores:
    """`stores.md`."""

    def test_every_key_of_redis_has_a_row(self) -> None:
        """The keys are those that the scripts name."""
        scripts = "".join(path.read_text(encoding="utf-8") for path in LUA.glob("*.lua"))
        shared = {f"<prefix>{name}" for name in re.findall(r"PREFIX \.\. '(\w+)'", scripts)}
        of_jobs = {f"{{<prefix><job>}}:{kind}" for kind in re.findall(r"key_of\([\w.]+, '(\w+)'\)", scripts)}
        same(table(section("stores.md", "### Keys")), shared | of_jobs)

    def test_every_table_of_sqlite_is_named(self) -> None:
        """Tables have rows, indexes are named below."""
        names = {_backends.DEFAULT_TABLE + suffix for suffix in _sqlite_file._NAMES.values()}
        text = section("stores.md", "### Tables")
        same(re.findall(r"`(anarchon_runs\w*)`", text), names)

    def test_every_option_of_sqlite_has_a_row(self) -> None:
        """The arguments of the backend."""
        same(table(section("stores.md", "## SQLite")), inspect.signature(_backends.SqliteBackend).parameters)

    def test_every_option_of_redis_has_a_row(self) -> None:
        """The arguments of the backends, and what a URL may carry."""
        real = {*inspect.signature(RedisBackend).parameters, "valkey", *_redis_options._IN_URL}
        same(table(section("stores.md", "## Redis and Valkey")), real)

    def test_every_table_of_postgres_has_a_row(self) -> None:
        """Its functions are not for people."""
        names = {_backends.DEFAULT_TABLE + suffix for suffix in _postgres_schema.TABLES.values()}
        same(table(section("stores.md", "### Tables and functions")), names)

    def test_every_option_of_postgres_has_a_row(self) -> None:
        """The arguments of the backend; of libpq's parameters some are named."""
        found = {name: row for name, row in table(section("stores.md", "## PostgreSQL")).items() if row[0] != LIBPQ}
        same(found, inspect.signature(PostgresBackend).parameters)

    def test_the_grants_name_every_table(self) -> None:
        """Whoever copies them has given enough."""
        names = {_backends.DEFAULT_TABLE + suffix for suffix in _postgres_schema.TABLES.values()}
        grant = re.search(r"GRANT SELECT.*? TO shop;", section("stores.md", "### Roles"), re.DOTALL)
        assert grant is not None
        same(re.findall(r"anarchon_runs\w*", grant[0]), names)

    def test_every_scheme_is_named(self) -> None:
        """The schemes of URLs."""
        schemes = {
            url.partition("://")[0] for url in re.findall(r"`(\w+://)", section("stores.md").partition("\n## ")[0])
        }
        same(schemes, anarchon_tasks.stores._SCHEMES)


def test_every_public_name_is_in_the_reference() -> None:
    """A name of the facade is documented somewhere."""
    pages: list[Path] = sorted(REFERENCE.glob("*.md"))
    text = "".join(page.read_text(encoding="utf-8") for page in pages)
    missing = [name for name in anarchon_tasks.__all__ if not re.search(rf"[`.]{name}\b", text)]
    assert missing == ["__version__"]


def test_what_becomes_of_the_keys_and_options_of_entries() -> None:
    """The how-to page for beat's users names each of them."""
    text = (ROOT / "docs" / "how-to" / "replace-celery-beat.md").read_text(encoding="utf-8")
    for key in {*entries.FOREIGN, *entries.NOT_SENT} - {"publisher"}:
        assert f'"{key}"' in text or f"`{key}`" in text, key
