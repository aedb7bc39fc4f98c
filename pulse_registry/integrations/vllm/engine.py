"""The weight transfer engine ``pulse``: vLLM's own calls for new weights, answered from a registry.

vLLM imports this module in its workers, by the name that the plugin has registered.
"""

from __future__ import annotations

from dataclasses import dataclass

from vllm.distributed.weight_transfer.base import (  # type: ignore[import-not-found]
    WeightTransferEngine,
    WeightTransferInitInfo,
    WeightTransferUpdateInfo,
)

from pulse_registry.errors import InvalidArgument
from pulse_registry.integrations.loader.engine_weights import EngineWeights
from pulse_registry.integrations.vllm.opening import answer, open_weights


@dataclass
class PulseInit(WeightTransferInitInfo):  # type: ignore[misc]
    """What ``init_weight_transfer_engine`` takes.

    Attributes:
        url, run: the registry's root, and the run in it. Keys, tokens and pins come from the environment.
        version: what the engine was loaded from: a number, a tag, or ``latest``.
        name: of this engine, for its lease and its reports.
    """

    url: str
    run: str
    version: int | str = "latest"
    name: str | None = None


@dataclass
class PulseUpdate(WeightTransferUpdateInfo):  # type: ignore[misc]
    """What ``update_weights`` takes.

    Attributes:
        version: to go to: a number, a tag, or ``latest``.
        staged: whether ``pulse_stage`` was called for it, while the engine served; else it is fetched now.
    """

    version: int | str = "latest"
    staged: bool = False


class PulseEngine(WeightTransferEngine[PulseInit, PulseUpdate]):  # type: ignore[misc]
    """Changes the live parameters to a version of a run, in place; a failure leaves them as they are, on all ranks.

    Pause the engine around it (``/pause?mode=keep``, which also resets its caches), or reset prefix and encoder caches
    after it: they hold what the old weights have made. After a failed ``update_weights`` call ``finish_weight_update``,
    whatever it answers: vLLM has closed the session on the rank that raised.
    """

    init_info_cls = PulseInit
    update_info_cls = PulseUpdate
    supports_draft_weight_update = False
    weights: EngineWeights | None = None

    def init_transfer_engine(self, init_info: PulseInit) -> None:
        """Open the run, find the live cells, and compare them with the version that the engine was loaded from."""
        self.shutdown()

        def opened() -> EngineWeights:
            return open_weights(self.model, init_info.url, init_info.run, init_info.version, init_info.name)

        self.weights = answer(opened)

    def start_weight_update(self) -> None:
        """Do nothing: nothing is loaded anew."""

    def receive_weights(self, update_info: PulseUpdate) -> None:
        """Change the live weights to a version."""
        answer(lambda: self._change(update_info))

    def _change(self, update: PulseUpdate) -> None:
        if self.weights is None:
            raise InvalidArgument("call init_weight_transfer_engine first, with the registry's url and run")
        if not update.staged:
            self.weights.stage(update.version)
        self.weights.apply(update.version)

    def finish_weight_update(self) -> None:
        """Do nothing: the weights are changed."""

    def shutdown(self) -> None:
        """Close the registry."""
        weights, self.weights = self.weights, None
        if weights is not None:
            weights.close()
