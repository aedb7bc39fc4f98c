"""A list of a run's workers as it is answered: made once, and answered whole or to those who need a version."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

from pulse_schemas.api import WorkerBody, WorkerList


@dataclass(frozen=True, slots=True)
class Listing:
    """Workers of a run by name, each as JSON, with the version that it is sure to serve.

    Attributes:
        run: the run's name.
        lines: of each worker: the version that it told of, None where its digest is not that version's; and its JSON.
    """

    run: str
    lines: tuple[tuple[int | None, bytes], ...] = ()

    @classmethod
    def of(cls, run: str, workers: Iterable[WorkerBody]) -> Self:
        """Return the list of these; of many it takes long."""
        lines = ((one.version if one.digest_matches else None, one.model_dump_json().encode()) for one in workers)
        return cls(run, tuple(lines))

    def body(self, min_version: int | None = None) -> bytes:
        """Return the answer; with ``min_version``, only workers whose cells are those of such a version or a newer."""
        chosen = (
            line
            for version, line in self.lines
            if min_version is None or (version is not None and version >= min_version)
        )
        head, _, tail = WorkerList(run=self.run, workers=()).model_dump_json().encode().rpartition(b"[]")
        return b"".join((head, b"[", b",".join(chosen), b"]", tail))
