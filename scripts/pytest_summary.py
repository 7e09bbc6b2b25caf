"""Print one closing line for several pytest runs, from their JUnit files. Fails when no test was executed at all."""

from __future__ import annotations

import sys
import xml.etree.ElementTree as ET
from pathlib import Path


def main(files: list[str]) -> int:
    """Add up the counts of the files."""
    total = failed = skipped = 0
    seconds = 0.0
    for file in files:
        for suite in ET.parse(Path(file)).iter("testsuite"):
            total += int(suite.get("tests", 0))
            failed += int(suite.get("failures", 0)) + int(suite.get("errors", 0))
            skipped += int(suite.get("skipped", 0))
            seconds += float(suite.get("time", 0))
    passed = total - failed - skipped
    print(f"pytest took {seconds:.0f} s in {len(files)} runs")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    return 0 if passed and not failed else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
