"""A user with the rights that the reference lists can make every call, and has none that no call needs."""

from __future__ import annotations

import re
import uuid
from importlib.resources import files
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import redis

from anarchon_tasks.errors import StoreError, StoreUnavailable
from anarchon_tasks.stores.redis import RedisBackend
from anarchon_tasks.testing import LeaseStoreSuite
from tests.contract.redis_adapter import RedisAdapter
from tests.servers import RedisServer, missing

if TYPE_CHECKING:
    from collections.abc import Iterator

PAGE = Path(__file__).parents[2] / "docs" / "reference" / "stores.md"
PASSWORD = "p%C3%A4ss%2Fword"
"""As it stands in a URL."""


def documented() -> list[str]:
    """Return the rules of the reference, word by word."""
    found = re.search(r"```text\nACL SETUSER anarchon ([^`]*)```", PAGE.read_text(encoding="utf-8"))
    assert found is not None
    return found[1].split()


def test_no_right_is_missing_and_none_is_too_many() -> None:
    """The commands are those of the scripts, and the two that run them."""
    lua = files("anarchon_tasks.stores").joinpath("lua")
    used = {
        command.lower()
        for path in lua.iterdir()
        for command in re.findall(r"redis\.p?call\('(\w+)'", path.read_text(encoding="utf-8"))
    }
    assert {rule[1:] for rule in documented() if rule.startswith("+")} == used | {"evalsha", "script|load"}


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    """A server for this module, with the documented user."""
    if RedisServer.binary() is None:
        missing("redis", RedisServer.how_to_have())
    with RedisServer(tmp_path_factory.mktemp("acl")) as server:
        with redis.Redis(port=server.port) as client:
            rules = [">päss/word" if rule == ">PASSWORD" else rule for rule in documented()]
            client.execute_command("ACL", "SETUSER", "anarchon", *rules)
            client.execute_command("ACL", "SETUSER", "anarchon", "~other-cron:*", "~{other-cron:*")
        yield server


class TestLeastRights(LeaseStoreSuite):
    """Every call of the conformance suite, as that user, below two prefixes that it may use."""

    @pytest.fixture
    def adapter(self, guarded: RedisServer) -> Iterator[RedisAdapter]:
        """Make an empty namespace for each test."""
        url = f"redis://anarchon:{PASSWORD}@127.0.0.1:{guarded.port}"
        adapter = RedisAdapter(url, f"cron:{uuid.uuid4().hex[:16]}:")
        yield adapter
        adapter.close()


def test_what_the_user_may_not(guarded: RedisServer) -> None:
    """A foreign prefix is refused with the server's reason, and a wrong password without telling it."""
    store = RedisBackend(f"redis://anarchon:{PASSWORD}@127.0.0.1:{guarded.port}", prefix="mine:").open()
    with pytest.raises(StoreError, match=r"(?i)no permission|can't access|NOPERM") as caught:
        store.time()
    assert not isinstance(caught.value, StoreUnavailable)
    wrong = RedisBackend(f"redis://anarchon:wr0ng@127.0.0.1:{guarded.port}").open()
    with pytest.raises(StoreError, match="redis://anarchon@127") as caught:
        wrong.time()
    assert "wr0ng" not in str(caught.value)
    assert not isinstance(caught.value, StoreUnavailable)
