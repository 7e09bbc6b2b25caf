"""Runs the benchmarks one after the other: `make bench`."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

HERE = Path(__file__).parent
REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")
POSTGRES = os.environ.get("POSTGRES_URL")


def main() -> int:
    """Run each benchmark in a process of its own; return the number of those that failed."""
    failed = 0
    with tempfile.TemporaryDirectory(dir="/var/tmp") as directory:  # a disk, not memory: commits are written through
        stores = [REDIS, *([POSTGRES] if POSTGRES else []), f"sqlite:///{directory}"]
        for name, *arguments in (
            ("enqueue.py", "--broker", REDIS, "--store", REDIS),
            ("stores.py", "--quick", *stores),
        ):
            print(f"\n=== {name}", flush=True)
            failed += subprocess.run([sys.executable, HERE / name, *arguments], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
