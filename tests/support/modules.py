"""Where the modules of the repository are, and the names in them, without importing any."""

from __future__ import annotations

import ast
import functools
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = {
    "pulse_registry": ROOT / "pulse_registry",
    "pulse_start": ROOT / "pulse_start",
    "pulse_kernels": ROOT / "kernels" / "pulse_kernels",
    "pulse_schemas": ROOT / "schemas" / "pulse_schemas",
    "pulse_server": ROOT / "server" / "pulse_server",
    "benchmarks": ROOT / "benchmarks",
    "tests": ROOT / "tests",
}


def place(module: str) -> Path | None:
    """Return the file of a module of ours, or the folder of a package without one."""
    package, *rest = module.split(".")
    path = PACKAGES[package].joinpath(*rest)
    return next((found for found in (path.with_suffix(".py"), path / "__init__.py", path) if found.exists()), None)


@functools.cache
def names(path: Path) -> frozenset[str]:
    """Return what a module defines, assigns or imports, anywhere in it."""
    if path.is_dir():
        return frozenset()
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        match node:
            case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name) | ast.ClassDef(name=name):
                found.add(name)
            case ast.Import(names=aliases) | ast.ImportFrom(names=aliases):
                found |= {alias.asname or alias.name for alias in aliases}
            case ast.Name(id=name, ctx=ast.Store()):
                found.add(name)
    return frozenset(found)
