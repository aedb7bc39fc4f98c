"""Storing a patch while its groups are coded: its head, which names them all, goes last where the store can do that."""

from __future__ import annotations

from collections.abc import Iterable

from pulse_registry.format.keys import patch_key
from pulse_registry.format.patch_coding import Coded
from pulse_registry.push.patch_body import PatchBody
from pulse_registry.store import Growing, Store, create
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import PatchRef


def store_patch(
    store: Store, geometry: Geometry, version: int, write_id: str, coded: Iterable[Coded], timeline: Timeline
) -> PatchRef:
    """Store the patch into a version from the one before, and return what its record says of it.

    Args:
        store: scoped to the run.
        geometry: of the layout of both versions.
        version: the newer one.
        write_id: of this push alone.
        coded: the groups that change, in group order, as they come.
        timeline: notes ``upload``, from when the store begins to send, and the parts of ``code`` and ``hash`` that are
            about the whole object: these, too, overlap with what is being sent.

    Raises:
        AlreadyExists, StoreUnavailable: as ``create``.
        What ``coded`` raises.
    """
    key = patch_key(version - 1, version, write_id)
    patch = PatchBody(geometry, version, key, timeline)
    body = Growing(map(patch.add, coded), patch.head, timeline.clock)
    create(store, key, body)
    timeline.note("upload", body.sent_at, nbytes=patch.ref.size)
    return patch.ref
