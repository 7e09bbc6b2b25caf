"""Settings in layers."""

from __future__ import annotations

import pytest

from anarchon_tasks.config import Settings, variable


def test_what_is_given_explicitly_wins_over_the_environment() -> None:
    """Each setting is taken from the highest layer that gives it."""
    environment = Settings.from_environment(
        {"ANARCHON_STORE": "redis://a", "ANARCHON_PREFIX": "a:", "ANARCHON_TIMEZONE": "Asia/Tokyo"}
    )
    merged = Settings(store="redis://b").over(environment)
    assert merged == Settings(store="redis://b", prefix="a:", timezone="Asia/Tokyo")


def test_not_given_is_not_the_default() -> None:
    """A lower layer is not hidden by a default, and an option that nobody gave is not passed on."""
    assert Settings().over(Settings(timezone="Asia/Tokyo")).zone() == "Asia/Tokyo"
    assert Settings().over(Settings()) == Settings()
    assert Settings().store_options() == {}
    assert Settings(table="").store_options() == {"table": ""}


def test_defaults_come_last() -> None:
    """The zone is UTC when no layer gives one, also when a layer gives UTC itself."""
    assert Settings().zone() == "UTC"
    assert Settings(timezone="UTC").over(Settings(timezone="Asia/Tokyo")).zone() == "UTC"


@pytest.mark.parametrize("name", ["store", "prefix", "table", "timezone"])
def test_an_empty_variable_gives_nothing(name: str) -> None:
    """Compose files and shells hand on variables that are set to nothing."""
    assert getattr(Settings.from_environment({variable(name): ""}), name) is None
    assert getattr(Settings.from_environment({variable(name): "x"}), name) == "x"


def test_an_option_in_the_url_belongs_to_the_layer_of_the_url() -> None:
    """A prefix in an explicit URL is explicit: the environment's does not contradict it."""
    merged = Settings(store="redis://h?prefix=b:").over(Settings(prefix="a:", table="t"))
    assert merged.store_options() == {"table": "t"}


def test_settings_do_not_show_a_password() -> None:
    """Their repr holds no URL."""
    assert "pa55" not in repr(Settings(store="redis://:pa55@h"))
