"""The sharded worker: ranks that hold slices of the weights, as those of an inference engine do, and pull together.

It serves nothing: it shows that no rank holds more than its part, and that all ranks change at once.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pulse_registry
from pulse_registry import NetworkOptions, Slice
from pulse_registry.demo.messages import Sharded
from pulse_registry.demo.place import Place
from pulse_registry.demo.process import Wires
from pulse_registry.demo.settings import SHARDED
from pulse_registry.demo.slices import slice_of
from pulse_registry.demo.worker import await_first, tell_checked, tell_pulled

if TYPE_CHECKING:
    from torch import Tensor

    from pulse_schemas import Layout

_LOOK_SECONDS = 0.5


def follow(place: Place, wires: Wires, name: str) -> None:
    """Bring all ranks to each version that the first one finds, until the trainer is done. A rank's first function."""
    settings = wires.settings
    with place.joined(2 * settings.patience):
        import torch.distributed

        network = NetworkOptions(peer_timeout_s=settings.patience)
        world = torch.distributed.group.WORLD
        with pulse_registry.open(
            settings.root, run=settings.run, name=SHARDED, network=network, process_group=world
        ) as registry:
            first = await_first(wires, registry)
            held, slices = empty_slices(registry.layout(first.version), place.rank, place.ranks)
            cells = sum(tensor.numel() for tensor in {id(tensor): tensor for tensor in held.values()}.values())
            wires.tell(Sharded(name, place.rank, place.ranks, cells, 2 * cells))
            version: int | None = None
            while True:
                done = wires.finished.is_set()
                newest, done = place.gather((registry.version().version, done))[0]
                if newest != version:
                    result = registry.pull(newest, into=slices)
                    version = tell_pulled(wires, name, "sharded", version, result, held)
                elif done:
                    break
                else:
                    wires.finished.wait(_LOOK_SECONDS)
            tell_checked(wires, name, registry, slices, held)


def empty_slices(layout: Layout, rank: int, ranks: int) -> tuple[dict[str, Tensor], dict[str, Slice]]:
    """Return memory for a rank's part of a layout, in BF16, and the same as slices; tied names have one memory."""
    import torch

    held: dict[str, Tensor] = {}
    slices: dict[str, Slice] = {}
    for tensor in layout.tensors:
        index = slice_of(tensor.name, tensor.shape, rank, ranks)
        held[tensor.name] = torch.zeros([part.stop - part.start for part in index], dtype=torch.bfloat16)
        slices[tensor.name] = Slice(held[tensor.name], of=tensor.shape, at=tuple(part.start for part in index))
    for name, stored in layout.tied.items():
        held[name], slices[name] = held[stored], slices[stored]
    return held, slices
