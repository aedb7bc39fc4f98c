"""Small models of every dtype, checkpoints of them on disk, and what a checkpoint folder holds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import torch
from safetensors import safe_open
from safetensors.torch import save_file

from pulse_registry.format.keyframe import INDEX_NAME
from pulse_registry.weights.dtypes import numpy_dtype

Tensors = dict[str, np.ndarray[Any, Any]]
BF16 = np.dtype(ml_dtypes.bfloat16)
# Both zeros, the least and greatest denormals, infinities, quiet and signalling NaNs with payloads.
ODD_BF16 = (0x0000, 0x8000, 0x0001, 0x807F, 0x7F80, 0xFF80, 0x7FC0, 0xFFC1, 0x7F81, 0xFFAA, 0x3F80)
ODD_F32 = (0x00000000, 0x80000000, 0x00000001, 0x807FFFFF, 0x7F800000, 0x7FC00001, 0xFFA55555, 0x7F800001)


def bf16_model(seed: int = 0, cells: int = 30_000) -> Tensors:
    """Return BF16 tensors, one of them two-dimensional, as a file of a training run has them."""
    rng = np.random.default_rng(seed)
    return {
        "layer.weight": rng.normal(0, 0.02, (cells // 100, 100)).astype(BF16),
        "norm.weight": rng.normal(1, 0.1, 100).astype(BF16),
    }


def odd_model() -> Tensors:
    """Return tensors of many dtypes, shapes and bit patterns; 0-d and empty ones too."""
    rng = np.random.default_rng(1)
    return {
        "bf16": np.array(ODD_BF16 * 40, np.uint16).view(BF16).reshape(20, 22),
        "f32": np.array(ODD_F32 * 10, np.uint32).view(np.float32),
        "f16": rng.integers(0, 1 << 16, 33, np.uint16).view(np.float16),
        "f64": rng.integers(0, 1 << 63, 7, np.uint64).view(np.float64),
        "i64": rng.integers(-(1 << 63), (1 << 63) - 1, (3, 5)),
        "i8": rng.integers(-128, 127, 9, np.int8),
        "bool": np.array([True, False, True]),
        "f8_e4m3": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn),
        "f8_e5m2": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e5m2),
        "f8_e8m0": np.arange(256, dtype=np.uint8).view(ml_dtypes.float8_e8m0fnu),
        "f4": np.arange(256, dtype=np.uint8).view(numpy_dtype("F4")).reshape(64, 4),
        "scalar": np.array(-0.0, np.float32),
        "scalar.bf16": np.array(0x8001, np.uint16).view(BF16),
        "empty": np.empty((0, 4), np.float32),
    }


def step_of(model: Tensors, seed: int, share: float = 0.01) -> Tensors:
    """Return the model after a step: some cells of each tensor have other bits."""
    rng = np.random.default_rng(seed)
    after = {}
    for name, tensor in model.items():
        cells = np.frombuffer(tensor.tobytes(), np.uint8).copy()
        step = 1 if tensor.dtype == bool else tensor.itemsize
        chosen = rng.choice(len(cells) // step, int(np.ceil(share * len(cells) / step)), replace=False) * step
        cells[chosen] ^= 1
        after[name] = np.frombuffer(cells.tobytes(), tensor.dtype).reshape(tensor.shape)
    return after


def save(path: Path, tensors: Mapping[str, np.ndarray[Any, Any]]) -> Path:
    """Write a safetensors file with the format's own library."""
    path.parent.mkdir(parents=True, exist_ok=True)
    save_file({name: _torch_tensor(tensor) for name, tensor in tensors.items()}, path, {"format": "pt"})
    return path


def save_sharded(folder: Path, tensors: Tensors) -> Path:
    """Write a Hugging Face checkpoint with a shard a tensor."""
    weight_map = {}
    for number, (name, tensor) in enumerate(tensors.items(), 1):
        shard = f"model-{number:05d}-of-{len(tensors):05d}.safetensors"
        save(folder / shard, {name: tensor})
        weight_map[name] = shard
    index = {"metadata": {"total_size": sum(t.nbytes for t in tensors.values())}, "weight_map": weight_map}
    (folder / INDEX_NAME).write_text(json.dumps(index))
    return folder


def bits(tensors: Tensors) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Return shapes and bytes, which compare bit for bit."""
    return {name: (tuple(tensor.shape), tensor.tobytes()) for name, tensor in tensors.items()}


def held(folder: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Return shapes and bytes of all tensors that a folder's index leads to, read by the safetensors library."""
    weight_map = json.loads((folder / INDEX_NAME).read_bytes())["weight_map"]
    found: dict[str, tuple[tuple[int, ...], bytes]] = {}
    for shard in set(weight_map.values()):
        found |= shard_bits(folder / shard)
    assert found.keys() == weight_map.keys()
    return found


def shard_bits(path: Path) -> dict[str, tuple[tuple[int, ...], bytes]]:
    """Return shapes and bytes of all tensors of a file, read by the safetensors library."""
    found = {}
    with safe_open(path, framework="pt") as file:
        for name in file.keys():  # noqa: SIM118 - it is no mapping
            tensor = file.get_tensor(name)
            data = tensor.contiguous().reshape(-1).view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
            found[name] = (tuple(tensor.shape), data)
    return found


def version_of(folder: Path) -> int | None:
    """Return the version that a folder's index names, None without one."""
    if not (folder / INDEX_NAME).exists():
        return None
    version: int = json.loads((folder / INDEX_NAME).read_bytes())["metadata"]["pulse"]["version"]
    return version


def surplus(folder: Path) -> set[str]:
    """Return the files of a folder that are neither its index, nor named by it, nor the lock."""
    index = json.loads((folder / INDEX_NAME).read_bytes())
    return {path.name for path in folder.iterdir()} - {INDEX_NAME, ".pulse.lock", *index["weight_map"].values()}


def _torch_tensor(tensor: np.ndarray[Any, Any]) -> torch.Tensor:
    dtype = getattr(torch, tensor.dtype.names[0] if tensor.dtype.names else tensor.dtype.name)
    if not tensor.size:
        return torch.empty(tensor.shape, dtype=dtype)
    return torch.frombuffer(bytearray(tensor.tobytes()), dtype=dtype).reshape(tensor.shape)
