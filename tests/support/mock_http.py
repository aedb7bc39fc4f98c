"""The service and the bucket behind it, as the client sees them, without a network: a function answers each request."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
import pytest

from pulse_registry.client import api, presigned
from pulse_registry.client.transport import Timeouts


@contextmanager
def answered_by(answer: Callable[[httpx.Request], httpx.Response]) -> Iterator[None]:
    """Let a function answer the requests of clients that are made meanwhile, to the service and to the bucket."""

    def new_client(
        timeouts: Timeouts, headers: dict[str, str] | None = None, *, trust_env: bool = True
    ) -> httpx.Client:
        return httpx.Client(headers=headers, transport=httpx.MockTransport(answer))

    with pytest.MonkeyPatch.context() as patched:
        for module in (api, presigned):
            patched.setattr(module, "new_client", new_client)
        yield
