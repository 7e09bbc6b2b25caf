"""Every text comes back from PostgreSQL as it was, also those that it cannot hold."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from anarchon_tasks.stores import _postgres_text as text

HOSTILE = [
    "",
    "a\0b",
    "\0",
    "\\u0000",
    "\\\\u0000\0",
    "\\",
    '"',
    "\ud800",
    "\udfff\ud800",
    "\ud83d\ude00",
    "\U0001f600",
    "\uffff",
    "\uffff0000",
    "\uffff\uffffffff",
    '"\uffff"\n\t\x7f\x01',
    "\ud7ff\ue000\ufffe",
]
any_text = st.text(st.characters() | st.sampled_from('\0\\"\uffff\ud800\udfffu0abcdef'))


def travelled(value: object) -> object:
    """Return what comes back, by way of a server that holds valid Unicode without U+0000 alone."""
    sent = text.dumps(value)
    stored = json.loads(sent.decode("utf-8", "strict"))
    return text.loads(json.dumps(stored, ensure_ascii=False))


@pytest.mark.parametrize("value", HOSTILE)
def test_a_hostile_text_comes_back(value: str) -> None:
    """Zero characters, halves of pairs and the escape character itself are restored, in keys and in values."""
    assert travelled({value: [value, {"x": value}]}) == {value: [value, {"x": value}]}


@given(any_text)
def test_any_text_comes_back(value: str) -> None:
    """The escape is reversible."""
    assert travelled([value]) == [value]


@given(any_text)
def test_what_is_sent_is_a_text_that_postgresql_holds(value: str) -> None:
    """It is valid UTF-8, and no escape in it stands for U+0000 or half a pair."""
    stored = json.loads(text.dumps([value]).decode("utf-8", "strict"))[0]
    assert "\0" not in stored
    stored.encode("utf-8", "strict")


@given(any_text, any_text)
def test_equal_there_is_equal_here(first: str, second: str) -> None:
    """Two different names of jobs stay two."""
    assert (text.dumps(first) == text.dumps(second)) == (first == second)


def test_a_text_that_the_server_cut_is_read_as_far_as_it_goes() -> None:
    """Half an escape, left by a cut message, is no error."""
    assert text.loads('["ab\uffff00"]') == ["ab\uffff00"]
