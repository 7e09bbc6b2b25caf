"""The extension: jobs declared in code."""

from __future__ import annotations

import logging
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import pytest
from celery import Celery, shared_task
from celery.schedules import BaseSchedule, crontab

from anarchon_celery import Anarchon
from anarchon_celery.app import extension_of
from anarchon_tasks.errors import ConfigError
from anarchon_tasks.schedules import cron, every
from anarchon_tasks.stores import from_url

if TYPE_CHECKING:
    from anarchon_celery.entries import Found


@shared_task
def shared() -> None:
    """Belong to every app."""


def plain() -> None:
    """Be no task."""


def make(**options: object) -> tuple[Celery, Anarchon]:
    """Return an app with the extension."""
    app = Celery("shop", broker="memory://", set_as_current=False)
    return app, Anarchon(app, **{"store": "memory://", **options})


def found(app: Celery, anarchon: Anarchon, **options: object) -> Found:
    """Return the jobs that were declared."""
    return anarchon.declarations.jobs(app, zone="UTC", options=options)


def test_a_declaration_that_raises_spoils_no_other() -> None:
    """A schedule of the user's that is broken is reported by its job's name; the other jobs are there."""

    class Broken(BaseSchedule):
        @property
        def clocked_time(self) -> datetime:
            raise RuntimeError("no database")

    app, anarchon = make()
    anarchon.schedule("good", every("10s"), task="shop.sync")
    anarchon.schedule("broken", Broken(), task="shop.sync")
    result = found(app, anarchon)
    assert list(result.jobs) == ["good"]
    assert "no database" in str(result.errors["broken"])


def test_the_decorators_work_in_either_order() -> None:
    """Above or below `@app.task`, on a lazy task and on a function; what is decorated stays what it was."""
    app, anarchon = make()

    @anarchon.every("10s")
    @app.task(shared=False, name="shop.above")
    def above() -> str:
        return "above"

    @app.task(shared=False, name="shop.below")
    @anarchon.cron("0 8 * * 1-5", timezone="Europe/Athens", name="digest", kwargs={"lang": "el"}, queue="mail")
    def below(lang: str) -> str:
        return lang

    @app.task(shared=False, bind=True)
    @anarchon.every("1m")
    def bound(self: object) -> None:
        """Know its task."""

    jobs = found(app, anarchon).jobs
    name = bound.name
    assert set(jobs) == {"shop.above", "digest", name}
    assert jobs["shop.above"].schedule == every("10s")
    assert (jobs["digest"].target, jobs["digest"].queue) == ("shop.below", "mail")
    assert jobs["digest"].payload.kwargs == {"lang": "el"}
    assert (above(), below("de")) == ("above", "de")


def test_decorating_a_lazy_task_does_not_make_it_exist() -> None:
    """The app is configured and finished when it is used, not when the module is imported."""
    app, anarchon = make()

    @anarchon.every("10s")
    @app.task(shared=False)
    def lazy() -> None: ...

    assert not app.configured
    assert not app.finalized


def test_shared_tasks_and_names_are_targets_too() -> None:
    """A task may belong to a reusable package, or to workers only."""
    app, anarchon = make()
    app.set_current()
    anarchon.every("10s", name="on-shared")(shared)
    anarchon.schedule("report-eu", every("1h"), task="shop.report", args=("eu",), max_late="10m")
    anarchon.schedule("as-beat", crontab(0, 8), task=shared)
    anarchon.schedule("as-text", "every 5m", task="shop.report")
    jobs = found(app, anarchon).jobs
    assert jobs["on-shared"].target.endswith("shared")
    assert jobs["report-eu"].payload.args == ("eu",)
    assert jobs["report-eu"].options.max_late_ms == 600_000
    assert set(jobs) == {"on-shared", "report-eu", "as-beat", "as-text"}


