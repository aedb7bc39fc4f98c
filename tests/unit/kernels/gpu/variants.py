"""The variants in which kernels are compiled: by Triton's own keys, also where they are interpreted and none is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
from triton.backends.compiler import GPUTarget  # type: ignore[import-untyped]
from triton.runtime.driver import driver  # type: ignore[import-untyped]
from triton.runtime.interpreter import InterpretedFunction  # type: ignore[import-untyped]
from triton.runtime.jit import JITFunction  # type: ignore[import-untyped]

HOPPER = GPUTarget("cuda", 90, 32)


class Variants(set[str]):
    """What was found; ``dry``: interpreted kernels do nothing from here on, so that they take no time."""

    dry = False

    @property
    def kernels(self) -> set[str]:
        """Which kernels they are of, as ``module.name``."""
        return {variant.partition(" ")[0] for variant in self}


@contextmanager
def variants_of(device: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[Variants]:
    """Collect the variants of all launches in the block: on a GPU, each of them is compiled."""
    found = Variants()
    binders: dict[str, Any] = {}
    kind = InterpretedFunction if device == "cpu" else JITFunction
    launch = kind.run

    def run(self: Any, *arguments: Any, **named: Any) -> Any:
        name = f"{self.fn.__module__.rpartition('.')[2]}.{self.fn.__name__}"
        result = None if found.dry else launch(self, *arguments, **named)
        if device == "cpu":
            if name not in binders:
                binders[name] = _binder(self)
            given = {key: value for key, value in named.items() if key not in ("grid", "warmup")}
            _, specialization, options = binders[name](*arguments, **given)
            found.add(f"{name} {specialization} {options}")
        else:
            found.update(f"{name} {key}" for cache, *_ in self.device_caches.values() for key in cache)
        return result

    with monkeypatch.context() as patched:
        patched.setattr(kind, "run", run)
        if device == "cpu":
            patched.setattr(driver, "_active", SimpleNamespace(get_current_target=lambda: HOPPER))
        yield found


def _binder(kernel: Any) -> Any:
    """Return what makes the key of a launch of an interpreted kernel: Triton's own, of the function compiled."""
    return JITFunction(kernel.fn, **kernel.kwargs).create_binder()[-1]
