"""What a follower tells of: a change, or one that failed; for a line of a log, or a JSON document."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Changed:
    """An engine serves another version.

    Attributes:
        engine: its name.
        version, before: that it serves now, and did before; None: none that is known.
        behind: how many versions the run has beyond it.
        stage_s: seconds that it took to fetch and check it, while the old one was served.
        pause_s: seconds from the pause to its end; None: it does not pause.
        at: UTC, ISO 8601 in milliseconds.
    """

    engine: str
    version: int
    before: int | None
    behind: int
    stage_s: float
    pause_s: float | None
    at: str

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"changed": True, **asdict(self)}

    def line(self) -> str:
        """Return it for people."""
        before = "nothing known" if self.before is None else f"version {self.before}"
        paused = "" if self.pause_s is None else f", paused {self.pause_s * 1e3:.1f} ms"
        return f"{self.at} {self.engine}: {before} -> {self.version}, staged {self.stage_s:.2f} s{paused}"


@dataclass(frozen=True, slots=True)
class Failed:
    """An engine was not brought to a version; it serves what it served.

    Attributes:
        engine: its name.
        serves: the version that it serves; None: none that is known.
        error, message: what went wrong.
        retry_in_s: after so many seconds it is tried again.
        at: UTC, ISO 8601 in milliseconds.
    """

    engine: str
    serves: int | None
    error: str
    message: str
    retry_in_s: float
    at: str

    def document(self) -> dict[str, Any]:
        """Return it for JSON."""
        return {"changed": False, **asdict(self)}

    def line(self) -> str:
        """Return it for people."""
        serves = "" if self.serves is None else f", and goes on with version {self.serves}"
        return f"{self.at} {self.engine}: not changed{serves}: {self.message}; tried again in {self.retry_in_s:.1f} s"
