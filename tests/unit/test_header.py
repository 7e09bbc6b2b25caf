"""The header that travels with the message of a run."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks.header import VERSION, Header
from anarchon_tasks.model import RunRef, Trigger, message_id

texts = st.text(st.characters(codec="utf-8"), max_size=20)
headers = st.builds(
    Header,
    id=texts,
    namespace=texts,
    ref=st.builds(RunRef, texts, st.integers(0, 2**53), texts),
    attempt=st.integers(1, 1_000),
    token=st.integers(0, 2**63 - 1),
    trigger=st.sampled_from(Trigger),
    tracked=st.booleans(),
    queue=texts,
    max_attempts=st.integers(1, 100),
    history_size=st.integers(1, 10**6),
    lease_ms=st.integers(0, 10**9),
    heartbeat_ms=st.integers(0, 10**9),
    start_timeout_ms=st.integers(1, 10**9),
)
HEADER = Header(id="m", namespace="cron:", ref=RunRef("digest", 1_750_000_000_000), attempt=1, token=7)


@given(headers)
def test_a_header_is_read_back_as_it_was_written(header: Header) -> None:
    """Every field survives, whatever it holds, as compact JSON in ASCII."""
    text = header.to_text()
    assert Header.parse(text, header.id) == header
    assert text.isascii()


def test_a_header_is_short() -> None:
    """What is usual is not written."""
    assert len(HEADER.to_text()) < 160
    assert "queue" not in HEADER.to_text()


def test_an_inherited_header_is_none() -> None:
    """A message whose own id differs (a chord's body, a member of a group) is not the run."""
    assert Header.parse(HEADER.to_text(), "another") is None


@pytest.mark.parametrize("text", [None, 5, b"v", "", "{", "[]", "null", "{}", '{"v": 1}', '"text"', "1"])
def test_what_is_no_header_is_a_plain_call(text: object) -> None:
    """A message without a readable header runs as a call by hand: nothing raises."""
    assert Header.parse(text, "m") is None


@pytest.mark.parametrize(
    "change",
    [
        {"v": VERSION + 1},
        {"slot": "noon"},
        {"slot": None},
        {"token": "x"},
        {"attempt": []},
        {"trigger": "magic"},
        {"namespace": None, "job": None, "key": None, "slot": {}},
    ],
)
def test_a_header_of_another_version_or_shape_is_none(change: dict[str, Any]) -> None:
    """What this version cannot read it does not half read."""
    assert Header.parse(json.dumps(json.loads(HEADER.to_text()) | change), "m") is None


@given(texts, texts, st.integers(0, 2**41), st.integers(1, 5))
def test_a_message_id_is_that_of_the_attempt(namespace: str, job: str, slot: int, attempt: int) -> None:
    """Whoever publishes an attempt, and however often, uses one id; another attempt has another one."""
    ref = RunRef(job, slot)
    first = message_id(namespace, ref, attempt)
    assert first == message_id(namespace, RunRef(job, slot), attempt)
    others = {
        message_id(namespace, ref, attempt + 1),
        message_id(namespace, RunRef(job, slot + 1), attempt),
        message_id(namespace, RunRef(job, slot, "k"), attempt),
        message_id(namespace + "x", ref, attempt),
        message_id(namespace, RunRef(job + "x", slot), attempt),
    }
    assert first not in others
    assert len(others) == 5
