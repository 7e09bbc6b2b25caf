"""The entries of `beat_schedule` as jobs."""

from __future__ import annotations

import logging
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery
from celery.beat import BeatLazyFunc
from celery.schedules import crontab, schedule

from anarchon_celery.entries import Entry, Found, jobs_of
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.schedules import every
from anarchon_tasks.schedules.base import to_instant_ms

if TYPE_CHECKING:
    from anarchon_tasks.jobs import Job


def make_app(**conf: object) -> Celery:
    """Return an app with a task."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    app.conf.update(conf)

    @app.task(shared=False, name="shop.slow", expires=120)
    def slow() -> None: ...

    return app


def read(entries: dict[str, dict[str, Any]], *, app: Celery | None = None, **jobs: object) -> Found:
    """Return what entries mean."""
    app = app or make_app()
    return jobs_of([Entry(name=name, app=app, **entry) for name, entry in entries.items()], app=app, options=jobs)


def job(entry: dict[str, Any], *, app: Celery | None = None, **options: object) -> Job:
    """Return the job of one entry."""
    found = read({"entry": {"task": "shop.sync", "schedule": 10, **entry}}, app=app, entry=options)
    assert not found.errors, found.report()
    return found.jobs["entry"]


@pytest.mark.parametrize("value", [10, 10.0, timedelta(seconds=10), schedule(10), "every 10s"])
def test_every_kind_of_interval(value: object) -> None:
    """What beat takes, and text."""
    assert job({"schedule": value}).schedule == every("10s")


def test_crontab_and_cron_text() -> None:
    """Objects keep Celery's meaning, text that of cron."""
    assert job({"schedule": crontab(0, 8)}).schedule.text.startswith("crontab 0 8")
    assert job({"schedule": "0 8 * * 1-5"}).schedule.text == "cron 0 8 * * 1-5"


def test_relative_and_zone_of_the_app() -> None:
    """`relative` reaches the schedule also when it was made by add_periodic_task."""
    app = make_app(timezone="Asia/Tokyo")
    daily = job({"schedule": timedelta(days=1), "relative": True}, app=app).schedule
    assert (daily.timezone, daily.text) == ("Asia/Tokyo", "cron 0 0 * * *")


def test_arguments_and_options_reach_the_message() -> None:
    """Everything that apply_async takes goes there, lazy arguments unevaluated."""
    lazy = BeatLazyFunc(pytest.fail, "evaluated too early")
    options = {"priority": 3, "headers": {"a": "b"}, "time_limit": 9, "shadow": "s", "link": None, "x-custom": 1}
    call = job({"args": (1, lazy), "kwargs": {"b": b"\x00"}, "options": options}).payload
    assert call.args == (1, lazy)
    assert call.kwargs == {"b": b"\x00"}
    assert call.options == options


@pytest.mark.parametrize(
    ("expires", "deadline_ms"), [(30, 30_000), (1.5, 1_500), (timedelta(minutes=1), 60_000), ("10m", 600_000)]
)
def test_paperless_13942_expires_counts_from_the_slot(expires: object, deadline_ms: int) -> None:
    """It is the start deadline of the run, computed by us, so no zone can spoil it."""
    assert job({"options": {"expires": expires}}).options.start_deadline_ms == deadline_ms


def test_an_instant_to_expire_at_ends_the_job() -> None:
    """After it no slot is due."""
    until = datetime(2026, 1, 1, tzinfo=UTC)
    for value in (until, until.isoformat(), until.replace(tzinfo=None)):
        ended = job({"options": {"expires": value}})
        assert ended.schedule.next(to_instant_ms(until)) is None
        assert ended.payload.expires == until


@pytest.mark.filterwarnings("ignore::celery.exceptions.CDeprecationWarning")
def test_the_tasks_own_attributes_count() -> None:
    """A queue and an expiry on the class of the task are as good as in the options; the latter come first."""
    app = make_app()
    app.tasks["shop.slow"].queue = "slow"
    attributes = job({"task": "shop.slow"}, app=app)
    assert (attributes.queue, attributes.options.start_deadline_ms) == ("slow", 120_000)
    given = job({"task": "shop.slow", "options": {"queue": "fast", "expires": 5}}, app=app)
    assert (given.queue, given.options.start_deadline_ms) == ("fast", 5_000)


def test_the_queue_is_what_the_routes_say() -> None:
    """Default queue, routes, exchange and routing key."""
    app = make_app(task_default_queue="usual", task_routes={"shop.mail.*": {"queue": "mail"}})
    assert job({}, app=app).queue == "usual"
    assert job({"task": "shop.mail.send"}, app=app).queue == "mail"
    assert job({"options": {"exchange": "usual", "routing_key": "usual"}}, app=app).queue == "usual"
    assert job({"options": {"exchange": "audit", "routing_key": "x"}}, app=app).queue == ""


