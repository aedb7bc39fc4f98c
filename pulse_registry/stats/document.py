"""Stats as a document: what ``pulse stats --json`` prints, exact numbers and no shares."""

from __future__ import annotations

from typing import Any

import numpy as np

from pulse_registry.stats.counts import ExponentCounts
from pulse_registry.stats.run_stats import RunStats, Total, WindowTotal
from pulse_registry.stats.tensor_names import kind_of, layer_of


def document(found: RunStats) -> dict[str, Any]:
    """Return the stats as JSON values."""
    layers, by_layer = found.layer_counts()
    return {
        "run": found.run,
        "first": found.first,
        "last": found.last,
        "layers": layers,
        "steps": [
            {
                "base": step.base,
                "target": step.target,
                "layout": step.layout,
                "changed": int(step.changed.sum()),
                "again": None if step.again is None else int(step.again.sum()),
                "flipped": None if step.flipped is None else int(step.flipped.sum()),
                "layers": counts,
            }
            for step, counts in zip(found.steps, by_layer, strict=True)
        ],
        "windows": [_window(one) for one in found.by_window],
        "total": _total(found.total),
        "kinds": [_total(one) for one in found.by_kind],
        "by_layer": [_total(one) for one in found.by_layer],
        "tensors": [{**_total(one), "layer": layer_of(one.name), "kind": kind_of(one.name)} for one in found.by_tensor],
        "sizes": {dtype: counts.tolist() for dtype, counts in sorted(found.sizes.items())},
        "exponents": {dtype: _exponents(one) for dtype, one in sorted(found.exponents.items())},
        "unseen": [{"base": one.base, "target": one.target, "why": one.why} for one in found.unseen],
    }


def _total(one: Total) -> dict[str, Any]:
    return {
        "name": one.name,
        "cells": one.cells,
        "changed": one.changed,
        "again": one.again,
        "changed_after": one.changed_after,
        "flipped": one.flipped,
    }


def _window(one: WindowTotal) -> dict[str, Any]:
    return {
        "versions": one.length,
        "windows": one.windows,
        "cells": one.cells,
        "changed": one.changed,
        "touched": one.touched,
    }


def _exponents(one: ExponentCounts) -> list[dict[str, int]]:
    there = np.flatnonzero(one.cells)
    return [{"exponent": int(e), "cells": int(one.cells[e]), "changed": int(one.changed[e])} for e in there]
