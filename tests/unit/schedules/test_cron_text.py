"""What cron text means, and what is refused, with the reason."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest
from croniter import croniter
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules import cron, from_sets, upcoming
from anarchon_tasks.schedules._fields import hashed_for, read

START = int(datetime(2026, 3, 4, 12, 30, 30, tzinfo=UTC).timestamp()) * 1_000


def times(text: str, n: int = 3, **options: object) -> list[str]:
    """Write the next few slots, in UTC."""
    slots = upcoming(cron(text, **options).for_job("job"), START, n)
    return [datetime.fromtimestamp(slot / 1_000, UTC).strftime("%m-%d %H:%M:%S") for slot in slots]


def test_five_fields_start_with_the_minute() -> None:
    """Five fields are minute, hour, day of month, month, day of week."""
    assert times("5 13 * * *", 2) == ["03-04 13:05:00", "03-05 13:05:00"]


def test_six_fields_start_with_the_seconds() -> None:
    """Six fields put the seconds first, so that `*/10 * * * * *` runs each ten seconds."""
    assert times("*/10 * * * * *") == ["03-04 12:30:40", "03-04 12:30:50", "03-04 12:31:00"]
    assert times("15 0 8 * * *", 1) == ["03-05 08:00:15"]


@pytest.mark.parametrize(
    ("alias", "expression"),
    [
        ("@hourly", "0 * * * *"),
        ("@daily", "0 0 * * *"),
        ("@midnight", "0 0 * * *"),
        ("@weekly", "0 0 * * 0"),
        ("@monthly", "0 0 1 * *"),
        ("@yearly", "0 0 1 1 *"),
        ("@annually", "0 0 1 1 *"),
        (" @Daily\n", "0 0 * * *"),
    ],
)
def test_aliases_are_what_they_stand_for(alias: str, expression: str) -> None:
    """An alias is its expression, for every job: a job's name never moves `@daily`."""
    assert cron(alias).text == f"cron {expression}"
    assert times(alias) == times(expression)
    assert cron(alias).for_job("billing") == cron(alias)


def test_blanks_and_letters_do_not_matter() -> None:
    """Extra blanks are ignored, and capital letters change neither slots nor fingerprint."""
    assert cron("  0  8 * *\tMON-FRI\n").text == "cron 0 8 * * MON-FRI"
    assert times("0 8 * * MON-FRI") == times("0 8 * * mon-fri") == times("0 8 * * 1-5")
    assert cron("0 8 * * MON").fingerprint == cron("0 8 * * mon").fingerprint


def test_text_ors_the_day_fields_and_can_be_told_to_and_them() -> None:
    """Standard cron runs when either day field matches; `day_or=False` asks for both."""
    assert times("0 0 13 * 5") == ["03-06 00:00:00", "03-13 00:00:00", "03-20 00:00:00"]
    assert times("0 0 13 * 5", 2, day_or=False) == ["03-13 00:00:00", "11-13 00:00:00"]


def test_ranges_may_cross_the_end_of_their_field() -> None:
    """`22-1` and `fri-mon` go round."""
    assert times("0 22-1 * * *", 4) == ["03-04 22:00:00", "03-04 23:00:00", "03-05 00:00:00", "03-05 01:00:00"]
    assert times("0 0 * * fri-mon", 4) == [f"03-{day:02} 00:00:00" for day in (6, 7, 8, 9)]


@pytest.mark.parametrize("last", ["59/15", "59/1"])
def test_a_step_from_the_last_value_is_that_value(last: str) -> None:
    """`59/15` is minute 59, not the whole cycle."""
    assert times(f"{last} * * * *", 2) == ["03-04 12:59:00", "03-04 13:59:00"]


def test_a_hashed_field_is_the_same_everywhere_and_differs_between_jobs() -> None:
    """`H` depends on the job's name alone; the values are those of the documented hash."""
    schedule = cron("H H * * *")
    assert schedule.for_job("billing").plain == "6 21 * * *"
    assert schedule.for_job("billing") == cron("H H * * *").for_job("billing")
    assert len({schedule.for_job(f"tenant-{number}").plain for number in range(200)}) > 100


@given(
    job=st.text(max_size=12),
    fields=st.tuples(
        st.sampled_from(["H", "H(0-29)", "H/15", "H(30-59)/10", "H/60", "H/7", "5"]),
        st.sampled_from(["H", "H(1-3)", "H/6", "*"]),
        st.sampled_from(["H(1-31)", "H/9", "H(3-9)/2", "*"]),
        st.sampled_from(["H", "H(1-6)", "H/3", "*"]),
        st.sampled_from(["H", "H(1-7)", "H/2", "*"]),
    ),
    seconds=st.sampled_from(["", "H ", "H/10 "]),
)
def test_hashed_values_are_those_of_croniter(job: str, fields: tuple[str, ...], seconds: str) -> None:
    """Who comes from croniter keeps the times of each job."""
    text = seconds + " ".join(fields)
    plain = hashed_for(read(text), job)
    assert croniter.expand(plain, second_at_beginning=True) == croniter.expand(
        text, hash_id=job.encode(), second_at_beginning=True
    )