def test_beat_cron_starting_deadline_is_the_max_late_of_crontabs() -> None:
    """dcb#459: global, in seconds, for crontabs only, and the job's own setting comes first."""
    app = make_app(beat_cron_starting_deadline=600)
    assert job({"schedule": crontab(0, 8)}, app=app).options.max_late_ms == 600_000
    assert job({"schedule": 10}, app=app).options.max_late_ms is None
    assert job({"schedule": crontab(0, 8)}, app=app, max_late="1h").options.max_late_ms == 3_600_000


def test_options_of_jobs_have_a_place_of_their_own() -> None:
    """`anarchon_jobs` leaves the entry as plain beat wants it."""
    options = job({}, overlap="allow", max_attempts=1, jitter="5s").options
    assert (options.overlap, options.max_attempts, options.jitter_ms) == ("allow", 1, 5_000)


def test_keys_of_other_schedulers_are_taken_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    """Each is told what becomes of it."""
    made = job({
        "enabled": False,
        "description": "d",
        "one_off": True,
        "expire_seconds": 60,
        "start_time": datetime(2100, 1, 1, tzinfo=UTC),
    })  # fmt: skip
    assert not made.options.enabled
    assert made.options.start_deadline_ms == 60_000
    assert made.schedule.next(0) == to_instant_ms(datetime(2100, 1, 1, tzinfo=UTC))
    for key in ("enabled", "description", "one_off", "expire_seconds", "start_time"):
        assert f"has {key}=" in caplog.text


def test_a_fixed_task_id_is_not_used(caplog: pytest.LogCaptureFixture) -> None:
    """With one id for all runs nobody could tell them apart."""
    with caplog.at_level(logging.WARNING):
        made = job({"options": {"task_id": "always-the-same", "retry": True, "producer": None}})
    assert made.payload.options == {}
    assert "has the option task_id, which is not used" in caplog.text


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"task": None}, "task=None"),
        ({"task": ""}, "task=''"),
        ({"args": "text"}, "args='text'"),
        ({"kwargs": [1]}, r"kwargs=\[1\]"),
        ({"options": [1]}, r"options=\[1\]"),
        ({"options": {"overlap": "allow"}}, r"anarchon_jobs = \{'entry': \{'overlap': 'allow'\}\}"),
        ({"options": {"expires": "tomorrow"}}, "expires='tomorrow'"),
        ({"schedule": 0}, "every"),
        ({"schedule": -1.0}, "every"),
    ],
)
def test_posthog_21392_a_bad_entry_is_named_and_stops_no_other(entry: dict[str, Any], words: str) -> None:
    """It is among the errors; the others are jobs."""
    found = read({"entry": {"task": "t", "schedule": 10, **entry}, "good": {"task": "t", "schedule": 10}})
    assert list(found.jobs) == ["good"]
    with pytest.raises(ConfigError, match=words):
        raise found.errors["entry"]


def test_a_route_that_raises_spoils_its_own_entry_only() -> None:
    """Routers are the user's code."""

    def route(name: str, *_: object, **__: object) -> None:
        if name == "shop.bad":
            raise LookupError("no such place")

    found = read(
        {"bad": {"task": "shop.bad", "schedule": 1}, "good": {"task": "t", "schedule": 1}},
        app=make_app(task_routes=(route,)),
    )
    assert list(found.jobs) == ["good"]
    assert "no such place" in found.report()


@pytest.mark.parametrize(
    ("entry", "words"),
    [
        ({"schedule": None}, "there is no schedule"),
        ({"schedule": "61 * * * *"}, "61"),
        ({"schedule": object()}, "is no schedule"),
        ({"schedule": 10, "overlap": "allow"}, r"unknown key overlap='allow'.*anarchon_jobs"),
    ],
)
def test_what_plain_beat_would_crash_on_is_an_error_of_ours(entry: dict[str, Any], words: str) -> None:
    """TypeError and AttributeError at the start become words."""
    with pytest.raises(ConfigError, match=words):
        Entry(name="entry", task="t", app=make_app(), **entry)


def test_entries_compare_and_update_as_beats_do() -> None:
    """Also in the keys that plain beat does not have; the next entry keeps them."""
    app = make_app()
    one = Entry(name="e", task="t", schedule=10, app=app)
    other = Entry(name="e", task="t", schedule=10, app=app, enabled=False)
    assert one != other
    one.update(other)
    assert one == other
    assert next(other).foreign == {"enabled": False}
    assert next(other).total_run_count == 1


def test_names_are_free_text() -> None:
    """Spaces, brackets, quotes, other alphabets, any length up to a thousand."""
    app = make_app()
    names = ["shop.add(2, 'b')", "νυχτερινό", "a b\tc", "x" * 1000]
    found = read({name: {"task": "t", "schedule": 10} for name in names}, app=app)
    assert list(found.jobs) == names
