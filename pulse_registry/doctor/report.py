"""Report of an examination: all findings, and the verdict in one sentence."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from pulse_registry.doctor.finding import Finding, Level

WRITABLE: Final = "these keys may write"
"""A finding where they may not, which leaves nothing to be examined."""


@dataclass(frozen=True, slots=True)
class Report:
    """All findings on a store, in the order of the checks."""

    url: str
    findings: Sequence[Finding]

    @property
    def level(self) -> Level:
        """The level of the worst finding."""
        return max((finding.level for finding in self.findings), key=lambda level: level.rank, default=Level.SKIPPED)

    @property
    def safe(self) -> bool:
        """Whether several writers may share the store: nothing that was examined is unsafe."""
        return bool(self.findings) and self.level is not Level.UNSAFE

    @property
    def verdict(self) -> str:
        """The whole in one sentence."""
        if any(finding.check == WRITABLE for finding in self.findings):
            return "whether several writers may share the store is not shown: these keys may not write"
        if not self.safe:
            broken = ", ".join(finding.check for finding in self.findings if finding.level is Level.UNSAFE)
            return f"UNSAFE for more than one writer: {broken or 'nothing was examined'}"
        if self.level is Level.WARN:
            warned = ", ".join(finding.check for finding in self.findings if finding.level is Level.WARN)
            return f"safe for several writers; look at: {warned}"
        return "safe for several writers"

    def document(self) -> dict[str, Any]:
        """Return the report as a JSON document."""
        return {
            "url": self.url,
            "level": self.level.value,
            "safe_for_several_writers": self.safe,
            "verdict": self.verdict,
            "findings": [
                {
                    "check": finding.check,
                    "level": finding.level.value,
                    "verdict": finding.verdict,
                    "evidence": dict(finding.evidence),
                    "advice": finding.advice,
                }
                for finding in self.findings
            ],
        }