def test_a_hashed_field_stays_in_its_range() -> None:
    """`H(1-3)` is 1, 2 or 3, and all of them occur."""
    hours = {(cron("0 H(1-3) * * *").for_job(f"job-{n}").plain or "").split()[1] for n in range(60)}
    assert hours == {"1", "2", "3"}


def test_a_hashed_day_of_the_month_exists_in_every_month() -> None:
    """A monthly `H` never falls on the 29th or later, so that no month is left out."""
    days = {int((cron("0 0 H * *").for_job(f"job-{n}").plain or "").split()[2]) for n in range(300)}
    assert min(days) >= 1
    assert max(days) == 28


def test_a_hashed_step_follows_elapsed_time_like_a_star() -> None:
    """`H/15` is written without a star, but means every 15 minutes; a plain `H` names a time."""
    assert cron("H/15 * * * *").for_job("a").rule == cron("*/15 * * * *").rule
    assert cron("H/15 2 * * *").rule == cron("*/15 2 * * *").rule
    assert cron("H 2 * * *").rule == cron("7 2 * * *").rule
    assert cron("H(0-29)/10 2 * * *").rule == cron("0-29/10 2 * * *").rule


def test_a_hashed_schedule_waits_for_its_job() -> None:
    """Asking an unbound `H` is an error that says what to do."""
    with pytest.raises(ScheduleError, match=r"for_job"):
        cron("H 3 * * *").next(0)


def test_names_with_the_letters_h_and_r_are_names() -> None:
    """`fri`, `mar`, `apr` and `thu` are neither hashed nor random."""
    schedule = cron("0 0 * mar,apr fri,thu")
    assert not schedule.expression.hashed
    assert times("0 0 * mar,apr fri,thu", 2) == ["03-05 00:00:00", "03-06 00:00:00"]


@pytest.mark.parametrize(
    ("text", "field", "value"),
    [
        ("61 * * * *", "minute", "61"),
        ("* 24 * * *", "hour", "24"),
        ("* * 0 * *", "day-of-month", "0"),
        ("* * 32 * *", "day-of-month", "32"),
        ("* * * 13 *", "month", "13"),
        ("* * * 0 *", "month", "0"),
        ("* * * * 8", "day-of-week", "8"),
        ("* * * * monday", "day-of-week", "monday"),
        ("* * * sept *", "month", "sept"),
        ("mon * * * *", "minute", "mon"),
        ("* * * * mar", "day-of-week", "mar"),
        ("60 * * * * *", "second", "60"),
        ("* 60 * * * *", "minute", "60"),
        ("*/0 * * * *", "minute", "*/0"),
        ("-1 * * * *", "minute", "-1"),
        ("? * * * *", "minute", "?"),
        ("* * LW * *", "day-of-month", "LW"),
        ("* * * * 1#0", "day-of-week", "1#0"),
        ("* * * * 1#6", "day-of-week", "1#6"),
        ("* * * * mon#1,3", "day-of-week", "mon#1,3"),
        ("\u0663 * * * *", "minute", "\u0663"),
        ("H(0-99) * * * *", "minute", "H(0-99)"),
        ("R * * * *", "minute", "R"),
        ("0 r(0-10) * * *", "hour", "r(0-10)"),
        ("R/15 * * * *", "minute", "R/15"),
        ("0 3 1,R * *", "day-of-month", "1,R"),
        ("1,H * * * *", "minute", "1,H"),
        ("5-5 * * * *", "minute", "5-5"),
        ("0 0 1-1/3 * *", "day-of-month", "1-1/3"),
        ("0 0 * * mon-mon", "day-of-week", "mon-mon"),
        ("0 0 13 * 5#2", "day-of-week", "5#2"),
        ("0 0 13 * L5", "day-of-week", "L5"),
        ("0 0 15W * 1", "day-of-month", "15W"),
    ],
)
def test_a_wrong_field_is_named(text: str, field: str, value: str) -> None:
    """The error names the expression, the field that is wrong, and what stands there."""
    with pytest.raises(ScheduleError) as caught:
        cron(text)
    assert repr(text) in str(caught.value)
    assert f"the {field} field {value!r} is not valid" in str(caught.value)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("* * * *", "4 fields"),
        ("", "0 fields"),
        ("0 0 1 1 * 2026 7", "seven fields"),
        ("0 0 0 1 1 * 2026", "start= and end="),
        ("* * * * * * * *", "8 fields"),
        ("@reboot", "no slots"),
        ("@every 10s", "every 10s"),
        ("@dayly", "@daily"),
        ("0 0 31 2 *", "never fires"),
        ("0 0 30,31 feb *", "never fires"),
        ("0 0 31 4,6,9,11 *", "never fires"),
        ("0 " * 600, "not a cron expression"),
        (None, "not a cron expression"),
        (5, "not a cron expression"),
    ],
)
def test_a_wrong_expression_says_why(text: object, reason: str) -> None:
    """What cannot be a schedule is refused when it is made, with the way out."""
    with pytest.raises(ScheduleError) as caught:
        cron(text)
    assert reason in str(caught.value)


