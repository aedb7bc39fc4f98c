"""Checkpoints of others, read to be pushed: what the safetensors library refuses is refused; nothing waits or dies."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from pulse_registry.errors import CorruptObject, InvalidArgument, InvalidModel, PulseError
from pulse_registry.format.keyframe import check_shards, shards_of
from pulse_registry.format.patch_head import read_head
from pulse_registry.push.checkpoint_source import read_checkpoint
from pulse_schemas import KeyframeRef, ObjectRef
from tests.security.fuzz.heads import file_of
from tests.support.groups import geometry_of

INDEX = "model.safetensors.index.json"


def written(path: Path, data: bytes = b"abcd", **entry: Any) -> Path:
    about = {"w": {"dtype": "U8", "shape": [4], "data_offsets": [0, 4]} | entry}
    path.write_bytes(file_of(json.dumps(about).encode(), data))
    return path


@pytest.mark.parametrize(
    "entry",
    [
        {"data_offsets": [0.0, 4.0]},
        {"data_offsets": [1, 5]},
        {"shape": ["4"]},
        {"shape": [4.9]},
        {"shape": [3], "data_offsets": [0, 3]},
        {"shape": [1] * 64 + [4]},
        {"dtype": "F64", "shape": [0, 2**60, 2], "data_offsets": [0, 0], "data": b""},
        {"shape": [0, 2**64], "data_offsets": [0, 0], "data": b""},
        {"dtype": "F4", "shape": [], "data_offsets": [0, 1], "data": b"a"},
    ],
    ids=str,
)
def test_a_file_of_strange_sizes_is_refused_by_name(tmp_path: Path, entry: dict[str, Any]):
    path = written(tmp_path / "m.safetensors", **entry)
    with pytest.raises(InvalidModel, match=r"m\.safetensors") as refused:
        read_checkpoint(path)
    assert "w" in str(refused.value) or "bytes" in str(refused.value)


SHORTER = """
import os, sys
from pathlib import Path
import numpy as np
import pulse_registry
from pulse_registry.push.checkpoint_source import read_checkpoint
from safetensors.numpy import save_file

folder = Path(sys.argv[1])
path = folder / "m.safetensors"
state = {"a": np.arange(50_000, dtype=np.float32), "b": np.arange(50_000, dtype=np.float32)}
options = {"push": pulse_registry.PushOptions(dtype="keep")}
with pulse_registry.open(str(folder / "runs"), run="run", **options) as registry:
    for step in range(2):
        for cut in (0, 4096, 200_000, 399_000):
            save_file(state, path)
            model = read_checkpoint(path)
            os.truncate(path, cut)
            try:
                registry.push(step, model)
            except pulse_registry.InvalidArgument as error:
                assert "shorter" in str(error) and "m.safetensors" in str(error), error
            else:
                raise SystemExit("half a file was published")
            assert len(registry.versions()) == step
        save_file(state, path)
        assert registry.push(step, read_checkpoint(path)).version == step
        assert registry.load(step, framework="numpy")["b"].tobytes() == state["b"].tobytes()
        state["b"][7] += 1