def test_several_schedules_on_one_task_need_names() -> None:
    """Two jobs never share a name silently: the error tells both schedules."""
    app, anarchon = make()

    @anarchon.every("10s")
    @app.task(shared=False)
    def sync() -> None: ...

    anarchon.every("10s")(sync)  # the same once more, as when a module is imported twice
    anarchon.every("20s", name="slowly")(sync)
    with pytest.raises(ConfigError, match=r"every 10s.*every 30s.*name="):
        anarchon.every("30s")(sync)
    with pytest.raises(ConfigError, match=r"slowly.*every 20s.*cron 0 8 \* \* \*"):
        anarchon.cron("0 8 * * *", name="slowly")(sync)
    assert len(found(app, anarchon).jobs) == 2


def test_names_that_meet_only_later_are_found_then() -> None:
    """A task's own name and a given one may be the same: known once the task exists."""
    app, anarchon = make()

    @anarchon.every("10s")
    @app.task(shared=False, name="shop.sync")
    def sync() -> None: ...

    anarchon.schedule("shop.sync", every("1h"), task="shop.other")
    assert "every 10s" in str(found(app, anarchon).errors["shop.sync"])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"overlaps": "skip"}, r"overlaps='skip'"),
        ({"catch_up": "all"}, r"catch_up='all' is not available"),
        ({"overlap": "sometimes"}, r"overlap='sometimes'"),
        ({"task_id": "mine"}, r"task_id='mine'"),
        ({"expires": "soon"}, r"expires='soon'"),
        ({"countdown": -1}, r"countdown=-1"),
        ({"countdown": 60, "expires": 30}, r"countdown=60 lets no run start"),
    ],
)
def test_an_option_that_makes_no_sense_is_named_at_once(options: dict[str, Any], words: str) -> None:
    """aps#292: options in the wrong place are errors, with the job, the option and the value."""
    app, anarchon = make()

    @app.task(shared=False)
    def sync() -> None: ...

    with pytest.raises(ConfigError, match=rf"job 'nightly'.*{words}"):
        anarchon.every("10s", name="nightly", **options)(sync)


@pytest.mark.parametrize("target", [3, None, object, [].append])
def test_only_tasks_can_be_decorated(target: object) -> None:
    """Anything else is refused where it is written."""
    _, anarchon = make()
    with pytest.raises(ConfigError, match="is no task"):
        anarchon.every("10s")(target)


def test_a_function_that_never_became_a_task_is_named() -> None:
    """The other jobs go on."""
    app, anarchon = make()
    anarchon.every("10s")(plain)
    anarchon.schedule("good", "10s", task="shop.good")
    result = found(app, anarchon)
    assert list(result.jobs) == ["good"]
    assert "put @app.task" in str(result.errors["plain"])


def test_options_of_jobs_may_come_from_the_settings() -> None:
    """What stands in the code comes first."""
    app, anarchon = make()
    anarchon.schedule("nightly", "1h", task="shop.nightly", overlap="allow")
    job = found(app, anarchon, nightly={"overlap": "skip", "max_attempts": 5}).jobs["nightly"]
    assert (job.options.overlap, job.options.max_attempts) == ("allow", 5)


def test_expires_bounds_the_start_and_an_instant_ends_the_job() -> None:
    """dcb#381: past its end a job has no slots."""
    app, anarchon = make()
    anarchon.schedule("soon", "1h", task="t", expires=90, countdown=5)
    anarchon.schedule("until", every("1h"), task="t", expires=datetime(2026, 1, 1, tzinfo=UTC))
    jobs = found(app, anarchon).jobs
    assert jobs["soon"].options.start_deadline_ms == 90_000
    assert jobs["soon"].payload.countdown_ms == 5_000
    assert jobs["until"].schedule.next(1_767_225_600_000) is None


