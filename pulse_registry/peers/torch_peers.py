"""Peers over torch.distributed: a gloo group of our own, over the ranks of a group that exists.

Import it late: it needs torch. The group has connections, a store and a timeout of its own, so that a background thread
may talk beside the collectives of FSDP2, over any backend, on the main thread.
"""

from __future__ import annotations

import logging
import struct
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt
import torch
import torch.distributed as dist

from pulse_registry.errors import InvalidArgument, PeerLost, PulseError
from pulse_registry.peers.call import Call, Collective, check_same
from pulse_registry.peers.lost import again, gone, late, silent, waiting
from pulse_registry.peers.peers import COORDINATOR, TIMEOUT_S, WARNING_S, Bytes
from pulse_registry.peers.roll_call import Presence, RollCall, poll

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

    from pulse_registry.peers.gloo import Gloo

_logger = logging.getLogger(__name__)
_UNDER_WAY: Final = 64 << 20
_SIZES: Final = struct.Struct("<QQ")
_HEADER: Final = Call.SIZE + _SIZES.size
_CHECK_IN_S: Final = 1.0
_OPEN: Final = "open"
Cells = npt.NDArray[np.uint8]


class TorchPeers:
    """This rank's end of a gloo group; see `Peers`. To make one is a collective, too.

    Args:
        process_group: whose ranks take part, of any backend; None: all ranks of the default group.
        timeout_s: how long a call waits for a silent rank.
        tell: is told which ranks a call has waited for, for a minute; logs it by default.

    Raises:
        InvalidArgument: torch.distributed is not initialized, or has no gloo; or this rank is not of the group.
        PeerLost: not all ranks came in time.
    """

    def __init__(
        self,
        process_group: ProcessGroup | None = None,
        *,
        timeout_s: float = TIMEOUT_S,
        tell: Callable[[str], None] = _logger.warning,
    ) -> None:
        if not (dist.is_available() and dist.is_initialized()):
            raise InvalidArgument(
                "a sharded model needs torch.distributed: call torch.distributed.init_process_group on every rank first"
            )
        if not dist.is_gloo_available():
            raise InvalidArgument("a sharded model needs gloo, and this build of torch has none: install one that does")
        from pulse_registry.peers.gloo import connect, own_store

        group = process_group if process_group is not None else dist.group.WORLD
        self._rank, self._size = dist.get_rank(group), dist.get_world_size(group)
        if self._rank < 0:
            raise InvalidArgument("this rank is not of the process group: open the registry on the group's ranks alone")
        self._timeout_s, self._tell = timeout_s, tell
        self._number = 0
        self._lost: PeerLost | None = None
        self._closed = False
        self._gloo: Gloo | None = None
        store = own_store(self._rank, dist.get_process_group_ranks(group), self._await_name)
        self._roll_call = RollCall(store, self._rank, self._size)
        self._gloo = self._connect(lambda: connect(store, self._rank, self._size, timedelta(seconds=timeout_s)))

    @property
    def rank(self) -> int:
        """Which of the ranks this is."""
        return self._rank

    @property
    def size(self) -> int:
        """How many ranks there are."""
        return self._size

    def all_gather(self, data: Bytes, what: str = "") -> list[bytes]:
        """Return what every rank gave; see `Peers`."""
        return [bytes(part) for part in self._exchange(Collective.ALL_GATHER, [data] * self._size, what)]

    def gather(self, data: Bytes, what: str = "") -> list[bytes] | None:
        """Return, at the coordinator, what every rank gave; see `Peers`."""
        parts: list[Bytes] = [b""] * self._size
        parts[COORDINATOR] = data
        given = self._exchange(Collective.GATHER, parts, what)
        return [bytes(part) for part in given] if self._rank == COORDINATOR else None

    def broadcast(self, data: Bytes | None, what: str = "") -> bytes:
        """Return what the coordinator gave; see `Peers`."""
        if self._rank == COORDINATOR and data is None:
            self._refuse("broadcast has nothing to send at the coordinator")
        with self._call(Collective.BROADCAST, what) as call:
            given = _bytes_of(data if data is not None and self._rank == COORDINATOR else b"")
            sizes, _ = self._meet(call, [len(given)] * self._size, 0)
            cells = np.empty(sizes[COORDINATOR], np.uint8)
            if self._rank == COORDINATOR:
                cells[:] = given
            for at in range(0, len(cells), _UNDER_WAY):
                part = torch.from_numpy(cells[at : at + _UNDER_WAY])
                self._do(call, lambda gloo, part=part: gloo.broadcast(part, COORDINATOR))  # type: ignore[misc]
            return cells.tobytes()

    def exchange(self, parts: Sequence[Bytes], what: str = "") -> list[memoryview]:
        """Send a part to each rank, and return what each sent to this one; see `Peers`."""
        if len(parts) != self._size:
            self._refuse(f"exchange has {len(parts)} parts for {self._size} ranks")
        return self._exchange(Collective.EXCHANGE, parts, what)

    def close(self) -> None:
        """Leave the group; see `Peers`."""
        if not self._closed:
            self._closed = True
            if self._lost is None:
                self._roll_call.say(Presence.CLOSED, self._number)
            self._gloo = None  # closes its connections

    def _exchange(self, collective: Collective, parts: Sequence[Bytes], what: str) -> list[memoryview]:
        """Exchange parts, in rounds, so that at most ``_UNDER_WAY`` bytes of a rank are under way."""
        with self._call(collective, what) as call:
            given = [_bytes_of(part) for part in parts]
            most = max(1, _UNDER_WAY // self._size)
            sizes, rounds = self._meet(call, [len(part) for part in given], -(-max(map(len, given)) // most))
            ends = np.cumsum(sizes, dtype=np.int64).tolist()
            whole = np.empty(ends[-1], np.uint8)
            taken = [whole[end - size : end] for end, size in zip(ends, sizes, strict=True)]
            if rounds == 1:
                self._move(call, given, whole, sizes)
            else:
                for at in range(0, rounds * most, most):
                    self._move_round(
                        call, [part[at : at + most] for part in given], [part[at : at + most] for part in taken]
                    )
        return [part.data.toreadonly() for part in taken]

    def _move_round(self, call: Call, send: Sequence[Cells], take: Sequence[Cells]) -> None:
        sizes = [len(part) for part in take]
        came = np.empty(sum(sizes), np.uint8)
        self._move(call, send, came, sizes)
        for part, cells in zip(take, np.split(came, np.cumsum(sizes)[:-1]), strict=True):
            part[:] = cells

    def _move(self, call: Call, send: Sequence[Cells], came: Cells, sizes: list[int]) -> None:
        output, input_ = torch.from_numpy(came), torch.from_numpy(np.concatenate(send))
        send_sizes = [len(part) for part in send]
        self._do(call, lambda gloo: gloo.alltoall_base(output, input_, sizes, send_sizes))

    def _meet(self, call: Call, sizes: Sequence[int], rounds: int) -> tuple[list[int], int]:
        """Compare calls, and tell each rank how much it is to get; return what each sends to this one, and the rounds.

        All ranks see the calls of all: they raise the same, and stay in step.
        """
        mine = call.to_bytes()
        header = b"".join(mine + _SIZES.pack(size, rounds) for size in sizes)
        came = np.empty(len(header), np.uint8)
        output, input_ = torch.from_numpy(came), torch.from_numpy(np.frombuffer(bytearray(header), np.uint8))
        self._do(call, lambda gloo: gloo.alltoall_base(output, input_, [], []))
        rows = [bytes(row) for row in came.reshape(self._size, _HEADER)]
        check_same([Call.from_bytes(row[: Call.SIZE], rank) for rank, row in enumerate(rows)])
        told = [_SIZES.unpack(row[Call.SIZE :]) for row in rows]
        return [size for size, _ in told], max(count for _, count in told)

    def _refuse(self, why: str) -> None:
        """Make a call that says why there is none: the other ranks wait for one. It raises what they raise."""
        with self._call(Collective.REFUSED, why) as call:
            self._meet(call, [0] * self._size, 0)

    @contextmanager
    def _call(self, collective: Collective, what: str) -> Iterator[Call]:
        """Make a call; what breaks it off on this rank alone ends the group: the others are in the middle of it."""
        if self._lost is not None:
            raise again(self._lost)
        if self._closed:
            raise InvalidArgument("the peers are closed: open the registry again")
        self._number += 1
        call = Call(self._number, collective, what).fitted()
        try:
            yield call
        except PulseError:
            raise  # on all ranks
        except BaseException:
            self._lost = gone([self._rank], self._size, call.place, "broke off")
            self._roll_call.say(Presence.GAVE_UP, self._number, [self._rank])
            self._gloo = None
            raise

    def _do(self, call: Call, begin: Callable[[Gloo], Work]) -> None:
        """Do one operation of the group, and wait for it; any failure is the end of the group."""
        began = time.monotonic()
        try:
            if self._gloo is None:
                raise RuntimeError("the peers were closed by another thread")
            return self._wait(call, begin(self._gloo))
        except RuntimeError as error:
            # What it was raised in holds the connections, and the other ranks wait until they are closed.
            cause = RuntimeError(str(error))
        self._gloo = None
        raise self._end(call.number, call.place, time.monotonic() - began) from cause

    def _wait(self, call: Call, work: Work) -> None:
        """Wait for an operation: after a second it says that it does, after a minute it asks for the others."""
        steps: list[tuple[float, Callable[[], None]]] = [
            (min(_CHECK_IN_S, self._timeout_s / 2), lambda: self._roll_call.say(Presence.THERE, call.number)),
            (WARNING_S, lambda: self._warn(call)),
        ]
        try:
            for seconds, then in steps:
                if seconds < self._timeout_s:
                    try:
                        work.wait(timedelta(seconds=seconds))
                    except RuntimeError:
                        if work.is_completed():
                            break
                        then()
                    else:
                        return
            work.wait()
        finally:
            del work  # it holds the connections, and what is raised holds this frame

    def _warn(self, call: Call) -> None:
        self._tell(waiting(self._roll_call.missing(call.number), self._size, call.place, WARNING_S, self._timeout_s))

    def _end(self, number: int, place: str, waited: float) -> PeerLost:
        """Say to the others that this rank goes, and return why."""
        if waited >= self._timeout_s:
            self._lost = silent(self._roll_call.missing(number), self._size, place, self._timeout_s)
        else:
            self._roll_call.say(Presence.GAVE_UP, number)
            found = self._roll_call.lost(number)
            if found.late:
                self._lost = late(self._rank, self._size, place)
            elif found.closed:
                self._lost = gone(found.ranks, self._size, place, "closed the registry", sure=True)
            else:
                self._lost = gone(found.ranks, self._size, place)
        self._roll_call.say(Presence.GAVE_UP, number, self._lost.ranks)
        return self._lost

    def _connect(self, connect: Callable[[], Gloo]) -> Gloo:
        """Wait for all ranks, and connect to them."""
        self._roll_call.say(Presence.THERE, 0)
        absent = self._roll_call.meet(self._timeout_s, self._warn_of_open)
        if absent is not None:
            self._roll_call.say(Presence.GAVE_UP, 0, absent.ranks)
            raise (
                gone(absent.ranks, self._size, _OPEN, "gave up, or closed the registry", sure=True)
                if absent.closed
                else silent(absent.ranks, self._size, _OPEN, self._timeout_s)
            )
        began = time.monotonic()
        try:
            return connect()
        except RuntimeError as error:
            raise self._end(0, _OPEN, time.monotonic() - began) from error

    def _await_name(self, there: Callable[[], bool]) -> None:
        if not poll(there, self._timeout_s, lambda: self._warn_of_open([COORDINATOR])):
            raise silent([COORDINATOR], self._size, _OPEN, self._timeout_s)

    def _warn_of_open(self, missing: Sequence[int]) -> None:
        self._tell(waiting(missing, self._size, _OPEN, WARNING_S, self._timeout_s))


def _bytes_of(data: Bytes) -> Cells:
    view = memoryview(data)
    return np.frombuffer(view, np.uint8) if view.nbytes else np.empty(0, np.uint8)
