"""Ranks that push together in threads, and one of them that dies at a collective of its life."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from pulse_registry import Registry
from pulse_registry.errors import PulseError
from pulse_registry.peers.local_peers import LocalGroup, LocalPeers, run_ranks
from pulse_registry.peers.peers import Bytes
from pulse_registry.store import Store
from tests.support.registries import quick

Work = Callable[[Registry, int], Any]


class Death(BaseException):
    """The end of a rank's process."""


class MortalPeers:
    """A rank's end of a group, whose process ends before, or after, one of its collectives.

    Args:
        peers: the rank's end.
        dies: number of the call, from 1 on; 0: never.
        after: whether the others hear of that call.
    """

    def __init__(self, peers: LocalPeers, dies: int = 0, *, after: bool = False) -> None:
        self._peers, self.dies, self._after = peers, dies, after
        self.calls: list[str] = []

    @property
    def rank(self) -> int:
        return self._peers.rank

    @property
    def size(self) -> int:
        return self._peers.size

    def all_gather(self, data: Bytes, what: str = "") -> list[bytes]:
        return self._living(what, lambda: self._peers.all_gather(data, what))

    def gather(self, data: Bytes, what: str = "") -> list[bytes] | None:
        return self._living(what, lambda: self._peers.gather(data, what))

    def broadcast(self, data: Bytes | None, what: str = "") -> bytes:
        return self._living(what, lambda: self._peers.broadcast(data, what))

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        return self._living(what, lambda: self._peers.exchange(parts, what))

    def close(self) -> None:
        self._peers.close()

    def _living(self, what: str, call: Callable[[], Any]) -> Any:
        self.calls.append(what)
        due = self.dies == len(self.calls)
        if due and not self._after:
            self._peers.close()
            raise Death(what)
        result = call()
        if due:
            self._peers.close()
            raise Death(what)
        return result


def on_ranks(stores: Sequence[Store], work: Work, *, group: LocalGroup | None = None, **options: Any) -> list[Any]:
    """Return what each rank's work gives, with a registry of its own on its own store: a result, or its error."""

    def life(peers: LocalPeers) -> Any:
        with quick(stores[peers.rank], peers=peers, **options) as registry:
            return work(registry, peers.rank)

    return outcomes(life, group or LocalGroup(len(stores)))


def outcomes(life: Callable[[LocalPeers], Any], group: LocalGroup) -> list[Any]:
    """Return what each rank's life gives: a result, or the error that ended it."""
    return [future.exception() or future.result() for future in run_ranks(life, group)]


def alike(errors: Sequence[Any], kind: type[PulseError]) -> str:
    """Check that all ranks raised the same, and return what it says."""
    assert [type(error) for error in errors] == [kind] * len(errors), errors
    assert len({str(error) for error in errors}) == 1, errors
    return str(errors[0])
