"""Holdings: what each rank of a sharded model holds, the layout of all of them, and who speaks for which cells.

A cell that several ranks hold is diffed, and kept in a shadow, by one of them: boxes that are held more than once are
cut along their first dimension, a piece for each holder.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from blake3 import blake3
from pydantic import ValidationError

from pulse_kernels import CELL_TYPES, Backend, Cells
from pulse_registry.errors import InvalidModel, UnsupportedFormat
from pulse_registry.peers.peers import COORDINATOR, Peers
from pulse_registry.peers.shuffle import holders
from pulse_registry.peers.vote import Attempt
from pulse_registry.process.cycle_collector import cycles_kept
from pulse_registry.process.parallel import Map
from pulse_registry.pull.together import covers
from pulse_registry.push.gaps import what_is_amiss
from pulse_registry.weights.box import Box
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import View
from pulse_registry.weights.reading import Derived
from pulse_registry.weights.slice_map import SliceMap
from pulse_schemas import DTYPE_ORDER, Dtype, Layout, Tensor, faults

HASH: Final = 16
_DIGEST: Final = struct.Struct("<2Q")


@dataclass(frozen=True, slots=True)
class Holding:
    """One box that this rank holds of a tensor.

    Attributes:
        name: of the tensor, as it is stored.
        box: the cells.
        view: where they are.
    """

    name: str
    box: Box
    view: View


@dataclass(frozen=True, slots=True, eq=False, weakref_slot=True)
class Spoken:
    """What this rank speaks for.

    Attributes:
        slices: where these cells lie in the layout of all ranks.
        sources: of each tensor of the local layout that has cells, the name of the view that it is a run of, and the
            first cell of that run.
        replicated: boxes that other ranks hold, too, whole, as this rank holds them: what a replica check compares.
        numbers: of the tensors of the local layout, by name.
    """

    slices: SliceMap
    sources: Sequence[tuple[str, int]]
    replicated: tuple[Holding, ...]
    numbers: Mapping[str, int]

    def live(self, views: Mapping[str, View]) -> Mapping[str, View]:
        """Return the cells that it speaks for as they are now, by name in the local layout."""
        local = self.slices.local
        tensors, sizes = local.layout.tensors, local.sizes
        if not self.sources:
            return {tensor.name: _nothing(tensor.dtype) for tensor in tensors}

        def cut(local_name: str) -> View:
            number = numbers[local_name]
            name, first = self.sources[number]
            return _cut(views[name], first, sizes[number])

        numbers = self.numbers
        return Derived(views, self, numbers, cut)


@cycles_kept()
def fingerprint(views: Mapping[str, View]) -> bytes:
    """Return a hash of what a rank holds: the same for as long as it is the same cells of the same tensors.

    Wherever these are in memory, and with the same names tied: models with one fingerprint have one `layout_of`.
    """
    seen: dict[tuple[Any, ...], int] = {}
    names: list[str] = []
    numbers: list[int] = []
    for view in views.values():
        part, shape = view.part, view.shape
        names += (view.name, view.dtype) if part is None else (view.name, view.dtype, part.name)
        numbers += (len(shape), *shape)
        box = None
        if part is not None:
            box = part.box
            numbers += (len(part.shape), *part.shape, len(box.shape), *box.shape, *box.offsets, *box.sizes)
        numbers.append(seen.setdefault((view.identity, box), len(seen)) if 0 not in shape else -1)
        numbers.append(-2 if part is None else -3)
    numbers += map(len, names)
    text = "".join(names).encode(errors="surrogatepass")
    return blake3(text + np.array(numbers, np.int64).tobytes()).digest(HASH)


def union(peers: Peers, mine: Layout, views: Mapping[str, View]) -> Layout:
    """Return the layout of what all ranks hold together; a collective.

    Raises:
        InvalidModel: on all ranks: two of them have one name with two shapes or dtypes, or tied in two ways.
    """
    attempt, own = Attempt(peers), mine.canonical()
    body = b"\n".join([own, *sorted(name.encode() for name in _without_cells(views))])
    prints = peers.all_gather(blake3(body).digest(HASH), "layout")
    first = prints.index(prints[peers.rank]) == peers.rank
    bodies = peers.gather(body if first else b"", "layouts")
    joined = attempt.run(lambda: b"" if bodies is None else _joined(bodies).canonical(), b"")
    whole = peers.broadcast(joined if peers.rank == COORDINATOR else None, "layout of all")
    attempt.agree("layout of all")
    return mine if whole == own else _parsed(whole, COORDINATOR)


def speak(peers: Peers, geometry: Geometry, views: Mapping[str, View], backend: Backend, map_: Map) -> Spoken:
    """Find out what this rank speaks for, and that all ranks together speak for each cell once; a collective.

    Raises:
        InvalidModel: on all ranks: a cell is held by no rank, or boxes overlap without being equal.
    """
    attempt = Attempt(peers)
    nothing: list[Holding] = []
    holdings = attempt.run(lambda: _holdings(geometry, views), nothing)
    hashes = [hash_of(holding) for holding in holdings]
    places = holders(peers, hashes, attempt, "boxes")
    attempt.agree("boxes")
    empty: list[Spoken] = []
    made = attempt.run(lambda: [_spoken(geometry, holdings, places)], empty)
    attempt.agree("slices")
    [spoken] = made
    if not covers(peers, spoken.slices, None, backend, map_):
        tensors = {tensor.name: number for number, tensor in enumerate(geometry.layout.tensors)}
        raise InvalidModel(what_is_amiss(peers, geometry, [(tensors[one.name], one.box) for one in holdings]))
    return spoken


def _without_cells(views: Mapping[str, View]) -> set[str]:
    """Return the names of tensors of which there is no cell here: whether they are tied can't be told."""
    names: dict[str, bool] = {}
    for view in views.values():
        name = view.name if view.part is None else view.part.name
        names[name] = names.get(name, False) or bool(view.size)
    return {name for name, held in names.items() if not held}


