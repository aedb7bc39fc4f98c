"""No whole object is read without a bound, wherever in our packages: what a store says of a length is nobody's word."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

import pulse_registry
import pulse_server

PACKAGES = [Path(package.__path__[0]) for package in (pulse_registry, pulse_server)]
STORE_TESTS = {Path(pulse_registry.__path__[0]) / f"testing/{name}_tests.py" for name in ("object", "store")}
"""The suite for stores that others write reads back the few bytes that it wrote, and sees that `get` needs no bound."""
STORE = re.compile(r"(^|[._])(store|bare|observer|client|below|bucket)$|^super\(\)$")
"""What stores are called in our code. ``client`` is one of the doctor's; those of HTTP have no `get` of ours."""


def unbounded(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each use of a store's ``get`` that is neither of a range nor has ``max_bytes``."""
    tree = ast.parse(source)
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    bounded = {
        id(part)
        for call in calls
        if any(keyword.arg == "max_bytes" for keyword in call.keywords)
        for part in (call.func, *call.args)  # `partial(store.get, max_bytes=...)`, too
    }
    ranged = {id(call.func) for call in calls if len(call.args) > 1}
    # `call(store.get, key, range)` hands a range on.
    ranged |= {id(call.args[0]) for call in calls if len(call.args) > 2}
    for node in ast.walk(tree):
        of_store = isinstance(node, ast.Attribute) and node.attr == "get" and STORE.search(ast.unparse(node.value))
        if of_store and id(node) not in bounded | ranged:
            yield node.lineno, ast.unparse(node)


@pytest.mark.slow
def test_every_whole_read_has_a_bound() -> None:
    found = [
        f"{path}:{line}: {text}"
        for package in PACKAGES
        for path in sorted(package.rglob("*.py"))
        if path not in STORE_TESTS
        for line, text in unbounded(path.read_text(encoding="utf-8"))
    ]
    assert not found, "pass max_bytes, or read_document (pulse_registry.log.documents)"


def test_one_without_is_found() -> None:
    assert [*unbounded("self._store.get(key)")] == [(1, "self._store.get")]
    assert [*unbounded("partial(store.get, key)")]
    for bounded in ("store.get(key, (0, 1))", "store.get(key, max_bytes=1)", "partial(store.get, max_bytes=1)"):
        assert not [*unbounded(bounded)]
    assert not [*unbounded("names.get(key)")]
