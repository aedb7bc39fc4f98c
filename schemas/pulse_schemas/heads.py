"""Head of a patch object, in its safetensors metadata under the key ``pulse``."""

from __future__ import annotations

from typing import Literal

from pulse_schemas.base import Count, Hash, Schema


class PatchHead(Schema):
    """Of which layout, from which version to which, and how many cells change in how many groups."""

    format: Literal["pulse-patch/2"] = "pulse-patch/2"
    layout: Hash
    base: Count
    target: Count
    changed: Count
    groups: Count
