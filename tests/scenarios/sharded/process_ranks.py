"""Ranks of real process groups that push and pull sharded models: what each finds in each case, a line of JSON.

process_ranks.py FOLDER GROUP_BYTES PART_GROUPS SIZE...   runs all cases with each number of ranks, on one registry,
in groups of so many bytes, and parts of so many groups
"""

from __future__ import annotations

import dataclasses
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final, NoReturn

import torch
import torch._dynamo
import torch.distributed as dist
import torch.distributed.checkpoint  # which the chunks of a DTensor need: once, and not in each fork
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, init_device_mesh
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

import pulse_registry
from pulse_registry import PullOptions, PushOptions, PushResult, Registry
from pulse_registry.errors import PeerLost, PulseError
from pulse_registry.options import ComputeOptions, NetworkOptions, Options
from pulse_registry.peers.torch_peers import TorchPeers
from pulse_registry.store import FileStore
from pulse_registry.testing import FaultStore
from pulse_registry.testing.fault import Fault
from pulse_registry.weights.backend import backend_of
from tests.support.groups import small_groups
from tests.support.parts import small_parts
from tests.support.waiting import HANG_S, NEVER_S
from tests.unit.peers.ranks import group

Found = dict[str, Any]
Whole = dict[str, torch.Tensor]
STEPS: Final = 3
ONE: Final = ComputeOptions(threads=1)


