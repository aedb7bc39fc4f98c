"""Roots with a run, and copies of them: compared key by key, and watched after every operation."""

from __future__ import annotations

from blake3 import blake3

from pulse_registry.format import keys
from pulse_registry.log import LogReader, RunState
from pulse_registry.log.named_objects import files_of
from pulse_registry.mirror import Mirror
from pulse_registry.store import PrefixStore, RetryStore, Store
from pulse_registry.store.wrappers.retry import RetryPolicy
from tests.support.clock import Clock
from tests.support.records import DictStore
from tests.support.registries import RUN

OWN = (f"{RUN}/{keys.MIRROR}", f"{RUN}/{keys.HOME}", f"{RUN}/{keys.CLOCK}", f"{RUN}/{keys.LEASES}")
"""Keys of the run that a root has for itself."""


def tree(store: DictStore) -> dict[str, bytes]:
    """Return what a root has of the run, without what is its own."""
    return {key: data for key, data in store.objects.items() if key.startswith(f"{RUN}/") and not key.startswith(OWN)}


def retrying(store: Store) -> Store:
    """Repeat no call: what fails is seen at once."""
    clock = Clock()
    return RetryStore(store, RetryPolicy(total_s=0.0, clock=clock, sleep=clock.sleep))


def mirror(source: Store, destination: Store, **options: object) -> Mirror:
    """Return a mirror of the run whose calls are made once."""
    return Mirror(source, destination, RUN, retrying=retrying, **options)  # type: ignore[arg-type]


def copy(source: Store, destination: Store, **options: object) -> None:
    """Copy all that there is."""
    with mirror(source, destination, **options) as one:
        one.catch_up()


def whole_log(store: Store) -> LogReader:
    """Return a reader of the run's log in a root, from the first record on."""
    return LogReader(PrefixStore(store, RUN), RUN, whole=True)


def missing(newest: RunState, state: RunState, destination: DictStore) -> list[str]:
    """Return the objects that a copy's state names, and its source's newest one has not retired, and that are lost.

    What is there is whole. References to shared bases are among them.
    """
    named = [patch.object for patch in state.patches] + [one for frame in state.keyframes for one in files_of(frame)]
    lost = []
    for ref in named:
        data = destination.objects.get(keys.below_root(RUN, ref.key))
        if data is None or blake3(data).hexdigest() != ref.blake3:
            lost += [ref.key] if data is not None or newest.is_live(ref.key) else []
    bases = {frame.base for frame in state.keyframes if frame.base is not None and newest.is_live(frame.index.key)}
    lost += [key for key in map(keys.reference_key, sorted(bases)) if f"{RUN}/{key}" not in destination.objects]
    lost += [
        key
        for entry in state.versions_since(0)
        if not newest.is_retired(entry.version) and not state.is_retired(entry.version)
        for key in [keys.layout_key(entry.layout)]
        if f"{RUN}/{key}" not in destination.objects
    ]
    return lost
