"""The engine that follows a run, as the follower sees it: what serves a version, and can be brought to another one."""

from __future__ import annotations

from typing import Protocol

from pulse_registry.errors import StoreUnavailable


class EngineFailed(StoreUnavailable):
    """An engine can't be reached, or did not do what it was asked for; to try again may help."""


class EngineRefused(EngineFailed):
    """An engine has answered that it does not do what it was asked for."""


class Engine(Protocol):
    """What serves one version of a run. For one thread.

    A change is ``stage``, ``pause``, ``apply``, ``reset_caches``, ``resume``, in this order; ``undo`` comes before
    ``resume`` where one of them failed. All raise EngineFailed, or another PulseError that says why.

    Attributes:
        name: what it is called in log lines; holds no secret.
        pauses: whether it can be paused; what can't is changed by ``stage``, or by ``apply`` beside its work.
    """

    name: str
    pauses: bool

    def version(self) -> int | None:
        """Return the version that it serves; None: none that is known. The first look at it, and cheap to repeat."""
        ...

    def stage(self, version: int) -> None:
        """Fetch and check a version while the engine serves, and return when ``apply`` need not wait for it."""
        ...

    def pause(self) -> None:
        """Stop generating; requests wait. Idempotent."""
        ...

    def apply(self, version: int) -> None:
        """Change to the version that was staged, and let answers carry it. A failure may leave it half done."""
        ...

    def reset_caches(self) -> None:
        """Forget what the old weights have made, or wait until that is done."""
        ...

    def undo(self, version: int | None) -> None:
        """Go back to the version that was served before the change, if anything has changed."""
        ...

    def resume(self) -> None:
        """Go on generating. Idempotent: of an engine that is not paused it changes nothing."""
        ...

    def close(self) -> None:
        """Close connections; the engine goes on. Idempotent."""
        ...


class Unpaused:
    """What an engine does of a change that can't be paused, has no caches, and is changed in one step: nothing."""

    pauses = False

    def pause(self) -> None:
        """Do nothing."""

    def reset_caches(self) -> None:
        """Do nothing."""

    def undo(self, version: int | None) -> None:
        """Do nothing: what fails has changed nothing, or is done again."""

    def resume(self) -> None:
        """Do nothing."""

    def close(self) -> None:
        """Do nothing."""
