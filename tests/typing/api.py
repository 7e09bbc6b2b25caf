"""The public names as a type checker sees them. This file is checked by mypy and never run."""

from __future__ import annotations

from typing import assert_type

import anarchon_tasks

assert_type(anarchon_tasks.__version__, str)
