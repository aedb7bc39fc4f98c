"""Fuzzes targets one after the other, each in processes of its own, and tells what came of it.

A process that finds something ends; the target goes on in a new one for the rest of its time.
"""

from __future__ import annotations

import hashlib
import json
import re
import subprocess
import sys
import time
from dataclasses import asdict, dataclass, field
from pathlib import Path
from tempfile import TemporaryDirectory

from tests.security.fuzz.targets import TARGETS

_STATUS = re.compile(r"#(\d+)\s+\S+\s+cov: (\d+) ft: (\d+) corp: (\d+)/")
_EXECUTED = re.compile(r"stat::number_of_executed_units: (\d+)")
_LEAST_S = 2
_HANG_S = 60
"""Of wall time, after which libFuzzer ends an input; a second of CPU time is a finding already, if the input ends."""
_RSS_MB = 1500


@dataclass(slots=True)
class Outcome:
    """What fuzzing one target came to.

    Attributes:
        target: its name.
        seconds: of the wall clock, starts of processes not counted.
        executions: inputs that were tried.
        accepted: of them, those that were no refusals.
        coverage: edges of the library's byte code that inputs took, of one process at most.
        features: libFuzzer's finer measure of the same.
        corpus: inputs worth keeping.
        slowest_s: CPU time of the slowest input.
        peak_growth_bytes: by which the process's peak of memory grew over what the seeds took.
        findings: what was found, by the last line of its traceback, and the file that holds the input.
    """

    target: str
    seconds: float = 0.0
    executions: int = 0
    accepted: int = 0
    coverage: int = 0
    features: int = 0
    corpus: int = 0
    slowest_s: float = 0.0
    peak_growth_bytes: int = 0
    findings: dict[str, str] = field(default_factory=dict)

    def document(self) -> dict[str, object]:
        """Return it as JSON has it."""
        return asdict(self)


def fuzz(name: str, seconds: float, found: Path, corpus: Path | None = None, seed: int = 1) -> Outcome:
    """Fuzz one target for so long.

    Args:
        name: of the target.
        seconds: of the wall clock.
        found: folder for inputs that are findings.
        corpus: folder of inputs worth keeping, read and added to; None: a new one that is thrown away.
        seed: of libFuzzer's choices. Times differ, so that two runs are still not the same.
    """
    outcome = Outcome(name)
    with TemporaryDirectory(prefix="pulse-fuzz-") as folder:
        kept = corpus / name if corpus is not None else Path(folder) / "corpus"
        kept.mkdir(parents=True, exist_ok=True)
        target = TARGETS[name]()
        for data in target.seeds:
            (kept / hashlib.sha1(data).hexdigest()).write_bytes(data)
        words = Path(folder) / "words"
        words.write_text("".join(f'"{_escaped(word)}"\n' for word in target.words))
        found.mkdir(parents=True, exist_ok=True)
        while (left := seconds - outcome.seconds) >= _LEAST_S:
            _one_process(outcome, left, kept, words, found, Path(folder) / "figures.json", seed)
            seed += 1
    return outcome


def _one_process(
    outcome: Outcome, seconds: float, kept: Path, words: Path, found: Path, figures: Path, seed: int
) -> None:
    options = (
        *(f"-max_total_time={int(seconds)}", f"-seed={seed}", f"-timeout={_HANG_S}", f"-rss_limit_mb={_RSS_MB}"),
        *(f"-artifact_prefix={found}/{outcome.target}-", "-print_final_stats=1", str(kept)),
        *([f"-dict={words}"] if words.stat().st_size else []),  # an empty one is an error
    )
    figures.unlink(missing_ok=True)
    began = time.monotonic()
    command = [sys.executable, "-m", "tests.security.fuzz.worker", outcome.target, str(figures), *options]
    ended = subprocess.run(command, capture_output=True, text=True, errors="replace", check=False)
    lines = ended.stdout + ended.stderr
    told = json.loads(figures.read_text()) if figures.exists() else {}
    outcome.seconds += max(told.get("seconds", 0.0), min(_LEAST_S, time.monotonic() - began))
    executed = _EXECUTED.search(lines)
    outcome.executions += int(executed.group(1)) if executed else told.get("executions", 0)
    outcome.accepted += told.get("accepted", 0)
    for _, coverage, features, inputs in _STATUS.findall(lines):
        outcome.coverage = max(outcome.coverage, int(coverage))
        outcome.features = max(outcome.features, int(features))
        outcome.corpus = max(outcome.corpus, int(inputs))
    outcome.slowest_s = max(outcome.slowest_s, told.get("slowest_s", 0.0))
    outcome.peak_growth_bytes = max(outcome.peak_growth_bytes, told.get("peak_growth_bytes", 0))
    if ended.returncode:
        outcome.findings[_what(lines)] = _artifact(lines)
        (found / f"{outcome.target}.log").write_text(lines)


def _what(lines: str) -> str:
    raised = re.findall(
        r"^(?:\S*(?:Error|Defect|Exception|Exit|Warning)\b.*|.*ERROR: libFuzzer.*)$", lines, re.MULTILINE
    )
    return str(raised[0])[:300] if raised else "the process ended: " + "".join(lines.splitlines()[-1:])


def _artifact(lines: str) -> str:
    written = re.search(r"Test unit written to (\S+)", lines)
    return Path(written.group(1)).name if written else ""


def _escaped(word: bytes) -> str:
    return "".join(chr(byte) if 32 <= byte < 127 and byte not in b'"\\' else f"\\x{byte:02x}" for byte in word)