class Layer(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = torch.nn.Linear(12, 10)
        self.down = torch.nn.Linear(10, 12, bias=False)
        self.narrow = torch.nn.Linear(12, 2).requires_grad_(False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.down(torch.relu(self.up(x))) + self.narrow(x).mean(-1, keepdim=True)  # type: ignore[no-any-return]


class Policy(torch.nn.Module):
    """Tied, frozen in part, and of dimensions that no number of ranks divides or that are smaller than it."""

    def __init__(self) -> None:
        super().__init__()
        self.embed = torch.nn.Embedding(103, 12)
        self.few = torch.nn.Parameter(torch.ones(3, 4))
        self.layers = torch.nn.ModuleList(Layer() for _ in range(2))
        self.head = torch.nn.Linear(12, 103, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = self.embed(x) + self.few.reshape(-1)
        for layer in self.layers:
            hidden = layer(hidden)
        return self.head(hidden)  # type: ignore[no-any-return]


def policy(dtype: torch.dtype, seed: int) -> Policy:
    """Return the same policy on all ranks."""
    torch.manual_seed(seed)
    return Policy().to(dtype)


def fsdp(dtype: torch.dtype, seed: int) -> torch.nn.Module:
    """FSDP2 of all ranks."""
    made, mesh = policy(dtype, seed), init_device_mesh("cpu", (dist.get_world_size(),))
    for layer in made.layers:
        fully_shard(layer, mesh=mesh)
    return fully_shard(made, mesh=mesh)


def hsdp(dtype: torch.dtype, seed: int) -> torch.nn.Module:
    """Two replicas, each sharded over half of the ranks."""
    mesh = init_device_mesh("cpu", (2, dist.get_world_size() // 2), mesh_dim_names=("replica", "shard"))
    return fully_shard(policy(dtype, seed), mesh=mesh)


def two_dimensions(dtype: torch.dtype, seed: int) -> torch.nn.Module:
    """FSDP2 over tensor parallelism of two: rows are strided over ranks, columns cut."""
    made = policy(dtype, seed)
    mesh = init_device_mesh("cpu", (dist.get_world_size() // 2, 2), mesh_dim_names=("dp", "tp"))
    for layer in made.layers:
        parallelize_module(layer, mesh["tp"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
        fully_shard(layer, mesh=mesh["dp"])
    return fully_shard(made, mesh=mesh["dp"])


def replicas(dtype: torch.dtype, seed: int) -> torch.nn.Module:
    """DDP: all of the model on every rank."""
    return DistributedDataParallel(policy(dtype, seed))


def step(model: torch.nn.Module, number: int) -> None:
    """One step of an optimizer, on other data on each rank but those of one tensor-parallel pair."""
    optimizer = torch.optim.SGD([one for one in model.parameters() if one.requires_grad], lr=0.05)
    pairs = any(
        isinstance(one, DTensor) and "tp" in (one.device_mesh.mesh_dim_names or ()) for one in model.parameters()
    )
    torch.manual_seed(100 * number + dist.get_rank() // (2 if pairs else 1))
    (model(torch.randint(103, (8,))).float() - torch.randn(8, 103)).square().mean().backward()
    optimizer.step()


def gathered(model: torch.nn.Module) -> Whole:
    """Return the whole model, as today's trainers gather it; names of one tensor are one tensor."""
    inner = model.module if isinstance(model, DistributedDataParallel) else model
    whole: dict[int, torch.Tensor] = {}
    named: Whole = {}
    for name, one in inner.named_parameters(remove_duplicate=False):
        if id(one) not in whole:
            whole[id(one)] = (one.full_tensor() if isinstance(one, DTensor) else one).detach().clone()
        named[name] = whole[id(one)]
    return named


def told(result: PushResult) -> list[Any]:
    """Return what is the same on all ranks, and of a push by one process."""
    return [result.version, result.step, result.kind, result.changed, result.cells, result.nbytes, result.digest]


def wrong(state: Mapping[str, Any], whole: Whole) -> list[str]:
    """Return the names of tensors that are, where they are held here, not the whole's cells as BF16."""
    found = []
    for name, value in state.items():
        wanted = whole[name.removeprefix("module.")].to(torch.bfloat16)
        if isinstance(value, DTensor):
            [chunk] = value.__create_chunk_list__()  # type: ignore[attr-defined]
            wanted = wanted[tuple(slice(at, at + n) for at, n in zip(chunk.offsets, chunk.sizes, strict=True))]
            value = value.to_local()
        if value.numel() != wanted.numel() or not torch.equal(
            value.reshape(-1).view(torch.int16), wanted.reshape(-1).view(torch.int16)
        ):
            found.append(name)
    return found


class Twin:
    """One process with the whole model, which pushes to a run of its own: at rank 0."""

    def __init__(self, folder: str, run: str, options: PushOptions) -> None:
        self._registry = None if dist.get_rank() else pulse_registry.open(folder, run=run, push=options, compute=ONE)
        self.results: list[list[Any]] = []

    def push(self, number: int, whole: Whole) -> None:
        if self._registry is not None:
            self.results.append(told(self._registry.push(number, whole)))

    def close(self) -> None:
        if self._registry is not None:
            self._registry.close()


@contextmanager
def closing(*opened: Registry | Twin) -> Iterator[None]:
    """Close all, whatever happens: a rank that fails must not leave the others waiting."""
    try:
        yield
    finally:
        for one in opened:
            one.close()


def trains(
    folder: str, make: Callable[[torch.dtype, int], torch.nn.Module], dtype: torch.dtype, options: PushOptions
) -> Found:
    """Train, push each step from all ranks, and the gathered model from rank 0; pull all versions, there and back."""
    run = f"{make.__name__}-{dist.get_world_size()}-{options.coder}"
    world = dist.group.WORLD if make is replicas else None
    together = pulse_registry.open(folder, run=run, push=options, compute=ONE, process_group=world)
    twin, model, wholes = Twin(folder, f"{run}-twin", options), make(dtype, 0), []
    with closing(together, twin):
        results = []
        for number in range(STEPS):
            results.append(told(together.push(number, model)))
            wholes.append(gathered(model))
            twin.push(number, wholes[-1])
            step(model, number)
    found = {"results": results, "twin": twin.results}
    return found | (with_copy if options.coder == "class" else pulls)(folder, run, make, wholes)


def outer(folder: str, make: Callable[[torch.dtype, int], torch.nn.Module]) -> Found:
    """Make outer rounds of an inner step with a sharded model, and with a whole one beside it, at rank 0."""
    here, size = dist.get_rank() == 0, dist.get_world_size()
    model, run = make(torch.float32, 3), f"outer-{make.__name__}-{size}"
    whole, differing = gathered(model), list[str]()
    copies = {id(one): one.clone() for one in whole.values()}
    beside = {name: copies[id(one)] for name, one in whole.items()}
    registry = pulse_registry.open(folder, run=run, compute=ONE, process_group=dist.group.WORLD)
    alone = pulse_registry.open(folder, run=f"{run}-{'twin' if here else 'unused'}", compute=ONE)
    with closing(registry, alone):
        mine, twin = (one.outer(held, member="a", inner_steps=1) for one, held in ((registry, model), (alone, beside)))
        mine.join()
        if here:
            twin.join()
        for number in range(3):
            step(model, number)
            moved = gathered(model)
            mine.step()
            after = gathered(model)
            if here:
                for name, one in moved.items():
                    beside[name].copy_(one)
                twin.step()
                differing += [
                    f"{name} after round {number + 1}"
                    for name, one in after.items()
                    if not torch.equal(one.view(torch.int32), beside[name].view(torch.int32))
                ]
        mine.leave()
        if here:
            twin.leave()
        digests = [[version.digest for version in one.versions()] for one in (registry, alone if here else registry)]
    return {"differing": differing, "digests": digests}


def with_copy(
    folder: str, run: str, make: Callable[[torch.dtype, int], torch.nn.Module], wholes: Sequence[Whole]
) -> Found:
    """Pull patches of coder `class` together, by a host copy that the processes share."""
    found: Found = {"wrong": [], "together": []}
    model, options = make(torch.bfloat16, 7), PullOptions(host_copy=True)
    registry = pulse_registry.open(folder, run=run, compute=ONE, pull=options, process_group=dist.group.WORLD)
    with closing(registry):
        for version in (1, 0, 1, 2, 1):
            found["together"].append(registry.pull(version, into=model).checked)
            found["wrong"] += [[version, name] for name in wrong(model.state_dict(), wholes[version])]
        registry.verify(1, model=model)
    return found


def pulls(folder: str, run: str, make: Callable[[torch.dtype, int], torch.nn.Module], wholes: Sequence[Whole]) -> Found:
    """Pull into other sharded models of the same kind, with the others and alone; rank 0 into a plain worker.

    With the others, what was prefetched, too.
    """
    found: Found = {"wrong": []}
    for how, world in (("together", dist.group.WORLD), ("alone", None)):
        registry = pulse_registry.open(folder, run=run, compute=ONE, process_group=world)
        model, checked = make(torch.bfloat16, 7), []
        with closing(registry):
            for version in (0, len(wholes) - 1, 0, len(wholes) - 1):
                checked.append(registry.pull(version, into=model).checked)
                found["wrong"] += [[how, version, name] for name in wrong(model.state_dict(), wholes[version])]
            if world is not None:
                registry.pull(0, into=model)
                with registry.prefetch(into=model, poll_seconds=0.01) as prefetch:
                    staged = prefetch.take(timeout=HANG_S)
                    if staged is not None:
                        with staged:
                            checked.append(staged.apply().checked)
                found["wrong"] += [["ready", name] for name in wrong(model.state_dict(), wholes[-1])]
        found[how] = sorted({*checked})
    if dist.get_rank() == 0:
        worker = policy(torch.bfloat16, 8)
        with pulse_registry.open(folder, run=run, compute=ONE) as registry:
            for version, whole in enumerate(wholes):
                registry.pull(version, into=worker)
                found["wrong"] += [["plain", version, name] for name in wrong(worker.state_dict(), whole)]
    return found


def experts(folder: str) -> Found:
    """Whole tensors on one rank each, as experts are, beside a router that all ranks hold."""
    rank, size = dist.get_rank(), dist.get_world_size()
    run, options = f"experts-{size}", PushOptions(coder="gap")
    together = pulse_registry.open(folder, run=run, push=options, compute=ONE, process_group=dist.group.WORLD)
    twin = Twin(folder, f"{run}-twin", options)
    torch.manual_seed(0)
    whole = {f"experts.{n}.w": torch.randn(30, 10).to(torch.bfloat16) for n in range(2 * size + 1)}
    whole["router.w"] = torch.randn(2 * size + 1, 10).to(torch.bfloat16)
    mine = {name: one for number, (name, one) in enumerate(whole.items()) if number % size == rank}
    mine["router.w"] = whole["router.w"].clone()
    results, wholes = [], []
    with closing(together, twin):
        for number in range(STEPS):
            results.append(told(together.push(number, mine)))
            twin.push(number, whole)
            wholes.append({name: one.clone() for name, one in whole.items()})
            generator = torch.Generator().manual_seed(number)
            for one in whole.values():
                one[torch.rand(one.shape, generator=generator) < 0.1] *= -1.5
            mine["router.w"].copy_(whole["router.w"])
        into = {name: torch.zeros_like(one) for name, one in mine.items()}
        checked, differ = [], []
        for version in (0, STEPS - 1, 1):
            checked.append(together.pull(version, into=into, partial=True).checked)
            differ += [[version, name] for name in wrong(into, wholes[version])]
    return {"results": results, "twin": twin.results, "wrong": differ, "together": sorted({*checked})}


def pending(folder: str) -> Found:
    """Three pushes are under way, and none can be stored, while the model trains on by its own collectives."""
    size = dist.get_world_size()
    run, options = f"pending-{size}", PushOptions(coder="gap", max_pending=3)
    gate = threading.Event()
    gate.set()

    def store_waits(verb: str, key: str) -> bool:
        if verb == "put" and "/objects/" in key:
            gate.wait(HANG_S)
        return False

    store = FaultStore(FileStore(folder), [Fault("fail_before", matches=store_waits)])
    together = Registry(store, run, Options(push=options, compute=ONE, peers=TorchPeers(timeout_s=NEVER_S)))
    twin, model = Twin(folder, f"{run}-twin", options), fsdp(torch.float32, 0)
    with closing(together, twin):
        results = [told(together.push(0, model))]
        twin.push(0, gathered(model))
        if dist.get_rank() == 0:
            gate.clear()
        futures, done = [], []
        for number in range(1, 4):
            step(model, number)
            twin.push(number, gathered(model))
            futures.append(together.push(number, model, wait=False))
            done = [future.done() for future in futures]
        dist.barrier()
        gate.set()
        step(model, 4)
        twin.push(4, gathered(model))
        futures.append(together.push(4, model, wait=False))
        results += [told(future.result()) for future in futures]
    return {"results": results, "twin": twin.results, "done early": done}


def resized(folder: str) -> Found:
    """A job of this size goes on with the run of the one before it."""
    run, options = "resized", PushOptions(coder="gap", keyframe_share=1e9)
    together, model = pulse_registry.open(folder, run=run, push=options, compute=ONE), fsdp(torch.bfloat16, 0)
    latest = together.state().latest
    before = -1 if latest is None else latest.version
    twin = Twin(folder, f"{run}-twin", options)
    with closing(together, twin):
        dist.barrier()
        if before >= 0:
            together.pull(before, into=model)
        results = []
        for number in range(before + 1, before + 3):
            step(model, number)
            results.append(told(together.push(number, model)))
            twin.push(number, gathered(model))
        dist.barrier()
    return {"results": results, "twin": twin.results}


def raised(call: Callable[[], object]) -> str:
    """Return what a call raised."""
    try:
        call()
    except PulseError as error:
        return f"{type(error).__name__}: {error}"
    return "nothing"


def refused(folder: str) -> Found:
    """What can't be pushed is told, on all ranks, with what to do."""
    world = dist.group.WORLD
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    found: Found = {}

    def said(name: str, model: Any, process_group: Any = None) -> None:
        with pulse_registry.open(folder, run=f"refused-{name}", compute=ONE, process_group=process_group) as registry:
            found[name] = raised(lambda: registry.push(0, model))

    cpu = torch.device("cpu")
    for name, original in (("fsdp1-flat", False), ("fsdp1-original", True)):
        trained = policy(torch.bfloat16, 0).requires_grad_(True)
        said(name, FullyShardedDataParallel(trained, device_id=cpu, use_orig_params=original), world)
    spread = DTensor.from_local(torch.ones(4, 4, dtype=torch.bfloat16), mesh, [Partial()])
    said("partial", {"w": spread})
    freed = policy(torch.bfloat16, 0)
    freed.head.weight.data.untyped_storage().resize_(0)
    said("freed", freed, world)
    with torch.device("meta"):
        nowhere = policy(torch.bfloat16, 0)
    said("meta", nowhere, world)
    for layer in nowhere.layers:
        fully_shard(layer, mesh=mesh)
    said("meta-shards", fully_shard(nowhere, mesh=mesh))
    return found


def one_rank(folder: str) -> Found:
    """Only rank 0 pushes: it is told who did not come; who comes then is told that it is late."""
    model, network = fsdp(torch.bfloat16, 0), NetworkOptions(peer_timeout_s=3.0)
    found = {}
    if dist.get_rank() == 0:
        with pulse_registry.open(folder, run="one-rank", compute=ONE, network=network) as registry:
            found["seen"] = raised(lambda: registry.push(0, model))
    dist.barrier()
    if dist.get_rank():
        found["late"] = raised(lambda: TorchPeers(timeout_s=NEVER_S))
    dist.barrier()
    return found


def die(*_: object) -> NoReturn:
    """Be killed, as a host is that goes."""
    os.kill(os.getpid(), signal.SIGKILL)
    raise SystemExit


class Dying:
    """Peers whose process is killed when it comes to the second call of a name from when it was armed."""

    def __init__(self, peers: TorchPeers) -> None:
        self._peers, self.at = peers, ""

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._peers, name)
        if name not in ("all_gather", "gather", "broadcast", "exchange"):
            return found

        def call(data: Any, what: str = "") -> Any:
            return die() if what == self.at else found(data, what)

        return call


@dataclasses.dataclass(frozen=True)
class Death:
    """Of whom, before which call or after which object was stored."""

    victim: int
    call: str = ""
    key: str = ""


DEATHS: Final[Mapping[int, Sequence[Death]]] = {
    2: [Death(0, "write id"), Death(1, "changes"), Death(1, "upload"), Death(0, key="/log/"), Death(0, "record")],
    4: [Death(2, "rounds"), Death(3, key="/objects/"), Death(1, "directory"), Death(0, "head")],
    8: [Death(rank, call) for rank in range(8) for call in ("push", "delta", "record")],
}


def killed(folder: str, death: Death) -> Found:
    """Go on with the run of the job before, push, and push again: in that one a rank is killed."""
    armed = False
    fault = Fault("fail_after", "put", lambda _, key: armed and death.key in key, error=die)
    mine = dist.get_rank() == death.victim
    store = FileStore(folder)
    dying = Dying(TorchPeers(timeout_s=NEVER_S))
    options = PushOptions(coder="gap", keyframe_share=1e9)
    faulty = FaultStore(store, [fault] if mine and death.key else [])
    registry = Registry(faulty, f"killed-{dist.get_world_size()}", Options(push=options, compute=ONE, peers=dying))
    model = fsdp(torch.bfloat16, 0)
    latest = registry.state().latest
    before = -1 if latest is None else latest.version
    if before >= 0:
        registry.pull(before, into=model)
    step(model, before + 1)
    result = registry.push(before + 1, model)
    whole = gathered(model)
    step(model, before + 2)
    dist.barrier()
    found: Found = {"before": before, "pushed": told(result)}
    if mine:
        armed = True
        dying.at = death.call
    try:
        registry.push(before + 2, model)
    except PeerLost as lost:
        found |= {"lost": str(lost), "ranks": list(lost.ranks), "again": raised(lambda: registry.push(9, model))}
    worker = policy(torch.bfloat16, 3)
    with pulse_registry.open(folder, run=registry.run, compute=ONE) as reader:
        reader.pull(before + 1, into=worker)
        state = reader.state().latest
        found |= {"wrong": wrong(worker.state_dict(), whole), "latest": -1 if state is None else state.version}
        found["recorded"] = death.call == "record" or death.key == "/log/"
    return found


def cases(folder: str, size: int, *, every: bool) -> list[Callable[[], Found]]:
    """Return what is done in one process group; of two ranks, unless it is to be everything, what is another case."""
    gap, auto, dense = (PushOptions(coder=coder, keyframe_every=2) for coder in ("gap", "auto", "class"))  # type: ignore[arg-type]
    found: list[Callable[[], Found]] = []

    def case(name: str, work: Callable[..., Found], *arguments: Any) -> None:
        def run() -> Found:
            return work(folder, *arguments)

        run.__name__ = f"{size} {name}"
        found.append(run)

    for make, dtype, options in (
        (fsdp, torch.float32, gap),
        (hsdp, torch.bfloat16, gap),
        (two_dimensions, torch.float32, gap),
        (replicas, torch.float32, auto),
        (two_dimensions, torch.bfloat16, dense),
    ):
        if every or size > 2 or make in (hsdp, replicas):
            case(f"trains {make.__name__} {options.coder}", trains, make, dtype, options)
    for make in (fsdp, hsdp, two_dimensions, replicas):
        if every or size > 2 or make is replicas:
            case(f"outer {make.__name__}", outer, make)
    for work in (experts, pending, resized, *((refused, one_rank) if size == 2 else ())):
        case(work.__name__, work)
    return found


def main(folder: str, group_bytes: int, part_groups: int, *sizes: int) -> None:
    """Print what all ranks found."""
    torch.set_num_threads(1)
    backend_of("auto").warm_up(2)  # once, and not in each fork
    report = os.dup(1)
    with small_groups(group_bytes), small_parts(part_groups):
        for size in sizes:
            group(size, cases(folder, size, every=len(sizes) > 2), report)
            for number, death in enumerate(DEATHS[size]):

                def case(death: Death = death) -> Found:
                    return killed(folder, death)

                case.__name__ = f"{size} killed {number}"
                group(size, [case], report)


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
