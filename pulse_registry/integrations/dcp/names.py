"""Names of a state dict's items, and of the tensors of a run that they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

WEIGHTS_ALONE: Final = "a registry holds weights, and no state of an optimizer, a data loader or a trainer"


@dataclass(frozen=True, slots=True)
class Names:
    """What a state dict calls the tensors of a run.

    Attributes:
        prefix: stands before each tensor's name; items without it are no weights.
    """

    prefix: str = ""

    def item(self, tensor: str) -> str:
        """Return the name of the item that is a tensor of the run."""
        return self.prefix + tensor

    def tensor(self, item: str) -> str | None:
        """Return the tensor of the run that an item is; None: it is none."""
        return item.removeprefix(self.prefix) if item.startswith(self.prefix) else None
