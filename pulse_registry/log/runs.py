"""The runs of a registry: the folders of its root, found without looking at what is in them."""

from __future__ import annotations

from collections.abc import Iterator

from pulse_registry.log.names import RUN_NAME
from pulse_registry.store import Store


def list_runs(store: Store) -> Iterator[str]:
    """Iterate over the names of all runs of a root, in the order of their keys (``a-b/`` comes before ``a/``).

    What can be no run's folder is left out; a folder that is there may hold no run, or none any more.

    Raises:
        StoreUnavailable: the store failed.
    """
    names = (folder.removesuffix("/") for folder in store.folders(""))
    return (name for name in names if RUN_NAME.fullmatch(name))
