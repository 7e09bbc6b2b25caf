"""Names of jobs that a store could confuse, cut, fold, or take for something else."""
# ruff: noqa: S101 - tests: assertions are what they are for

from __future__ import annotations

import random
import unicodedata
from typing import TYPE_CHECKING

from anarchon_tasks.model import RunRef, Status
from anarchon_tasks.stores.base import Beat, Begin, BeginKind, ClaimKind, Definition, Delivered, Finish, Queued
from anarchon_tasks.testing._lab import ALLOW, LONG_MS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from anarchon_tasks.testing._lab import Lab

LONGEST = 1_000
"""The longest name that a scheduler accepts, in characters."""

CERTAIN = 2_000
"""A store may refuse a name of more bytes than that in UTF-8, with an error that concerns this job alone."""

_PLANES = (
    *((0x20, 0x7E), (0x20, 0x7E), (0x00, 0x1F), (0x7F, 0x24F), (0x300, 0x36F), (0x370, 0x5FF), (0x600, 0x77F)),
    *((0x2000, 0x206F), (0x3040, 0x9FFF), (0xAC00, 0xD7A3), (0xE000, 0xF8FF), (0xFE00, 0xFFFF), (0x1F300, 0x1FAFF)),
    *((0x20000, 0x2A6DF), (0xE0000, 0xE01EF), (0xF0000, 0x10FFFF)),
)
"""Stretches of all planes of Unicode, without the surrogates, which UTF-8 cannot write."""
_MEANT = (
    *[
        "{}",
        "}{",
        "{x}",
        "x}:state",
        "}:active",
        "{runs}",
        "${x}",
        "{{}}",
        "jobs",
        "leases",
        "queues",
        "format",
        "floor",
        "token",
        "trimmed",
        "fingerprint",
    ],
    *[
        "0",
        "-1",
        "1e9",
        "007",
        "7",
        "null",
        "true",
        "NaN",
        "None",
        "b:c",
        "b%3Ac",
        "b%3ac",
        "b%253Ac",
        "a:b:c",
        ":",
        "::",
        "%",
        "%%",
        "%00",
        "%s",
        "%(x)s",
        "%d+",
        "%1$s",
        "%n",
    ],
    *("'", '"', "''", "'; DROP TABLE anarchon_runs; --", "x' OR '1'='1", '"x"', "`x`", "$1", "?", ":name", "@x"),
    *("E'\\\\x00'", "$$", "$body$", "/*", "*/", "--", ";", "\\", "\\\\", "\\'", "\\u0000", "\\ud800", "\\n"),
    *("]]", "[[", "]=]", '" .. error() .. "', "ARGV[1]", "KEYS", "*", "**", "?", "[a-z]", "[^a]", "h?llo*", "x*"),
    *("\0", "a\0b", "a\0", "\0\0000001", "\uffff", "\uffff0000", "\uffffd800", "\ufffe", "\ufeff", "\u2028", "\x85"),
    *("\r\n", "\n", "a\nb", "a\rb", "\t", "\x1b[31m", "\x7f", "\u202e", "a\u200bb", "a\u200db", "ab", "\u00ad"),
    *("\u00e9", "e\u0301", "\u00c5", "\u212b", "A\u030a", "\ufb01", "fi", "\u00df", "SS", "ss", "\u017f", "s"),
    *("\u0130", "i", "I", "\u0131", "K", "\u212a", "Case", "case", "CASE"),
    *(" x", "x ", "x  ", "x\t", "x", "x\u00a0", "x\u3000", "日本", "🎉", "👩\u200d👩\u200d👧"),
)


def hostile_names(count: int) -> list[str]:
    """Return so many different names, always the same ones, each of 1 to 1000 characters that UTF-8 can write."""
    chance = random.Random(20_261_129)  # noqa: S311 - nothing is to be kept secret
    found: dict[str, None] = {}
    for name in _all(chance):
        if 0 < len(name) <= LONGEST:
            found[name] = None
        if len(found) == count:
            break
    return list(found)


def _all(chance: random.Random) -> Iterator[str]:
    yield from _MEANT
    yield from ("x" * LONGEST, "x" * (LONGEST - 1), "x" * (LONGEST - 1) + "y", " " * LONGEST, "🎉" * LONGEST)
    yield "".join(chr(chance.randrange(0xF0000, 0x110000)) for _ in range(LONGEST))
    while True:
        length = min(LONGEST, max(1, int(chance.paretovariate(0.8) * 3)))
        name = "".join(_character(chance) for _ in range(length))
        yield name
        # What a careless store takes for the same name.
        yield from {name + " ", name.swapcase(), name[::-1], _normalized(name, chance)}
        if chance.random() < 0.2:  # noqa: PLR2004 - one in five
            yield chance.choice(_MEANT) + name + chance.choice(_MEANT)


