"""Peers: this rank and the others that hold the same model, and the collectives in which they talk.

A collective is a call that every rank makes, in the same order, whatever its data are: a rank that has nothing to give
gives nothing, and one that failed gives nothing until the vote (`pulse_registry.peers.vote`). So no rank waits for a
call that another one leaves out.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Protocol, TypeAlias

Bytes: TypeAlias = bytes | bytearray | memoryview
"""What can be sent; a memoryview must be contiguous, and may be of any item size."""

COORDINATOR: Final = 0
"""The rank at which things are gathered, and which broadcasts."""

TIMEOUT_S: Final = 1800.0
"""How long the others wait for a silent rank by default: as long as torch.distributed does."""
WARNING_S: Final = 60.0
"""After how long it is said which ranks a collective waits for."""


class Peers(Protocol):
    """This rank's end of the group. One thread at a time may call it.

    ``what`` names a call in messages, up to 64 bytes. It, too, must be the same on all ranks: so that ranks which are
    at different points of a program find out, and take no data for others.

    Every collective raises, besides what is said of it:

    * InvalidArgument, on all ranks: they did not make the same call, or one of them gave what can't be sent. The group
      can still be used: the next call of each rank meets the next call of the others.
    * PeerLost: a rank died, closed, or did not come in time. So does every later call: open again, on all ranks.
    """

    @property
    def rank(self) -> int:
        """Which of the ranks this is: 0 to ``size`` - 1."""

    @property
    def size(self) -> int:
        """How many ranks there are."""

    def all_gather(self, data: Bytes, what: str = "") -> list[bytes]:
        """Return what every rank gave, by rank."""

    def gather(self, data: Bytes, what: str = "") -> list[bytes] | None:
        """Return, at the coordinator, what every rank gave, by rank; None elsewhere."""

    def broadcast(self, data: Bytes | None, what: str = "") -> bytes:
        """Return what the coordinator gave; what the others give is left out of account: None."""

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        """Send a part to each rank, by rank, and return what each rank sent to this one.

        Args:
            parts: one for each rank, this one too, of any sizes.
            what: names the call.

        Returns:
            Read-only bytes, by rank.
        """

    def close(self) -> None:
        """Leave the group, when no call is under way; waits for nobody. Idempotent. Ranks that still call: PeerLost."""
