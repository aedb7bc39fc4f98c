"""The target of a whole pull: one stored file of a run is another one, and every hash on the way to it fits.

The state digest in the record stays what it is, so that a pull ends in one of two ways: it is refused and the weights
are as they were, or the weights are, bit for bit, those of the version.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from typing import Any

import ml_dtypes
import numpy as np
from blake3 import blake3

from pulse_registry.errors import PulseError
from pulse_registry.format import keys
from pulse_registry.format.exponent_coding import coded_header
from pulse_registry.log import sealed_hash
from pulse_schemas import canonical_json
from tests.security.fuzz.mutation import mutate_bytes, mutate_document
from tests.security.fuzz.patches import fitted, mutate_patch
from tests.security.fuzz.target import Target, expect
from tests.support.records import DictStore
from tests.support.registries import bits, copied, copy_of, garbage, quick, settle

FILES = ("layouts/", "objects/patch/", "model-00001", "index.json", "log/000000000001", "log/000000000002")


def pull_target() -> Target:
    """Return the target of pulls."""
    honest, versions = _run()
    names = [next(key for key in sorted(honest.objects) if part in key) for part in FILES]

    def check(data: bytes) -> bool:
        if not data:
            return False
        store, name = copied(honest), names[data[0] % len(names)]
        _replace(store, name, data[1:])
        accepted = False
        for start in (None, 0):
            into = garbage(versions[1]) if start is None else copy_of(versions[0])
            was = bits(into)
            with quick(store) as registry:
                try:
                    if start is not None:
                        registry.verify(start, model=into)
                    registry.pull(1, into=into)
                except PulseError:
                    expect(bits(into) == was, "a pull that is refused leaves the weights as they were")
                    continue
            expect(bits(into) == bits(versions[1]), "a pull that is not refused gives the version")
            accepted = True
        return accepted

    seeds = tuple(bytes([number]) + _inner(name, honest.objects[name]) for number, name in enumerate(names))
    return Target("pull", check, seeds, _mutate, max_len=8192, tries=25)


def _run() -> tuple[DictStore, list[dict[str, Any]]]:
    """Return a run of two versions, a coded keyframe and a patch, and the weights of both."""
    rng = np.random.default_rng(5)
    model = {"w": rng.normal(size=(20, 10)).astype(ml_dtypes.bfloat16), "b": rng.normal(size=9).astype(np.float32)}
    store, versions = DictStore(), []
    with quick(store, keyframe_share=1e9, keyframe_coding="exponents") as registry:
        for version in range(2):
            registry.push(version, model)
            settle(registry)
            versions.append(copy_of(model))
            model["w"].view(np.uint16)[3, :5] ^= 1
            model["b"][2] += 1
    return store, versions


def _inner(name: str, data: bytes) -> bytes:
    """Return what of a file is fuzzed: the body of a record, all of the others."""
    return canonical_json(json.loads(data)["body"]) if "/log/" in name else data


def _replace(store: DictStore, name: str, data: bytes) -> None:
    """Put other bytes in the place of a file, and make fit whatever says its hash, its size or its header."""
    if "/log/" in name:
        number, was = int(name[-17:-5]), json.loads(store.objects[name])["body"]
        body = _json(data) or {}
        if isinstance(body, dict) and "digest" in was:
            body["digest"] = was["digest"]
        _log(store, number, lambda old: body)
        return
    if "patch/" in name:
        data, ref = fitted(data)
    elif "model-00001" in name and len(data) >= 8:
        piece = data[8 + min(int.from_bytes(data[:8], "little"), len(data)) :]
        data = coded_header(len(piece)) + piece
    store.objects[name] = data
    key, said = name.removeprefix("run/"), {"size": len(data), "blake3": blake3(data).hexdigest()}
    if "layouts/" in name:
        renamed = f"run/layouts/{blake3(data).hexdigest()}.json"
        store.objects[renamed] = store.objects.pop(name)
        for number in (1, 2):
            _log(store, number, lambda body: body | {"layout": blake3(data).hexdigest()})
    elif "patch/" in name:

        def point(body: dict[str, Any]) -> dict[str, Any]:
            body["patch"] |= {"head_size": ref.head_size, "head_blake3": ref.head_blake3, "changed": ref.changed}
            body["patch"]["object"] |= said
            return body

        _log(store, 2, point)
    else:
        _log(store, 1, lambda body: body | {"keyframe": _pointed(body["keyframe"], key, said)})
        if "model-00001" in name:
            _pieces(store, key, data)


def _pieces(store: DictStore, key: str, data: bytes) -> None:
    """Make the index list the one piece of a shard, of the size and hash that it has now."""
    name, file = next(key for key in store.objects if key.endswith("index.json")), key.rpartition("/")[2]
    document = json.loads(store.objects[name])
    pulse = document["metadata"]["pulse"]
    pulse["pieces"]["blake3"][file] = [blake3(data).hexdigest()]
    length = 8 + int.from_bytes(data[:8], "little")
    pulse["coding"]["shards"][file]["sizes"] = [max(0, len(data) - length)]
    index = canonical_json(document)
    store.objects[name] = index
    said = {"size": len(index), "blake3": blake3(index).hexdigest()}
    _log(store, 1, lambda body: body | {"keyframe": _pointed(body["keyframe"], name.removeprefix("run/"), said)})


def _pointed(keyframe: dict[str, Any], key: str, said: dict[str, Any]) -> dict[str, Any]:
    def one(ref: dict[str, Any]) -> dict[str, Any]:
        return ref | said if ref["key"] == key else ref

    return keyframe | {"index": one(keyframe["index"]), "shards": [one(shard) for shard in keyframe["shards"]]}


def _log(store: DictStore, number: int, edit: Callable[[dict[str, Any]], Any]) -> None:
    """Change a record, and seal it and all after it anew."""
    body = edit(json.loads(store.objects[f"run/{keys.record_key(number)}"])["body"])
    while True:
        content = canonical_json(body)
        sealed = b'{"blake3":"' + blake3(content).hexdigest().encode() + b'","body":' + content + b"}"
        store.objects[f"run/{keys.record_key(number)}"] = sealed
        number += 1
        following = store.objects.get(f"run/{keys.record_key(number)}")
        if following is None:
            return
        body = json.loads(following)["body"] | {"previous": sealed_hash(sealed)}


def _json(data: bytes) -> Any:
    try:
        value = json.loads(data)
        canonical_json(value)
    except (ValueError, RecursionError):
        return None
    return value


def _mutate(data: bytes, rng: random.Random) -> bytes:
    """Change one file as its kind of file is changed."""
    if not data or rng.randrange(20) == 0:
        return mutate_bytes(data, rng)
    if "patch" in FILES[data[0] % len(FILES)]:
        return data[:1] + mutate_patch(data[1:], rng)
    if data[1:2] == b"{":
        return data[:1] + mutate_document(data[1:], rng)
    return data[:1] + mutate_bytes(data[1:], rng)