print("alive")
"""


@pytest.mark.slow
def test_a_file_that_is_cut_short_while_it_is_pushed_is_refused_and_kills_nobody(tmp_path: Path):
    child = subprocess.run([sys.executable, "-c", SHORTER, str(tmp_path)], capture_output=True, text=True)
    assert (child.returncode, child.stdout) == (0, "alive\n"), child.stderr


def test_a_file_that_is_not_there_any_more_is_read_to_its_end(tmp_path: Path):
    path = written(tmp_path / "m.safetensors")
    tensor = read_checkpoint(path)["w"]
    path.unlink()
    assert tensor.cells(1, 4).tobytes() == b"bcd"


def test_a_tensor_of_nothing_is_what_it_is(tmp_path: Path):
    path = written(tmp_path / "m.safetensors", b"", shape=[3, 0, 2], data_offsets=[0, 0])
    assert read_checkpoint(path)["w"].shape == (3, 0, 2)


@pytest.mark.parametrize("name", ["m.safetensors", "model.safetensors"])
def test_a_fifo_in_the_place_of_a_file_is_not_waited_for(tmp_path: Path, name: str):
    os.mkfifo(tmp_path / name)
    with pytest.raises(InvalidArgument, match="no regular file"):
        read_checkpoint(tmp_path / name if name == "m.safetensors" else tmp_path)


def test_a_link_is_followed_as_caches_have_them(tmp_path: Path):
    written(tmp_path / "blob")
    (tmp_path / "model.safetensors").symlink_to(tmp_path / "blob")
    assert read_checkpoint(tmp_path)["w"].cells(0, 4).tobytes() == b"abcd"


@pytest.mark.parametrize(
    "index",
    [
        b"\xff",
        b"[" * 100_000,
        b"[]",
        b"{}",
        b'{"weight_map":[]}',
        b'{"weight_map":"w"}',
        b'{"weight_map":{"w":1}}',
        b'{"weight_map":{"w":null}}',
        b'{"weight_map":{"w":""}}',
        b'{"weight_map":{"w":".."}}',
        b'{"weight_map":{"w":"../model.safetensors"}}',
        b'{"weight_map":{"w":"/etc/passwd"}}',
        b'{"weight_map":{"w":"a\\u0000.safetensors"}}',
        b'{"weight_map":{"w":"\\ud800.safetensors"}}',
        b'{"weight_map":{"w":"missing.safetensors"}}',
    ],
    ids=lambda index: repr(index[:40]),
)
def test_an_index_that_is_none_or_names_other_files_is_refused(tmp_path: Path, index: bytes):
    folder = tmp_path / "model"
    folder.mkdir()
    written(tmp_path / "model.safetensors")
    (folder / INDEX).write_bytes(index)
    with pytest.raises(PulseError, match="model"):
        read_checkpoint(folder)


def test_an_index_is_not_read_beyond_its_bound(tmp_path: Path):
    with (tmp_path / INDEX).open("wb") as file:
        file.truncate(1 << 40)
    with pytest.raises(InvalidModel, match="more than"):
        read_checkpoint(tmp_path)


def test_tensors_without_cells_are_told_apart_where_shards_meet():
    none = np.zeros((0, 2), np.float32)
    model = {"a": none, "b": np.ones(3, np.float32), "c": none, "d": none, "e": np.ones(5, np.float32), "f": none}
    geometry = geometry_of(model)
    for shard_bytes in (1, 12, 20, 1000):
        shards = shards_of(geometry, shard_bytes)
        refs = tuple(ObjectRef(key=shard.name, size=shard.nbytes, blake3="0" * 64) for shard in shards)
        index = ObjectRef(key=INDEX, size=0, blake3="0" * 64)
        found = check_shards(
            geometry, KeyframeRef(version=0, index=index, shards=refs), [shard.header for shard in shards]
        )
        assert found == shards


def test_no_json_is_read_of_a_shard_or_a_patch_whose_header_can_not_be_theirs():
    model = {"w": np.ones(3, np.float32)}
    header = b'{"w":[' + b"[]," * (1 << 20) + b"[]]}"
    file = file_of(header, bytes(12))
    ref = ObjectRef(key="model-00001-of-00001.safetensors", size=len(file), blake3="0" * 64)
    keyframe = KeyframeRef(version=0, index=ref.model_copy(update={"key": INDEX}), shards=(ref,))
    geometry = geometry_of(model)
    tracemalloc.start()
    try:
        with pytest.raises(CorruptObject, match="is not the header"):
            check_shards(geometry, keyframe, [file])
        with pytest.raises(CorruptObject, match="not a patch object"):
            read_head("x.safetensors", file, len(file))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 1 << 20
