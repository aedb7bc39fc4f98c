"""Storing a patch while its groups are coded: its head, which names them all, goes last where the store can do that.

A patch in parts is stored part by part, each once its last group is coded, and its head after them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Executor
from itertools import groupby

from pulse_registry.format.keys import part_key
from pulse_registry.format.patch_coding import Coded
from pulse_registry.format.patch_parts import in_parts, key_of_patch, part_of
from pulse_registry.process.parallel import ParallelMap
from pulse_registry.push.patch_body import PatchBody
from pulse_registry.store import Growing, Store, create
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import PatchRef

_PARTS_IN_HAND = 4
"""Parts that are being stored at most, while the next one is coded."""


def store_patch(
    store: Store,
    geometry: Geometry,
    version: int,
    write_id: str,
    coded: Iterable[Coded],
    threads: Executor,
    timeline: Timeline,
) -> PatchRef:
    """Store the patch into a version from the one before, and return what its record says of it.

    Args:
        store: scoped to the run.
        geometry: of the layout of both versions.
        version: the newer one.
        write_id: of this push alone.
        coded: the groups that change, in group order, as they come.
        threads: wait for the store while parts are stored; this call waits for them.
        timeline: notes ``upload``, from when the store begins to send, and the parts of ``code`` and ``hash`` that are
            about the whole object: these, too, overlap with what is being sent.

    Raises:
        AlreadyExists, StoreUnavailable: as ``create``.
        What ``coded`` raises.
    """
    key = key_of_patch(geometry, version - 1, version, write_id)
    patch = PatchBody(geometry, version, key, timeline)
    if in_parts(geometry):
        store_parts(store, key, coded, patch.note, threads, timeline)
        store_head(store, key, patch.head(), timeline)
        return patch.ref
    body = Growing(map(patch.add, coded), patch.head, timeline.clock)
    create(store, key, body)
    timeline.note("upload", body.sent_at, nbytes=patch.ref.size)
    return patch.ref


def store_parts(
    store: Store,
    key: str,
    coded: Iterable[Coded],
    take: Callable[[Coded], bytes],
    threads: Executor,
    timeline: Timeline,
) -> None:
    """Store the parts of a patch whose head is to be under ``key``, as their groups come: all of a part's, in order.

    ``take`` returns the bytes of a group. All else is as ``store_patch`` has it.
    """

    def parts() -> Iterator[tuple[int, list[bytes]]]:
        for part, groups in groupby(coded, lambda group: part_of(group.entry.group)):
            yield part, list(map(take, groups))

    def upload(part: tuple[int, list[bytes]]) -> None:
        began, (number, data) = timeline.clock(), part
        create(store, part_key(key, number), data)
        timeline.note("upload", began, nbytes=sum(map(len, data)))

    list(ParallelMap(threads, at_once=_PARTS_IN_HAND)(upload, parts()))


def store_head(store: Store, key: str, head: bytes, timeline: Timeline) -> None:
    """Store the head of a patch, all of whose parts are stored, under ``key``."""
    began = timeline.clock()
    create(store, key, head)
    timeline.note("upload", began, nbytes=len(head))
