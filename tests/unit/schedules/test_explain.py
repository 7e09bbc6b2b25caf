"""Words, notes and the explanation that people read."""

from __future__ import annotations

import json
from datetime import UTC, datetime

import pytest

from anarchon_tasks.errors import ScheduleError
from anarchon_tasks.schedules import at, cron, every, explain, from_sets, parse

WORDS = {
    "30 2 * * *": "At 02:30, every day",
    "0 8 * * 1-5": "At 08:00, Monday to Friday",
    "* * * * *": "Every minute",
    "*/15 * * * *": "Every 15 minutes",
    "0,30 * * * *": "Every 30 minutes",
    "5/15 * * * *": "Every 15 minutes from minute 5",
    "*/7 * * * *": "Every 7 minutes from minute 0 of every hour",
    "0 * * * *": "Every hour, on the hour",
    "*/90 * * * *": "Every hour, on the hour",
    "30 * * * *": "At minute 30 of every hour",
    "1,31 * * * *": "At minutes 1 and 31 of every hour",
    "0 */2 * * *": "Every 2 hours from 00:00, every day",
    "30 */2 * * *": "Every 2 hours from 00:30, every day",
    "0 */5 * * *": "At 00:00, 05:00, 10:00, 15:00 and 20:00, every day",
    "0 9-17 * * 1-5": "Every hour from 09:00 to 17:00, Monday to Friday",
    "0 1,3,5,7,11,13,17 * * *": "At 01:00, 03:00, 05:00, 07:00, 11:00, 13:00 and 17:00, every day",
    "*/15 9-17 * * mon-fri": "Every 15 minutes from 09:00 to 17:59, Monday to Friday",
    "*/5 */6 * * *": "Every 5 minutes in the hours 0, 6, 12 and 18, every day",
    "* 2 * * *": "Every minute from 02:00 to 02:59, every day",
    "1,31,41 0,2,5 * * *": "At minutes 1, 31 and 41 in the hours 0, 2 and 5, every day",
    "0 0 1 1 *": "At 00:00, on 1 January",
    "0 0 * 1-3 *": "At 00:00, January to March",
    "0 0 * 6,12 mon": "At 00:00, on Monday, in June and December",
    "0 0 1 * *": "At 00:00, on day 1 of the month",
    "0 0 1-7 * *": "At 00:00, on days 1 to 7 of the month",
    "0 0 L * *": "At 00:00, on the last day of the month",
    "0 0 1,15,L * *": "At 00:00, on days 1 and 15 and the last day of the month",
    "0 0 15W * *": "At 00:00, on the weekday nearest to day 15 of the month",
    "0 0 * * 5#2": "At 00:00, on the second Friday of the month",
    "0 0 * * L5": "At 00:00, on the last Friday of the month",
    "0 0 * * 1,3": "At 00:00, on Monday and Wednesday",
    "0 0 * * fri-mon": "At 00:00, Friday to Monday",
    "0 0 * * 6,0": "At 00:00, on Saturday and Sunday",
    "0 0 13 * 5": "At 00:00, on day 13 of the month or on Friday",
    "0 0 1 * 1-5": "At 00:00, on day 1 of the month or on a day from Monday to Friday",
    "0 0 13 * 1-7": "At 00:00, on day 13 of the month or on any day of the week",
    "* * * * * *": "Every second",
    "*/10 * * * * *": "Every 10 seconds",
    "0 30 2 * * *": "At 02:30, every day",
    "15 30 2 * * *": "At 02:30:15, every day",
    "0,20,30 * * * * *": "At seconds 0, 20 and 30 of every minute",
    "*/10 0 2 * * *": "Every 10 seconds during the minute 02:00, every day",
    "30 */15 * * * *": "At second 30 of every minute, in these minutes: every 15 minutes",
    "@weekly": "At 00:00, on Sunday",
}


@pytest.mark.parametrize("expression", WORDS)
def test_expressions_in_words(expression: str) -> None:
    """The words say what the expression means, as people say it."""
    assert cron(expression).describe() == WORDS[expression]


def test_words_for_two_days_that_both_count() -> None:
    """The sets of a crontab are read with their `and`."""
    schedule = from_sets({0}, {0}, {13}, set(range(1, 13)), {5}, fixed=True)
    assert schedule.describe() == "At 00:00, on day 13 of the month, only if that is Friday"


def test_words_for_a_hashed_expression() -> None:
    """Without a job the words say what `H` is; bound to one they give its time."""
    assert "hashed from the job's name" in cron("H H * * *").describe()
    assert cron("H H * * *").for_job("billing").describe() == "At 21:06, every day"


@pytest.mark.parametrize(
    ("expression", "advice"),
    [("*/30 2 * * *", "'0,30 2 * * *'"), ("* 2 * * *", "'0-59 2 * * *'"), ("*/5 1-2 * * *", "'0-59/5 1-2 * * *'")],
)
def test_a_starred_minute_in_a_named_hour_comes_with_advice(expression: str, advice: str) -> None:
    """Where clock changes touch it, the words say so, and what to write for once per day."""
    words = cron(expression, timezone="Europe/Berlin").describe()
    assert "on the day it goes back the repeated times run twice" in words
    assert words.endswith(f"write {advice}")


