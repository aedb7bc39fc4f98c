"""Run by the Python that has ModelExpress, not by ours: writes and reads the format with that package's own functions.

``python modelexpress_peer.py write BASE TARGET OUT VERSION BASE_VERSION`` compares checkpoints and writes the delta.
``python modelexpress_peer.py read DELTA CHECKPOINT VERSION BASE_VERSION`` applies a delta to a checkpoint, in place.
``python modelexpress_peer.py read-full CHECKPOINT OUT`` takes a whole checkpoint and writes what it took.

The package's modules import one another's frameworks at their top; those that are called here need none of them.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any

INDEX = "model.safetensors.index.json"


def package(name: str) -> types.ModuleType:
    """Return a package whose modules can be imported, without running what stands in its ``__init__``."""
    root = importlib.util.find_spec("modelexpress")
    assert root is not None
    assert root.submodule_search_locations is not None
    module = types.ModuleType(name)
    module.__path__ = [str(Path(root.submodule_search_locations[0]).parent.joinpath(*name.split(".")))]
    sys.modules[name] = module
    return module


def receiver() -> Any:
    for name in ("modelexpress_rl", "modelexpress_rl.inference"):
        package(name)
    train: Any = package("modelexpress_rl.train")
    train.WeightPayloadFormat = importlib.import_module("modelexpress_rl.train.adapter").WeightPayloadFormat
    return importlib.import_module("modelexpress_rl.inference.receiver")


def write(base: Path, target: Path, out: Path, version: str, base_version: str) -> None:
    package("modelexpress_rl")
    utils = importlib.import_module("modelexpress_rl.utils")
    save = importlib.import_module("safetensors.numpy").save
    (read_old, names), (read_new, _) = utils.make_tensor_reader(base), utils.make_tensor_reader(target)
    encoded, checksums = {}, {}
    for name in names:
        current = read_new(name)
        delta, _ = utils.compute_delta(current, read_old(name))
        if delta is not None:
            encoded[name] = utils.compress_delta(delta)
            checksum = utils.checksum_factory("adler32")
            checksum.update(current)
            checksums[name] = checksum.hexdigest()
    out.mkdir(parents=True)
    shard = "model-00000-of-00001.safetensors"
    (out / shard).write_bytes(save(encoded, metadata=checksums))
    about = {
        "version": version,
        "base_version": base_version,
        "delta_encoding": "xor",
        "compression_format": "zstd",
        "checksum_format": "adler32",
    }
    (out / INDEX).write_text(json.dumps({"metadata": about, "weight_map": dict.fromkeys(encoded, shard)}))


def read(delta: Path, checkpoint: Path, version: str, base_version: str) -> None:
    module = receiver()
    kind = module.WeightPayloadFormat.XOR_DELTA
    wanted = module._S3Version(version, base_version, kind, f"s3://bucket/{version}/{INDEX}")
    metadata, weight_map = module._parse_index_manifest((delta / INDEX).read_bytes(), is_delta=True, version=wanted)
    shards = {
        name: ((delta / name).read_bytes(), tensors)
        for name, tensors in module._group_tensors_by_shard(weight_map).items()
    }
    _, locations, _ = module.index_checkpoint_tensors(checkpoint)
    module._LocalCheckpoint._apply_shards(types.SimpleNamespace(locations=locations), shards, index_metadata=metadata)


def read_full(checkpoint: Path, out: Path) -> None:
    module = receiver()
    metadata, weight_map = module._parse_index_manifest((checkpoint / INDEX).read_bytes(), is_delta=False)
    _, _, tensors = module.index_checkpoint_tensors(checkpoint)
    out.mkdir(parents=True)

    def file_of(uri: str) -> Path:
        return checkpoint / uri.rpartition("/")[2]

    s3 = types.SimpleNamespace(
        size=lambda uri: file_of(uri).stat().st_size,
        get=lambda uri: file_of(uri).read_bytes(),
    )
    module._download_full_checkpoint(
        s3=s3,
        store=types.SimpleNamespace(ensure_capacity=lambda *_, **__: None),
        target=out,
        index_metadata=metadata,
        weight_map=weight_map,
        root_uri=f"s3://bucket/full/{INDEX}",
        protected_versions=set(),
        tensor_metadata=tensors,
    )


def main() -> None:
    command, *words = sys.argv[1:]
    if command == "write":
        write(Path(words[0]), Path(words[1]), Path(words[2]), words[3], words[4])
    elif command == "read":
        read(Path(words[0]), Path(words[1]), words[2], words[3])
    else:
        read_full(Path(words[0]), Path(words[1]))


if __name__ == "__main__":
    main()
