"""Run by the peers' own Python, not by ours: codes consecutive states with fireworks-delta-compression.

``python fireworks_run.py FOLDER FORMAT THREADS`` reads FOLDER's safetensors files in name order and prints one JSON
object: for each step the bytes and the seconds of coding and of decoding, tensors side by side in threads.
"""

from __future__ import annotations

import importlib
import json
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any


def main() -> None:
    folder, form, threads = Path(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    peer = importlib.import_module("fireworks_delta_compression")
    torch = importlib.import_module("torch")
    load: Any = importlib.import_module("safetensors.torch").load_file
    torch.set_num_threads(1)
    paths = sorted(folder.glob("*.safetensors"))
    before = load(paths[0])
    steps = []
    with ThreadPoolExecutor(threads) as pool:
        for path in paths[1:]:
            after = load(path)
            names = sorted(before, key=lambda name: -before[name].numel())

            def encode(name: str) -> Any:
                return peer.delta_compress(src=before[name], dst=after[name], compression_format=form)  # noqa: B023

            def decode(item: tuple[str, Any]) -> bool:
                name, (diff, checksum) = item
                found = peer.delta_decompress(
                    src=before[name],  # noqa: B023
                    compressed_diff=diff,
                    checksum=checksum,
                    compression_format=form,
                )
                return bool(torch.equal(found.view(torch.uint8), after[name].view(torch.uint8)))  # noqa: B023

            began = time.perf_counter()
            frames = list(pool.map(encode, names))
            encoded = time.perf_counter()
            equal = all(pool.map(decode, zip(names, frames, strict=True)))
            decoded = time.perf_counter()
            size = sum(diff.numel() * diff.element_size() for diff, _ in frames)
            steps.append({"bytes": size, "encode_s": encoded - began, "decode_s": decoded - encoded, "equal": equal})
            before = after
    json.dump(steps, sys.stdout)


if __name__ == "__main__":
    main()