@pytest.mark.parametrize(
    ("expression", "zone"),
    [
        ("*/30 2 * * *", "UTC"),
        ("*/30 14 * * *", "Europe/Berlin"),
        ("*/30 * * * *", "Europe/Berlin"),
        ("*/30 */2 * * *", "Europe/Berlin"),
        ("0,30 2 * * *", "Europe/Berlin"),
        ("*/30 2 * * *", "Asia/Kathmandu"),
    ],
)
def test_no_advice_where_no_clock_change_matters(expression: str, zone: str) -> None:
    """Other zones, other hours and other expressions are spared the advice."""
    assert "clock" not in cron(expression, timezone=zone).describe()


def test_the_advice_can_be_followed() -> None:
    """The expression that the words propose is one without advice."""
    assert "clock" not in cron("0-59/5 1-2 * * *", timezone="Europe/Berlin").describe()


def notes(text: str, zone: str, after: str, count: int = 4) -> list[tuple[str, str | None]]:
    """Return local times and notes."""
    result = explain(text, timezone=zone, after=datetime.fromisoformat(after), count=count)
    return [(slot.local, slot.note) for slot in result.slots]


def test_notes_on_a_time_that_does_not_exist() -> None:
    """A shifted slot names the times it stands for."""
    assert notes("30 2 * * *", "Europe/Berlin", "2025-03-29T12:00Z", 2) == [
        ("2025-03-30T03:00:00+02:00", "shifted: 02:30 does not exist that day"),
        ("2025-03-31T02:30:00+02:00", None),
    ]
    assert notes("15,45 2 * * *", "Europe/Berlin", "2025-03-29T12:00Z", 1) == [
        ("2025-03-30T03:00:00+02:00", "shifted: 02:15 and 02:45 do not exist that day")
    ]
    assert notes("0-50/10 2 * * *", "Europe/Berlin", "2025-03-29T12:00Z", 1) == [
        ("2025-03-30T03:00:00+02:00", "shifted: 02:00, 02:10, 02:20 and more do not exist that day")
    ]
    assert notes("0 2,3 * * *", "Europe/Berlin", "2025-03-29T12:00Z", 1) == [
        ("2025-03-30T03:00:00+02:00", "also runs for 02:00, which does not exist that day")
    ]


def test_notes_on_a_day_that_does_not_exist() -> None:
    """Samoa left out a whole day: the note names the date."""
    assert notes("30 9 * * *", "Pacific/Apia", "2011-12-30T00:00Z", 1) == [
        ("2011-12-31T00:00:00+14:00", "shifted: 2011-12-30 09:30 does not exist that day")
    ]


def test_notes_on_a_time_that_occurs_twice() -> None:
    """A fixed time says that it runs once, anything else which pass it is."""
    assert notes("30 2 * * *", "Europe/Paris", "2026-10-24T00:00Z", 2) == [
        ("2026-10-24T02:30:00+02:00", None),
        ("2026-10-25T02:30:00+02:00", "02:30 occurs twice; runs the first time only"),
    ]
    assert notes("*/30 2 * * *", "Europe/Paris", "2026-10-24T12:00Z") == [
        ("2026-10-25T02:00:00+02:00", "first pass of a repeated hour"),
        ("2026-10-25T02:30:00+02:00", "first pass of a repeated hour"),
        ("2026-10-25T02:00:00+01:00", "second pass of a repeated hour"),
        ("2026-10-25T02:30:00+01:00", "second pass of a repeated hour"),
    ]
    assert notes("45 * * * *", "Australia/Lord_Howe", "2025-04-05T14:00Z", 2) == [
        ("2025-04-06T01:45:00+11:00", "first pass of a repeated stretch of 30 minutes"),
        ("2025-04-06T01:45:00+10:30", "second pass of a repeated stretch of 30 minutes"),
    ]


def test_a_starred_job_tells_which_day_it_leaves_out() -> None:
    """The explanation names the missing times between the slots it lists."""
    after = datetime(2025, 3, 28, 12, tzinfo=UTC)
    result = explain("*/30 2 * * *", timezone="Europe/Berlin", after=after, count=4)
    assert result.remarks == ("no slot at 02:00 and 02:30 on 2025-03-30: the clock goes forward and skips it",)
    assert explain("30 2 * * *", timezone="Europe/Berlin", after=after).remarks == ()
    assert explain("0 * * * *", timezone="Europe/Berlin", after=after, count=100).remarks == ()


