"""Errors of anarchon-tasks.

Every error derives from `AnarchonError`, carries a stable `code`, and says what to do next. The docstring of a class
is its default message.
"""

from __future__ import annotations

from typing import ClassVar


class AnarchonError(Exception):
    """Something went wrong in anarchon-tasks."""

    code: ClassVar[str] = "ANARCHON"

    def __init__(self, message: str | None = None) -> None:
        super().__init__(message or (type(self).__doc__ or "").strip())


class ConfigError(AnarchonError, ValueError):
    """The configuration is not valid."""

    code = "ANARCHON_CONFIG"


class ScheduleError(ConfigError):
    """The schedule is not valid."""

    code = "ANARCHON_SCHEDULE"


class UnknownJob(AnarchonError, LookupError):
    """No job of that name is registered here."""

    code = "ANARCHON_UNKNOWN_JOB"


class StoreError(AnarchonError):
    """The store refused or failed a call."""

    code = "ANARCHON_STORE"


class StoreUnavailable(StoreError, ConnectionError):
    """The store does not answer. Nothing is lost; the call can be repeated."""

    code = "ANARCHON_STORE_UNAVAILABLE"


class TooFewReplicas(StoreUnavailable):
    """Too few replicas have what the store granted. Nothing of it is run; the call can be repeated."""

    code = "ANARCHON_TOO_FEW_REPLICAS"


class StoreFormatError(StoreError):
    """The store was written by a newer anarchon-tasks. Upgrade this instance; the store was left untouched."""

    code = "ANARCHON_STORE_FORMAT"


class PublishError(AnarchonError):
    """The broker did not take the message."""

    code = "ANARCHON_PUBLISH"


class RunRefused(AnarchonError):
    """This message may not start the run: it is stale, a duplicate, or the run has ended."""

    code = "ANARCHON_RUN_REFUSED"


class LeaseLost(AnarchonError):
    """Another attempt holds the run now. Stop: what this attempt writes is no longer wanted."""

    code = "ANARCHON_LEASE_LOST"
