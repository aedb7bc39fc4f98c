"""``pulse_registry.open``: opens a run by the URL of its registry."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, Any, overload

from pulse_registry.cache import cache_folder
from pulse_registry.client.connect import HasConnections
from pulse_registry.errors import NotFound
from pulse_registry.events import Listener
from pulse_registry.options import CacheOptions, ComputeOptions, NetworkOptions, Options, PullOptions
from pulse_registry.pull.download import MEMORY, spool_of
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.results import ResultListener
from pulse_registry.roots import connect_roots, roots_of
from pulse_registry.signing import Trust, signer_of, trust_of

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup


def open(
    url: str | os.PathLike[str] | Sequence[str | os.PathLike[str]],
    *,
    run: str,
    name: str | None = None,
    token: str | None = None,
    create: bool = True,
    push: PushOptions | None = None,
    pull: PullOptions | None = None,
    compute: ComputeOptions | None = None,
    network: NetworkOptions | None = None,
    cache: CacheOptions | str | os.PathLike[str] | None = None,
    trust: Trust | Iterable[str] | None = None,
    on_event: Listener | None = None,
    on_result: ResultListener | None = None,
    process_group: ProcessGroup | None = None,
) -> Registry:
    """Open one run of a registry, to push to it and to pull from it. Nothing is written until the first push.

    Args:
        url: the registry's root: a folder (also as a ``Path``), ``s3://bucket/prefix``, ``file:///...`` or
            ``memory://...``; or a service, ``https://host``, through which a run is the same, and which needs no keys
            of the bucket. Or several roots that hold the run, one its home and the others mirrors, the nearest first,
            as a list or with commas between: reads go to the first that answers and is not behind, writes to the home.
        run: the run's name: letters, digits, ``.``, ``_`` and ``-``; capitals are stored as small letters.
        name: of this worker or trainer. With it, a lease keeps the version that a worker holds, and what leads from
            there to the newest, from being deleted; a service is also told, in the background, of each version that it
            applies or pushes. Ranks that pull together share it, and each is told of as one of so many ranks.
        token: for a service; None takes it from PULSE_TOKEN.
        create: whether the run may be new; False raises NotFound where it does not exist.
        push: how to publish: the coder, the dtype, keyframes, the key that signs.
        pull: how to pull: what is checked, the lease, the folder for keyframes on their way.
        compute: the backend, the threads, and the device that weights are worked on.
        network: what is sent where, and what a request costs.
        cache: a folder of this host, in which processes of one user share what they fetch, so that each object is
            downloaded once; or `CacheOptions`. None takes it from PULSE_CACHE, or there is none.
        trust: public keys, ``ed25519:<hex>``, or a `Trust`: a record that none of them has signed, or that contradicts
            what was seen before, raises Untrusted. None takes them from PULSE_TRUST, with spaces between them, or
            believes the store.
        on_event: is told, from any thread, of what happened although nothing failed. All of it is logged as warnings
            too; so is what this raises, which stops nothing.
        on_result: is told of each version that was committed, and of each pull that changed something, one after the
            other, from a thread of its own: nothing waits for it, and what it raises is logged and stops nothing. Of
            several ranks, each tells its own.
        process_group: of torch.distributed, any backend's: the ranks that push and pull one model together; all of them
            open the run, and make the same calls in the same order. Pulls then bring all ranks to a version, or none,
            and check their slices together; pushes of replicas share the work. None: each rank pulls by itself, and a
            push of a sharded model takes all ranks of the default group.

    Raises:
        InvalidArgument: an argument is not valid, or the backend that it names can't run here.
        PeerLost: not all ranks of the process group came.
        NotFound: ``create=False``, and there is no such run.
        AccessDenied, StoreUnavailable, Untrusted: ``create=False``, and the log can't be read, or not be believed.
    """
    roots = roots_of(url)
    pull, network = pull or PullOptions(), network or NetworkOptions()
    kept = cache if isinstance(cache, CacheOptions) else CacheOptions(cache)
    options = Options(
        push=push or PushOptions(),
        pull=dataclasses.replace(pull, spool=spool_of(pull.spool)),
        compute=compute or ComputeOptions(),
        network=network,
        name=name,
        owns_store=True,
        compile_ahead=True,
        on_event=on_event,
        on_result=on_result,
        signer=signer_of(None if push is None else push.signing_key),
        trust=trust_of(trust),
        cache=cache_folder(kept.folder, kept.max_bytes),
    )
    with ExitStack() as undo:
        if process_group is not None:
            from pulse_registry.peers.torch_peers import TorchPeers

            meet = partial(TorchPeers, process_group, timeout_s=network.peer_timeout_s)
            peers = meet()
            undo.callback(peers.close)
            options = dataclasses.replace(options, peers=peers, push_peers=meet)
        store = connect_roots(roots, token, allow_http=network.allow_http)
        if isinstance(store, HasConnections):
            undo.callback(store.close)
        registry = Registry(store, run, options)
        undo.callback(registry.close)
        if not create and registry.state().seq < 0:
            raise NotFound(f"there is no run {run!r} in {' or '.join(roots)}")
        if process_group is None:
            registry.pickles_as(Reopening(roots, run, dataclasses.replace(options, pull=pull), kept, create=create))
        undo.pop_all()
    return registry


class Reopening:
    """Opens a run as it was opened before, in another process: what `pickle` carries in place of a registry."""

    def __init__(self, roots: Sequence[str], run: str, options: Options, cache: CacheOptions, *, create: bool) -> None:
        """Keep what ``open`` was given, and that it signs what it writes, if it does; no token and no signing key."""
        folder, spool = _absolute(cache.folder), _absolute(options.pull.spool)
        self._roots = [_absolute(root) for root in roots]
        self._given: dict[str, Any] = {
            "run": run,
            "name": options.name,
            "create": create,
            "push": dataclasses.replace(options.push, signing_key=None),
            "pull": dataclasses.replace(options.pull, spool=spool),
            "compute": options.compute,
            "network": options.network,
            "cache": dataclasses.replace(cache, folder=folder),
            "trust": options.trust,
            "on_event": options.on_event,
            "on_result": options.on_result,
        }
        self._signs = options.signer is not None

    def __call__(self) -> Registry:
        """Open it, with the token and the signing key of this process's environment."""
        registry = open(self._roots, **self._given)
        registry.pickles_as(self, lacks_key=self._signs and registry.signer is None)
        return registry


@overload
def _absolute(place: str | os.PathLike[str]) -> str: ...
@overload
def _absolute(place: str | os.PathLike[str] | None) -> str | None: ...
def _absolute(place: str | os.PathLike[str] | None) -> str | None:
    """Return a folder as it is named from everywhere on this host; a URL, memory, none and "" as they are."""
    if not place or place == MEMORY:
        return None if place is None else str(place)
    text = os.fspath(place)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
