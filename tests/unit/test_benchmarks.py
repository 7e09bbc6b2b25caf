"""The benchmark of stores works, says what it should, and leaves nothing behind."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

BENCHMARK = Path(__file__).parents[2] / "benchmarks" / "stores.py"


def test_benchmark_of_stores(tmp_path: Path) -> None:
    """Every operation is measured against the bare limit, with batches and clients as asked, and cleaned up after."""
    place, told = tmp_path / "place", tmp_path / "told.json"
    place.mkdir()
    options = ["--sizes", "1,100", "--clients", "2", "--count", "200", "--rounds", "1", "--json", told]
    done = subprocess.run(
        [sys.executable, BENCHMARK, f"sqlite:///{place}", *options], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert list(place.iterdir()) == []
    [server] = json.loads(told.read_text(encoding="utf-8"))["servers"]
    assert "SQLite" in server["server"]
    operations = ["claim", "claim lost", "queued", "begin", "beat", "finish"]
    names = ["INSERT, all columns", "INSERT, no NULLs", *operations]
    assert [(r["size"], r["clients"], r["name"]) for r in server["results"]] == [
        (s, 2, n) for s in (1, 100) for n in names
    ]
    assert all(r["ratio"] > 0 for r in server["results"])
    for name in names:
        assert name in done.stdout
