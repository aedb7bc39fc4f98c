"""Inside each of the demo's processes: its wires to the others, how it begins, and how it ends when things go wrong."""

from __future__ import annotations

import faulthandler
import multiprocessing
import os
import queue
import sys
import threading
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from pulse_registry import PeerLost
from pulse_registry.demo.messages import Event, Failed
from pulse_registry.demo.settings import Settings
from pulse_registry.process.private_files import new_file


@dataclass(frozen=True, slots=True)
class Wires:
    """What processes share. Queues of multiprocessing have no useful types: ``send`` and ``receive`` do.

    Attributes:
        prompts: Prompt, trainer to workers.
        rollouts: Rollout, workers to trainer.
        events: Event, all to the supervisor.
        finished: set once no version follows.
    """

    settings: Settings
    prompts: Any
    rollouts: Any
    events: Any
    finished: Any

    def tell(self, event: Event) -> None:
        """Let the supervisor know."""
        self.events.put(event)


def receive(source: Any, seconds: float, what: str) -> Any:
    """Take the next item of a queue.

    Raises:
        TimeoutError: there was none for so long.
    """
    try:
        return source.get(timeout=seconds)
    except queue.Empty:
        raise TimeoutError(f"no {what} for {seconds:.0f} s") from None


def wait_until(ready: Callable[[], bool], seconds: float, what: str, every: float = 0.2) -> None:
    """Look again and again until something is so.

    Raises:
        TimeoutError: it was not, for so long.
    """
    give_up = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > give_up:
            raise TimeoutError(f"no {what} for {seconds:.0f} s")
        time.sleep(every)


def enter(body: Callable[[Wires, str], None], wires: Wires, name: str, threads: int) -> None:
    """Run a process's body: the first function in it. Errors are told to the supervisor and end the process."""
    _print_to(wires.settings.out / "logs" / f"{name}.log")
    threading.Thread(target=_end_with_parent, name="parent", daemon=True).start()
    # Idle threads of PyTorch sleep instead of spinning: the processes share few cores.
    os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    try:
        import torch

        torch.set_num_threads(threads)
        torch.set_num_interop_threads(1)
        body(wires, name)
    except Exception as error:  # noqa: BLE001 - the outermost edge of the process
        traceback.print_exc()
        lost = isinstance(error, PeerLost)
        wires.tell(Failed(name, f"{type(error).__name__}: {error}", traceback.format_exc(), lost))
        wires.prompts.cancel_join_thread()
        wires.rollouts.cancel_join_thread()
        sys.exit(1)
    # What is left in these two is for nobody: all that count have ended, or are about to.
    wires.prompts.cancel_join_thread()
    wires.rollouts.cancel_join_thread()


def _print_to(path: os.PathLike[str]) -> None:
    file = new_file(path, mode=0o644)
    sys.stdout.flush()
    sys.stderr.flush()
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    faulthandler.enable()


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(1)