def _joined(bodies: Sequence[bytes]) -> Layout:
    """Return the layout of all ranks' tensors, from those that were sent."""
    tensors: dict[str, tuple[Tensor, int]] = {}
    tied: dict[str, tuple[str, int]] = {}
    unknown: dict[str, set[int]] = {}
    for rank, body in enumerate(bodies):
        if not body:
            continue
        head, *empties = body.split(b"\n")
        layout = _parsed(head, rank)
        for empty in empties:
            unknown.setdefault(empty.decode(), set()).add(rank)
        for tensor in layout.tensors:
            known, first = tensors.setdefault(tensor.name, (tensor, rank))
            if known != tensor:
                raise InvalidModel(
                    f"tensor {tensor.name!r} is {known.dtype} {list(known.shape)} on rank {first}, and {tensor.dtype} "
                    f"{list(tensor.shape)} on rank {rank}"
                )
        for alias, name in layout.tied.items():
            target, first = tied.setdefault(alias, (name, rank))
            if target != name:
                raise InvalidModel(
                    f"tensor {alias!r} is tied to {target!r} on rank {first}, and to {name!r} on rank {rank}"
                )
    for alias, (name, rank) in tied.items():
        if alias in tensors:
            _, other = tensors[alias]
            if other not in unknown.get(alias, ()):
                raise InvalidModel(f"tensor {alias!r} is tied to {name!r} on rank {rank}, and is not on rank {other}")
            del tensors[alias]
    found = sorted((tensor for tensor, _ in tensors.values()), key=lambda t: (DTYPE_ORDER.index(t.dtype), t.name))
    try:
        return Layout(tensors=tuple(found), tied={alias: name for alias, (name, _) in tied.items()})
    except ValidationError as error:
        raise InvalidModel(f"the ranks' tensors make no valid layout: {faults(error, 'layout')}") from error


@cycles_kept()
def _parsed(body: bytes, rank: int) -> Layout:
    try:
        return Layout.parse(body)
    except ValueError as error:
        raise UnsupportedFormat(
            f"rank {rank} sent a layout that this release does not read: have all ranks run the same release"
        ) from error


