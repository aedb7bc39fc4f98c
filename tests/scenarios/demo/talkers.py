"""Bodies of the demo's processes that only talk; processes that are forks find them by name."""

from __future__ import annotations

import os
import signal
import time

from pulse_registry.demo.messages import Loaded
from pulse_registry.demo.place import Place
from pulse_registry.demo.process import Wires


def without_a_pause(place: Place, wires: Wires, name: str) -> None:
    """Tell something a hundred times a second."""
    while True:
        wires.tell(Loaded(0, 0.0))
        time.sleep(0.01)


def until_killed(wires: Wires, name: str) -> None:
    """Die at once, as the first worker; as another one, tell nothing."""
    if name == wires.settings.rollout_names[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(3600)
