"""The compiled loops behind the coding of exponents, as arrays in, arrays out."""

from __future__ import annotations

import numpy as np

from pulse_kernels.cells import Cells
from pulse_kernels.cpu.compile import compiled
from pulse_kernels.format.exponents import HEAD, tile_cells
from pulse_kernels.protocol import Heads, Sections


class CompiledLoops:
    """See ``ExponentLoops``."""

    def fit(self, cells: Cells) -> Heads:
        """Choose windows: see ExponentLoops.fit."""
        heads = np.zeros(len(tile_cells(len(cells))), HEAD)
        planes, bases = (np.empty(len(heads), np.uint8) for _ in range(2))
        escapes = np.empty(len(heads), np.uint32)
        compiled("exponents_fit", 2)(cells, planes, bases, escapes)
        heads["planes"], heads["base"], heads["escapes"] = planes, bases, escapes
        return heads

    def split(self, cells: Cells, heads: Heads, out: Sections) -> bool:
        """Write sections: see ExponentLoops.split."""
        whole = compiled("exponents_split", 2)(cells, *_plain(heads), out.planes, out.marks, out.escapes)
        return bool(whole)

    def join(self, heads: Heads, sections: Sections, out: Cells) -> bool:
        """Write cells: see ExponentLoops.join."""
        parts = sections.planes, sections.marks, sections.escapes
        return bool(compiled("exponents_join", 2)(*_plain(heads), *parts, out))


def _plain(heads: Heads) -> tuple[Cells, Cells]:
    return np.ascontiguousarray(heads).view(np.uint8), np.ascontiguousarray(heads["escapes"])
