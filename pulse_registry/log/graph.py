"""A run's live objects as the edges of a graph, in columns of numbers: what a search of long routes works on.

Columns only grow, so that all states of a run share them; each knows how many rows are its own, and which are dead.
"""

from __future__ import annotations

import threading
from collections.abc import Collection, Iterable, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from pulse_registry.format.keys import versions_of
from pulse_registry.log.cow import CowObject
from pulse_registry.log.leg import Leg
from pulse_schemas import KeyframeRef, PatchRef

Ref = PatchRef | KeyframeRef
_START, _END, _NBYTES = range(3)
_MOST = 2**62
"""A size that no object has is this one: with it, searches in these columns are refused."""


class _Columns:
    """Five columns of numbers, and the legs onwards that they are about; written past what any reader looks at."""

    def __init__(self, capacity: int) -> None:
        self.numbers = np.empty((5, capacity), np.int64)
        self.legs: list[Leg] = []
        self.lock = threading.Lock()


class _Dropped(NamedTuple):
    """What was taken away, and what was before: a list that copies share."""

    refs: tuple[Ref, ...]
    versions: tuple[int, ...]
    before: _Dropped | None


class RouteGraph(CowObject):
    """The edges of one state: a keyframe from nothing to its version; a patch onwards and, if its coder allows, back.

    Rows are in the order of the log. Nothing leads into a version that was retired.
    """

    def __init__(self) -> None:
        """Begin without edges."""
        self._columns = _Columns(64)
        self._count = 0
        self._dead = np.zeros(0, np.bool_)  # shared by copies, and never changed; rows beyond it are alive
        self._dropped: _Dropped | None = None  # what has gone since: looked for in all rows, and so many at a time
        self._waiting = 0
        self._graph: Any = None

    def __len__(self) -> int:
        return self._count

    def legs(self, rows: npt.NDArray[np.int64]) -> list[Leg]:
        """Return the legs of rows."""
        onwards = map(self._columns.legs.__getitem__, rows.tolist())
        if not np.any(self.start[rows] > self.end[rows]):
            return list(onwards)
        back = (self.start[rows] > self.end[rows]).tolist()
        return [_inverse(leg) if inverse else leg for leg, inverse in zip(onwards, back, strict=True)]

    @property
    def start(self) -> npt.NDArray[np.int64]:
        """Version that each row leads from; -1: from nothing."""
        return self._columns.numbers[_START, : self._count]

    @property
    def end(self) -> npt.NDArray[np.int64]:
        """Version that each row leads to."""
        return self._columns.numbers[_END, : self._count]

    @property
    def nbytes(self) -> npt.NDArray[np.int64]:
        """Size of each row's object."""
        return self._columns.numbers[_NBYTES, : self._count]

    @property
    def alive(self) -> npt.NDArray[np.bool_]:
        """Which rows can be used."""
        dead = np.zeros(self._count, np.bool_)
        dead[: len(self._dead)] = self._dead
        refs, versions = _all(self._dropped)
        if versions:
            dead |= np.isin(self.end, versions)
        if refs:
            gone, ends = {id(ref) for ref in refs}, {version for ref in refs for version in _versions(ref)}
            for row in np.flatnonzero(np.isin(self.end, list(ends)) & ~dead).tolist():
                dead[row] = id(self._columns.legs[row].ref) in gone
        return ~dead

    def graph(self) -> Any:
        """Return them as a ``pulse_kernels.cpu.graph.Graph``; made once for a state.

        Raises:
            BackendUnavailable: numba can't be imported here.
        """
        if self._graph is None:
            from pulse_kernels.cpu.graph import Graph

            start, end, nbytes, objects, decoded = self._columns.numbers[:, : self._count]
            self._graph = Graph.of(start, end, nbytes, objects, decoded, self.alive)
        return self._graph

    def add(self, patches: Iterable[PatchRef], keyframes: Iterable[KeyframeRef]) -> None:
        """Add new objects."""
        rows: list[tuple[int, int, int, int, int]] = []
        legs: list[Leg] = []
        for patch in patches:
            leg = Leg("patch", patch.base, patch.target, patch=patch)
            costs = (min(patch.size, _MOST), patch.objects, min(leg.decoded, _MOST))
            rows.append((patch.base, patch.target, *costs))
            legs.append(leg)
            if patch.coder == "gap":
                rows.append((patch.target, patch.base, *costs))
                legs.append(leg)
        for keyframe in keyframes:
            leg = Leg("keyframe", None, keyframe.version, keyframe=keyframe)
            rows.append((-1, leg.target, min(leg.nbytes, _MOST), leg.objects, min(leg.decoded, _MOST)))
            legs.append(leg)
        if rows:
            self._append(np.array(rows, np.int64).T, legs)

    def drop(self, refs: Collection[Ref], versions: Sequence[int]) -> None:
        """Take away objects, and all that leads into versions; in constant time, but for every so many."""
        if not refs and not versions:
            return
        self._dropped = _Dropped(tuple(refs), tuple(versions), self._dropped)
        self._waiting += len(refs) + len(versions)
        self._graph = None
        if 4 * self._waiting <= self._count:
            return
        alive = self.alive
        self._dropped, self._waiting = None, 0
        if 2 * np.count_nonzero(alive) < len(alive):
            self._keep(np.flatnonzero(alive))
        else:
            self._dead = ~alive

    def rows_of(self, keys: Iterable[str]) -> list[int]:
        """Return the rows of the objects with one of these keys."""
        wanted = set(keys)
        ends = {version for key in wanted for version in versions_of(key)}
        found = np.flatnonzero(np.isin(self.end, list(ends))).tolist() if ends else []
        return [row for row in found if any(ref.key in wanted for ref in self._columns.legs[row].refs)]

    def keys_of_class(self) -> set[str]:
        """Return the keys of the patches that are coded against their base."""
        legs = self._columns.legs[: self._count]
        return {leg.patch.object.key for leg in legs if leg.patch is not None and leg.patch.coder == "class"}

    def _append(self, rows: npt.NDArray[np.int64], legs: list[Leg]) -> None:
        count, more = self._count, len(legs)
        with self._columns.lock:
            columns = self._columns
            fork = len(columns.legs) != count  # another state of the run has gone on from here
            if fork or count + more > columns.numbers.shape[1]:
                columns = _Columns(2 * (count + more))
                columns.numbers[:, :count] = self._columns.numbers[:, :count]
                columns.legs = self._columns.legs[:count]
            columns.numbers[:, count : count + more] = rows
            columns.legs += legs
        self._columns, self._count, self._graph = columns, count + more, None

    def _keep(self, rows: npt.NDArray[np.int64]) -> None:
        columns = _Columns(2 * len(rows) + 64)
        columns.numbers[:, : len(rows)] = self._columns.numbers[:, rows]
        columns.legs = [self._columns.legs[row] for row in rows.tolist()]
        self._columns, self._count, self._dead = columns, len(rows), np.zeros(0, np.bool_)


def _versions(ref: Ref) -> tuple[int, ...]:
    return (ref.version,) if isinstance(ref, KeyframeRef) else (ref.base, ref.target)


def _all(dropped: _Dropped | None) -> tuple[list[Ref], list[int]]:
    refs: list[Ref] = []
    versions: list[int] = []
    while dropped is not None:
        refs += dropped.refs
        versions += dropped.versions
        dropped = dropped.before
    return refs, versions


def _inverse(leg: Leg) -> Leg:
    return Leg("inverse", leg.target, leg.patch.base, patch=leg.patch) if leg.patch is not None else leg
