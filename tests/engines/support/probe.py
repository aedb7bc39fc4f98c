"""The probe: our worker extension, and calls by which tests look at, and break, a real worker."""

from __future__ import annotations

from typing import Any

import torch
from blake3 import blake3

from pulse_registry.integrations.vllm import WorkerExtension


def prints(parameters: dict[str, torch.Tensor]) -> dict[str, str]:
    """Return a hash of each tensor's bits."""
    return {
        name: blake3(tensor.detach().contiguous().view(torch.int16).numpy().tobytes()).hexdigest()
        for name, tensor in parameters.items()
    }


class Probe(WorkerExtension):
    """Calls of the tests, by ``worker_extension_cls``."""

    probe_kept: dict[str, torch.Tensor]

    def probe_cells(self) -> dict[str, str]:
        """Return a hash of the bits of each live parameter."""
        return prints(dict(self._model().named_parameters()))

    def probe_addresses(self) -> dict[str, int]:
        """Return where each live parameter is."""
        return {name: held.data_ptr() for name, held in self._model().named_parameters()}

    def probe_move(self, rank: int, name: str) -> None:
        """Let a parameter of one rank be other memory, with the same cells."""
        if self._rank() == rank:
            held = self._model().get_parameter(name)
            self.probe_kept = {name: held.data}
            held.data = held.data.clone()

    def probe_put_back(self, rank: int) -> None:
        """Undo `probe_move`."""
        if self._rank() == rank:
            for name, data in self.probe_kept.items():
                self._model().get_parameter(name).data = data

    def _model(self) -> torch.nn.Module:
        worker: Any = self
        model: torch.nn.Module = worker.get_model()
        return model

    def _rank(self) -> int:
        worker: Any = self
        return int(worker.rank)
