"""Results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
import os
import platform
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from store_bench.measure import Plan, Result


def head(result_of: str, limit: str) -> str:
    """Begin the table of one server."""
    names = f"{'batch':>5} {'clients':>7} {'ratio':>6} {'from':>6} {'to':>6} {'per second':>11} {'server us':>9}"
    names += f" {'call ms':>8}"
    return f"\n{result_of}; ratios to {limit}\n  {'':34} {names}"


def line(result: Result) -> str:
    """Tell one result."""
    cpu = "" if result.cpu_us is None else f"{result.cpu_us:.1f}"
    call = "" if result.call_ms is None else f"{result.call_ms:.2f}"
    return (
        f"  {result.name:34} {result.size:>5} {result.clients:>7} {result.ratio:>6.2f} {result.lowest:>6.2f} "
        f"{result.highest:>6.2f} {result.per_second:>11,.0f} {cpu:>9} {call:>8}"
    )


def document(plan: Plan, measured: dict[str, list[Result]]) -> str:
    """Put everything into one JSON text: the machine, the plan, and by server what was measured."""
    return json.dumps(
        {
            "machine": machine(),
            "plan": asdict(plan),
            "servers": [{"server": name, "results": [_row(r) for r in found]} for name, found in measured.items()],
        },
        indent=2,
    )


def _row(result: Result) -> dict[str, Any]:
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in asdict(result).items()}


def machine() -> dict[str, object]:
    """Describe where this ran."""
    model = "unknown"
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = cpuinfo.read_text(encoding="utf-8").splitlines()
        model = next((text.partition(":")[2].strip() for text in lines if text.startswith("model name")), model)
    return {
        "cpus": os.cpu_count(),
        "model": model,
        "system": f"{platform.system()} {platform.release()}",
        "python": platform.python_version(),
        "load": round(os.getloadavg()[0], 2),
    }
