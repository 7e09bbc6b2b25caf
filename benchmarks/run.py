"""Runs the benchmarks one after the other: `make bench`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

HERE = Path(__file__).parent
REDIS = os.environ.get("REDIS_URL", "redis://127.0.0.1:6379/0")


def main() -> int:
    """Run each benchmark in a process of its own; return the number of those that failed."""
    failed = 0
    for name, *arguments in (("enqueue.py", "--broker", REDIS, "--store", REDIS), ("stores.py", REDIS)):
        print(f"\n=== {name}", flush=True)
        failed += subprocess.run([sys.executable, HERE / name, *arguments], check=False).returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
