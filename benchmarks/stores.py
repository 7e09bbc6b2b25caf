"""Measure stores: operations per second, as a ratio to the least that their server could do for the same.

    python benchmarks/stores.py redis://localhost:6379 postgresql://localhost/bench sqlite:////var/tmp

Absolute figures depend on the machine and its load; the ratios, taken in turn in the same run, much less. Best on
servers that nobody else uses. It works in a place of its own (a prefix, a schema, a directory) and removes it. The
method is described in docs/explanation/benchmarks.md.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from store_bench import report
from store_bench.measure import Plan, measure
from store_bench.servers import server_of

QUICK = Plan(sizes=(1, 100), clients=(1, 2), count=1_000, rounds=3)


def numbers(text: str) -> tuple[int, ...]:
    """Read `1,100,500`."""
    return tuple(int(part) for part in text.split(","))


def main() -> int:
    """Read the command line and measure each server."""
    full = Plan()
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("urls", nargs="+", help="servers: redis://, valkey://, postgresql://, sqlite:///DIRECTORY")
    parser.add_argument("--sizes", type=numbers, help=f"items per batch (default {full.sizes})")
    parser.add_argument("--clients", type=numbers, help=f"processes at once (default {full.clients})")
    parser.add_argument("--count", type=int, help=f"runs per round, one by one a fifth (default {full.count})")
    parser.add_argument("--rounds", type=int, help=f"rounds, of which the median is told (default {full.rounds})")
    parser.add_argument("--quick", action="store_true", help=f"a minute or less per server: {QUICK}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write everything there")
    given = parser.parse_args()
    base = QUICK if given.quick else full
    plan = Plan(
        sizes=given.sizes or base.sizes,
        clients=given.clients or base.clients,
        count=given.count or base.count,
        rounds=given.rounds or base.rounds,
    )
    measured = {}
    for url in given.urls:
        server = server_of(url)
        found = measured[server.describe()] = []
        print(report.head(server.describe(), server.limit), flush=True)
        for size in plan.sizes:
            for number in plan.clients:
                for result in measure(server, url, plan, size, number):
                    found.append(result)
                    print(report.line(result), flush=True)
    if given.json is not None:
        given.json.write_text(report.document(plan, measured) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
