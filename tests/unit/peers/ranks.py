"""Ranks of real process groups: what they do and what they find, a line of JSON for each case and rank.

ranks.py SIZE   runs all cases with so many ranks: those in which nobody dies over one group, one after another
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

import numpy as np
import torch
import torch.distributed as dist

from pulse_registry.errors import CorruptObject, PulseError
from pulse_registry.peers import agree, gloo, roll_call, sum_lanes
from pulse_registry.peers import torch_peers as module
from pulse_registry.peers.torch_peers import TorchPeers
from tests.support.waiting import HANG_S, NEVER_S

Found = dict[str, Any]


def part(sender: int, receiver: int, number: int) -> bytes:
    """What a rank sends to another in a round: sizes from none to some hundreds of bytes."""
    rng = np.random.default_rng([sender, receiver, number])
    return rng.bytes(int(rng.integers(0, 400)) * int(rng.integers(0, 2)))


def check_collectives(peers: TorchPeers, rounds: int) -> int:
    """Compare every collective with what all ranks must have given; returns how many calls were made."""
    rank, size = peers.rank, peers.size
    for number in range(rounds):
        came = peers.exchange([memoryview(part(rank, to, number)) for to in range(size)], "parts")
        assert [bytes(one) for one in came] == [part(sender, rank, number) for sender in range(size)]
        assert all(one.readonly for one in came)
        everything = [part(sender, 0, number) for sender in range(size)]
        assert peers.all_gather(part(rank, 0, number), "all") == everything
        assert peers.gather(part(rank, 0, number)) == (everything if rank == 0 else None)
        assert peers.broadcast(part(0, 1, number) if rank == 0 else None) == part(0, 1, number)
        assert sum_lanes(peers, [2**63, rank]) == (2**63 * size % 2**64, size * (size - 1) // 2)
    return 5 * rounds


def raised(call: Callable[[], object]) -> Found:
    """Return what a call raised."""
    try:
        call()
    except PulseError as error:
        return {"class": type(error).__name__, "message": str(error), "ranks": list(getattr(error, "ranks", ()))}
    return {"class": None}


def every_collective() -> Found:
    """All collectives, on all ranks, whole and in rounds of a few bytes."""
    peers = TorchPeers(timeout_s=NEVER_S)
    assert (peers.rank, peers.size) == (dist.get_rank(), dist.get_world_size())
    calls = check_collectives(peers, 4)
    module._UNDER_WAY = 200
    calls += check_collectives(peers, 3)
    words = np.arange(5, dtype=np.uint32) + peers.rank
    came = peers.exchange([words.data] * peers.size)
    assert [np.frombuffer(one, np.uint32).tolist() for one in came] == [
        (np.arange(5) + rank).tolist() for rank in range(peers.size)
    ]
    module._UNDER_WAY = 64 << 20
    peers.close()
    return {"calls": calls, "closed": raised(lambda: peers.all_gather(b""))}


def other_calls() -> Found:
    """Ranks that make different calls hear of it, and go on in step."""
    peers = TorchPeers(timeout_s=NEVER_S)
    last = peers.rank == peers.size - 1
    found = {
        "other": raised(lambda: peers.gather(b"", "x") if last else peers.all_gather(b"", "x")),
        "purpose": raised(lambda: peers.all_gather(b"", "boxes" if last else "hashes")),
        "parts": raised(lambda: peers.exchange([b""] * (peers.size + last))),
        "nothing": raised(lambda: peers.broadcast(None)),
        "vote": raised(lambda: agree(peers, CorruptObject("damaged") if last else None)),
    }
    check_collectives(peers, 1)
    peers.close()
    return found


def beside_the_main_thread() -> Found:
    """A background thread exchanges while the main thread makes collectives over the default group."""
    peers = TorchPeers(timeout_s=NEVER_S)
    failed: list[Exception] = []

    def exchange() -> None:
        try:
            check_collectives(peers, 8)
        except Exception as error:  # noqa: BLE001 - the thread's edge
            failed.append(error)

    thread = threading.Thread(target=exchange)
    thread.start()
    total = torch.zeros(1000)
    for _ in range(30):
        total.fill_(dist.get_rank() + 1.0)
        dist.all_reduce(total)
    thread.join(HANG_S)
    peers.close()
    return {"failed": [repr(error) for error in failed], "sum": float(total[0])}


def subgroups() -> Found:
    """Ranks with other numbers of groups make peers of their subgroups; who is of none is refused."""
    size, rank = dist.get_world_size(), dist.get_rank()
    halves = [dist.new_group([*range(size)][half::2]) for half in range(2)]
    mine, other = halves[rank % 2], halves[1 - rank % 2]
    if rank % 2:
        # The odd ranks have one group more: no collective of all may depend on how many there are.
        dist.new_group([*range(size)][1::2], use_local_synchronization=True)
    peers, world = TorchPeers(mine, timeout_s=NEVER_S), TorchPeers(timeout_s=NEVER_S)
    check_collectives(peers, 2)
    check_collectives(world, 1)
    came = peers.all_gather(bytes([rank]))
    found = {"came": [one[0] for one in came], "not of it": raised(lambda: TorchPeers(other))["class"]}
    peers.close()
    world.close()
    return found


def reopens() -> Found:
    """A rank that closed is named by the others; all open again, over the same group, and go on."""
    first = TorchPeers(timeout_s=NEVER_S)
    last = dist.get_world_size() - 1
    first.all_gather(b"")
    if first.rank == last:
        first.close()
    found = {"lost": raised(lambda: first.all_gather(b"", "votes")), "later": raised(lambda: first.gather(b""))}
    second = TorchPeers(timeout_s=NEVER_S)
    check_collectives(second, 1)
    second.close()
    return found


def breaks_off() -> Found:
    """The last rank can't make its call at all: it says why, and the others do not wait for it."""
    peers = TorchPeers(timeout_s=NEVER_S)
    peers.all_gather(b"")  # all are connected: one that is not yet would miss the last rank while it opens
    if peers.rank == dist.get_world_size() - 1:
        try:
            peers.exchange(["text"] * peers.size, "parts")  # type: ignore[list-item]
        except TypeError as error:
            return {"own": str(error), "lost": raised(lambda: peers.all_gather(b""))}
    return {"lost": raised(lambda: peers.exchange([b""] * peers.size, "parts"))}