def _normalized(name: str, chance: random.Random) -> str:
    form = chance.randrange(4)
    if form < 2:  # noqa: PLR2004 - two that keep compatible characters apart
        return unicodedata.normalize("NFD" if form else "NFC", name)
    return unicodedata.normalize("NFKD" if form == 3 else "NFKC", name)  # noqa: PLR2004


def _character(chance: random.Random) -> str:
    first, last = chance.choice(_PLANES)
    return chr(chance.randint(first, last))


def check_names(lab: Lab, names: Sequence[str], *, histories: int) -> None:
    """Take a run of each job so far as its place in the list says, in batches, and see that each has its own account.

    Args:
        lab: The store.
        names: Different names.
        histories: Of how many jobs the whole history is read, one by one.

    """
    definitions = [
        Definition(name=name, fingerprint=f"{at:x}", document=f"{at}", floor=lab.base - 5_000)
        for at, name in enumerate(names)
    ]
    registered = lab.store.register(definitions).answers
    refused = {name for name, answer in zip(names, registered, strict=True) if answer.error}
    assert all(len(name.encode()) > CERTAIN for name in refused), "a name of this length must be possible"
    assert {answer.floor for answer in registered if not answer.error} == {lab.base - 5_000}
    for answer in lab.store.claim([lab.ask(lab.ref(1_000, name)) for name in refused]).answers:
        assert answer.kind in {ClaimKind.ERROR, ClaimKind.UNREGISTERED}
    names = [name for name in names if name not in refused]
    refs = [RunRef(name, lab.base - 1 - at % 999) for at, name in enumerate(names)]

    claims = [lab.ask(ref, policy=ALLOW, floor=lab.base - 5_000) for ref in refs]
    won = lab.store.claim(claims).answers
    assert [(answer.kind, answer.run) for answer in won] == [(ClaimKind.WON, ref.run) for ref in refs]
    assert {answer.kind for answer in lab.store.claim([lab.ask(ref) for ref in refs]).answers} == {ClaimKind.RUNNING}
    records = [
        Queued(ref=ref, token=answer.token, policy=ALLOW, task_id=f"task-{at}")
        for at, (ref, answer) in enumerate(zip(refs, won, strict=True))
    ]
    assert lab.store.queued(records).answers == [True] * len(names)

    begins = [
        Begin(
            ref=ref,
            delivery_id=f"delivery-{at}",
            delivered=Delivered(message_id=f"task-{at}", retries=0, worker="worker-1", pid=at),
            attempt=1,
            token=answer.token,
            lease_ms=LONG_MS,
        )
        for at, (ref, answer) in enumerate(zip(refs, won, strict=True))
        if at % 3
    ]
    begun = {ask.ref: answer for ask, answer in zip(begins, lab.store.begin(begins).answers, strict=True)}
    assert {answer.kind for answer in begun.values()} == {BeginKind.OK}
    silent = [ref for at, ref in enumerate(refs) if at % 3 == 1]
    beats = [Beat(ref=ref, token=begun[ref].token, lease_ms=1) for ref in silent]
    assert lab.store.beat(beats).answers == [True] * len(beats)
    ends = [
        Finish(ref=ref, token=begun[ref].token, status=Status.FAILED, error=f"error {at}")
        for at, ref in enumerate(refs)
        if at % 3 == 2  # noqa: PLR2004 - the last of three
    ]
    assert lab.store.finish(ends).answers == [True] * len(ends)
    lab.pass_ms(1)

    _check_readers(lab, names, refs, silent=silent, histories=histories)


def _check_readers(
    lab: Lab, names: Sequence[str], refs: Sequence[RunRef], *, silent: Sequence[RunRef], histories: int
) -> None:
    fates = (Status.QUEUED, Status.RUNNING, Status.FAILED)
    told = lab.store.last_runs(names).answers
    expected = [(ref.job, ref.slot, fates[at % 3], f"task-{at}") for at, ref in enumerate(refs)]
    assert [run and (run.job, run.slot, run.status, run.task_id) for run in told] == expected
    assert set(lab.store.expired(limit=2 * len(names)).answers) == set(silent)
    assert lab.store.repair(names).answers == [True] * len(names)
    found = lab.store.definitions().answers
    assert [item.name for item in found] == sorted(names)
    assert len({item.document for item in found}) == len(names), "each its own"
    for name, run in list(zip(names, told, strict=True))[:: max(1, len(names) // max(1, histories))]:
        assert lab.history(name) == [run]
    queues = {name: lab.base - at for at, name in enumerate(names)}
    lab.store.announce("worker-1", queues)
    assert {queue: note.begun_ms for queue, note in lab.store.queues().answers} == queues
    gone = names[::2]
    assert lab.store.forget(gone).answers == [True] * len(gone)
    assert {item.name for item in lab.store.definitions().answers} == {*names} - {*gone}
