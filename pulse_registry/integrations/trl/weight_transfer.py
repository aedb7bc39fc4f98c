"""PulseWeightTransfer: the ``weight_transfer`` of TRL's AsyncGRPOTrainer, by way of a registry."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from pulse_registry.errors import InvalidModel, NotFound, StoreUnavailable
from pulse_registry.opening import open as open_run
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult

_logger = logging.getLogger(__name__)


class PulseWeightTransfer:
    """Pushes what AsyncGRPOTrainer would stream to a vLLM server. Engines that follow the run pause for themselves.

    So ``pause`` does nothing: engines go on serving while a version is compared, stored and staged. The trainer calls
    it on its first rank alone, in this order: ``init_weight_transfer``, then for each version ``pause``,
    ``send_weights``, ``resume``, and ``destroy`` at the end.

    TRL hands over only what is trained. Where parts of the model are frozen and no adapter is trained, a run has only
    the rest: name the checkpoint in ``PushOptions(expect=...)`` to be told, and use ``PulseCallback`` instead.
    """

    def __init__(
        self, url: str, *, run: str, notify: Callable[[PushResult], object] | None = None, **opening: Any
    ) -> None:
        """Remember what to open.

        Args:
            url: the registry's root, as ``pulse_registry.open`` takes it.
            run: the run's name.
            notify: is called in ``resume`` with each version that was committed, and returns once the engines serve it:
                the trainer then counts its version up. None: engines follow by themselves, and nothing waits for them.
            opening: further arguments of ``pulse_registry.open``.
        """
        self._url, self._run, self._notify, self._opening = url, run, notify, opening
        self._registry: Registry | None = None
        self._pushing: Future[PushResult] | None = None
        self._copies: dict[str, torch.Tensor] = {}
        self._step = 0

    def init_weight_transfer(self) -> None:
        """Open the run, and go on from its newest version.

        Raises:
            PulseError: as ``pulse_registry.open``.
        """
        self._open()

    def pause(self) -> None:
        """Do nothing: an engine pauses for itself, once a version is staged."""

    def send_weights(self, iterator: Iterator[tuple[str, torch.Tensor]]) -> None:
        """Take all weights, and push what changed; the rest of the push goes on in the background.

        The iterator is read to its end before anything else, since other ranks gather what it yields.

        Raises:
            InvalidModel: two weights have one name, or one can't be published.
            PulseError: as ``Registry.push``, but for a store that is down: the next push then carries the changes.
        """
        weights: dict[str, torch.Tensor] = {}
        twice = []
        for name, tensor in iterator:
            if name in weights:
                twice.append(name)
            weights[name] = self._lasting(name, tensor)
        if twice:
            raise InvalidModel(f"weight {twice[0]!r} was sent twice: only one adapter of a module can be trained")
        with contextlib.suppress(StoreUnavailable):  # an event told of it, and this push carries its changes
            self._settle()
        try:
            registry = self._open()
            self._pushing = registry.push(self._step, weights, wait=False)
        except StoreUnavailable as error:
            _logger.warning("the weights were not pushed: %s. The next push carries their changes", error)
            return
        self._step += 1

    def resume(self) -> None:
        """Tell the engines of the version, if they are to be told: after it was committed."""
        if self._notify is None:
            return
        try:
            result = self._settle()
        except StoreUnavailable as error:
            _logger.warning("the engines stay where they are: %s. The next push carries the changes", error)
            return
        if result is not None:
            self._notify(result)

    def destroy(self) -> None:
        """Wait for the last push, and close the run.

        Raises:
            PulseError: the last push failed.
        """
        registry, self._registry = self._registry, None
        self._copies.clear()
        if registry is not None:
            try:
                self._settle()
            finally:
                registry.close()

    def _open(self) -> Registry:
        if self._registry is None:
            self._registry = open_run(self._url, run=self._run, **self._opening)
            try:
                self._step = self._registry.version("latest").step + 1
            except NotFound:
                self._step = 0
        return self._registry

    def _settle(self) -> PushResult | None:
        pushing, self._pushing = self._pushing, None
        return None if pushing is None else pushing.result()

    def _lasting(self, name: str, tensor: torch.Tensor) -> torch.Tensor:
        """Return a weight that may be kept until all are here.

        Of ranks that share a model, one on a device is gathered for this moment: all at once would not fit there.
        """
        distributed = torch.distributed
        together = distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
        if tensor.device.type == "cpu" or not together:
            return tensor
        copy = self._copies.get(name)
        if copy is None or copy.shape != tensor.shape or copy.dtype != tensor.dtype:
            copy = self._copies[name] = torch.empty_like(tensor, device="cpu")
        return copy.copy_(tensor)
