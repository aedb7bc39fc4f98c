"""Place of a process among the ranks that it works with, and how they meet: as torchrun's processes do.

The supervisor has the store through which ranks find each other, as torchrun's agent has, and gives each rank its place
in the same variables. So the store outlives each of them.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final, Protocol, TypeVar

Value = TypeVar("Value")
_HERE: Final = "127.0.0.1"


@dataclass(frozen=True, slots=True)
class Place:
    """One of ``ranks`` processes; ``port``: of the store through which they meet. By default a process alone."""

    rank: int = 0
    ranks: int = 1
    port: int = 0

    @property
    def first(self) -> bool:
        """Tell whether this is rank 0, which speaks for all."""
        return self.rank == 0

    @contextmanager
    def joined(self, seconds: float) -> Iterator[None]:
        """Be one of the default group of torch.distributed, over gloo, whose calls wait for so long; alone, of none.

        After an error the connections stay until the process ends: it tells of the error before the others notice.
        """
        if self.ranks == 1:
            yield
            return
        import torch.distributed as dist

        os.environ |= {
            "MASTER_ADDR": _HERE,
            "MASTER_PORT": str(self.port),
            "RANK": str(self.rank),
            "LOCAL_RANK": str(self.rank),
            "WORLD_SIZE": str(self.ranks),
            "TORCHELASTIC_USE_AGENT_STORE": "True",
            "TORCHELASTIC_RESTART_COUNT": "0",
            "GLOO_SOCKET_IFNAME": "lo",
        }
        dist.init_process_group("gloo", timeout=timedelta(seconds=seconds))
        yield
        dist.destroy_process_group()

    def gather(self, value: Value) -> Sequence[Value]:
        """Return what each rank gives, on all of them. A collective."""
        if self.ranks == 1:
            return [value]
        import torch.distributed as dist

        every: list[Any] = [None] * self.ranks
        dist.all_gather_object(every, value)
        return every


class MeetingPoint(Protocol):
    """A store by which ranks find each other, at a port of this host. Keep it for as long as they live."""

    @property
    def port(self) -> int:
        """Where."""


def meeting_point() -> MeetingPoint:
    """Make a store for the ranks of one group to meet at, which other machines do not reach, at a free port."""
    from torch._C._distributed_c10d import TCPStore

    listening = socket.create_server((_HERE, 0))
    port = listening.getsockname()[1]
    return TCPStore(_HERE, port, is_master=True, wait_for_workers=False, master_listen_fd=listening.detach())
