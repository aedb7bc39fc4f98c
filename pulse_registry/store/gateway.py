"""A service in front of a bucket, as its client sees it beside the verbs of a store."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol


class Gateway(Protocol):
    """A service that checks what is appended to a log, and keeps its snapshots and hint itself: see `Store.gateway`."""

    def wait_for_record(self, run: str, seq: int, timeout_s: float, folder: str = "") -> bool:
        """Wait until record `seq` of a run is there; return whether it is, False once `timeout_s` have passed.

        Args:
            run: its name.
            seq: number of the record.
            timeout_s: how long to wait at most.
            folder: below the run, with a slash, where the log lies: `outer/` has one of its own.

        Raises:
            NotFound: there is no such run.
            AccessDenied: the token does not allow to read it.
            StoreUnavailable: the service could not tell.
        """
        ...

    def share(self, run: str, lender: str, version: int) -> str:
        """Make a keyframe of another run's version a shared base, to which the run refers; return its id.

        Raises:
            NotFound: there is no such version, or it has no keyframe.
            AccessDenied: the token may not push to the run, or not read the lender.
            StoreUnavailable: the service did not do it, or not all of it: call again.
        """
        ...

    def expect(self, run: str, keys: Sequence[str]) -> None:
        """Say which objects of a run, by their keys below it, are about to be read, so that it is arranged at once.

        Raises:
            AccessDenied, StoreUnavailable: as `Store.get`.
        """
        ...
