"""What a push stalls the trainer: the advance of the library's shadow, after which the weights may change again.

It returns when the device has read the weights. Coding and the shadow's own step go on behind it and are waited for
outside of the time.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import cycle

import torch

from benchmarks.gpu.clock import Spent, measured
from benchmarks.gpu.policy import Policy
from pulse_kernels import get_backend
from pulse_kernels.gpu.apply import scatter, undo
from pulse_kernels.gpu.changes import Changes
from pulse_registry.context import Context
from pulse_registry.push.shadow import Advance, first_shadow
from pulse_registry.store import open_store
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.device import ShadowPlace
from pulse_registry.weights.model import layout_of, read_model


def measure_stall(policy: Policy, changes: Changes, place: ShadowPlace, repeats: int) -> Spent:
    """Advance a shadow, forwards and backwards by turns, while the policy's new state changes in place.

    Args:
        policy: ``old`` is let go of, to make room for the shadow; ``new`` holds the new state before and after.
        changes: from old to new.
        place: where the shadow is.
        repeats: how often.
    """
    policy.old.clear()
    live = policy.tiles.over(policy.new)
    views = read_model({f"t{number:05d}": cells.view(torch.bfloat16) for number, cells in enumerate(policy.new)})
    turns = cycle((undo, scatter))
    advances: list[Advance] = []
    with ThreadPoolExecutor(2) as pool:
        store = open_store("memory://benchmark")
        context = Context(store, get_backend(), pool, pool, None)
        shadow = first_shadow(context, lambda _: policy.device, Geometry(layout_of(views, "keep")), views, 0, place)

        def change() -> None:
            for done in advances:
                if sum(coded.entry.changed for coded in done.coded()) != len(changes):
                    raise AssertionError("the push does not carry all changes")
                shadow.settle(done.version)
            advances.clear()
            next(turns)(live, changes)

        def advance() -> None:
            advances.append(shadow.advance(views, "gap", Timeline()))

        change()
        spent = measured(policy.device, advance, repeats, after=change, returned=True)
        scatter(live, changes)
    return spent