def silent() -> Found:
    """The last rank makes no call: the others wait for it, and give up; it hears of it when it comes."""
    told: list[str] = []
    module.WARNING_S = 3.0
    dist.barrier()
    peers = TorchPeers(timeout_s=6.0, tell=told.append)
    last = dist.get_world_size() - 1
    peers.all_gather(b"")
    dist.barrier()
    if peers.rank == last:
        dist.barrier()  # the others come here once they have given up
        found = {"lost": raised(lambda: peers.all_gather(b"", "heads"))}
    else:
        found = {"lost": raised(lambda: peers.all_gather(b"", "heads")), "told": told}
        dist.barrier()
    peers.close()
    module.WARNING_S = 60.0
    return found


def killed(collective: str, victim: int, operation: int) -> Found:
    """One rank is killed before an operation of a call, of which the first compares calls; the others find out."""
    roll_call._HEARING_S = HANG_S  # a busy machine is no reason to suspect more ranks
    groups: list[Dying] = []
    connect = gloo.connect

    def connected(*arguments: Any) -> Dying:
        groups.append(Dying(connect(*arguments)))
        return groups[0]

    if dist.get_rank() == victim:
        gloo.connect = connected
    peers = TorchPeers(timeout_s=NEVER_S)
    peers.all_gather(b"x")
    if peers.rank == victim:
        groups[0].left = operation
    calls: dict[str, Callable[[], object]] = {
        "all_gather": lambda: peers.all_gather(b"x", "heads"),
        "gather": lambda: peers.gather(b"x", "heads"),
        "broadcast": lambda: peers.broadcast(b"x", "heads"),
        "exchange": lambda: peers.exchange([b"x"] * peers.size, "heads"),
    }
    return {"lost": raised(calls[collective]), "later": raised(lambda: peers.all_gather(b""))}


