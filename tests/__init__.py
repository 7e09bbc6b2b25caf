"""Tests of anarchon-tasks. Only `tests.servers` is imported by name; test files are found by pytest."""

from __future__ import annotations
