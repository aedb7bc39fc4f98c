"""PulseWeightTransfer: the ``weight_transfer`` of TRL's AsyncGRPOTrainer, by way of a registry."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from typing import Any

import torch

from pulse_registry.errors import NotFound, StoreUnavailable
from pulse_registry.integrations.gathered import Gathered
from pulse_registry.opening import open as open_run
from pulse_registry.push.files import FilesArgument
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
        self,
        url: str,
        *,
        run: str,
        files: FilesArgument | None = None,
        notify: Callable[[PushResult], object] | None = None,
        **opening: Any,
    ) -> None:
        """Remember what to open.

        Args:
            url: the registry's root, as ``pulse_registry.open`` takes it.
            run: the run's name.
            files: configuration and tokenizer, for the first version that is pushed; TRL hands over none.
            notify: is called in ``resume`` with each version that was committed, and returns once the engines serve it:
                the trainer then counts its version up. None: engines follow by themselves, and nothing waits for them.
            opening: further arguments of ``pulse_registry.open``.
        """
        self._url, self._run, self._notify, self._opening = url, run, notify, opening
        self._files = files
        self._registry: Registry | None = None
        self._pushing: Future[PushResult] | None = None
        self._gathered = Gathered()
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
        weights = self._gathered.take(iterator, lasting=not _together())
        with contextlib.suppress(StoreUnavailable):  # an event told of it, and this push carries its changes
            self._settle()
        try:
            registry = self._open()
            self._pushing = registry.push(self._step, weights, wait=False, files=self._files)
            self._files = None
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
        self._gathered = Gathered()
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


def _together() -> bool:
    """Whether several ranks hold the model: then what is sent may be gathered for the moment."""
    distributed = torch.distributed
    return distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1
