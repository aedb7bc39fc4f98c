"""Names under which Megatron's tensors are pushed and pulled: a table of patterns, or a function."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import TypeAlias

from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.integrations.megatron.fused import Fused

Target: TypeAlias = "str | Fused | None"
"""What becomes of a tensor: it has another name, is taken apart, or is left out."""
Names: TypeAlias = "Mapping[str, Target] | Callable[[str], Target]"
"""By Megatron's key with global numbers, what becomes of the tensor. The keys of a table may have ``{layer}`` and the
like in place of numbers; the same in a name that belongs to it is that number."""

_PLACE = re.compile(r"\\\{(\w+)\\\}")


def renaming(names: Names | None) -> Callable[[str], Target]:
    """Return the function that a table means; without one, names stay as they are.

    The function raises InvalidModel for a tensor of which the table says nothing.

    Raises:
        InvalidArgument: two places of a pattern have one name.
    """
    if names is None:
        return lambda name: name
    if not isinstance(names, Mapping):
        return names
    exact = {key: target for key, target in names.items() if "{" not in key}
    patterns = [(_compiled(key), target) for key, target in names.items() if "{" in key]

    def find(name: str) -> Target:
        if name in exact:
            return exact[name]
        for pattern, target in patterns:
            if (match := pattern.fullmatch(name)) is not None:
                return _filled(target, match.groupdict())
        raise InvalidModel(f"the table of names says nothing of tensor {name!r}: add its name there, or None for none")

    return find


def _compiled(key: str) -> re.Pattern[str]:
    try:
        return re.compile(_PLACE.sub(r"(?P<\1>[0-9]+)", re.escape(key)))
    except re.error as error:
        raise InvalidArgument(f"{key!r} is no pattern of a tensor's name: {error}") from None


def _filled(target: Target, numbers: Mapping[str, str]) -> Target:
    if target is None:
        return None
    try:
        return target.format_map(numbers) if isinstance(target, str) else target.named(numbers)
    except (KeyError, ValueError, IndexError) as error:
        raise InvalidArgument(f"{target!r} has a place that its pattern has not: {error}") from None
