"""How a trainer publishes: options, each with the range that it is in."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import Literal, get_args

from pulse_registry.errors import InvalidArgument
from pulse_registry.format.exponent_coding import KeyframeCoding
from pulse_registry.format.patch_coding import CoderChoice
from pulse_registry.push.expected import Expected
from pulse_registry.weights.device import ShadowPlace
from pulse_registry.weights.model import PublishDtype
from pulse_registry.weights.nonfinite import NonFinite, check_policy
from pulse_schemas import Layout, Signer

WhenFull = Literal["wait", "coalesce"]
"""What a push does while as many as may be are on their way: it waits for one, or takes the newest one's place."""


@dataclass(frozen=True, slots=True)
class PushOptions:
    """How a trainer publishes.

    Attributes:
        coder: ``gap``, ``class``, or ``auto`` to choose for each group (docs/adr/0004).
        dtype: ``bf16`` publishes float32 tensors rounded to BF16; ``keep`` publishes every tensor as it is.
        keyframe_share: a keyframe follows when the patches since the last one exceed this share of its bytes.
        keyframe_every: a keyframe at least every so many versions; None: by share alone.
        keyframe_coding: ``raw`` stores ordinary checkpoints; ``exponents`` smaller ones, which only this library reads.
        shadow: of a model on a GPU, what was published last stays in its memory, or in pinned ``host`` memory.
        compact: ``inline`` makes merged patches in a background thread; ``off`` leaves them to a compactor elsewhere.
        max_pending: pushes that may be on their way, diffed and not committed yet; each holds what it changed in
            memory, old cells and new ones.
        when_full: what a push does then, before its diff: ``wait`` until one is committed, or has failed; or
            ``coalesce``: its state takes the place of the newest one that has not begun to be stored.
        allow_new_layout: whether a push may have other tensors than the version before it, which makes it a keyframe;
            it is told as an event ``layout_changed``. False raises LayoutMismatch instead.
        expect: what the tensors of the first push, and of one that changes the layout, must be: a `Layout`, or the path
            of a Hugging Face checkpoint: its folder (names and shapes) or its ``model.safetensors.index.json`` (names).
            Others are refused with InvalidModel, before anything is written. None: anything is taken.
        nonfinite: what becomes of weights that are NaN or infinite, of those that a push changes: ``allow`` does not
            look, ``warn`` tells of them as an event, ``refuse`` raises InvalidModel, and nothing is written.
        base: ``RUN@VERSION``, a version of another run of the same root, by number or tag; ``RUN`` is its newest one. A
            run that has no version yet begins with it, as version 0, and the first push is a patch on that: its cells
            are stored once for all runs that begin so. It must have the same tensors. None: the first push is stored
            whole.
        signing_key: signs every record that is written: a key's file, as ``pulse key new`` makes it, a `SigningKey`, or
            whatever else has its method ``sign``; None takes the file from PULSE_SIGNING_KEY, or signs nothing.
    """

    coder: CoderChoice = "auto"
    dtype: PublishDtype = "bf16"
    keyframe_share: float = 0.5
    keyframe_every: int | None = None
    keyframe_coding: KeyframeCoding = "raw"
    shadow: ShadowPlace = "device"
    compact: Literal["off", "inline"] = "off"
    max_pending: int = 2
    when_full: WhenFull = "wait"
    allow_new_layout: bool = True
    expect: Expected | None = None
    nonfinite: NonFinite = "allow"
    base: str | None = None
    signing_key: Signer | str | os.PathLike[str] | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        """Check the ranges."""
        check_policy(self.nonfinite)
        if self.coder not in ("auto", "gap", "class"):
            raise InvalidArgument(f"coder is {self.coder!r}; it is one of auto, gap, class")
        if self.shadow not in ("device", "host"):
            raise InvalidArgument(f"shadow is {self.shadow!r}; it is one of device, host")
        if self.compact not in ("off", "inline"):
            raise InvalidArgument(f"compact is {self.compact!r}; it is one of off, inline")
        if self.dtype not in ("bf16", "keep"):
            raise InvalidArgument(f"dtype is {self.dtype!r}; it is one of bf16, keep")
        if not self.keyframe_share > 0:
            raise InvalidArgument(
                f"keyframe_share is {self.keyframe_share}; it is a share of a keyframe's bytes, over 0"
            )
        if self.keyframe_coding not in ("raw", "exponents"):
            raise InvalidArgument(f"keyframe_coding is {self.keyframe_coding!r}; it is one of raw, exponents")
        if self.keyframe_every is not None and self.keyframe_every < 1:
            raise InvalidArgument(f"keyframe_every is {self.keyframe_every}; it counts versions, from 1 on")
        if not isinstance(self.expect, Layout | str | os.PathLike | None):
            raise InvalidArgument(f"expect is {self.expect!r}; it is a Layout, or a path")
        if self.max_pending < 1:
            raise InvalidArgument(f"max_pending is {self.max_pending}; it counts pushes, from 1 on")
        if self.when_full not in get_args(WhenFull):
            raise InvalidArgument(f"when_full is {self.when_full!r}; it is one of {', '.join(get_args(WhenFull))}")
