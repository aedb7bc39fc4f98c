"""Typed access to Triton's language and its compiler, since triton ships no types."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, Protocol

import torch
import triton  # type: ignore[import-untyped]
import triton.language as tl  # type: ignore[import-untyped]

__all__ = ["Kernel", "constant", "jit", "registers", "tl"]


class Kernel(Protocol):
    """A compiled function: ``kernel[grid](*arguments)`` launches it; other kernels call it."""

    def __getitem__(self, grid: tuple[int, ...]) -> Callable[..., Any]:
        """Return a launcher of ``grid`` programs."""

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        """Call the kernel from another kernel."""


def jit(function: Callable[..., Any]) -> Kernel:
    """Compile a function at its first launch, or interpret it where TRITON_INTERPRET is set when it is defined.

    Triton compiles it again for other types and constants; for each pointer, where it lies at a multiple of 16 bytes
    and where not; for each number, where it is 1, or 16 divides it, and where not. So that no step compiles what the
    ones before did not, numbers are annotated with their type (``tl.int32``), and compiled in one way; and so are
    tensors that may be a part of another, and begin anywhere: ``tl.pointer_type``. Kernels read those from a place on
    that they have loaded, so that there is nothing to gain. All others begin where a new tensor does.
    """
    parameters = inspect.signature(function).parameters.values()
    numbers = [each.name for each in parameters if str(each.annotation).startswith("tl.int")]
    parts = [each.name for each in parameters if each.annotation == "tl.pointer_type"]
    kernel: Kernel = triton.jit(function, do_not_specialize=numbers, do_not_specialize_on_alignment=parts)
    return kernel


def constant(value: float) -> Any:
    """Return a module's constant as kernels can read it."""
    return tl.constexpr(value)


def registers(most: int) -> dict[str, int]:
    """Return the option of a launch that gives a thread at most so many registers, so that more programs run at once.

    Only NVIDIA's compiler takes it.
    """
    return {"maxnreg": most} if torch.version.cuda else {}
