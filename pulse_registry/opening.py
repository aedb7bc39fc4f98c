"""From a URL to a run: what ``pulse_registry.open`` does."""

from __future__ import annotations

import threading
from typing import Literal

from pulse_kernels import BackendName
from pulse_registry.errors import NotFound
from pulse_registry.placement import DeviceName, ShadowPlace
from pulse_registry.publish import PublishOptions
from pulse_registry.registry import Registry
from pulse_registry.service.connect import connect


def open(
    url: str,
    *,
    run: str,
    token: str | None = None,
    worker: str | None = None,
    create: bool = True,
    coder: Literal["auto", "gap", "class"] = "auto",
    publish_dtype: Literal["bf16", "keep"] = "bf16",
    keyframe_share: float = 0.5,
    keyframe_every: int | None = None,
    keyframe_coding: Literal["raw", "exponents"] = "raw",
    backend: BackendName = "auto",
    device: DeviceName = "auto",
    shadow: ShadowPlace = "device",
) -> Registry:
    """Open one run of a registry, to push to it and to pull from it. Nothing is written until the first push.

    Args:
        url: the registry's root: a folder, ``s3://bucket/prefix``, ``file:///...`` or ``memory://...``; or a service,
            ``https://host``, through which a run is the same, and which needs no keys of the bucket.
        run: the run's name: lower-case letters, digits, ``.``, ``_`` and ``-``.
        token: for a service; None takes it from PULSE_TOKEN.
        worker: this worker's name; a service is told, in the background, of each version that it applies. Of no
            effect elsewhere: there is nobody to tell.
        create: whether the run may be new; False raises NotFound where it does not exist.
        coder: of the patches pushed: ``gap``, ``class`` (smaller, slower), or ``auto``.
        publish_dtype: ``bf16`` publishes float32 tensors rounded to BF16; ``keep`` all tensors as they are.
        keyframe_share: a keyframe follows when the patches since the last exceed this share of its bytes.
        keyframe_every: a keyframe at least every so many versions.
        keyframe_coding: ``raw`` stores keyframes as ordinary checkpoints, ``exponents`` about 30 % smaller, for this
            library alone to read: it makes them ordinary again.
        backend: of the kernels in host memory: ``auto``, ``numba`` or ``reference``.
        device: ``auto`` works on a GPU where the model's tensors are on one and triton is installed, else in host
            memory; ``gpu`` raises InvalidArgument instead; ``cpu`` always works in host memory.
        shadow: where a trainer on a GPU keeps what it published last: in the GPU's memory, which takes the published
            weights' size there, or in pinned ``host`` memory, from which each push streams it.

    Raises:
        InvalidArgument: an argument is not valid.
        NotFound: ``create=False``, and there is no such run.
        AccessDenied, StoreUnavailable: ``create=False``, and the store can't be reached.
    """
    options = PublishOptions(coder, publish_dtype, keyframe_share, keyframe_every, keyframe_coding, shadow)
    registry = Registry(
        connect(url, token), run, options=options, backend=backend, worker=worker, owns_store=True, device=device
    )
    if not create and registry.state().seq < 0:
        registry.close()
        raise NotFound(f"there is no run {run!r} in {url}")
    threading.Thread(target=registry.warm_up, name="pulse-warm-up").start()
    return registry
