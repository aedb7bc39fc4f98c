"""Sources of an import: the version folders in a folder, ordered so that each delta follows its base."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.errors import BaseMismatch, CorruptObject, InvalidArgument
from pulse_registry.interop.delta_index import DeltaIndex, number_name, number_of, read_index

FIRST = number_name(0)
"""The name of a checkpoint that has none: the field's readers call what they begin with version 0."""


@dataclass(frozen=True, slots=True)
class Link:
    """One version's folder, and what its index says of it: no more is kept of it, since there may be many folders.

    ``base`` is None for a whole checkpoint, and ``indexed`` false where that lies in one file, without an index.
    """

    folder: Path
    version: str
    base: str | None
    indexed: bool

    def index(self) -> DeltaIndex | None:
        """Return the folder's index, read anew; None where it has none.

        Raises:
            CorruptObject, UnsupportedFormat: it is not what it was.
            InvalidArgument: it can't be read.
        """
        found = read_index(self.folder) if self.indexed else None
        if found is not None and (found.version or FIRST, found.base) == (self.version, self.base):
            return found
        if self.indexed:
            raise CorruptObject(f"{self.folder} was changed while it was imported")
        return None


def find_links(folder: Path) -> list[Link]:
    """Return the folder itself, if it is a version's, or those in it that are.

    Raises:
        InvalidArgument: there is none, or the folder can't be read.
        CorruptObject, UnsupportedFormat: an index can't be read.
    """
    if not folder.is_dir():
        raise InvalidArgument(f"{folder} is not a folder")
    link = _link(folder)
    if link is not None:
        return [link]
    inside = sorted(path for path in folder.iterdir() if path.is_dir() and not path.name.startswith("."))
    links = [link for path in inside if (link := _link(path)) is not None]
    if not links:
        raise InvalidArgument(f"{folder} holds neither a checkpoint or a delta, nor folders of them")
    return links


def ordered(links: Sequence[Link], newest: str | None, known: Collection[str]) -> list[Link]:
    """Return what is to be imported, in order: each delta after its base.

    Args:
        links: what is there.
        newest: name of the run's newest version; None where it has none.
        known: names of all its versions: what is one of them is left out.

    Raises:
        InvalidArgument: two folders are the same version, or build on the same one; or nothing says where to begin.
        BaseMismatch: a delta builds on a version that is neither there nor in the run.
    """
    known = set(known)
    new = [link for link in links if link.version not in known]
    left = {link.version: link for link in new}
    if len(left) < len(new):
        raise InvalidArgument(f"{links[0].folder.parent} has two folders of the same version")
    following: dict[str, list[Link]] = {}
    whole = sorted((link for link in left.values() if link.base is None), key=_rank)
    for link in left.values():
        if link.base is not None:
            following.setdefault(link.base, []).append(link)
    found: list[Link] = []
    while left:
        deltas = [] if newest is None else following.pop(newest, [])
        at = 0 if newest is None else bisect_right(whole, _rank_of(newest), key=_rank)
        if len(deltas) > 1:
            raise InvalidArgument(
                f"{deltas[0].folder} and {deltas[1].folder} both build on version {newest}; remove one"
            )
        if not deltas and at == len(whole):
            break
        found.append(deltas[0] if deltas else whole.pop(at))
        newest = found[-1].version
        del left[newest]
    if left:
        link = min(left.values(), key=_rank)
        if link.base is None:
            raise InvalidArgument(f"{link.folder} is version {link.version}, and the run is at {newest} already")
        raise BaseMismatch(
            f"{link.folder} builds on version {link.base}, which is neither the run's newest ({newest}) nor made by a "
            "folder beside it; import what lies between first"
        )
    return found


def _link(folder: Path) -> Link | None:
    index = read_index(folder)
    if index is None:
        if not (folder / "model.safetensors").exists():
            return None
        return Link(folder, FIRST, None, indexed=False)
    return Link(folder, index.version or FIRST, index.base, indexed=True)


def _rank(link: Link) -> tuple[int, str]:
    return _rank_of(link.version)


def _rank_of(name: str) -> tuple[int, str]:
    number = number_of(name)
    return (number, "") if number is not None and number_name(number) == name else (-1, name)
