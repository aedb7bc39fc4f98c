"""From a URL to a run: what ``pulse_registry.open`` does."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from contextlib import ExitStack
from typing import Any, Final, Literal

from pulse_kernels import BackendName
from pulse_registry.cache import cache_folder
from pulse_registry.client.connect import HasConnections, connect
from pulse_registry.errors import NotFound
from pulse_registry.events import Listener
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.pull.base_check import BaseCheck
from pulse_registry.pull.download import spool_of
from pulse_registry.push.options import PushOptions, WhenFull
from pulse_registry.registry import Registry
from pulse_registry.signing import Trust, signer_of, trust_of
from pulse_registry.weights.device import DeviceName, ShadowPlace
from pulse_registry.weights.nonfinite import NonFinite
from pulse_schemas import Signer

_STAYS: Final = ("token", "signing_key", "trust", "state_dir")
"""Of the arguments, what a pickled registry leaves behind, since it is secret, or carries in another form."""


def open(
    url: str,
    *,
    run: str,
    token: str | None = None,
    allow_http: bool | None = None,
    name: str | None = None,
    lease_seconds: float | None = 3600.0,
    create: bool = True,
    coder: Literal["auto", "gap", "class"] = "auto",
    dtype: Literal["bf16", "keep"] = "bf16",
    keyframe_share: float = 0.5,
    keyframe_every: int | None = None,
    keyframe_coding: Literal["raw", "exponents"] = "raw",
    backend: BackendName = "auto",
    threads: int | None = None,
    device: DeviceName = "auto",
    shadow: ShadowPlace = "device",
    compact: Literal["off", "inline"] = "off",
    max_pending: int = 2,
    when_full: WhenFull = "wait",
    allow_new_layout: bool = True,
    on_event: Listener | None = None,
    object_cost: int | None = None,
    signing_key: Signer | str | os.PathLike[str] | None = None,
    trust: Iterable[str] | Trust | None = None,
    state_dir: str | os.PathLike[str] | None = None,
    nonfinite: NonFinite = "allow",
    check: BaseCheck = "touched",
    cache: str | os.PathLike[str] | None = None,
    cache_bytes: int | None = None,
    spool: str | os.PathLike[str] | None = None,
) -> Registry:
    """Open one run of a registry, to push to it and to pull from it. Nothing is written until the first push.

    Args:
        url: the registry's root: a folder, ``s3://bucket/prefix``, ``file:///...`` or ``memory://...``; or a service,
            ``https://host``, through which a run is the same, and which needs no keys of the bucket.
        run: the run's name: letters, digits, ``.``, ``_`` and ``-``; capitals are stored as small letters.
        token: for a service; None takes it from PULSE_TOKEN.
        allow_http: whether the token may go over ``http://`` to another machine, where others may read it; None takes
            it from PULSE_ALLOW_HTTP, or refuses.
        name: of this worker or trainer. With it, a lease keeps the version that a worker holds, and what leads from
            there to the newest, from being deleted; a service is also told, in the background, of each version that it
            applies or pushes.
        lease_seconds: how long a lease is good after it was written, which is done when a third of that is over; None
            takes no lease. Without one, a worker that was away for longer than versions are kept takes a keyframe.
        create: whether the run may be new; False raises NotFound where it does not exist.
        coder: of the patches pushed: ``gap``, ``class`` (smaller, slower), or ``auto``.
        dtype: ``bf16`` publishes float32 tensors rounded to BF16; ``keep`` all tensors as they are.
        keyframe_share: a keyframe follows when the patches since the last exceed this share of its bytes.
        keyframe_every: a keyframe at least every so many versions.
        keyframe_coding: ``raw`` stores keyframes as ordinary checkpoints, ``exponents`` about 30 % smaller, for this
            library alone to read: it makes them ordinary again.
        backend: of the kernels in host memory: ``auto``, ``numba`` or ``reference``.
        threads: that compute, at most; None: one for each core that this process may use, by its affinity and its
            control groups. What waits for the store has threads of its own, which compute nothing.
        device: ``auto`` works on a GPU where the model's tensors are on one and the kernels run there (they are tried
            first; an event ``gpu_not_used`` tells why not), else in host memory; ``gpu`` raises InvalidArgument
            instead; ``cpu`` always works in host memory.
        shadow: where a trainer on a GPU keeps what it published last: in the GPU's memory, which takes the published
            weights' size there, or in pinned ``host`` memory, from which each push streams it.
        compact: ``inline`` makes merged patches, so that being far behind stays cheap, in a background thread between
            pushes; it keeps a copy of the weights on disk. ``off`` leaves them to ``pulse compact``.
        max_pending: pushes of ``wait=False`` that may be on their way; each holds what it changed in memory.
        when_full: what a push does when that many are: ``wait`` until one is done, before its diff; or ``coalesce``:
            take the place of the newest one that has not begun to be stored, whose future then has the same result.
        allow_new_layout: whether a push may have other tensors than the version before it, which makes it a keyframe;
            an event ``layout_changed`` tells of it. False raises LayoutMismatch instead.
        object_cost: bytes that a pull fetches rather than one more object; None: what the link to the store carries
            during one request, as the pulls of this process find it.
        on_event: is told, from any thread, of what happened although nothing failed. All of it is logged as warnings
            too; so is what this raises, which stops nothing.
        signing_key: signs every record that is written: a key's file, as ``pulse key new`` makes it, a `SigningKey`, or
            whatever else has its method ``sign``; None takes the file from PULSE_SIGNING_KEY, or signs nothing.
        trust: public keys, ``ed25519:<hex>``, or a `Trust`: a record that none of them has signed, or that contradicts
            what was seen before, raises Untrusted. None takes them from PULSE_TRUST, with spaces between them, or
            believes the store.
        state_dir: where what was seen of the run is kept for the next process, with ``trust``; None takes it from
            PULSE_STATE_DIR, or the user's folder.
        nonfinite: what becomes of weights that are NaN or infinite, of those that a push or a pull changes: ``allow``
            does not look, ``warn`` tells of them as an event, ``refuse`` raises InvalidModel, and nothing is changed.
        check: which cells of a worker's weights are compared with the version that they are taken for, before a pull
            changes some: ``touched``, those that change; ``all``, all of them, by a pass over the weights; n, all of
            them at every n-th pull.
        cache: a folder of this host, in which processes of one user share what they fetch, so that each object is
            downloaded once; None takes it from PULSE_CACHE, or there is none.
        cache_bytes: what the cache takes at most; None takes it from PULSE_CACHE_BYTES, or is half of its disk.
        spool: a folder for keyframes on their way, where a pull after one that died finds what it had fetched, and for
            a compactor's copy of the weights; None takes it from PULSE_SPOOL. Without one, keyframes are fetched into
            memory where that is as good, and the rest goes where TMPDIR says, or onto the system's disk.

    Raises:
        InvalidArgument: an argument is not valid, or the ``backend`` that it names can't run here.
        NotFound: ``create=False``, and there is no such run.
        AccessDenied, StoreUnavailable, Untrusted: ``create=False``, and the log can't be read, or not be believed.
    """
    given = {name: value for name, value in locals().items() if value is not None and name not in _STAYS}
    options = PushOptions(
        coder,
        dtype,
        keyframe_share,
        keyframe_every,
        keyframe_coding,
        shadow,
        compact,
        max_pending,
        when_full,
        allow_new_layout,
    )
    signer, pinned = signer_of(signing_key), trust_of(trust, state_dir)
    copies, files = cache_folder(cache, cache_bytes), spool_of(spool)
    with ExitStack() as undo:
        store = connect(url, token, allow_http=allow_http)
        if isinstance(store, HasConnections):
            undo.callback(store.close)
        registry = Registry(
            store,
            run,
            Options(
                push=options,
                name=name,
                lease_seconds=lease_seconds,
                owns_store=True,
                on_event=on_event,
                signer=signer,
                trust=pinned,
                nonfinite=nonfinite,
                cache=copies,
                pull=PullOptions(object_cost=object_cost, check=check, downloads=files),
                compute=ComputeOptions(backend=backend, threads=threads, ahead=True, device=device),
            ),
        )
        undo.callback(registry.close)
        if not create and registry.state().seq < 0:
            raise NotFound(f"there is no run {run!r} in {url}")
        registry.travels_as(Reopening(given, pinned, signs=signer is not None))
        undo.pop_all()
    return registry


class Reopening:
    """Opens a run as it was opened before, in another process: what `pickle` carries in place of a registry."""

    def __init__(self, given: Mapping[str, Any], trust: Trust | None, *, signs: bool) -> None:
        """Keep what ``open`` was given, and that it signs what it writes, if it does; no token and no signing key."""
        places = {name: _absolute(given[name]) for name in ("url", "cache", "spool") if name in given}
        self._given = {**given, **places, "trust": trust}
        self._signs = signs

    def __call__(self) -> Registry:
        """Open it, with the token and the signing key of this process's environment."""
        registry = open(**self._given)
        registry.travels_as(self, lacks_key=self._signs and registry.signer is None)
        return registry


def _absolute(place: str | os.PathLike[str]) -> str:
    """Return a folder as it is named from everywhere on this host, and a URL as it is."""
    text = os.fspath(place)
    return text if "://" in text else os.path.abspath(os.path.expanduser(text))
