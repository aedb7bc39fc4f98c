"""The ladder: which merged patches and keyframes a run should have, and which of them are missing. Pure.

A *block* is a merged patch of 4, 16, 32, 64, 96, 192, ... versions that begins at a multiple of its *stride*; long ones
overlap, where so few bytes buy shorter routes. Blocks of 2 and 8 versions cost about as much to write as they spare,
unless changes overlap a lot: whether they do is read off the blocks before them. docs/adr/0010 has the figures.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from pulse_registry.errors import InvalidArgument
from pulse_registry.log import RunState
from pulse_registry.log.keyframe_due import keyframe_due
from pulse_schemas import PatchRef

_STRIDES = {
    **{span: span for span in (2, 4, 8, 16, 32, 64)},
    96: 64,
    **dict.fromkeys((192, 384), 128),
    **dict.fromkeys((512, 768, 1024, 1536, 2048, 3072), 256),
}
"""Of blocks of less than 4,096 versions."""
_OVERLAP = {2: 0.43, 8: 0.5}
"""These blocks are made where four patches of half their span, joined, take at most such a share of their bytes."""
_ALWAYS_BY_CLASS = 8
"""Of patches that can't be followed backwards these are always made: routes have too many objects without them."""
_SHORT = 16
_WORTH = 0.8
"""A block is made if its first part takes at most this share of a keyframe's bytes: past it, keyframes do as well."""


@dataclass(frozen=True, slots=True)
class MergeTask:
    """The task of a merged patch: from version ``base`` to version ``target``."""

    base: int
    target: int

    @property
    def versions(self) -> tuple[int, ...]:
        """The versions that it is of."""
        return self.base, self.target

    def __str__(self) -> str:
        return f"the patch {self.base} -> {self.target}"


@dataclass(frozen=True, slots=True)
class KeyframeTask:
    """The task of a keyframe: of version ``target``."""

    target: int

    @property
    def versions(self) -> tuple[int, ...]:
        """The version that it is of."""
        return (self.target,)

    def __str__(self) -> str:
        return f"a keyframe of version {self.target}"


Task = MergeTask | KeyframeTask


@dataclass(frozen=True, slots=True)
class CompactOptions:
    """What a compactor makes beside the ladder.

    Attributes:
        keyframe_every: a keyframe of the newest version once the last one is so many versions old; None: never by that.
        keyframe_share: or once the patches since exceed this share of its bytes; None: never by that.
    """

    keyframe_every: int | None = None
    keyframe_share: float | None = None

    def __post_init__(self) -> None:
        """Check the ranges."""
        if self.keyframe_every is not None and self.keyframe_every < 1:
            raise InvalidArgument(f"keyframe_every is {self.keyframe_every}; it counts versions, from 1 on")
        if self.keyframe_share is not None and not self.keyframe_share > 0:
            raise InvalidArgument(f"keyframe_share is {self.keyframe_share}; it is a share of a keyframe, over 0")


def due(state: RunState, options: CompactOptions, after: int = -1) -> Iterator[Task]:
    """Yield what is missing and ends after version ``after``: by rising target, small blocks first, so that each block
    finds its parts. Whether objects lead from a block's base to its target is for the route search to say.
    """
    limit = state.largest_keyframe
    for entry in state.versions[after + 1 :]:
        target = entry.version
        if state.is_retired(target):
            continue
        for span in spans_into(target):
            base = state.find(target - span)
            if base is None or base.layout != entry.layout or state.is_retired(base.version):
                continue
            if patch_of(state, base.version, target) is None and _pays(state, base.version, span, limit):
                yield MergeTask(base.version, target)
    latest = state.latest
    if latest is not None and latest.version > after and _lacks_keyframe(state, options):
        yield KeyframeTask(latest.version)


def spans_into(target: int) -> list[int]:
    """Return the spans of the ladder's blocks that end at a version, in rising order."""
    spans = itertools.takewhile(lambda span: span <= target, _spans())
    return [span for span in spans if (target - span) % stride(span) == 0]


def stride(span: int) -> int:
    """Return how many versions after a block of a span the next one begins."""
    return _STRIDES[span] if span in _STRIDES else 1 << (span.bit_length() - 3)


def part_of(span: int) -> int:
    """Return the span of the next smaller blocks, which is always made: one begins where any of ``span`` does."""
    return max(other for other in itertools.takewhile(lambda other: other < span, _spans()) if other not in _OVERLAP)


def _spans() -> Iterator[int]:
    yield from _STRIDES
    for k in itertools.count(12):
        yield 1 << k
        yield 3 << (k - 1)


def patch_of(state: RunState, base: int, target: int) -> PatchRef | None:
    """Return the smallest live patch from one version to another, or None."""
    found = [patch for patch in state.patches_into(target) if patch.base == base]
    return min(found, key=lambda patch: patch.size) if found else None


def _lacks_keyframe(state: RunState, options: CompactOptions) -> bool:
    """Tell whether a keyframe of the newest version is due, where there is one from which it can be made."""
    last = None if state.keyframe_lag is None else state.keyframe(state.keyframe_lag.version)
    every, share = options.keyframe_every, options.keyframe_share
    return last is not None and keyframe_due(state, last.size, every=every, share=share)


def _pays(state: RunState, base: int, span: int, limit: int) -> bool:
    """Tell whether a block is worth its bytes, from what was written of the versions before."""
    if span in _OVERLAP:
        step = patch_of(state, base + span - 1, base + span)
        if span == _ALWAYS_BY_CLASS and step is not None and step.coder == "class":
            return True
        return _overlaps(state, base // (2 * span) * (2 * span), span // 2, _OVERLAP[span])
    if span <= _SHORT or not limit:
        return True
    part = patch_of(state, base, base + part_of(span))
    # Without it there is no way through, or it was not worth it either.
    return part is not None and part.size <= _WORTH * limit


def _overlaps(state: RunState, end: int, step: int, share: float) -> bool:
    """Tell whether the block of four steps that ends at a version is much smaller than the four patches together."""
    start = end - 4 * step
    parts = [patch_of(state, version, version + step) for version in range(start, end, step)]
    joined = patch_of(state, start, end)
    sizes = [part.size for part in parts if part is not None]
    return start >= 0 and joined is not None and len(sizes) == 4 and joined.size <= share * sum(sizes)
