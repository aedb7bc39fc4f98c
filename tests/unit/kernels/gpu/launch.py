"""How a kernel is launched, as much of it as compiling needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Launch:
    """One way in which a kernel is launched.

    Attributes:
        kernel: module and name, such as ``diff.find_changes``.
        arguments: ``name:type`` of each, with spaces between.
        constants: what is compiled in.
        warps: of a program.
        holds: PTX instructions that must be there: what makes it fast, such as loads of 16 bytes.
        shared: the most bytes of shared memory; none that a change of layout would take, say.
        fused: whether products and sums may become fused multiply-adds.
    """

    kernel: str
    arguments: str
    constants: dict[str, Any] = field(default_factory=dict)
    warps: int = 1
    holds: tuple[str, ...] = ()
    shared: int | None = None
    fused: bool = True
