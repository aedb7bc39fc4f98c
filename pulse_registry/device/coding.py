"""Coding what changed on a device: patches' groups, the same bytes as those that a model in host memory gives."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from blake3 import blake3

from pulse_kernels import CoderName
from pulse_kernels.triton.changes import Changes
from pulse_kernels.triton.codes_encode import CodedGroups, encode_changes
from pulse_kernels.triton.sheet import Sheet
from pulse_registry.device.lane import Lane
from pulse_registry.device.parts import Part
from pulse_registry.digest import Digest
from pulse_registry.patch import Coded, CoderChoice, Entry, class_pays

_CODERS: dict[CoderChoice, tuple[CoderName, ...]] = {"gap": ("gap",), "class": ("class",), "auto": ("gap", "class")}


def code_part(
    lane: Lane,
    part: Part,
    changes: Changes,
    sums: Sequence[tuple[Digest, Digest]],
    base: Sheet,
    coder: CoderChoice,
) -> Iterator[Coded]:
    """Code what changes in a part; yield its groups in order.

    Args:
        lane: to work on.
        part: whose groups these are.
        changes: of its cells.
        sums: of h over each group's old and new cells.
        base: the old cells; read until the first group is yielded.
        coder: ``auto`` takes for each group the smaller one, where the difference is worth the time.
    """
    with lane.work():
        made = {name: encode_changes(changes, name, base) for name in _CODERS[coder]}
        data = {name: lane.download(groups.data).numpy() for name, groups in made.items()}
    for number, group in enumerate(part.groups):
        count = int(changes.host_offsets[number + 1] - changes.host_offsets[number])
        if not count:
            continue
        name = _choose(made, number, group.cells)
        begin, end = (int(at) for at in made[name].offsets[number : number + 2])
        coded = data[name][begin:end].tobytes()
        yield Coded(Entry(group.number, count, len(coded), name, blake3(coded).digest(), *sums[number]), coded)


def _choose(made: dict[CoderName, CodedGroups], number: int, cells: int) -> CoderName:
    sizes = {name: int(groups.offsets[number + 1] - groups.offsets[number]) for name, groups in made.items()}
    if len(sizes) > 1 and (not class_pays(cells, sizes["gap"]) or sizes["gap"] <= sizes["class"]):
        return "gap"
    return list(sizes)[-1]
