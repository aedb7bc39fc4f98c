"""A file store and somebody who may write into its folder, in any order of what both do."""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from pulse_registry.errors import AlreadyExists, CorruptObject, InvalidArgument, NotFound
from pulse_registry.store import FileStore

KEYS = st.sampled_from(["x", "a/x", "a/b/x", "d/x", "a/b"])
PLACES = st.sampled_from(["x", "a", "a/x", "a/b", "a/b/x", "d", "d/x", "a/.pulse-tmp-1"])
TARGETS = st.sampled_from(["outside", "outside/x", "nowhere", "root/d", "root/a/x"])
SECRET = b"of nobody here"
REFUSALS = (AlreadyExists, CorruptObject, InvalidArgument, NotFound)


class Shared(RuleBasedStateMachine):
    """What the store does stays within its folder, and it hands out nothing but what was put under the key."""

    @initialize()
    def begin(self) -> None:
        self.files = tempfile.TemporaryDirectory()
        self.folder = Path(self.files.name).resolve()
        self.root = self.folder / "root"
        for name in ("x", "y", "b/x", "b/c/x", "b/c/.pulse-tmp-1"):
            place = self.folder / "outside" / name
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(SECRET)
        self.store = FileStore(self.root)
        self.count = 0
        for key in ("x", "a/x", "a/b/x", "d/x"):
            self.put(key, if_absent=True)

    def teardown(self) -> None:
        if hasattr(self, "files"):
            self.files.cleanup()

    @rule(key=KEYS, if_absent=st.booleans())
    def put(self, key: str, if_absent: bool) -> None:
        self.count += 1
        with suppress(*REFUSALS):
            self.store.put(key, f"{key} {self.count}".encode(), if_absent=if_absent)
            assert self.store.get(key) == f"{key} {self.count}".encode()

    @rule(key=KEYS)
    def read(self, key: str) -> None:
        buffer = bytearray(1)
        with suppress(*REFUSALS):
            data = self.store.get(key)
            assert data.startswith(f"{key} ".encode())
            assert self.store.size(key) == len(data)
            assert self.store.get(key, (0, 1)) == data[:1]
            self.store.get_into(key, (0, 1), buffer)
            assert buffer == data[:1]

    @rule(key=KEYS)
    def delete(self, key: str) -> None:
        with suppress(CorruptObject):
            self.store.delete(key)
            assert key not in self.store.list("")

    @rule(prefix=st.sampled_from(["", "a", "a/", "a/b/", "d/x"]))
    def list_what_can_be_read(self, prefix: str) -> None:
        listed = [*self.store.list(prefix)]
        assert listed == sorted({*listed})
        for key in listed:
            assert self.store.get(key).startswith(f"{key} ".encode())

    @rule(prefix=st.sampled_from(["a", "a/b", "d"]))
    def clear_up(self, prefix: str) -> None:
        self.store.remove_leftovers(older_than_s=-1.0)
        self.store.remove_folders(prefix)

    @rule(place=PLACES, to=TARGETS)
    def plant_a_link(self, place: str, to: str) -> None:
        if self._has_room(place):
            (self.root / place).symlink_to(self.folder / to)

    @rule(place=PLACES)
    def plant_a_pipe(self, place: str) -> None:
        if self._has_room(place):
            os.mkfifo(self.root / place)

    @rule(place=PLACES)
    def remove(self, place: str) -> None:
        self._has_room(place)

    def _has_room(self, place: str) -> bool:
        """Remove what is there, and return whether something can be put there."""
        path = self.root / place
        if not path.parent.is_dir() or path.parent.resolve() != path.parent:
            return False
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
        return True

    @invariant()
    def nothing_else_has_changed(self) -> None:
        outside = self.folder / "outside"
        found = {str(path.relative_to(outside)): path.read_bytes() for path in outside.rglob("*") if path.is_file()}
        assert found == dict.fromkeys(("x", "y", "b/x", "b/c/x", "b/c/.pulse-tmp-1"), SECRET)
        assert {*os.listdir(self.folder)} <= {"root", "outside"}


@pytest.mark.slow
def test_whatever_others_put_into_the_folder_nothing_leads_out_of_it() -> None:
    run_state_machine_as_test(Shared, settings=settings(max_examples=50, stateful_step_count=30, deadline=None))
