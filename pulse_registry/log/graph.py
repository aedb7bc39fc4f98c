"""A run's live objects as the edges of a graph, in columns of numbers: what a search of long routes works on."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import numpy.typing as npt

from pulse_registry.format.keys import versions_of
from pulse_registry.log.leg import KEYFRAME_BYTES, Leg
from pulse_registry.log.named_objects import files_of
from pulse_registry.log.tables import CODERS, Tables, id_of
from pulse_schemas import base_of

_GAP = CODERS.index("gap")


class RouteGraph:
    """The edges of one state: a keyframe from nothing to its version; a patch onwards and, if its coder allows, back.

    Nothing leads into a version that was retired. Rows: all patches onwards, then those that lead back, then keyframes,
    each in the order of the log. Never changed: made for a state when somebody asks, in a few passes over its tables.

    Attributes:
        start: version that each row leads from; -1: from nothing.
        end: version that each row leads to.
        nbytes, objects: what is to be fetched.
        decoded: cells to decode; see `Leg.decoded`.
    """

    def __init__(self, tables: Tables, retired: Mapping[int, int]) -> None:
        """Take the live objects of tables, less those that lead into ``retired`` versions."""
        self._patches, self._keyframes = tables.patches.copy(), tables.keyframes.copy()
        patches, keyframes = self._patches, self._keyframes
        gone = np.fromiter(retired, np.int64, len(retired))
        alive, base, target = patches.alive, patches.column("base"), patches.column("target")
        self._by_gap = patches.column("coder") == _GAP
        onwards = np.flatnonzero(alive & ~np.isin(target, gone))
        back = np.flatnonzero(alive & self._by_gap & ~np.isin(base, gone))
        frames = np.flatnonzero(keyframes.alive & ~np.isin(keyframes.column("version"), gone))
        self._rows = np.concatenate((onwards, back, frames))  # of the tables
        self._back, self._frames = len(onwards), len(onwards) + len(back)
        nothing = np.full(len(frames), -1, np.int64)
        self.start = np.concatenate((base[onwards], target[back], nothing))
        self.end = np.concatenate((target[onwards], base[back], keyframes.column("version")[frames]))
        self.nbytes, self.objects = (
            np.concatenate((patches.column(name)[self._rows[: self._frames]], keyframes.column(name)[frames]))
            for name in ("nbytes", "objects")
        )
        self._graph: Any = None
        cells = patches.column("changed")[self._rows[: self._frames]]
        self.decoded = np.concatenate((cells, keyframes.column("nbytes")[frames] // KEYFRAME_BYTES))

    def __len__(self) -> int:
        return len(self.start)

    def legs(self, rows: npt.NDArray[np.int64]) -> list[Leg]:
        """Return the legs of rows."""
        return [
            self._leg(row, of_table) for row, of_table in zip(rows.tolist(), self._rows[rows].tolist(), strict=True)
        ]

    def graph(self) -> Any:
        """Return them as a ``pulse_kernels.cpu.graph.Graph``; made once for a state.

        Raises:
            BackendUnavailable: numba can't be imported here.
        """
        if self._graph is None:
            from pulse_kernels.cpu.graph import Graph

            usable = np.ones(len(self), np.bool_)
            self._graph = Graph.of(self.start, self.end, self.nbytes, self.objects, self.decoded, usable)
        return self._graph

    def rows_of(self, keys: Iterable[str]) -> list[int]:
        """Return the rows of the objects with one of these keys."""
        patches, frames = list[int](), list[int]()
        for key in set(keys):
            found = self._patches.where("key", id_of(key))
            patches += (row for row in found if self._patches.row(row).object.key == key)
            of_base = self._keyframes.column("version").tolist() if base_of(key) is not None else ()
            for version in sorted({*versions_of(key), *of_base}):
                of_version = self._keyframes.where("version", version)
                frames += (
                    row for row in of_version if any(ref.key == key for ref in files_of(self._keyframes.row(row)))
                )
        is_patch = np.arange(len(self)) < self._frames
        return np.flatnonzero(np.where(is_patch, np.isin(self._rows, patches), np.isin(self._rows, frames))).tolist()

    def rows_of_class(self) -> npt.NDArray[np.intp]:
        """Return the rows of the patches that are coded against their base."""
        return np.flatnonzero(~self._by_gap[self._rows[: self._back]])

    def _leg(self, row: int, of_table: int) -> Leg:
        if row >= self._frames:
            keyframe = self._keyframes.row(of_table)
            return Leg("keyframe", None, keyframe.version, keyframe=keyframe)
        patch = self._patches.row(of_table)
        if row >= self._back:
            return Leg("inverse", patch.target, patch.base, patch=patch)
        return Leg("patch", patch.base, patch.target, patch=patch)
