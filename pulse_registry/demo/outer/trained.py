"""The trained part of a model: its topmost layers. The rounds, and so the versions, are of these tensors alone.

Beside the model a trainer has some 40 bytes a trained cell: gradient, AdamW's moments, outer state, and copies while a
round ends. Four trainers of all of SmolLM2-135M take 6 GB each, which a machine of 24 GiB has not.
"""

from __future__ import annotations

import re
from typing import Any

_LAYER = re.compile(r"\.layers\.(\d+)\.")


def trained_part(model: Any, layers: int) -> dict[str, Any]:
    """Return the parameters of the topmost layers and what comes after them, by name, and freeze the others.

    Args:
        model: of transformers.
        layers: how many; all parameters are trained where the model has no more.
    """
    import torch

    parameters: dict[str, torch.nn.Parameter] = dict(model.named_parameters())
    numbers = {name: int(found[1]) for name in parameters if (found := _LAYER.search(name)) is not None}
    first = 1 + max(numbers.values(), default=0) - layers
    if first <= 0:
        return parameters
    frozen = parameters.keys() - numbers.keys() - {name for name in parameters if name.endswith(".norm.weight")}
    frozen |= {name for name, number in numbers.items() if number < first}
    for name in frozen:
        parameters[name].requires_grad_(False)
    return {name: parameter for name, parameter in parameters.items() if name not in frozen}