@cycles_kept()
def _holdings(geometry: Geometry, views: Mapping[str, View]) -> list[Holding]:
    """Return the boxes that a rank holds cells of; what is tied once."""
    found: dict[tuple[str, Box], Holding] = {}
    for view in views.values():
        name = view.name if view.part is None else view.part.name
        name = geometry.layout.tied.get(name, name)
        box = Box.of(view.shape, (0,) * len(view.shape), view.shape) if view.part is None else view.part.box
        if box.cells:
            found.setdefault((name, box), Holding(name, box, view))
    return list(found.values())


def hash_of(holding: Holding) -> bytes:
    """Return a hash of which cells a holding is of, the same on all ranks."""
    box = holding.box
    return blake3(repr((holding.name, box.shape, box.offsets, box.sizes)).encode()).digest(HASH)


@cycles_kept()
def _spoken(geometry: Geometry, holdings: Sequence[Holding], places: Sequence[tuple[int, int]]) -> Spoken:
    layout = geometry.layout.tensors
    tensors = {tensor.name: number for number, tensor in enumerate(layout)}
    pieces: list[tuple[int, Box, str, int]] = []
    replicated: list[Holding] = []
    for holding, (number, of) in zip(holdings, places, strict=True):
        if of > 1:
            replicated.append(holding)
        box, first = (holding.box, 0) if of == 1 else _share(holding.box, number, of)
        if box.cells:
            pieces.append((tensors[holding.name], box, holding.view.name, first))
    pieces.sort(key=_tensor_and_offsets)  # by dtypes, too, as the layout's tensors are
    sources = [(name, first) for _, _, name, first in pieces]
    boxes = [(tensor, box) for tensor, box, _, _ in pieces]
    if not boxes:  # a layout has at least one tensor, and a rank of many may speak for no cell
        boxes = [(0, Box((geometry.sizes[0],), (0,), (0,)))]
    found = [
        Tensor(name=f"{number:09d}", dtype=layout[tensor].dtype, shape=(box.cells,))
        for number, (tensor, box) in enumerate(boxes)
    ]
    numbers = {tensor.name: number for number, tensor in enumerate(found)}
    return Spoken(SliceMap(geometry, Layout(tensors=tuple(found)), boxes, {}), sources, tuple(replicated), numbers)


def _tensor_and_offsets(piece: tuple[int, Box, str, int]) -> tuple[int, tuple[int, ...]]:
    return piece[0], piece[1].offsets


def _share(box: Box, number: int, of: int) -> tuple[Box, int]:
    """Return the piece of a box that its holder of this number speaks for, and its first local index."""
    rows, inside = box.sizes[0], box.cells // max(1, box.sizes[0])
    first, stop = rows * number // of, rows * (number + 1) // of
    sizes, offsets = (stop - first, *box.sizes[1:]), (box.offsets[0] + first, *box.offsets[1:])
    return Box.of(box.shape, offsets, sizes), first * inside


def _cut(view: View, first: int, cells: int) -> View:
    """Return a run of a view's cells, row-major, as a view of one dimension; all of a host's as it is.

    Of cells that don't lie end to end it is a copy.
    """
    if (first, cells) == (0, view.size) and (len(view.shape) == 1 or view.on_host):
        return view
    tensor = view.tensor
    in_place = not view.copied and (view.cells.flags.c_contiguous if tensor is None else tensor.is_contiguous())
    if tensor is not None and (in_place or not view.on_host):
        tensor = tensor.reshape(-1)[first : first + cells]
    identity = (*view.identity, first, cells)

    def part(start: int, stop: int) -> Cells:
        return view.span(first + start, first + stop)

    return View(
        view.name, view.dtype, (cells,), not in_place, view.owner, identity, tensor, lambda: part(0, cells), part
    )


def _nothing(dtype: Dtype) -> View:
    empty = np.empty(0, CELL_TYPES[dtype].dtype)
    return View("none", dtype, (0,), False, empty, (0, dtype), None, lambda: empty)
