"""The lone rank: the peers of a model that one process holds, so that the code of ranks is the code of one, too."""

from __future__ import annotations

from collections.abc import Sequence

from pulse_registry.peers.peers import Bytes


class LonePeers:
    """A group of one rank; see ``Peers``. A vote raises what failed, as it is."""

    rank, size = 0, 1

    def all_gather(self, data: Bytes, what: str = "") -> list[bytes]:
        """Return what was given."""
        return [bytes(data)]

    def gather(self, data: Bytes, what: str = "") -> list[bytes]:
        """Return what was given."""
        return [bytes(data)]

    def broadcast(self, data: Bytes | None, what: str = "") -> bytes:
        """Return what was given."""
        return bytes(data or b"")

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        """Return what was given."""
        return [memoryview(part).cast("B").toreadonly() for part in parts]

    def close(self) -> None:
        """Do nothing."""
