"""PulseCallback: a Trainer of transformers, or of TRL, pushes its policy while it trains."""

from __future__ import annotations

import contextlib
import logging
from concurrent.futures import Future
from typing import Any, get_args

import torch
from transformers import TrainerCallback, TrainerControl, TrainerState, TrainingArguments

from pulse_registry.errors import InvalidArgument, StoreUnavailable
from pulse_registry.integrations.trl.files import policy_files
from pulse_registry.integrations.trl.policy import Adapters, policy
from pulse_registry.opening import open as open_run
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.results import PushResult

_logger = logging.getLogger(__name__)


class PulseCallback(TrainerCallback):
    """Pushes the policy when training begins, after every n-th step, and at the end; the step is the version's label.

    A push returns once the weights are compared with those before; the rest goes on while the trainer does, and is done
    before the next push. While the store is down, training goes on, and the next push carries the changes; the first
    push and the last one raise.

    On several ranks all of them push together, each what it holds: FSDP2's shards as they are, replicas (DDP,
    DeepSpeed ZeRO-1 and 2) by sharing the work. Weights that ZeRO-3 or FSDP1 spread over the ranks are refused.

    Attributes:
        last: result of the newest push that is done; None: there is none yet.
    """

    def __init__(self, url: str, *, run: str, every: int = 1, adapters: Adapters = "merge", **opening: Any) -> None:
        """Remember what to open; nothing is opened before training begins.

        Args:
            url: the registry's root, as ``pulse_registry.open`` takes it.
            run: the run's name.
            every: steps of the optimizer from push to push.
            adapters: what becomes of PEFT's: ``merge`` publishes the weights with the active ones merged in, under the
                names of the base model, and leaves the trained ones as they are, bit for bit; ``own`` publishes the
                active one alone, under the names of an adapter's checkpoint.
            opening: further arguments of ``pulse_registry.open``.

        Raises:
            InvalidArgument: ``every`` or ``adapters`` is not valid.
        """
        if every < 1:
            raise InvalidArgument(f"every is {every}; it counts steps, from 1 on")
        if adapters not in get_args(Adapters):
            raise InvalidArgument(f"adapters is {adapters!r}; it is one of {', '.join(get_args(Adapters))}")
        self._url, self._run, self._every, self._opening = url, run, every, opening
        self._adapters: Adapters = adapters
        self._registry: Registry | None = None
        self._pushing: Future[PushResult] | None = None
        self._step: int | None = None  # of the newest push, unless it failed
        self.last: PushResult | None = None

    def on_train_begin(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Open the run, and push what training begins with, with its configuration and tokenizer."""
        push = self._opening.get("push")
        dtype = PushOptions().dtype if push is None else push.dtype
        files = policy_files(kwargs["model"], self._adapters, kwargs.get("processing_class"), dtype)
        self._push(state.global_step, kwargs["model"], files or None)

    def on_step_end(self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any) -> None:
        """Push the policy, if it is its turn."""
        if state.global_step % self._every:
            return
        try:
            self._push(state.global_step, kwargs["model"])
        except StoreUnavailable as error:
            _logger.warning("step %d was not pushed: %s. The next push carries its changes", state.global_step, error)

    def on_train_end(
        self, args: TrainingArguments, state: TrainerState, control: TrainerControl, **kwargs: Any
    ) -> None:
        """Push what training has come to, if that was not pushed, wait for it, and close the run."""
        with contextlib.suppress(StoreUnavailable):  # then it is pushed again
            self._settle()
        if self._step != state.global_step or args.load_best_model_at_end:
            self._push(state.global_step, kwargs["model"])
            self._settle()
        registry, self._registry = self._registry, None
        if registry is not None:
            registry.close()

    def _push(self, step: int, model: torch.nn.Module, files: dict[str, bytes] | None = None) -> None:
        with contextlib.suppress(StoreUnavailable):  # an event told of it, and this push carries its changes
            self._settle()
        if self._registry is None:
            self._registry = self._open()
        with policy(model, self._adapters) as tensors:
            self._pushing = self._registry.push(step, tensors, files=files, wait=False)
        self._step = step

    def _settle(self) -> None:
        """Wait for the push that is under way; of several ranks, what it raises is raised on all."""
        pushing, self._pushing = self._pushing, None
        if pushing is not None:
            try:
                self.last = pushing.result()
            except BaseException:
                self._step = None
                raise

    def _open(self) -> Registry:
        opening = dict(self._opening)
        distributed = torch.distributed
        if distributed.is_available() and distributed.is_initialized() and distributed.get_world_size() > 1:
            opening.setdefault("process_group", distributed.group.WORLD)
        return open_run(self._url, run=self._run, **opening)
