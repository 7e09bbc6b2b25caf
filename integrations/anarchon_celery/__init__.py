"""The Celery integration of anarchon-tasks."""

from __future__ import annotations
