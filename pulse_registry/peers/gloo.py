"""Gloo groups of our own, and the store through which their ranks find each other.

They are not made by `torch.distributed.new_group`, which names a subgroup after how many groups each process has: with
pipeline stages these numbers differ, and the ranks of one subgroup would wait for each other under different names.
"""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import TYPE_CHECKING, Protocol, cast

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import PrefixStore, TCPStore
from torch.distributed.distributed_c10d import _get_default_store

from pulse_registry.peers.peers import COORDINATOR

if TYPE_CHECKING:
    from torch._C._distributed_c10d import Store, Work


class Gloo(Protocol):
    """What we call of a gloo group; torch's stubs leave it out."""

    def alltoall_base(
        self, output: torch.Tensor, input: torch.Tensor, output_split_sizes: list[int], input_split_sizes: list[int]
    ) -> Work:
        """Begin to send a part to each rank; no sizes: equal ones."""

    def broadcast(self, tensor: torch.Tensor, root: int) -> Work:
        """Begin to send a tensor to all ranks."""


def own_store(rank: int, ranks: Sequence[int], await_name: Callable[[Callable[[], bool]], None]) -> Store:
    """Return a store for one handle alone, over a connection of its own: on a shared one, calls wait in line.

    Each rank counts the handles that it opens over these ranks; for each, the coordinator draws a name.

    Args:
        rank: of this process among them.
        ranks: their global numbers.
        await_name: waits until the name is there, or raises.
    """
    shared = _get_default_store()
    group = hashlib.sha256(",".join(map(str, ranks)).encode()).hexdigest()[:32]
    opened = shared.add(f"pulse_registry/{group}/opened/{rank}", 1)
    key = f"pulse_registry/{group}/handle/{opened}"
    if rank == COORDINATOR:
        shared.set(key, secrets.token_hex(16))
    await_name(lambda: shared.check([key]))
    name = shared.get(key).decode("ascii", "replace")
    base = shared
    while isinstance(base, PrefixStore):
        base = base.underlying_store
    if isinstance(base, TCPStore):
        base = TCPStore(base.host, base.port, is_master=False, wait_for_workers=False)
    return PrefixStore(f"pulse_registry/{name}", base)


def connect(store: Store, rank: int, size: int, timeout: timedelta) -> Gloo:
    """Connect to all ranks, which do the same; the connections are closed when nobody holds the group any more.

    Args:
        store: of these ranks alone.
        rank: of this process.
        size: how many ranks there are.
        timeout: of this, and of each operation of the group.

    Raises:
        RuntimeError: a rank did not come in time, or has no address that the others reach.
    """
    return cast(Gloo, dist.ProcessGroupGloo(PrefixStore("gloo", store), rank, size, timeout))
