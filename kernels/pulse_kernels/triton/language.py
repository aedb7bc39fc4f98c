"""Triton's language and its compiler's entry, in the one place that knows that triton ships no types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

__all__ = ["Kernel", "constant", "jit", "tl"]


class Kernel(Protocol):
    """A compiled function: ``kernel[grid](*arguments)`` launches it; other kernels call it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return what launches ``grid`` programs."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Be part of another kernel."""


def jit(function: Callable[..., Any]) -> Kernel:
    """Compile a function at its first launch, or interpret it where TRITON_INTERPRET is set when it is defined."""
    kernel: Kernel = triton.jit(function)
    return kernel


def constant(value: int) -> Any:
    """Return a module's constant as kernels can read it."""
    return tl.constexpr(value)
