"""No code comes out of a bucket: nothing of ours unpickles or evaluates."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PACKAGES = ("pulse_registry", "schemas/pulse_schemas", "kernels/pulse_kernels", "server/pulse_server")
FILES = sorted(file for package in PACKAGES for file in (ROOT / package).rglob("*.py"))
UNPICKLING = {"pickle", "_pickle", "cPickle", "marshal", "shelve", "dill", "cloudpickle", "joblib"}
EVALUATING = {"eval", "exec", "__import__"}


def runs_code(source: str) -> list[str]:
    """Return what in a module's source could run what it has read."""
    found = []
    for node in ast.walk(ast.parse(source)):
        match node:
            case ast.Import(names=names):
                found += [name.name for name in names if name.name.partition(".")[0] in UNPICKLING]
            case ast.ImportFrom(module=str(module)) if module.partition(".")[0] in UNPICKLING:
                found.append(module)
            case ast.Call(func=ast.Name(id=name)) if name in EVALUATING:
                found.append(name)
            case ast.Call(func=ast.Attribute(attr="load", value=ast.Name(id="torch" | "joblib" as module))):
                found.append(f"{module}.load")
            case ast.keyword(arg="allow_pickle", value=value) if not (
                isinstance(value, ast.Constant) and value.value is False
            ):
                found.append("allow_pickle")
    return found


@pytest.mark.parametrize("package", PACKAGES)
def test_nothing_is_ever_unpickled_or_evaluated(package: str) -> None:
    files = [file for file in FILES if (ROOT / package) in file.parents]
    assert files
    assert {str(file): found for file in files if (found := runs_code(file.read_text(encoding="utf-8")))} == {}


@pytest.mark.parametrize(
    "line",
    [
        "import pickle",
        "from marshal import loads",
        "eval('1')",
        "torch.load('f')",
        "np.load('f', allow_pickle=True)",
        "np.load('f', allow_pickle=flag)",
    ],
)
def test_the_look_sees_what_it_looks_for(line: str) -> None:
    assert len(runs_code(line)) == 1
