"""Leaderless scheduling: any number of schedulers, each slot of each job enqueued once."""

from __future__ import annotations


def __getattr__(name: str) -> str:
    if name == "__version__":
        from importlib.metadata import version  # noqa: PLC0415  # costs time, and few ask

        return version("anarchon-tasks")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
