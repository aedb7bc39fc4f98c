"""Compiles every kernel: ``python -m tests.unit.kernels.gpu.compiled 90 gfx942``, ``... all 80 90``. It needs no GPU.

Each is compiled in all ways in which it is launched for the first target, or, with ``all``, for every one; else in one
way for the others.

A program of its own, because the kernels are interpreted in the process that runs the tests.
"""

from __future__ import annotations

import inspect
import pkgutil
import sys
from collections.abc import Iterator
from importlib import import_module
from types import ModuleType
from typing import Any

import triton  # type: ignore[import-untyped]
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.compiler import ASTSource  # type: ignore[import-untyped]

import pulse_kernels.gpu
from tests.unit.kernels.gpu import launches_cells, launches_codes
from tests.unit.kernels.gpu.launch import Launch

PREFIX = "pulse_kernels.gpu."
KERNELS: list[Launch] = [*launches_cells.KERNELS, *launches_codes.KERNELS]


def modules() -> Iterator[ModuleType]:
    """Import every module of the package."""
    for found in pkgutil.walk_packages(pulse_kernels.gpu.__path__, PREFIX):
        yield import_module(found.name)


def launched() -> set[str]:
    """Return the name of every kernel that is launched: those that return nothing; the rest are parts of them."""
    names = set()
    for module in modules():
        for name, value in vars(module).items():
            function = getattr(value, "fn", None)
            if not inspect.isfunction(function) or function.__module__ != module.__name__:
                continue
            if inspect.signature(function).return_annotation == "None":
                names.add(f"{module.__name__.removeprefix(PREFIX)}.{name}")
    return names


def target(name: str) -> GPUTarget:
    """Return NVIDIA's target of a capability (90), or AMD's of a name (gfx942)."""
    return GPUTarget("hip", name, 64) if name.startswith("gfx") else GPUTarget("cuda", int(name), 32)


def compile_launch(launch: Launch, name: str) -> Any:
    """Compile one launch down to machine code."""
    module, _, function = launch.kernel.rpartition(".")
    kernel = getattr(import_module(f"{PREFIX}{module}"), function)
    given = dict(argument.split(":") for argument in launch.arguments.split())
    signature = {argument: given.get(argument, "constexpr") for argument in kernel.arg_names}
    source = ASTSource(kernel, signature, constexprs=launch.constants)
    options = {"num_warps": launch.warps, "enable_fp_fusion": launch.fused}
    return triton.compile(source, target=target(name), options=options)


def faults(launch: Launch, name: str) -> Iterator[str]:
    """Compile a launch; yield what it was to be and is not."""
    compiled = compile_launch(launch, name)
    if "ptx" not in compiled.asm:
        return
    for instruction in launch.holds:
        if instruction not in compiled.asm["ptx"]:
            yield f"{launch.kernel} for {name} has no {instruction}"
    if not launch.fused and "fma." in compiled.asm["ptx"]:
        yield f"{launch.kernel} for {name} has fused multiply-adds"
    if launch.shared is not None and compiled.metadata.shared > launch.shared:
        yield f"{launch.kernel} for {name} takes {compiled.metadata.shared} bytes of shared memory"


def main(names: list[str]) -> None:
    """Compile everything; a kernel that has no entry is an error."""
    everything, names = names[:1] == ["all"], [name for name in names if name != "all"]
    one_way = list({launch.kernel: launch for launch in KERNELS}.values())
    ways = {name: KERNELS if everything or name == names[0] else one_way for name in names}
    found = [f"{kernel} is not in KERNELS" for kernel in sorted(launched() - {launch.kernel for launch in KERNELS})]
    found += [fault for name in names for launch in ways[name] for fault in faults(launch, name)]
    if found:
        sys.exit("\n".join(found))
    print(f"compiled {sum(map(len, ways.values()))} launches for {', '.join(names)}")


if __name__ == "__main__":
    main(sys.argv[1:])
