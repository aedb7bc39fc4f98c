"""Retention policy: the rules by which an operator keeps versions."""

from __future__ import annotations

from dataclasses import dataclass

from pulse_registry.errors import InvalidArgument


@dataclass(frozen=True, slots=True)
class RetentionPolicy:
    """A version is kept if any of these rules keeps it, or a tag, or a reader's lease; the newest one always is.

    All ages are by the store's clock.

    Attributes:
        keep_last: the newest so many versions are kept.
        keep_every: every version whose number is a multiple of it is kept; None: no such.
        keep_seconds: versions younger than this are kept.
        grace_seconds: from the record that retires a version to its deletion: longer than any pull takes, since a pull
            that began before goes on.
        orphan_seconds: what no record names is taken for a crashed writer's when it is older than this: longer than any
            push takes.
    """

    keep_last: int = 100
    keep_every: int | None = None
    keep_seconds: float = 86_400.0
    grace_seconds: float = 3_600.0
    orphan_seconds: float = 86_400.0

    def __post_init__(self) -> None:
        """Refuse what keeps nothing, or makes no sense.

        Raises:
            InvalidArgument: a number is out of its range.
        """
        if self.keep_last < 1:
            raise InvalidArgument(
                f"keep_last is {self.keep_last}; the newest version is kept in any case: give 1 or more"
            )
        if self.keep_every is not None and self.keep_every < 1:
            raise InvalidArgument(f"keep_every is {self.keep_every}; it is a number of versions, 1 or more, or None")
        for name in ("keep_seconds", "grace_seconds", "orphan_seconds"):
            if not 0 <= getattr(self, name) < 1e10:
                raise InvalidArgument(f"{name} is {getattr(self, name)}; it is a number of seconds, 0 or more")