def test_dates_that_never_meet_are_refused() -> None:
    """With both day fields asked for, `#` and a day of the month may exclude each other."""
    with pytest.raises(ScheduleError, match="never fires"):
        cron("0 0 1 * 5#3", day_or=False)
    with pytest.raises(ScheduleError, match="never fires"):
        from_sets({0}, {0}, {31}, {2, 4}, set(range(7)), fixed=True)


def test_a_hashed_job_that_never_fires_is_refused_when_it_is_bound() -> None:
    """Whether `H` has a date can depend on the name, so it is checked for each job."""
    schedule = cron("0 0 H(29-31) 2 *")
    outcomes = set()
    for number in range(40):
        try:
            schedule.for_job(f"job-{number}")
        except ScheduleError as error:
            outcomes.add("never fires" in str(error))
        else:
            outcomes.add(None)
    assert outcomes == {None, True}


def test_rare_dates_are_no_error() -> None:
    """The 29th of February is found from any year, also across 2100."""
    schedule = cron("0 0 29 2 *")
    start = int(datetime(2096, 3, 1, tzinfo=UTC).timestamp()) * 1_000
    assert datetime.fromtimestamp((schedule.next(start) or 0) / 1_000, UTC).year == 2104


@pytest.mark.parametrize("option", ["gap", "fold"])
def test_gap_and_fold_take_known_values_only(option: str) -> None:
    """A misspelt option is refused with its name and value."""
    with pytest.raises(ScheduleError, match=f"{option}='never'"):
        cron("30 2 * * *", **{option: "never"})


def test_sets_out_of_range_are_named() -> None:
    """A set with a value its field does not have is refused, and so is an empty one."""
    everything = (set(range(60)), set(range(24)), set(range(1, 32)), set(range(1, 13)), set(range(7)))
    with pytest.raises(ScheduleError, match="minute"):
        from_sets({60}, *everything[1:], fixed=True)
    with pytest.raises(ScheduleError, match="day-of-week"):
        from_sets(*everything[:4], set(), fixed=True)


def test_sets_read_well_and_keep_their_rule() -> None:
    """Sets are written as stars and steps where they were, and the rule is the one that was given."""
    months, days, week = set(range(1, 13)), set(range(1, 32)), set(range(7))
    starred = from_sets({0, 30}, {2}, days, months, week, fixed=False)
    listed = from_sets({0, 30}, {2}, days, months, week, fixed=True)
    assert (starred.text, listed.text) == ("crontab */30 2 * * *", "crontab 0,30 2 * * *")
    assert (starred.rule, listed.rule) == (cron("*/30 2 * * *").rule, cron("0,30 2 * * *").rule)
    assert from_sets(set(range(60)), set(range(24)), days, months, week, fixed=False).text == "crontab * * * * *"


def test_sets_equal_celery_crontabs() -> None:
    """Away from clock changes the sets of a Celery crontab give Celery's own times."""
    schedules = pytest.importorskip("celery.schedules")
    for arguments in (
        {"minute": "*/15", "hour": "8-18", "day_of_week": "mon-fri"},
        {"minute": 0, "hour": 0, "day_of_month": "13", "day_of_week": "fri"},
        {"minute": "5,35", "hour": "22-2/2", "month_of_year": "*/3"},
        {"minute": 30, "hour": "*/7", "day_of_month": "*/2", "day_of_week": "*/2"},
    ):
        crontab = schedules.crontab(nowfun=lambda: now, **arguments)  # noqa: B023 - called in this turn only
        ours = from_sets(
            crontab.minute, crontab.hour, crontab.day_of_month, crontab.month_of_year, crontab.day_of_week, fixed=True
        )
        now = datetime(2026, 1, 31, 22, 7, 5, tzinfo=UTC)
        for _ in range(25):
            theirs = int((now + crontab.remaining_estimate(now)).timestamp() * 1_000)
            assert ours.next(int(now.timestamp() * 1_000)) == theirs
            now = datetime.fromtimestamp(theirs / 1_000, UTC)


@given(st.text(alphabet="0123456789*/,-#?LWHRhr()@ monfrijandec\n\u0663", max_size=40))
def test_any_text_is_a_schedule_or_a_schedule_error(text: str) -> None:
    """Whatever is typed, nothing but a ScheduleError comes out."""
    try:
        slot = cron(text).for_job("job").next(START)
    except ScheduleError:
        return
    assert slot is not None
    assert slot > START
