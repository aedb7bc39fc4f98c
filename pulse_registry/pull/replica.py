"""Replica state: which version is in a worker's weights, and the steps that undo it; kept as long as the weights."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field
from typing import Any

from pulse_registry.format.sparse_update import ModelUpdate
from pulse_registry.pull.sliced_destination import SliceDigests
from pulse_registry.weights.model import View
from pulse_registry.weights.slice_map import SliceMap


@dataclass(frozen=True, slots=True)
class UndoStep:
    """A step that undoes a version in this worker: the old cells, which lead to the version before it.

    Attributes:
        base, target: the version that it leads from, and the one before.
        update: that it undoes.
        nbytes: of memory; counted once, as all that are kept are summed up at each pull.
    """

    base: int
    target: int
    update: ModelUpdate
    nbytes: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "nbytes", self.update.nbytes)


@dataclass(slots=True)
class ReplicaState:
    """What is known of a worker's weights; it holds on to none of their memory.

    Attributes:
        version: what is in them; None: not known.
        undo: the last few steps, newest last.
        torn: changes whose application was cut off; to store their old cells mends the weights.
        writes: how often the weights have been written.
        pulls: how many versions have been applied to them.
        undone: the version that was applied and then taken back; None: none was, or it was applied again since.
        lock: is held to look at any of it, and to write the weights.
        slices: digests of the cells, where they are slices and ``version`` is known.
        slice_maps: where they lie in the layout that they were last pulled of, by what was asked for.
        pulling: is held by a whole pull, so that of two pulls into the same weights one waits for the other.
    """

    version: int | None = None
    undo: list[UndoStep] = field(default_factory=list)
    torn: ModelUpdate | None = None
    writes: int = 0
    pulls: int = 0
    undone: int | None = None
    slices: SliceDigests | None = None
    slice_maps: dict[Hashable, SliceMap] = field(default_factory=dict)
    lock: threading.RLock = field(default_factory=threading.RLock)
    pulling: threading.RLock = field(default_factory=threading.RLock)

    def forget(self) -> None:
        """Take the weights as holding nothing known."""
        self.version = None
        self.undo = []
        self.torn = None
        self.slices = None

    def now_at(self, version: int, slices: SliceDigests | None = None) -> None:
        """Take the weights as holding ``version``, as a full pass has shown; ``slices`` are the digests of slices."""
        with self.lock:
            if self.version != version or self.torn is not None:
                self.forget()
                self.version = version
            self.slices = slices

    def remember(self, step: UndoStep, limit: int) -> None:
        """Keep an undo step; the oldest ones go while all take more than ``limit`` bytes."""
        self.undo.append(step)
        while self.undo and sum(kept.nbytes for kept in self.undo) > limit:
            del self.undo[0]


class Replicas:
    """Finds the ``ReplicaState`` of weights by their memory, for as long as that memory lives."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._known: dict[Any, tuple[list[weakref.ref[Any]], ReplicaState]] = {}

    def __len__(self) -> int:
        with self._lock:
            return len(self._known)

    def of(self, views: Mapping[str, View]) -> ReplicaState:
        """Return what these weights are known to hold; new ones hold nothing known."""
        # Tensors without cells have no memory, and no address that stays the same.
        stored = [views[name] for name in sorted(views) if views[name].size]
        key = tuple((view.name, view.identity, view.part) for view in stored)
        with self._lock:
            known = self._known.get(key)
            if known is not None and all(ref() is not None for ref in known[0]):
                # The same memory, perhaps seen through new tensor objects.
                return known[1]
            state = ReplicaState()
            self._known = {k: v for k, v in self._known.items() if all(ref() is not None for ref in v[0])}
            self._known[key] = ([weakref.ref(view.owner) for view in stored], state)
            return state
