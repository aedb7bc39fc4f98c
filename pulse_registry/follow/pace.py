"""The pace at which an engine follows a run: which version, and how soon. Pure."""

from __future__ import annotations

from dataclasses import dataclass

from pulse_registry.errors import InvalidArgument
from pulse_registry.results import VersionName


@dataclass(frozen=True, slots=True)
class Pace:
    """When an engine goes to which version.

    Attributes:
        version: that it goes to: ``"latest"``, a number, or a tag, which may move.
        at_most_every_s: a change begins at least so many seconds after the last one has begun.
        max_behind: an engine that is more versions behind does not wait for that; None: it waits.
    """

    version: VersionName = "latest"
    at_most_every_s: float = 0.0
    max_behind: int | None = None

    def __post_init__(self) -> None:
        """Check that they fit together."""
        if self.at_most_every_s < 0 or (self.max_behind is not None and self.max_behind < 0):
            raise InvalidArgument("a pace's seconds and versions are numbers from 0 on")
        if self.max_behind is not None and (self.version != "latest" or not self.at_most_every_s):
            raise InvalidArgument(
                "--max-behind bounds how far --at-most-every lets an engine fall behind the newest version: give both, "
                "and no --pin"
            )

    def due_in(self, serves: int | None, wanted: int, since_last_s: float | None) -> float:
        """Return in how many seconds a change may begin.

        Args:
            serves: the version that the engine serves; None: none that is known, which is no state to wait in.
            wanted: the version that it is to go to.
            since_last_s: seconds since the last change began; None: there was none.
        """
        if serves is None or since_last_s is None:
            return 0.0
        if self.max_behind is not None and wanted - serves > self.max_behind:
            return 0.0
        return max(0.0, self.at_most_every_s - since_last_s)
