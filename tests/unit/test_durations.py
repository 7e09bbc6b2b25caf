"""Durations as people write them."""

from __future__ import annotations

from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks._durations import Duration, to_ms, to_text
from anarchon_tasks.errors import ConfigError


@pytest.mark.parametrize(
    ("value", "ms"),
    [
        ("10s", 10_000),
        ("1h30m", 5_400_000),
        ("250ms", 250),
        ("7d", 604_800_000),
        ("1w", 604_800_000),
        ("1.5s", 1_500),
        ("1m1ms", 60_001),
        (" 2s ", 2_000),
        ("0s", 0),
        (5, 5_000),
        (0, 0),
        (0.25, 250),
        (0.0005001, 1),
        (timedelta(minutes=2, microseconds=1_000), 120_001),
        (timedelta(0), 0),
    ],
)
def test_read(value: Duration, ms: int) -> None:
    """Text, numbers of seconds and timedeltas are read to the millisecond."""
    assert to_ms(value, option="lease") == ms


@pytest.mark.parametrize(
    "value",
    ["", "10", "ten", "10 s", "s", "1h30", "1h-30m", "-", "-ten", "1H", "10sx", "٣x", True, None, [], b"1s", "1e3s"],
)
def test_not_a_duration(value: object) -> None:
    """Anything else is refused with the option's name, the value, and what to write."""
    with pytest.raises(ConfigError, match=r"lease=.* is not a duration: give .*'10s'") as caught:
        to_ms(value, option="lease")  # type: ignore[arg-type]
    assert f"lease={value!r}" in str(caught.value)


@pytest.mark.parametrize("value", [-1, -0.5, timedelta(seconds=-1), 0.0001, timedelta(microseconds=1)])
def test_too_short(value: Duration) -> None:
    """A negative duration, and one that would round to nothing, are refused."""
    with pytest.raises(ConfigError, match="too short"):
        to_ms(value, option="lease")


@pytest.mark.parametrize("value", [-2, "-1", "-5s", "- 2.5s", "-1h30m", timedelta(days=-1), float("-inf")])
def test_negative(value: Duration) -> None:
    """What is below zero is told so, and what the least is, however it is written: options of URLs are text."""
    with pytest.raises(ConfigError, match=r"busy_timeout=.* is too short, as it is negative: give at least 1ms, or 0$"):
        to_ms(value, option="busy_timeout")
    with pytest.raises(ConfigError, match=r"is negative: give at least 1000ms$"):
        to_ms(value, option="lease", minimum_ms=1_000)


@pytest.mark.parametrize("value", [float("inf"), float("nan"), "101000w", 10**12, timedelta.max])
def test_too_long(value: Duration) -> None:
    """What is not finite, or longer than a century, is refused."""
    with pytest.raises(ConfigError, match="too long"):
        to_ms(value, option="lease")


def test_minimum() -> None:
    """A minimum is allowed itself; what is below it is refused with the minimum."""
    assert to_ms("1s", option="lease", minimum_ms=1_000) == 1_000
    with pytest.raises(ConfigError, match="lease='999ms' is too short: give at least 1000ms"):
        to_ms("999ms", option="lease", minimum_ms=1_000)


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "0s"), (1, "1ms"), (5_400_000, "1h30m"), (86_400_000, "1d"), (90_061_001, "1d1h1m1s1ms")]
)
def test_write(ms: int, text: str) -> None:
    """A duration is written in the largest units that fit."""
    assert to_text(ms) == text


@given(st.integers(0, 100 * 365 * 86_400_000))
def test_written_text_is_read_back(ms: int) -> None:
    """What is written is read back as the same duration."""
    assert to_ms(to_text(ms), option="lease") == ms
