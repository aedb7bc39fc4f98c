"""The vectors are current, mean what the specification says, and mean it to this library too."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from pulse_kernels import CELL_TYPES, Backend, decode_group, encode_group, get_backend
from pulse_kernels.streams import Streams
from pulse_registry.digest import Digest
from pulse_registry.geometry import Geometry
from pulse_registry.keyframe_cells import KeyframeCells
from pulse_registry.patch import Patch
from pulse_registry.weights import Weights
from pulse_schemas import KeyframeRef, Layout, ObjectRef, PatchRef, canonical_json, unseal_record
from tests.log.builders import DictStore
from tests.meeting import resolve
from tests.vectors import make, spec_reader


@pytest.fixture(params=["reference", "numba"], scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def stored(name: str) -> dict[str, Any]:
    return json.loads((make.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def without_frames(name: str, document: dict[str, Any]) -> dict[str, Any]:
    """Return a document without the bytes that another release of zstd may write otherwise."""
    document = json.loads(json.dumps(document))
    if name == "groups":
        for group in document["groups"]:
            assert make.opened_group(bytes.fromhex(group.pop("bytes"))).items() <= group.items()
    if name == "patches":
        for patch in document["patches"]:
            data = bytes.fromhex(patch.pop("bytes"))
            ref = PatchRef.model_validate_json(json.dumps(patch.pop("ref")))
            parsed = Patch.parse(Geometry(Layout.model_validate_json(json.dumps(document["layout"]))), ref, data)
            at = ref.head_size
            for entry in parsed.entries.values():
                described = [entry.group, entry.changed, entry.coder, entry.old_sum.hex(), entry.new_sum.hex()]
                patch[str(entry.group)] = described, make.opened_group(data[at : at + entry.size])
                at += entry.size
    return document


def layout_in(document: dict[str, Any]) -> Geometry:
    return Geometry(Layout.model_validate_json(json.dumps(document["layout"])))


def weights_in(geometry: Geometry, tensors: dict[str, str]) -> Weights:
    weights = Weights.empty(geometry)
    for tensor, array in zip(geometry.layout.tensors, weights.arrays, strict=True):
        array[...] = np.frombuffer(bytes.fromhex(tensors[tensor.name]), array.dtype).reshape(array.shape)
    return weights


@pytest.mark.parametrize("name", make.VECTORS)
def test_the_vectors_are_current(name: str):
    assert without_frames(name, make.VECTORS[name]()) == without_frames(name, stored(name)), (
        "run: python -m tests.vectors.make"
    )


def test_every_file_is_made_by_the_script():
    assert {path.stem for path in make.FOLDER.glob("*.json")} == set(make.VECTORS)


@pytest.mark.parametrize("case", stored("layouts")["layouts"], ids=lambda case: case["about"])
def test_layouts_hash_to_their_ids(case: dict[str, Any]):
    data = bytes.fromhex(case["bytes"])
    assert json.loads(data) == case["layout"]
    assert canonical_json(case["layout"]) == data
    assert blake3(data).hexdigest() == case["id"]
    assert Layout.parse(data).id == case["id"]


def test_records_are_sealed_and_chained():
    previous = None
    for case in stored("records")["records"]:
        data = bytes.fromhex(case["bytes"])
        envelope = json.loads(data)
        assert envelope["body"] == case["fields"]
        assert envelope["blake3"] == blake3(canonical_json(case["fields"])).hexdigest()
        assert data == canonical_json(envelope)
        assert case["fields"]["previous"] == previous
        previous = blake3(data).hexdigest()
        assert case["blake3"] == previous
        record = unseal_record(data)
        assert record.model_dump(mode="json") == case["fields"]
        assert record.seal() == data


@pytest.mark.parametrize("case", stored("digests")["digests"], ids=lambda c: f"{c['width']} bytes from {c['start']}")
def test_digests_are_those_of_the_formula(backend: Backend, case: dict[str, Any]):
    cells = np.frombuffer(bytes.fromhex(case["cells"]), f"<u{case['width']}")
    assert spec_reader.digest(cells.tolist(), case["start"]) == case["digest"]
    assert Digest(*backend.digest(cells, case["start"])).hex() == case["digest"]
    index = np.arange(len(cells), dtype=np.uint32)
    assert Digest(*backend.digest_sparse(index, cells, case["start"])).hex() == case["digest"]


def test_casts_are_as_listed(backend: Backend):
    cases = stored("casts")["casts"]
    out = np.empty(len(cases), np.uint16)
    backend.cast_f32(np.array([int(case["f32"], 16) for case in cases], np.uint32), out)
    assert [f"{cell:04x}" for cell in out] == [case["bf16"] for case in cases]


@pytest.mark.parametrize("dtype", CELL_TYPES)
def test_distances_are_as_listed(backend: Backend, dtype: str):
    cases = [case for case in stored("distances")["distances"] if case["dtype"] == dtype]
    cell_type = CELL_TYPES[dtype]
    old, new, distance = (
        np.array([int(case[key], 16) for case in cases], cell_type.dtype) for key in ("old", "new", "distance")
    )
    assert backend.distance(old, new, cell_type).tolist() == distance.tolist()
    assert backend.move(old, distance, cell_type).tolist() == new.tolist()
    assert [spec_reader.moved(int(a), int(d), dtype) for a, d in zip(old, distance, strict=True)] == new.tolist()
    assert len(cases) == 8


@pytest.mark.parametrize("case", stored("streams")["streams"], ids=lambda case: case["about"])
def test_streams_hold_the_listed_changes(backend: Backend, case: dict[str, Any]):
    width, runs = case["width"], case["runs"]
    expected = [change for run in runs for change in run["changes"]]
    raw = [bytes.fromhex(case[key]) for key in ("gap_tokens", "magnitude_tokens", "bits")]
    shape = [(run["shift"], len(run["changes"])) for run in runs]
    decoded = spec_reader.read_streams(*raw, shape)
    assert [list(change) for run in decoded for change in run] == expected
    gaps = np.array([gap for gap, _ in expected], np.uint32)
    distance = np.array([d % (1 << (8 * width)) for _, d in expected], f"<u{width}")
    counts, shifts = np.array([n for _, n in shape], np.uint32), np.array([s for s, _ in shape], np.uint8)
    packed = backend.pack(gaps, distance, counts, shifts)
    assert [s.tobytes() for s in (packed.gap_tokens, packed.magnitude_tokens, packed.bits)] == raw
    streams = Streams(*(np.frombuffer(stream, np.uint8) for stream in raw))
    where, found = backend.unpack(streams, counts, shifts, CELL_TYPES[f"U{8 * width}"], 1 << 32)
    assert found.tolist() == distance.tolist()
    positions = []
    for run in runs:
        at = -1
        for gap, _ in run["changes"]:
            at += gap + 1
            positions.append(at)
    assert where.tolist() == positions


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_groups_hold_the_listed_changes(backend: Backend, coder: Any):
    document = stored("groups")
    (group,) = (g for g in document["groups"] if g["coder"] == coder)
    data, base = bytes.fromhex(group["bytes"]), np.frombuffer(bytes.fromhex(document["base"]), "<u2")
    distance = np.frombuffer(bytes.fromhex(document["distance"]), "<u2")
    args = (coder, CELL_TYPES[document["dtype"]], document["cells"])
    index, found = decode_group(backend, *args, len(distance), data, [base])
    assert (index.tolist(), found.tolist()) == (document["index"], distance.tolist())
    changes = spec_reader.read_group(data, coder, document["dtype"], base.tolist())
    assert changes == list(zip(document["index"], distance.tolist(), strict=True))
    coded = encode_group(backend, *args, index, distance, [base])
    assert make.opened_group(coded).items() <= group.items()


@pytest.mark.parametrize("number", [0, 1], ids=["gap", "class"])
def test_patches_lead_from_the_old_cells_to_the_new(backend: Backend, number: int):
    document = stored("patches")
    geometry, patch = layout_in(document), document["patches"][number]
    data, ref = bytes.fromhex(patch["bytes"]), PatchRef.model_validate_json(json.dumps(patch["ref"]))
    assert blake3(data).hexdigest() == ref.object.blake3
    assert ref.coder == ("gap", "class")[number]
    weights = weights_in(geometry, document["old"])
    assert weights.digest(backend, map).hex() == document["old_digest"]
    parsed = Patch.parse(geometry, ref, data)
    for n, entry in parsed.entries.items():
        group = geometry.groups[n]
        delta = parsed.decode(backend, group, weights.spans(group) if entry.coder == "class" else None)
        change = resolve(backend, group, delta, weights)
        assert change.sums(backend) == (entry.old_sum, entry.new_sum)
        change.apply(backend, weights)
    assert weights.digest(backend, map).hex() == document["new_digest"]
    expected = weights_in(geometry, document["new"])
    assert [a.tobytes() for a in weights.arrays] == [b.tobytes() for b in expected.arrays]


@pytest.mark.parametrize("number", [0, 1], ids=["gap", "class"])
def test_patches_are_read_by_the_specification_alone(number: int):
    document = stored("patches")
    old, new = ({k: bytes.fromhex(v) for k, v in document[key].items()} for key in ("old", "new"))
    data = bytes.fromhex(document["patches"][number]["bytes"])
    head, groups = spec_reader.apply_patch(data, document["layout"], old)
    assert (head["base"], head["target"], head["groups"]) == (4, 5, 3)
    assert groups == [cells for _, _, cells in spec_reader.groups_of(document["layout"], new)]
    flat = [cell for cells in groups for cell in cells]
    assert spec_reader.digest(flat, 0) == document["new_digest"]


def test_keyframes_hold_the_listed_cells():
    document = stored("keyframes")
    geometry, store = layout_in(document), DictStore()
    refs = {}
    for name, text in document["files"].items():
        data = bytes.fromhex(text)
        store.put(name, data)
        refs[name] = ObjectRef(key=name, size=len(data), blake3=blake3(data).hexdigest())
    index = refs.pop("model.safetensors.index.json")
    ref = KeyframeRef(version=document["version"], index=index, shards=tuple(refs.values()))
    keyframe = KeyframeCells.fetch(store, geometry, ref, map, None)
    found = [array.tobytes().hex() for array in keyframe.weights.arrays]
    keyframe.close()
    assert found == [document["cells"][tensor.name] for tensor in geometry.layout.tensors]
    listed = json.loads(store.objects[index.key])
    pieces = listed["metadata"]["pulse"]["pieces"]
    assert pieces["blake3"] == {
        name: [
            blake3(store.objects[name][at : at + pieces["size"]]).hexdigest()
            for at in range(0, ref.size, pieces["size"])
        ]
        for name, ref in refs.items()
    }
    weight_map = listed["weight_map"]
    assert set(weight_map) == {tensor.name for tensor in geometry.layout.tensors}
    for name, file in weight_map.items():
        data = store.objects[file]
        length = int.from_bytes(data[:8], "little")
        start, stop = json.loads(data[8 : 8 + length])[name]["data_offsets"]
        assert data[8 + length :][start:stop].hex() == document["cells"][name]