def test_an_explanation_is_plain_data() -> None:
    """As JSON it holds the words and each slot as UTC, local time and note."""
    result = explain("30 2 * * *", timezone="Europe/Paris", after=datetime(2026, 10, 24, tzinfo=UTC), count=2)
    assert json.loads(json.dumps(result.as_dict())) == {
        "schedule": "cron 30 2 * * *",
        "kind": "cron",
        "words": "At 02:30, every day",
        "timezone": "Europe/Paris",
        "slots": [
            {"utc": "2026-10-24T00:30:00Z", "local": "2026-10-24T02:30:00+02:00", "note": None},
            {
                "utc": "2026-10-25T00:30:00Z",
                "local": "2026-10-25T02:30:00+02:00",
                "note": "02:30 occurs twice; runs the first time only",
            },
        ],
        "remarks": [],
    }


def test_the_start_is_left_out() -> None:
    """A slot exactly at the start is not listed, whether it is given as a datetime or in milliseconds."""
    slot = datetime(2026, 10, 24, 0, 30, tzinfo=UTC)
    for after in (slot, int(slot.timestamp() * 1_000)):
        assert explain("30 0 * * *", after=after, count=1).slots[0].utc == "2026-10-25T00:30:00Z"


def test_intervals_are_explained_in_the_zone_of_the_reader() -> None:
    """Intervals have no zone of their own; milliseconds are shown where there are any."""
    result = explain("every 750ms", timezone="Asia/Kathmandu", after=0, count=2)
    assert [(slot.utc, slot.local) for slot in result.slots] == [
        ("1970-01-01T00:00:00.750Z", "1970-01-01T05:30:00.750+05:30"),
        ("1970-01-01T00:00:01.500Z", "1970-01-01T05:30:01.500+05:30"),
    ]


def test_a_hashed_expression_is_explained_for_a_job() -> None:
    """With the job's name `H` has a value; without it the error says what is missing."""
    assert explain("H H * * *", after=0, count=1, job="billing").slots[0].utc == "1970-01-01T21:06:00Z"
    with pytest.raises(ScheduleError, match="job's name"):
        explain("H H * * *", after=0)


@pytest.mark.parametrize("count", [-1, 10_001])
def test_the_count_is_bounded(count: int) -> None:
    """A list that nobody can want is refused."""
    with pytest.raises(ScheduleError, match="count="):
        explain("* * * * *", after=0, count=count)


@pytest.mark.parametrize("after", [10**17, -(10**17), datetime.max.replace(tzinfo=UTC)])
def test_the_start_has_a_date(after: object) -> None:
    """An instant beyond the calendar is refused with its value."""
    with pytest.raises(ScheduleError, match="after="):
        explain("* * * * *", after=after)


def test_slots_beyond_the_calendar_are_left_out() -> None:
    """A list of rare slots ends where dates end."""
    assert len(explain("every 36500d", after=0, count=500).slots) == 80
    assert explain("* * * * *", timezone="Asia/Tokyo", after=datetime(9999, 12, 1, tzinfo=UTC)).slots == ()
    assert explain("* * * * *", timezone="Asia/Tokyo", after=datetime(1, 1, 4, tzinfo=UTC)).slots


def test_a_naive_start_is_refused() -> None:
    """An instant without a zone is no instant."""
    with pytest.raises(ScheduleError, match="after="):
        explain("* * * * *", after=datetime.fromisoformat("2026-01-01T00:00"))


PARSED = {
    "every 10s": every("10s"),
    "10s": every("10s"),
    " 1h30m ": every("90m"),
    "every 1h offset 5m": every("1h", offset="5m"),
    "0 8 * * 1-5": cron("0 8 * * 1-5"),
    "cron 0 8 * * 1-5": cron("0 8 * * 1-5"),
    "crontab 0 0 13 * 5": cron("0 0 13 * 5", day_or=False),
    "@daily": cron("0 0 * * *"),
    "at 2026-10-24T00:00:00Z": at(datetime(2026, 10, 24, tzinfo=UTC)),
}


@pytest.mark.parametrize("text", PARSED)
def test_text_becomes_a_schedule(text: str) -> None:
    """Cron text, intervals, bare durations and instants are told apart."""
    assert parse(text) == PARSED[text]


@pytest.mark.parametrize("text", PARSED)
def test_canonical_text_reads_back(text: str) -> None:
    """The text of a schedule is that schedule."""
    assert parse(PARSED[text].text) == PARSED[text]


def test_the_zone_is_given_to_cron() -> None:
    """A cron text takes the zone, an interval needs none."""
    assert parse("0 8 * * *", timezone="Europe/Athens").timezone == "Europe/Athens"
    assert parse("10s", timezone="Europe/Athens").timezone is None


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "schedule="),
        ("   ", "schedule="),
        (None, "schedule="),
        (10, "schedule="),
        ("every", "every=''"),
        ("every day", "every='day'"),
        ("soon", "every='soon'"),
        ("at noon", "at='noon'"),
        ("at 2026-10-24T00:00", "aware datetime"),
        ("cron 61 * * * *", "minute field"),
        ("* * * *", "4 fields"),
        ("@every 10s", "every 10s"),
    ],
)
def test_text_that_is_no_schedule_says_why(text: object, reason: str) -> None:
    """The error names what was given and what would be right."""
    with pytest.raises(ScheduleError) as caught:
        parse(text)
    assert reason in str(caught.value)
