"""Session of a command: a run opened by URL and name, with a meter on its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.cache import CacheFolder
from pulse_registry.cli.progress import Meter, MeteredStore
from pulse_registry.client.connect import HasConnections
from pulse_registry.errors import NotFound
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry
from pulse_registry.roots import connect_roots, roots_of
from pulse_registry.runtime.dependencies import Dependencies
from pulse_registry.runtime.runtime import Runtime
from pulse_registry.signing import signer_of, trust_of
from pulse_registry.store import Store


@dataclass(frozen=True, slots=True)
class Access:
    """How a command gets at a registry, and whom it believes: see ``pulse_registry.open``."""

    root: str
    token: str | None = None
    allow_http: bool = False
    trust: list[str] | None = None
    signing_key: Path | None = None


@dataclass(frozen=True, slots=True)
class Session:
    """One command's registry and meter."""

    registry: Registry
    meter: Meter


@contextmanager
def open_session(
    access: Access,
    run: str,
    *,
    title: str,
    quiet: bool,
    push: PushOptions | None = None,
    pull: PullOptions | None = None,
    compute: ComputeOptions | None = None,
    cache: CacheFolder | None = None,
) -> Iterator[Session]:
    """Open a run; with ``push``, to push to it, so that it may be new. For the rest see ``pulse_registry.open``.

    Raises:
        NotFound: there is no such run, and nothing will be pushed.
        InvalidArgument: the URL, the name, the token or a key is not valid.
        Untrusted: the log is not to be believed.
        AccessDenied: the credentials or the token do not allow it.
        StoreUnavailable: the store can't be reached.
    """
    signer, pinned = signer_of(access.signing_key), trust_of(access.trust or None)
    with (
        Meter(title, quiet=quiet) as meter,
        opened_store(access) as store,
        Registry(
            MeteredStore(store, meter),
            run,
            Options(
                push=push or PushOptions(),
                pull=pull or PullOptions(),
                compute=compute or ComputeOptions(),
                signer=signer,
                trust=pinned,
                cache=cache,
            ),
        ) as registry,
    ):
        if push is None and registry.state().seq < 0:
            raise NotFound(f"there is no run {run!r} in {access.root}")
        yield Session(registry, meter)


@contextmanager
def open_runtime(access: Access, run: str, *, title: str, quiet: bool) -> Iterator[Runtime]:
    """Open what a run is worked with, for what ``Registry`` does not do.

    Raises:
        As ``open_session``; a run that does not exist is none.
    """
    with Meter(title, quiet=quiet) as meter, opened_store(access) as store:
        options = Options(signer=signer_of(access.signing_key), trust=trust_of(access.trust or None))
        runtime = Runtime(MeteredStore(store, meter), run, options, Dependencies())
        try:
            yield runtime
        finally:
            runtime.end()


@contextmanager
def opened_store(access: Access) -> Iterator[Store]:
    """Open a registry's store, and close its connections at the end."""
    store = connect_roots(roots_of(access.root), access.token, allow_http=access.allow_http)
    try:
        yield store
    finally:
        if isinstance(store, HasConnections):
            store.close()
