"""Keyframes of a trainer's own versions: how one is stored, and attached when it is due."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial

from pulse_kernels import Cells
from pulse_registry.context import Context
from pulse_registry.errors import Conflict, InvalidModel, PulseError
from pulse_registry.format.keyframe import KeyframeForm, write_keyframe
from pulse_registry.format.keys import layout_key
from pulse_registry.log import LogWriter, NewId, RunState
from pulse_registry.log.documents import LAYOUT
from pulse_registry.log.keyframe_due import keyframe_due
from pulse_registry.push.options import PushOptions
from pulse_registry.push.shadow import Shadow
from pulse_registry.store import create
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from pulse_schemas import KeyframeRef

_logger = logging.getLogger(__name__)


class KeyframeWriter:
    """Writes keyframes of versions that a shadow holds."""

    def __init__(self, context: Context, writer: LogWriter, new_id: NewId, options: PushOptions) -> None:
        """Prepare; no I/O yet."""
        self._context = context
        self._writer = writer
        self._new_id = new_id
        self._options = options
        self._stored_layouts: set[str] = set()

    def store(self, shadow: Shadow, version: int, write_id: str) -> KeyframeRef:
        """Store a version's layout and cells; return what its record says of them.

        Raises:
            InvalidModel: the layout is too long to be stored.
            AlreadyExists, StoreUnavailable: as ``create``.
        """
        geometry = shadow.geometry
        if geometry.id not in self._stored_layouts:
            layout = geometry.layout.canonical()
            if len(layout) > LAYOUT:
                raise InvalidModel(
                    f"a layout has at most {LAYOUT:,} bytes, and the model's names and shapes take {len(layout):,}"
                )
            create(self._context.store, layout_key(geometry.id), layout)
            self._stored_layouts.add(geometry.id)
        return self._write(geometry, version, write_id, partial(shadow.cells_at, version))

    def due(self, state: RunState, shadow: Shadow) -> bool:
        """Tell whether the newest version is to have a keyframe."""
        every, share = self._options.keyframe_every, self._options.keyframe_share
        return keyframe_due(state, shadow.geometry.nbytes, every=every, share=share)

    def attach(self, state: RunState, shadow: Shadow) -> None:
        """Store the newest version's cells and attach them, if it is still due.

        A failure costs no version and is tried after the next push.
        """
        latest = state.latest
        if latest is None or latest.layout != shadow.geometry.id or not self.due(state, shadow):
            return
        version, write_id = latest.version, self._new_id()
        if shadow.digest_at(version).hex() != latest.digest:
            return  # the newest version is another writer's, or this shadow is no longer the newest
        sums: dict[int, Digest] = {}

        def cells_of(group: Group) -> Cells:
            cells = shadow.cells_at(version, group)
            digest = Digest(*self._context.backend.digest(cells, group.start))
            if sums.setdefault(group.number, digest) != digest:
                raise Conflict(f"group {group.number} changed while it was read")
            return cells

        try:
            keyframe = self._write(shadow.geometry, version, write_id, cells_of)
            if sum(sums.values(), Digest()).hex() != latest.digest:
                raise Conflict("its cells were changed while they were read")
            self._writer.attach(keyframes=[keyframe], write_id=write_id)
        except PulseError as error:
            _logger.warning("no keyframe of version %d, to be tried after the next push: %s", version, error)
        except Exception:
            # A thread's outermost edge: nobody looks at what this ended with, and no push waits for it.
            _logger.exception("no keyframe of version %d, to be tried after the next push", version)

    def _write(
        self, geometry: Geometry, version: int, write_id: str, cells_of: Callable[[Group], Cells]
    ) -> KeyframeRef:
        return write_keyframe(
            self._context.store,
            geometry,
            version,
            write_id,
            cells_of,
            form=KeyframeForm(self._options.keyframe_coding),
            backend=self._context.backend.name,
            map_=self._context.map_,
        )
