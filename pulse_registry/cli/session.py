"""A run as a command opens it: by URL and name, with a meter on its bytes."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from pulse_registry.cli.progress import Meter, MeteredStore
from pulse_registry.errors import NotFound
from pulse_registry.publish import PublishOptions
from pulse_registry.registry import Registry
from pulse_registry.store import open_store


@dataclass(frozen=True, slots=True)
class Session:
    """One command's registry and meter."""

    registry: Registry
    meter: Meter


@contextmanager
def open_session(
    root: str,
    run: str,
    *,
    title: str,
    quiet: bool,
    options: PublishOptions | None = None,
    spool: Path | None = None,
) -> Iterator[Session]:
    """Open a run; with ``options``, to push to it, so that it may be new.

    Raises:
        NotFound: there is no such run, and nothing will be pushed.
        InvalidArgument: the URL or the name is not valid.
        StoreUnavailable: the store can't be reached.
    """
    with Meter(title, quiet=quiet) as meter:
        store = MeteredStore(open_store(root), meter)
        with Registry(store, run, options=options, spool=spool) as registry:
            if options is None and registry.state().seq < 0:
                raise NotFound(f"there is no run {run!r} in {root}")
            yield Session(registry, meter)
