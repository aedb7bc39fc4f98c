"""The worker extension: calls that vLLM's ``collective_rpc`` makes on each rank, for what its own calls lack."""

from __future__ import annotations

from typing import Any

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.loader.engine_weights import EngineWeights
from pulse_registry.integrations.vllm.opening import answer, open_weights
from pulse_registry.results import VersionName


class WorkerExtension:
    """Methods of a vLLM worker, by ``--worker-extension-cls``; all ranks make the same calls in the same order.

    With the backend ``pulse`` they work on its weights; without it ``pulse_open`` comes first. What they raise, the
    last rank raises, and the others return None.
    """

    def pulse_open(self, url: str, run: str, version: VersionName = "latest", name: str | None = None) -> int | None:
        """Open a run for a model that was loaded from one of its versions, and return its number; see ``PulseInit``."""
        worker: Any = self
        if (held := getattr(self, "pulse_weights", None)) is not None:
            held.close()
        worker.pulse_weights = answer(lambda: open_weights(worker.get_model(), url, run, version, name))
        return None if worker.pulse_weights is None else self.pulse_version()

    def pulse_stage(self, version: VersionName = "latest") -> None:
        """Begin to stage a version while the engine serves."""
        answer(lambda: _weights(self).stage(version))

    def pulse_ready(self) -> bool | None:
        """Return whether ``pulse_apply`` would not wait for this rank; raises why a version can't be staged."""
        return answer(lambda: _weights(self).ready)

    def pulse_apply(self, version: VersionName = "latest") -> dict[str, Any] | None:
        """Change the live weights to what was staged; pause the engine around it, and reset its caches.

        Args:
            version: a number: refused if what is staged is another.
        """
        result = answer(lambda: _weights(self).apply(version))
        if result is None:
            return None
        phases = {phase: round(seconds, 6) for phase, seconds in result.phases.items()}
        return {"version": result.version, "changed": result.changed, "nbytes": result.nbytes, "phases": phases}

    def pulse_undo(self) -> int | None:
        """Take the last change back; return the version."""
        return answer(lambda: _weights(self).undo())

    def pulse_version(self) -> int | None:
        """Return the version that the live weights hold."""
        return answer(lambda: _weights(self).version)

    def pulse_verify(self) -> int | None:
        """Compare all live cells with their version; return its number."""
        return answer(lambda: _weights(self).verify())


def _weights(worker: Any) -> EngineWeights:
    engine = getattr(worker, "weight_transfer_engine", None)
    found: EngineWeights | None = getattr(engine, "weights", None) or getattr(worker, "pulse_weights", None)
    if found is None:
        raise InvalidArgument("no run is open: call init_weight_transfer_engine or pulse_open first")
    return found
