"""Sharing: a run refers to a base of the root, which is made of a keyframe if it is not there."""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import partial
from itertools import takewhile
from typing import Final, NamedTuple

from pulse_registry.bases.content import base_id, content_hash, file_name
from pulse_registry.bases.copying import copy_if_absent
from pulse_registry.errors import NotFound
from pulse_registry.format import keys
from pulse_registry.log import StoreClock
from pulse_registry.process.parallel import Map
from pulse_registry.store import PrefixStore, Store
from pulse_schemas import KeyframeRef, ObjectRef

LOOK_SECONDS: Final = 600.0
"""A collector deletes no file of a base later than this after it looked for references, by the store's clock."""
_MARK: Final = b"pulse\n"


class Shared(NamedTuple):
    """The base that a run refers to, and how many of its files are not copied yet."""

    base: str
    missing: int


def share(
    root: Store,
    run: str,
    source: Store,
    layout: str,
    digest: str,
    keyframe: KeyframeRef,
    spent: Collection[str] = (),
    *,
    each: Map = map,
    enough: Callable[[], bool] = lambda: False,
) -> Shared:
    """Let a run refer to the base that holds a keyframe's cells, and return it.

    The base is made if it is not there. Idempotent; safe when several do it at the same moment, or one dies between:
    then a run has a reference that no record of its needs, which its collector finds.

    Args:
        root: the store of all runs: the bucket itself; of several, the run's home alone.
        run: that is to name the base.
        source: where the keyframe lies: the store of its run.
        layout: id of the keyframe's layout.
        digest: its state digest.
        keyframe: to be shared.
        spent: bases that the run's log has retired: it names none of them again.
        each: how to copy several files: `map`, or a parallel one.
        enough: whether to begin no more copies: to share again goes on.

    Raises:
        CorruptObject: the keyframe, or what lies in the base, is damaged.
        NotFound, AccessDenied, StoreUnavailable: as the store.
    """
    content, generation = content_hash(layout, digest, keyframe), 0
    while (base := base_id(content, generation)) in spent or not refer(root, run, base):
        generation += 1
    files = (*keyframe.shards, keyframe.index)
    done = sum(1 for _ in each(partial(_copied, root, base, source), takewhile(lambda _: not enough(), files)))
    return Shared(base, len(files) - done)


def refer(root: Store, run: str, base: str) -> bool:
    """Put a run's reference to a base; tell whether the base may be named, which it may not if it is closed.

    A reference to one that is closed is left to the run's collector: another trainer of the run may rely on it.
    """
    if root.exists(keys.closed_key(base)):
        return False
    root.put(f"{run}/{keys.reference_key(base)}", _MARK)  # anew: its age counts from the last one who needed it
    return not root.exists(keys.closed_key(base))


def seconds_to_keep(root: Store, run: str, base: str) -> float:
    """Put a run's reference to a base that it must name, whatever became of that here, as the record of a copy does.

    A closed base is kept by a reference, too, but for collectors that looked before it was put, and may still delete.

    Returns:
        For how many seconds more that may be, by the store's clock: the run may name the base after that. 0: now.
    """
    if refer(root, run, base):
        return 0.0
    clock, reference = StoreClock(PrefixStore(root, run)), keys.reference_key(base)
    try:
        put = clock.written(reference)
    except NotFound:
        root.put(f"{run}/{reference}", _MARK)
        put = clock.written(reference)
    return max(0.0, 2 * LOOK_SECONDS - (clock.now() - put).total_seconds())


def close(root: Store, base: str) -> None:
    """Let a base take no new references, for ever."""
    root.put(keys.closed_key(base), _MARK)


def _copied(root: Store, base: str, source: Store, item: ObjectRef) -> None:
    copy_if_absent(source, item, root, keys.base_key(base, file_name(item)))
