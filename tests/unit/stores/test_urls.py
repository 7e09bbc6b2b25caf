"""Store URLs: shown without passwords, and parted from our own options."""

from __future__ import annotations

import pytest

from anarchon_tasks.errors import ConfigError
from anarchon_tasks.stores import _urls


@pytest.mark.parametrize(
    "url",
    [
        "redis://:secret@host:6379/0",
        "redis://user:secret@host",
        "rediss://user:sec%40ret@host:1/0",
        "redis://user:sec@ret@host/0",
        "redis://:sec/ret@host:6379/0",
        "redis://:sec?ret@host/0",
        "redis://user:sec#ret@host/0",
        "redis://host/0?password=secret",
        "unix://user:secret@/tmp/redis.sock?db=1&password=secret",
        "rediss://host?ssl_password=secret&db=1",
        "valkey://:secret@[::1]:6379",
        "postgresql://user:secret@host/app",
        "postgresql://user:secret@host:1,host:2/app?sslpassword=secret",
        "host=h user=u password=secret dbname=x",
        "password = 'sec ret \\' secret' host=h",
        "host=h sslpassword='secret",
        "host=h PASSWORD=sec\\ ret dbname=x",
    ],
)
def test_no_password_is_shown(url: str) -> None:
    """A password is hidden wherever it stands, also in a URL that cannot be parsed, and the host is still told."""
    shown = _urls.without_password(url)
    assert "sec" not in shown
    assert "ret" not in shown
    assert "***" in shown
    assert ("host" in url) == ("host" in shown)


@pytest.mark.parametrize(
    "url",
    [
        "redis://host:6379/0",
        "redis://user@host",
        "redis://[::1]:6379/0",
        "redis://h1:1,h2:2/0",
        "redis://host:6379/0?client_name=a@b",
        "sqlite:////var/a:b@c.db",
        "memory://",
        "no url",
        "host=h dbname=x application_name='a b'",
        "",
    ],
)
def test_what_is_no_password_stays(url: str) -> None:
    """A URL without a password is shown as it is."""
    assert _urls.without_password(url) == url


def test_our_options_are_taken_off() -> None:
    """Our own options come back decoded; those of the driver stay in the URL."""
    url, options = _urls.split_options("redis://:p@h/0?prefix=a%3A&db=2", ours={"prefix"}, driver={"db"})
    assert url == "redis://:p@h/0?db=2"
    assert options == {"prefix": "a:"}


def test_options_of_the_driver_stay_as_they_were_written() -> None:
    """A `+` is a space to some and itself to others."""
    url, options = _urls.split_options("postgresql://h/x?options=-c%20a+b&table=a+b&x", ours={"table"}, driver=None)
    assert url == "postgresql://h/x?options=-c%20a+b&x"
    assert options == {"table": "a b"}


def test_unknown_option_is_refused() -> None:
    """An option that nobody reads is refused by name and value, with the known ones."""
    with pytest.raises(ConfigError, match=r"prefx=a: is not an option of redis:// URLs; .*: db, prefix"):
        _urls.split_options("redis://h?prefx=a:", ours={"prefix"}, driver={"db"})


def test_refusal_shows_no_password() -> None:
    """A refused option that looks like a password is not repeated."""
    with pytest.raises(ConfigError) as caught:
        _urls.split_options("redis://:secret@h?sentinel_password=hunter2", ours=())
    assert "hunter2" not in str(caught.value)
    assert "secret" not in str(caught.value)


def test_option_given_twice() -> None:
    """An option that stands twice in a URL is refused."""
    with pytest.raises(ConfigError, match="twice"):
        _urls.split_options("redis://h?prefix=a:&prefix=b:", ours={"prefix"})


def test_contradiction_between_url_and_argument() -> None:
    """An option may stand in the URL and among the arguments when they agree."""
    assert _urls.merged("redis://h", {"prefix": "a:"}, {"prefix": "a:"}) == {"prefix": "a:"}
    with pytest.raises(ConfigError, match="prefix='b:' contradicts prefix='a:'"):
        _urls.merged("redis://h", {"prefix": "a:"}, {"prefix": "b:"})
