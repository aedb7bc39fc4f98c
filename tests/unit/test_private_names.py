"""Tests use what the packages say in public: what is private may change, or go, and no test breaks."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest

from tests.support.modules import PACKAGES

TESTS = Path(__file__).resolve().parents[1]
ALLOWED = {
    "scenarios/simulator/mutants.py": "a mutant takes a step out of the inside",
    "scenarios/simulator/regions_mutants.py": "a mutant takes a step out of the inside",
    "scenarios/simulator/rounds.py": "its members push through the publisher that the simulator breaks",
    "scenarios/simulator/rounds_mutants.py": "a mutant takes a step out of the inside",
    "scenarios/interop/modelexpress_peer.py": "another system, called where it can be called without its servers",
    "scenarios/stateful/test_registry.py": "the model has to know whether a trainer knows that its term has begun",
}
"""Files that need private names, and why."""
TORCH = {"_schema", "_modules", "_register_state_dict_hook", "_local_tensor"}
"""Of torch's modules, operations and distributed tensors, which have no public ones."""
BY_NAME = {"setattr", "getattr", "hasattr", "delattr", "object"}


def is_private(name: str) -> bool:
    """Tell whether a name is private; not a constant, which a test may make small, nor one of Python's own."""
    return name.startswith("_") and not name.endswith("__") and name != "_" and name != name.upper()


def private_uses(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Yield the lines that use a private name of our packages, and the name."""
    nodes = list(ast.walk(tree))  # once: to walk takes far longer than to look
    own, foreign = own_names(nodes), set[str]()
    for node in nodes:
        match node:
            case ast.Import(names=aliases):
                foreign |= {a.asname or a.name.split(".")[0] for a in aliases if a.name.split(".")[0] not in PACKAGES}
            case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] in PACKAGES:
                yield from ((node.lineno, alias.name) for alias in aliases if is_private(alias.name))
            case ast.ImportFrom(module=str(module), names=aliases) if module.split(".")[0] != "tests":
                foreign |= {alias.asname or alias.name for alias in aliases}
    for node in nodes:
        match node:
            case ast.Attribute(value=of, attr=name) if is_private(name):
                pass
            case ast.Call(
                func=ast.Name(id=call) | ast.Attribute(attr=call), args=[of, ast.Constant(value=str(name)), *_]
            ):
                if call not in BY_NAME or not is_private(name):
                    continue
            case _:
                continue
        if name not in own | TORCH and root_of(of) not in {"self", "cls", *foreign}:
            yield node.lineno, name


def own_names(nodes: Iterable[ast.AST]) -> set[str]:
    """Return the private names that a file's own classes have."""
    own = set[str]()
    for node in nodes:
        match node:
            case ast.Attribute(value=ast.Name(id="self" | "cls"), attr=name, ctx=ast.Store()):
                own.add(name)
            case ast.ClassDef(body=body):
                own |= {part.name for part in body if isinstance(part, ast.FunctionDef | ast.AsyncFunctionDef)}
                own |= {
                    part.target.id
                    for part in body
                    if isinstance(part, ast.AnnAssign) and isinstance(part.target, ast.Name)
                }
    return own


def root_of(node: ast.AST) -> str | None:
    """Return the name that a chain of attributes, calls and items begins with."""
    while isinstance(node, ast.Attribute | ast.Call | ast.Subscript):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else None


@pytest.mark.slow
def test_no_test_uses_a_private_name_of_the_packages() -> None:
    found = [
        f"{path.relative_to(TESTS.parent)}:{line}: {name}"
        for path in sorted(TESTS.rglob("*.py"))
        if path.relative_to(TESTS).as_posix() not in ALLOWED
        for line, name in private_uses(ast.parse(path.read_bytes()))
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "text",
    [
        "registry._runtime",
        "store.below()._cells[0].value",
        "from pulse_registry.pull.route import _legs_into",
        "monkeypatch.setattr(module, '_legs_into', None)",
        "from pulse_kernels import cpu\ncpu._done",
    ],
)
def test_a_private_name_of_ours_is_found(text: str) -> None:
    assert len([*private_uses(ast.parse(text))]) == 1


@pytest.mark.parametrize(
    "text",
    [
        "import torch\ntorch._C",
        "import os.path\nos._exit(0)",
        "from torch import Tensor\nTensor._make_wrapper_subclass(Tensor)",
        "class Store:\n    def __init__(self):\n        self._lock = 1\n\nStore()._lock",
        "monkeypatch.setattr(module, '_MOST', 3)",
        "store.__class__",
    ],
)
def test_what_is_another_s_or_the_test_s_own_is_let_be(text: str) -> None:
    assert [*private_uses(ast.parse(text))] == []
