"""A run's keys in the store of its root; and through them, only to be read, the root's shared bases."""

from __future__ import annotations

from pulse_registry.errors import InvalidArgument
from pulse_registry.store.base import Store
from pulse_registry.store.body import Body
from pulse_registry.store.keys import check_key
from pulse_registry.store.wrappers.prefix import PrefixStore
from pulse_schemas import BASES


class RunStore(PrefixStore):
    """A Store of the keys below a run's folder, in which keys of shared bases are those of the root.

    Of a service they stay below the run: it gives the bases that the run names, and no others.
    """

    def __init__(self, store: Store, run: str) -> None:
        """View the root's store as a run.

        Args:
            store: the root's.
            run: the run's name.

        Raises:
            InvalidArgument: the name is no valid key.
        """
        super().__init__(store, run)
        self._through_service = store.gateway() is not None

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        """Write an object of the run: see Store.put.

        Raises:
            InvalidArgument: it is one of a shared base, which no run changes.
        """
        _check_own(key)
        super().put(key, data, if_absent=if_absent)

    def delete(self, key: str) -> None:
        """Remove an object of the run: see Store.delete.

        Raises:
            InvalidArgument: it is one of a shared base, which no run changes.
        """
        _check_own(key)
        super().delete(key)

    def _whole(self, key: str) -> str:
        if not self._through_service and key.startswith(BASES):
            check_key(key)
            return key
        return super()._whole(key)


def _check_own(key: str) -> None:
    if key.startswith(BASES):
        raise InvalidArgument(f"{key!r} is a shared base's, which is the root's: no run writes it or deletes it")
