"""Changed cells of a run's versions, by layers, from the heads of patches: nothing is decoded.

What a head says never changes, so it is read once and kept, in bounded memory: a page costs the heads of the versions
that nobody has asked for lately.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Sequence
from itertools import islice, pairwise
from typing import Final, Literal

from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.format.keys import layout_key
from pulse_registry.log import RunState
from pulse_registry.log.layouts import fetch_layout
from pulse_registry.process.parallel import Map
from pulse_registry.stats.layer_rows import LayerRows, fetch_directory
from pulse_registry.store import Store
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import PatchRef, VersionEntry
from pulse_schemas.api import LayerMark, LayersBody, StepMark
from pulse_server.transport.answers import Rendered

MOST_STEPS: Final = 64
"""Of a page."""
_LONG_LAYOUT: Final = 2 << 20
"""Bytes: some 20,000 tensors. To read a longer one lets no other thread run for a while."""
_LAYOUTS: Final = 8
_NUMBERS: Final = 1 << 20
"""Layouts, and numbers of steps, that are kept of all runs together."""

Counts = tuple[int, ...]


class LayerCounts:
    """Counts of all runs. Thread-safe."""

    def __init__(self, store_of: Callable[[str], Store], each: Map) -> None:
        """Begin with none; ``each`` is a map over threads, several at a time."""
        self._store_of, self._each = store_of, each
        self._lock = threading.Lock()
        self._layouts: OrderedDict[str, LayerRows] = OrderedDict()
        self._steps: OrderedDict[str, Counts] = OrderedDict()  # by the BLAKE3 of the head
        self._kept = 0

    def page(self, state: RunState, after: int, limit: int) -> Rendered:
        """Return what the versions over ``after`` change, each from the one before that is not retired, in a thread.

        Raises:
            NotFound, CorruptObject, UnsupportedFormat: the layout can't be read.
            StoreUnavailable: the store failed.
        """
        first = after if state.find(after) is not None and not state.is_retired(after) else after + 1
        live = (entry for entry in state.versions_since(max(0, first)) if not state.is_retired(entry.version))
        pairs = [*pairwise(islice(live, limit + 2))]
        follows = len(pairs) > limit
        pairs = pairs[:limit]
        place = next((n for n, (base, target) in enumerate(pairs) if base.layout != target.layout), None)
        if place is not None:
            follows = follows or place + 1 < len(pairs)
            pairs = pairs[: place + 1]
        rows = self._rows(state.run, pairs[0][0].layout) if pairs else None
        body = LayersBody.model_construct(
            run=state.run,
            rows=tuple(
                LayerMark.model_construct(name=row.name, layers=row.layers, cells=row.cells)
                for row in (() if rows is None else rows.rows)
            ),
            steps=tuple(self._marks(state, pairs, rows)),
            next=pairs[-1][1].version if follows else None,
        )
        return Rendered.of(body)

    def _marks(
        self, state: RunState, pairs: Sequence[tuple[VersionEntry, VersionEntry]], rows: LayerRows | None
    ) -> list[StepMark]:
        refs = [_patch(state, base.version, target.version) for base, target in pairs]
        counted: list[Counts | None] = [None] * len(pairs)
        if rows is not None:
            found = self._each(lambda ref: None if ref is None else self._counts(state.run, rows, ref), refs)
            counted = list(found)
        marks = []
        for (base, target), ref, changed in zip(pairs, refs, counted, strict=True):
            why: Literal["layout", "keyframe", "gone", "large"] | None = None
            if base.layout != target.layout:
                why, changed = "layout", None
            elif rows is None:
                why = "large"
            elif changed is None:
                why = "gone" if ref is not None or state.keyframe(target.version) is None else "keyframe"
            marks.append(
                StepMark.model_construct(base=base.version, target=target.version, changed=changed or (), why=why)
            )
        return marks

    def _rows(self, run: str, layout_id: str) -> LayerRows | None:
        """Return the rows of a layout; None of one that is too long."""
        with self._lock:
            known = self._layouts.get(layout_id)
            if known is not None:
                self._layouts.move_to_end(layout_id)
                return known
        store = self._store_of(run)
        if store.size(layout_key(layout_id)) > _LONG_LAYOUT:
            return None
        made = LayerRows(Geometry(fetch_layout(store, layout_id)))
        with self._lock:
            self._layouts[layout_id] = made
            while len(self._layouts) > _LAYOUTS:
                self._layouts.popitem(last=False)
        return made

    def _counts(self, run: str, rows: LayerRows, ref: PatchRef) -> Counts | None:
        """Return what a patch changes of each row; None where its head is gone or damaged."""
        with self._lock:
            known = self._steps.get(ref.head_blake3)
            if known is not None:
                self._steps.move_to_end(ref.head_blake3)
                return known
        try:
            made = tuple(rows.changed(fetch_directory(self._store_of(run), rows.geometry, ref)).tolist())
        except (NotFound, CorruptObject):
            return None
        with self._lock:
            if ref.head_blake3 not in self._steps:
                self._steps[ref.head_blake3] = made
                self._kept += 1 + len(made)
            while self._kept > _NUMBERS:
                self._kept -= 1 + len(self._steps.popitem(last=False)[1])
        return made


def _patch(state: RunState, base: int, target: int) -> PatchRef | None:
    return next((patch for patch in state.patches_into(target) if patch.base == base), None)