def test_the_zone_of_the_settings_counts_where_a_schedule_names_none() -> None:
    """An hour in one place is another hour elsewhere."""
    app, anarchon = make()
    anarchon.schedule("here", cron("0 8 * * *"), task="t")
    anarchon.schedule("there", cron("0 8 * * *", timezone="Asia/Tokyo"), task="t")
    jobs = anarchon.declarations.jobs(app, zone="Europe/Athens", options={}).jobs
    assert (jobs["here"].schedule.timezone, jobs["there"].schedule.timezone) == ("Europe/Athens", "Asia/Tokyo")


def test_nothing_is_read_or_connected_before_it_is_needed() -> None:
    """Settings given after the extension was made still count, and a bad one is told when it is used."""
    app = Celery("shop", broker="amqp://nowhere//", set_as_current=False)
    anarchon = Anarchon()
    with pytest.raises(ConfigError, match="init_app"):
        _ = anarchon.settings
    anarchon.init_app(app)
    anarchon.init_app(app)
    assert extension_of(app) is anarchon
    app.conf.anarchon_store = "sqlite:///jobs.db"
    app.conf.anarchon_table = "shop_runs"
    assert anarchon.settings.store_options == {"table": "shop_runs"}


def test_an_app_has_one_extension() -> None:
    """Two would be two accounts."""
    app, anarchon = make()
    other = Celery("other", broker="memory://", set_as_current=False)
    with pytest.raises(ConfigError, match="already"):
        Anarchon(app)
    with pytest.raises(ConfigError, match="belongs to the app 'shop'"):
        anarchon.init_app(other)
    with pytest.raises(TypeError, match="presets"):
        Anarchon(other, presets=1)  # type: ignore[call-arg]


def test_a_store_that_was_handed_in_is_used_as_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is the caller's to close, and the environment does not replace it."""
    monkeypatch.setenv("ANARCHON_STORE", "redis://elsewhere")
    store = from_url("memory://")
    _, anarchon = make(store=store)
    assert anarchon.settings.open_store() is store
    assert not anarchon.settings.owns_store


def test_settings_may_carry_the_prefix_of_django() -> None:
    """`app.config_from_object(..., namespace="CELERY")` finds CELERY_ANARCHON_STORE."""

    class Settings:
        CELERY_BROKER_URL = "memory://"
        CELERY_ANARCHON_STORE = "memory://"
        CELERY_ANARCHON_LEASE = "1m"

    app = Celery("django", set_as_current=False)
    anarchon = Anarchon(app)
    app.config_from_object(Settings, namespace="CELERY")
    assert anarchon.settings.lease_ms == 60_000


def test_joining_an_app_logs_nothing(caplog: pytest.LogCaptureFixture) -> None:
    """Neither a warning nor a word."""
    with caplog.at_level(logging.DEBUG):
        make()
    assert caplog.text == ""


def test_a_worker_does_not_start_with_settings_that_make_no_sense() -> None:
    """It could not report on any run; the error names the setting."""
    app, _ = make(table="runs")
    with pytest.raises(ConfigError, match="table='runs'"):
        app.WorkController(pool="solo")
    good, _ = make()
    good.WorkController(pool="solo")


def test_two_tasks_under_one_name_are_an_error_that_names_both() -> None:
    """A name given twice, alike but for the task, is a mistake: neither of the two may vanish without a word."""
    app, anarchon = make()

    @anarchon.every("2s", name="nightly")
    @app.task(shared=False, name="shop.first")
    def first() -> None: ...

    @anarchon.every("2s", name="nightly")
    @app.task(shared=False, name="shop.second")
    def second() -> None: ...

    error = str(found(app, anarchon).errors["nightly"])
    assert "shop.first" in error
    assert "shop.second" in error


def test_no_password_stands_in_the_settings() -> None:
    """The settings are shown in consoles and logs; the store's URL, which may hold a password, is not among them."""
    _, anarchon = make(store="redis://user:hunter2@host/0")
    assert "hunter2" not in repr(anarchon.settings)
