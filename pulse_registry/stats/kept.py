"""What was counted before, kept in a file of the caller's: only new steps are read again.

A row is found by what it was made of: the state digests of its versions. So a row never tells of other cells, whatever
became of the run; a file that is damaged, or of another release, is taken for an empty one.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, Final

import numpy as np
from blake3 import blake3

from pulse_kernels import CELL_TYPES
from pulse_registry.errors import InvalidArgument
from pulse_registry.log import RunState
from pulse_registry.stats.counts import Counts, ExponentCounts, StepStats, WindowStats
from pulse_registry.stats.steps import Step

_FORMAT: Final = "pulse-stats/1"


class Kept:
    """Rows of a file, and those that are to be written to it."""

    def __init__(self, path: Path | None) -> None:
        """Read the file, if it is there; None: nothing is kept.

        Raises:
            InvalidArgument: it can't be read.
        """
        self._path = path
        self._rows = {} if path is None else _read(path)
        self._used: dict[str, dict[str, Any]] = {}

    def step(self, name: str, step: Step, tensors: int) -> StepStats | None:
        """Return the counts of a step, by its name; None if they are not kept."""
        row = self._rows.get(name)
        try:
            return None if row is None else _step_of(row, step, tensors)
        except (KeyError, TypeError, ValueError, OverflowError):
            return None

    def window(self, name: str, empty: WindowStats) -> WindowStats | None:
        """Return the counts of a window, by its name; None if they are not kept."""
        row = self._rows.get(name)
        try:
            if row is None:
                return None
            changed, touched = (_counts(row[what], len(empty.changed)) for what in ("changed", "touched"))
        except (KeyError, TypeError, ValueError, OverflowError):
            return None
        return WindowStats(empty.base, empty.target, empty.layout, changed, touched)

    def keep(self, name: str, one: StepStats | WindowStats) -> None:
        """Let a row be in the file that is written next."""
        if self._path is not None:
            self._used[name] = _step_row(one) if isinstance(one, StepStats) else _window_row(one)

    def write(self) -> None:
        """Write the rows of this study, and no others, all or nothing.

        Raises:
            InvalidArgument: the disk does not take it.
        """
        if self._path is None:
            return
        text, part = json.dumps({"format": _FORMAT, "rows": self._used}, separators=(",", ":")), None
        try:
            with NamedTemporaryFile("w", dir=self._path.parent, prefix=f"{self._path.name}.", delete=False) as file:
                part = Path(file.name)
                file.write(text)
            part.replace(self._path)
        except OSError as error:
            raise InvalidArgument(f"{self._path} can't be written: {error.strerror or error}") from error
        finally:
            if part is not None:
                part.unlink(missing_ok=True)


def name_of(state: RunState, what: str, layout: str, versions: Iterable[int | None]) -> str:
    """Return what a row is called: the hash of the state digests that it was counted from."""
    digests = ["-" if version is None else state.version(version).digest for version in versions]
    return blake3("\n".join((what, layout, *digests)).encode()).hexdigest()


def _read(path: Path) -> Mapping[str, Any]:
    try:
        found = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise InvalidArgument(f"{path} can't be read: {error.strerror or error}") from error
    except (ValueError, RecursionError):
        return {}
    rows = found.get("rows") if isinstance(found, dict) and found.get("format") == _FORMAT else None
    return rows if isinstance(rows, dict) else {}


def _step_row(one: StepStats) -> dict[str, Any]:
    exponents = one.exponents
    return {
        "changed": one.changed.tolist(),
        "again": None if one.again is None else one.again.tolist(),
        "flipped": None if one.flipped is None else one.flipped.tolist(),
        "sizes": {dtype: counts.tolist() for dtype, counts in one.sizes.items()},
        "exponents": None
        if exponents is None
        else {dtype: [of.cells.tolist(), of.changed.tolist()] for dtype, of in exponents.items()},
    }


def _window_row(one: WindowStats) -> dict[str, Any]:
    return {"changed": one.changed.tolist(), "touched": one.touched.tolist()}


def _step_of(row: Mapping[str, Any], step: Step, tensors: int) -> StepStats:
    again, flipped, exponents = row["again"], row["flipped"], row["exponents"]
    return StepStats(
        step.base,
        step.target,
        step.layout,
        _counts(row["changed"], tensors),
        None if again is None else _counts(again, tensors),
        None if flipped is None else _counts(flipped, tensors),
        {dtype: _counts(counts, CELL_TYPES[dtype].bits) for dtype, counts in row["sizes"].items()},
        None
        if exponents is None
        else {d: ExponentCounts(_counts(cells, 256), _counts(of, 256)) for d, (cells, of) in exponents.items()},
    )


def _counts(numbers: Sequence[int], length: int) -> Counts:
    counts = np.array(numbers, np.int64)
    if counts.shape != (length,):
        raise ValueError(f"{counts.shape} counts")
    return counts
