"""Whole checkpoints of the common delta format have the run's small files, and an import takes them along."""

from __future__ import annotations

from pathlib import Path

import pytest

from pulse_registry.errors import InvalidArgument
from pulse_registry.interop import export_full, import_folder
from tests.support.records import DictStore
from tests.support.registries import quick, restored
from tests.unit.interop.conftest import Run

CONFIG = {"config.json": b'{"model_type":"x"}', "chat_template.jinja": b"{{ x }}"}


def test_a_whole_checkpoint_has_data_and_no_code(run: Run, tmp_path: Path) -> None:
    run.registry.push(4, run.models[0], files=CONFIG | {"modeling_x.py": b"import os"})
    export_full(run.registry, tmp_path / "weight_v000004", 4)
    assert {name: (tmp_path / "weight_v000004" / name).read_bytes() for name in CONFIG} == CONFIG
    assert not (tmp_path / "weight_v000004" / "modeling_x.py").exists()
    store = DictStore()
    with quick(store) as registry:
        assert [one.cells for one in import_folder(registry, tmp_path)] == [sum(m.size for m in run.models[0].values())]
        assert registry.files() == CONFIG
    assert restored(store, run.models[0]) == restored(run.store, run.models[0], 4)


def test_an_import_takes_nothing_from_outside_of_the_folder(run: Run, tmp_path: Path) -> None:
    folder = tmp_path / "in" / "weight_v000000"
    export_full(run.registry, folder, 0)
    (tmp_path / "secret.json").write_bytes(b"secret")
    (folder / "config.json").symlink_to(tmp_path / "secret.json")
    with quick(DictStore()) as registry, pytest.raises(InvalidArgument, match="leads out of its folder"):
        list(import_folder(registry, tmp_path / "in"))
