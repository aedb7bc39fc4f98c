"""Coding of patch groups on a device: the same bytes as those of a model in host memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np
from blake3 import blake3

from pulse_kernels import CoderName
from pulse_kernels.gpu.changes import Changes
from pulse_kernels.gpu.coding.encode import encode_changes
from pulse_kernels.gpu.tiling import Tiling
from pulse_registry.format.directory import Entry
from pulse_registry.format.patch_coding import Coded, CoderChoice, class_pays
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.gpu.tile_table import TileTable
from pulse_registry.weights.digest import Digest


def code_groups(
    stream: DeviceStream,
    table: TileTable,
    changes: Changes,
    sums: Sequence[tuple[Digest, Digest]],
    base: Tiling,
    coder: CoderChoice,
) -> Iterator[Coded]:
    """Code what changes in a tile table; yield its groups in order.

    Args:
        stream: to work on.
        table: whose groups these are.
        changes: of its cells.
        sums: of h over each group's old and new cells.
        base: the old cells; read until the first group is yielded.
        coder: ``auto`` takes for each group the smaller one, where the difference is worth the time; where it is for no
            group, ``class`` is not coded. Only what is taken comes to host memory.
    """
    counts = np.diff(changes.host_offsets)
    changed = np.flatnonzero(counts).tolist()
    first: CoderName = "class" if coder == "class" else "gap"
    names = dict.fromkeys(changed, first)
    with stream.work():
        made = {first: encode_changes(changes, first, base)}
        pays = [n for n in changed if coder == "auto" and class_pays(table.groups[n].cells, made["gap"].size(n))]
        if pays:
            made["class"] = encode_changes(changes, "class", base)
            names |= {n: "class" for n in pays if made["class"].size(n) < made["gap"].size(n)}
        data = {name: stream.download(made[name].data).numpy() for name in set(names.values())}
    for number in changed:
        group, count, name = table.groups[number], int(counts[number]), names[number]
        begin, end = (int(at) for at in made[name].offsets[number : number + 2])
        coded = data[name][begin:end].tobytes()
        yield Coded(Entry(group.number, count, len(coded), name, blake3(coded).digest(), *sums[number]), coded)
