from __future__ import annotations

import tempfile
from pathlib import Path

import pytest
from hypothesis import settings
from hypothesis.stateful import run_state_machine_as_test

from pulse_registry.store import FileStore, Store
from pulse_registry.testing import StoreTests, Subject
from tests.conformance.model import StoreMachine


class TestFileStore(StoreTests):
    @pytest.fixture
    def subject(self, tmp_path: Path) -> Subject:
        def raw_set(key: str, data: bytes) -> None:
            path = tmp_path / "root" / key
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)

        return Subject(
            store=FileStore(tmp_path / "root"),
            raw_get=lambda key: (tmp_path / "root" / key).read_bytes(),
            raw_set=raw_set,
        )


class _Machine(StoreMachine):
    def fresh(self) -> Store:
        self.folder = tempfile.TemporaryDirectory()
        return FileStore(self.folder.name)

    def teardown(self) -> None:
        if hasattr(self, "folder"):
            self.folder.cleanup()


def test_a_file_store_behaves_like_a_dict() -> None:
    run_state_machine_as_test(_Machine, settings=settings(max_examples=40, stateful_step_count=25))
