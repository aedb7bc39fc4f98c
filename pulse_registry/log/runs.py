"""The runs of a registry: the folders of its root, found without looking at what is in them."""

from __future__ import annotations

from collections.abc import Iterator

from pulse_registry.log.names import RUN_NAME
from pulse_registry.store import Store


def list_runs(store: Store) -> Iterator[str]:
    """Iterate over the names of all runs of a root, in the order of their keys (``a-b/`` comes before ``a/``).

    What is no run's folder is left out.

    One listing a run, and one at the end: each begins behind all keys of the run before.

    Raises:
        StoreUnavailable: the store failed.
    """
    after: str | None = None
    while (key := next(store.list("", after), None)) is not None:
        name, slash, _ = key.partition("/")
        if slash and RUN_NAME.fullmatch(name):
            yield name
        # '0' follows '/': no key of this folder comes behind it, and all keys of later names do.
        after = f"{name}0" if slash else key
