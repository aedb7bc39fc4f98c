"""Expected layout of a push: which of its tensors a reference lacks, has besides, or has in another shape.

Names that are wrong in the same way on all ranks contradict nothing: stages of a pipeline that each count their layers
from 0 make a model of other tensors, that is whole in itself. Only something from outside tells.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TypeAlias

from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.push.checkpoint_index import IndexFault, parse_index_file, read_index_file
from pulse_registry.push.checkpoint_source import read_checkpoint
from pulse_registry.quoting import quoted
from pulse_schemas import Layout, VersionEntry

Expected: TypeAlias = "Layout | str | os.PathLike[str]"
"""A layout; or a Hugging Face checkpoint, by its folder or file (names and shapes), or its index (names)."""

_NAMED = 5
"""Tensors of each kind that a message names."""


def check_expected(expected: Expected | None, layout: Layout, newest: VersionEntry | None) -> None:
    """Check the layout of a push that begins a run, or changes the layout, against what is expected.

    Args:
        expected: None: anything.
        layout: of the push.
        newest: the version before it. If that has the layout, nothing is checked.

    Raises:
        InvalidModel: tensors are missing, unknown, or of another shape, or dtype if a layout says it: they are named.
        InvalidArgument: what is expected can't be read.
    """
    if expected is None or (newest is not None and newest.layout == layout.id):
        return
    if isinstance(expected, Layout):
        known: dict[str, str | None] = {
            tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in expected.tensors
        }
        own = {tensor.name: f"{tensor.dtype} {list(tensor.shape)}" for tensor in layout.tensors}
        known |= {alias: known[name] for alias, name in expected.tied.items()}
        tied, source = expected.tied, "the expected layout"
    else:
        known, tied, source = _of_checkpoint(Path(expected)), {}, str(expected)
        own = {tensor.name: str(list(tensor.shape)) for tensor in layout.tensors}
    if found := _differences(own, layout.tied, known, tied):
        raise InvalidModel(f"the model has other tensors than {source}: {'; '.join(found)}. Nothing was written")


def _of_checkpoint(path: Path) -> dict[str, str | None]:
    """Return the shapes of a checkpoint's tensors, as text; None where its index alone is read."""
    if path.suffix != ".json":
        return {name: str(list(tensor.shape)) for name, tensor in read_checkpoint(path).items()}
    try:
        return dict.fromkeys(parse_index_file(read_index_file(path))[1])
    except IndexFault as error:
        raise InvalidArgument(f"expect: {path} is no checkpoint's index: {error}") from error
    except OSError as error:
        raise InvalidArgument(f"expect: {path} can't be read: {error.strerror or error}") from error


def _differences(
    own: Mapping[str, str], tied: Mapping[str, str], known: Mapping[str, str | None], known_tied: Mapping[str, str]
) -> list[str]:
    """Return what differs, in words. Of names that are tied, either side may have any."""
    groups: dict[str, list[str]] = {name: [name] for name in own}
    for alias, name in tied.items():
        groups[name].append(alias)
    there = {name for names in groups.values() for name in names}
    again: dict[str, list[str]] = {}
    for name in known:
        again.setdefault(known_tied.get(name, name), []).append(name)
    missing = [first for first, names in again.items() if there.isdisjoint(names)]
    unknown, other = [], []
    for first, names in groups.items():
        match = next((name for name in names if name in known), None)
        if match is None:
            unknown.append(first)
        elif known[match] not in (None, own[first]):
            other.append(f"{quoted(match)} is {own[first]}, and {known[match]} is expected")
    told = [_told(map(quoted, missing), "missing"), _told(map(quoted, unknown), "unknown")]
    return [one for one in (*told, _told(other, "of another shape or dtype")) if one]


def _told(found: Iterable[str], what: str) -> str:
    names = sorted(found)
    more = f", and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
    return f"{len(names)} {what}: {', '.join(names[:_NAMED])}{more}" if names else ""