class Dying:
    """A group whose process is killed before an operation."""

    def __init__(self, group: gloo.Gloo) -> None:
        self._group = group
        self.left: int | None = None

    def alltoall_base(self, *arguments: Any) -> Any:
        self._count()
        return self._group.alltoall_base(*arguments)

    def broadcast(self, *arguments: Any) -> Any:
        self._count()
        return self._group.broadcast(*arguments)

    def _count(self) -> None:
        if self.left is not None:
            self.left -= 1
            if not self.left:
                os.kill(os.getpid(), signal.SIGKILL)


def never_opens() -> Found:
    """The last rank never opens: the others wait for it, say so, and name it; the next time all come."""
    roll_call.WARNING_S = 2.0
    told: list[str] = []
    dist.barrier()
    last = dist.get_world_size() - 1
    if dist.get_rank() == last:
        dist.barrier()
        found = {"lost": raised(lambda: TorchPeers(timeout_s=NEVER_S))}
    else:
        found = {"lost": raised(lambda: TorchPeers(timeout_s=4.0, tell=told.append)), "told": told}
        dist.barrier()
    peers = TorchPeers(timeout_s=NEVER_S)
    check_collectives(peers, 1)
    peers.close()
    return found


ALIVE = [every_collective, other_calls, beside_the_main_thread, subgroups, reopens, breaks_off, silent, never_opens]
KILLED = {
    2: [("exchange", 1, 1), ("broadcast", 0, 2)],
    4: [("all_gather", 3, 1), ("gather", 0, 1), ("broadcast", 2, 2), ("exchange", 1, 2)],
}


def live(rank: int, size: int, port: int, cases: Sequence[Callable[[], Found]], report: int) -> None:
    """Be a rank, as torchrun's processes are, which has the store; write what each case found to a pipe."""
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_USE_AGENT_STORE": "True"}
    os.environ |= {"RANK": str(rank), "WORLD_SIZE": str(size)}
    dist.init_process_group("gloo", timeout=timedelta(seconds=HANG_S))
    for case in cases:
        os.write(report, json.dumps([case.__name__, rank, case()]).encode() + b"\n")


def fork(life: Callable[[], None]) -> int:
    """Let a process live. This one has no threads: what one of them held would be held in its forks for ever."""
    child = os.fork()
    if not child:
        try:
            life()
            os._exit(0)
        except BaseException:  # noqa: BLE001 - the process's edge
            traceback.print_exc()
        os._exit(1)
    return child


def agent(size: int, port: int) -> None:
    """Have the store, as torchrun does, and say at which port; until this process is killed."""
    store = dist.TCPStore("127.0.0.1", 0, size, is_master=True, wait_for_workers=False)
    os.write(port, str(store.port).encode())
    signal.pause()


def group(size: int, cases: Sequence[Callable[[], Found]], report: int) -> None:
    """Let the ranks of a group live, as forks of this process: torch is imported once."""
    reader, writer = os.pipe()
    store = fork(lambda: agent(size, writer))
    try:
        port = int(os.read(reader, 10))
        ranks = [fork(lambda rank=rank: live(rank, size, port, cases, report)) for rank in range(size)]  # type: ignore[misc]
        ends = [os.waitpid(rank, 0)[1] for rank in ranks]
    finally:
        os.kill(store, signal.SIGKILL)
        os.waitpid(store, 0)
    if not {*ends} <= {0, signal.SIGKILL}:
        raise SystemExit(f"a rank failed: {ends}")


def main(size: int) -> None:
    """Print what all cases of a world size found."""
    torch.set_num_threads(1)
    report = os.dup(1)
    group(size, ALIVE, report)
    for collective, victim, operation in KILLED[size]:

        def case(collective: str = collective, victim: int = victim, operation: int = operation) -> Found:
            return killed(collective, victim, operation)

        case.__name__ = f"killed {collective} {victim} {operation}"
        group(size, [case], report)


if __name__ == "__main__":
    main(int(sys.argv[1]))
