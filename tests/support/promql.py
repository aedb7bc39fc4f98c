"""Expressions of PromQL, taken apart: which series they ask for, and by which labels they group and join them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import promql_parser
from promql_parser import AggregateExpr, BinaryExpr, MatrixSelector, VectorSelector

_INTERVAL = re.compile(r"\$__(?:rate_)?interval")
_VARIABLE = re.compile(r"\$[a-z]+")


@dataclass(frozen=True, slots=True)
class Selector:
    """What an expression asks for: a metric, and of each label that it looks at its name and the pattern it has."""

    name: str
    matchers: tuple[tuple[str, str], ...]


def parsed(expression: str) -> Any:
    """Return an expression's tree; Grafana's variables get values first.

    Raises:
        ValueError: it is none, or gives a function what that does not take.
    """
    return promql_parser.parse(_VARIABLE.sub(".*", _INTERVAL.sub("1m", expression)))


def selectors(tree: Any) -> list[Selector]:
    """Return all selectors of a tree."""
    return [
        Selector(node.name, tuple((one.name, one.value) for one in node.matchers.matchers))
        for node in _nodes(tree)
        if isinstance(node, VectorSelector)
    ]


def groups(tree: Any) -> Iterator[tuple[set[str], list[Selector]]]:
    """Yield of each aggregation, and of each side of a join, the labels it goes by and the selectors beneath it."""
    for node in _nodes(tree):
        if isinstance(node, AggregateExpr) and node.modifier is not None:
            yield set(node.modifier.labels), selectors(node.expr)
        if isinstance(node, BinaryExpr) and node.modifier is not None and node.modifier.matching is not None:
            for side in (node.lhs, node.rhs):
                yield set(node.modifier.matching.labels), selectors(side)


def _nodes(tree: Any) -> list[Any]:
    found: list[Any] = []

    def visit(node: Any) -> None:
        found.append(node.vector_selector if isinstance(node, MatrixSelector) else node)

    promql_parser.walk(tree, visit)
    return found
