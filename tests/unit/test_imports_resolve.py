"""Every import of our own packages in tests, benchmarks and examples names what is there.

mypy does not read the tests, and many of them start a program that stands in a string: a name that was moved would be
missed only when that program runs, and a test that expects it to fail would pass.
"""

from __future__ import annotations

import ast
import textwrap
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.modules import PACKAGES, ROOT, names, place

FOLDERS = ["tests", "benchmarks", "examples"]


def missing(tree: ast.AST) -> Iterator[str]:
    """Yield the modules of ours, and the names in them, that a program imports and that are nowhere."""
    for node in ast.walk(tree):
        match node:
            case ast.Import(names=aliases):
                yield from (a.name for a in aliases if a.name.split(".")[0] in PACKAGES and place(a.name) is None)
            case ast.ImportFrom(module=str(module), level=0) if module.split(".")[0] in PACKAGES:
                path = place(module)
                for alias in node.names:
                    name = f"{module}.{alias.name}"
                    if path is None or not (alias.name in names(path) or "__getattr__" in names(path) or place(name)):
                        yield name
            case ast.Constant(value=str(text)) if is_program(text):
                yield from missing(program(text))
            case ast.JoinedStr(values=parts):
                # What is put in stands as a number; each part alone is looked at as a string, too.
                whole = "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in parts)
                if is_program(whole):
                    yield from missing(program(whole))


def is_program(text: str) -> bool:
    return "import " in text and any(package in text for package in PACKAGES)


def program(text: str) -> ast.AST:
    """Return the program that a string holds; of prose, and of a template of one, nothing."""
    try:
        return ast.parse(textwrap.dedent(text))
    except SyntaxError:
        return ast.Module([], [])


@pytest.mark.slow
@pytest.mark.parametrize("folder", FOLDERS)
def test_every_import_names_what_is_there(folder: str) -> None:
    files = [file for file in sorted((ROOT / folder).rglob("*.py")) if file != Path(__file__).resolve()]
    assert files
    lost = {str(file.relative_to(ROOT)): sorted({*missing(ast.parse(file.read_bytes()))}) for file in files}
    assert {file: absent for file, absent in lost.items() if absent} == {}


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ("import pulse_registry.opening\nfrom pulse_registry import open", []),
        ("from tests.support import waiting\nfrom tests.support.waiting import HANG_S", []),
        ("def f():\n    import pulse_registry.nowhere", ["pulse_registry.nowhere"]),
        ("from pulse_registry.opening import gone", ["pulse_registry.opening.gone"]),
        ("from pulse_kernels.gone import name", ["pulse_kernels.gone.name"]),
        ("P = '''\n  from pulse_registry import gone\n'''", ["pulse_registry.gone"]),
        ("P = f'''\nx = {1}\nfrom pulse_registry import gone\ny = {2}\n'''", ["pulse_registry.gone"]),
        ("import numpy.nowhere; TEXT = 'we import pulse_registry here'", []),
    ],
)
def test_a_name_that_is_not_there_is_found(source: str, found: list[str]) -> None:
    assert sorted({*missing(ast.parse(source))}) == found
