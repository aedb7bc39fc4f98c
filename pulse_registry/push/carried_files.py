"""Carried files: the small files that go along with a push, stored once, and named by its commit where they are new.

They are content-addressed: each is an object named by the hash of its bytes, and so is the list of them. A version
whose record names none has those of the version before.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pulse_registry.errors import AlreadyExists
from pulse_registry.format.keys import file_key
from pulse_registry.log.files import fetch_file_set, fetch_named
from pulse_registry.push.files import file_set_of, files_of_model
from pulse_registry.store import Store
from pulse_registry.weights.model import Model, PublishDtype
from pulse_schemas import FileEntry, FileSet, VersionEntry


@dataclass(frozen=True, slots=True, eq=False)
class CarriedFiles:
    """The files that a push carries.

    Attributes:
        given: by the caller; None: none since the last ones that were committed.
        own: those of the model itself, which count where the run has none, or has them of another layout.
        of: what the model's own were taken from.
    """

    given: Mapping[str, bytes] | None
    own: Mapping[str, bytes] | None
    of: object

    def store(self, store: Store, parent: VersionEntry | None, layout: str) -> str | None:
        """Store what is not there yet, and return the id that the version's record is to name; None: its parent's.

        Args:
            store: scoped to the run.
            parent: the version before.
            layout: id of the version's.

        Raises:
            CorruptObject: a file's object is there, and damaged.
            StoreUnavailable: the store failed.
        """
        before = None if parent is None else parent.files
        contents = self.given
        entries: dict[str, FileEntry] = {}
        if contents is None and self.own is not None and (before is None or parent is None or parent.layout != layout):
            contents = self.own
            entries = {} if before is None else dict(fetch_file_set(store, before).files)
        if contents is None:
            return None
        files = FileSet(files=entries | file_set_of(contents).files)
        if files.id == before:
            return None
        kept = {entry.blake3 for entry in entries.values()}
        for name, data in contents.items():
            if files.files[name].blake3 not in kept:
                _create(store, files.files[name].blake3, data)
        _create(store, files.id, files.canonical())
        return files.id


class FilesToCarry:
    """What pushes of one trainer are to carry: the files given last, until they are committed. Guarded by its owner."""

    def __init__(self, dtype: PublishDtype) -> None:
        """Begin with none."""
        self._dtype = dtype
        self._given: Mapping[str, bytes] | None = None
        self._own: object = None

    def take(self, given: Mapping[str, bytes] | None, model: Model, of: object) -> CarriedFiles:
        """Return what a push carries.

        Args:
            given: by its caller.
            model: that is pushed.
            of: what identifies the model's layout.
        """
        self._given = self._given if given is None else given
        own = None if self._own == of else files_of_model(model, self._dtype)
        return CarriedFiles(self._given, own, of)

    def committed(self, carried: CarriedFiles) -> None:
        """Carry no longer what a committed push has carried."""
        self._own = carried.of
        if self._given is carried.given:
            self._given = None


def _create(store: Store, digest: str, data: bytes) -> None:
    """Put an object that is named by its hash. If it is there, it is read, since nobody may have looked at it yet."""
    try:
        store.put(file_key(digest), data, if_absent=True)
    except AlreadyExists:
        fetch_named(store, digest, len(data))
