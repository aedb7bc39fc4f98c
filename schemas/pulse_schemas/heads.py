"""Heads of patches, contributions and checkpoints, in their safetensors metadata under the key ``pulse``."""

from __future__ import annotations

from typing import Literal

from pulse_schemas.base import Count, Digest, Hash, Schema
from pulse_schemas.objects import Values


class PatchHead(Schema):
    """Of which layout, from which version to which, and how many cells change in how many groups."""

    format: Literal["pulse-patch/2"] = "pulse-patch/2"
    layout: Hash
    base: Count
    target: Count
    changed: Count
    groups: Count


class ContributionHead(Schema):
    """Of which layout and weights, for which round of which run's member, and how many cells have a level.

    ``base``: digest of the BF16 weights by whose classes it is coded. ``values``: what is sent of a cell: a level, that
    many times 2 to ``exponent``, or a float32 value, of which ``exponent`` says nothing.
    """

    format: Literal["pulse-contribution/1"] = "pulse-contribution/1"
    layout: Hash
    base: Digest
    round: Count
    member: str
    values: Values
    exponent: int
    changed: Count
    groups: Count


class MergedHead(Schema):
    """Of which layout, weights and round, and how many cells have a total, as an integer of so many bits.

    A total is of all members' levels by their weights, in steps of 2 to ``exponent``.
    """

    format: Literal["pulse-merged/1"] = "pulse-merged/1"
    layout: Hash
    base: Digest
    round: Count
    bits: Literal[16, 32, 64]
    exponent: int
    changed: Count
    groups: Count


class CheckpointHead(Schema):
    """Of which layout and round, and how many cells of how many groups the rounds have touched.

    ``base``: digest of the BF16 weights beside which the float32 ones are coded.
    """

    format: Literal["pulse-checkpoint/1"] = "pulse-checkpoint/1"
    layout: Hash
    base: Digest
    round: Count
    changed: Count
    groups: Count
