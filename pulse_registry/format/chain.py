"""A chain of changes to one group, joined into one: every link is checked at the cells as it finds them.

A link moves cells by distances, so that a wrong base would go on unseen to a wrong end: the sums over the cells before
and after each link are what tells.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from pulse_kernels import Backend, Cells, Index
from pulse_registry.format.change import Change, Delta
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Group
from pulse_registry.weights.digest import Digest


class WrongBase(Exception):
    """The cells are not those that a link starts from."""


@dataclass(frozen=True, slots=True)
class Link:
    """One change on the way, not decoded yet.

    Attributes:
        decode: returns its delta; gets the group's cells as they are before it, if ``needs_base``, else None.
        needs_base: whether decoding does.
        before, after: the sums of h over its cells, as committed.
    """

    decode: Callable[[list[Cells] | None], Delta]
    needs_base: bool
    before: Digest
    after: Digest


def follow(backend: Backend, group: Group, base: Weights, links: Sequence[Link]) -> Change:
    """Return what all links together change of ``base``, which is only read.

    Takes O(changed) memory; a link after the first that needs its base takes a copy of the group's cells.

    Raises:
        WrongBase: a link does not fit the cells that it finds.
    """
    if any(link.needs_base for link in links[1:]):
        return _through_all_cells(backend, group, base, links)
    deltas = [link.decode(base.spans(group) if link.needs_base else None) for link in links]
    if len(links) == 1:
        index = deltas[0].index
        old, new, *sums = base.step(backend, group, index, deltas[0].distance)
        _check(links[0], *sums)
        return Change(group, index, old, new, [(links[0].before, links[0].after)])
    index = _union(backend, [delta.index for delta in deltas])
    old = base.gather(backend, group, index)
    cells = old.copy()
    for link, delta in zip(links, deltas, strict=True):
        _advance(backend, group, link, delta, cells, backend.locate(index, delta.index))
    kept = old != cells
    return Change(group, index[kept], old[kept], cells[kept])


def _through_all_cells(backend: Backend, group: Group, base: Weights, links: Sequence[Link]) -> Change:
    cells = base.copy_of(group)
    for link in links:
        delta = link.decode([cells] if link.needs_base else None)
        _, moved, *sums = backend.step(cells, delta.index, delta.distance, group.cell_type, group.start)
        _check(link, *(Digest(*lanes) for lanes in sums))
        backend.scatter(cells, delta.index, moved)
    return Change(group, *backend.diff(cells, base.copy_of(group)))


def _advance(backend: Backend, group: Group, link: Link, delta: Delta, cells: Cells, places: Index) -> None:
    found = backend.gather(cells, places)
    moved = backend.move(found, delta.distance, group.cell_type)
    _check(link, *(Digest(*backend.digest_sparse(delta.index, values, group.start)) for values in (found, moved)))
    backend.scatter(cells, places, moved)


def _check(link: Link, before: Digest, after: Digest) -> None:
    if (before, after) != (link.before, link.after):
        raise WrongBase


def _union(backend: Backend, lists: list[Index]) -> Index:
    # Pairwise, so that k lists cost O(total log k).
    while len(lists) > 1:
        pairs = [backend.union(*pair) for pair in zip(lists[::2], lists[1::2], strict=False)]
        lists = pairs + lists[len(lists) // 2 * 2 :]
    return lists[0]
