"""Tell what fuzzing came to: ``python -m tests.security.fuzz.report FIGURES.json ...``.

Adds up the figures of runs, keeps them under benchmarks/results/, and writes the table in docs/reliability.md.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[3]
RESULTS = ROOT / "benchmarks" / "results" / "reliability" / "fuzz.json"
DOCUMENT = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- fuzz: begin (python -m tests.security.fuzz.report) -->", "<!-- fuzz: end -->"
_SUMS = ("executions", "accepted", "seconds")
_MOST = ("coverage", "features", "corpus", "slowest_s")


def merged(runs: list[dict[str, Any]]) -> dict[str, Any]:
    """Return the figures of several runs as those of one: executions and seconds add up, the rest is the most."""
    targets: dict[str, dict[str, Any]] = {}
    for run in runs:
        for told in run["targets"]:
            sums = targets.setdefault(told["target"], {"target": told["target"], "findings": 0})
            for name in _SUMS:
                sums[name] = round(sums.get(name, 0) + told[name], 1)
            for name in _MOST:
                sums[name] = round(max(sums.get(name, 0), told[name]), 3)
            sums["findings"] += len(told["findings"])
    return {"seeds": sorted({run["seed"] for run in runs}), "targets": list(targets.values())}


def table(figures: dict[str, Any]) -> str:
    """Return the figures as a table."""
    lines = [
        "| target | inputs tried | of them accepted | seconds | edges covered | slowest input | findings |",
        "| --- | ---: | ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| `{one['target']}` | {one['executions']:,} | {one['accepted']:,} | {one['seconds']:,.0f} | "
        f"{one['coverage']:,} | {1000 * one['slowest_s']:.0f} ms | {one['findings']} |"
        for one in figures["targets"]
    ]
    total = {name: sum(one[name] for one in figures["targets"]) for name in (*_SUMS, "findings")}
    lines.append(
        f"| all | {total['executions']:,} | {total['accepted']:,} | {total['seconds']:,.0f} | | | {total['findings']} |"
    )
    return "\n".join(lines)


def main(paths: list[Path]) -> None:
    """Write the results and the document."""
    figures = merged([json.loads(path.read_text()) for path in paths])
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(figures, indent=1) + "\n")
    head, _, rest = DOCUMENT.read_text().partition(BEGIN)
    DOCUMENT.write_text(f"{head}{BEGIN}\n\n{table(figures)}\n\n{END}{rest.partition(END)[2]}")


if __name__ == "__main__":
    main([Path(path) for path in sys.argv[1:]])
