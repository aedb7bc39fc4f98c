"""A store whose patches, or keyframes, wait at a gate, or fail there, so that a test decides when a push goes on."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import Body
from tests.support.records import DictStore

PATIENCE = 60.0
"""Seconds after which a test that hangs gives up."""


class GateStore(DictStore):
    """Holds puts of patches back while the gate is shut; fails them while it is down.

    Args:
        holds: part of the keys that it is for.

    Attributes:
        reached: set while a patch has come to the gate.
        down: whether patches fail there.
    """

    def __init__(self, holds: str = "/objects/patch/") -> None:
        super().__init__()
        self._holds = holds
        self._open = threading.Event()
        self._open.set()
        self.reached = threading.Event()
        self.down = False

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        if self._holds in key:
            self.reached.set()
            if not self._open.wait(PATIENCE):
                raise AssertionError("nobody opens the gate")
            if self.down:
                raise StoreUnavailable("the bucket is down")
        super().put(key, data, if_absent=if_absent)

    @contextmanager
    def shut(self) -> Iterator[None]:
        """Hold back patches within a block."""
        self.reached.clear()
        self._open.clear()
        try:
            yield
        finally:
            self._open.set()

    def open(self) -> None:
        """Let them through."""
        self._open.set()
