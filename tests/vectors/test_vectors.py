"""The vectors are current, mean what the specification says, and mean it to this library too."""

from __future__ import annotations

import json
import struct
from typing import Any

import numpy as np
import pytest
from blake3 import blake3
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from pulse_kernels import CELL_TYPES, Backend, decode_group, encode_group, get_backend
from pulse_kernels.format.frequencies import frequencies, levels_of, read_table
from pulse_kernels.format.gap_tables import geometric_table
from pulse_kernels.format.outer_state import decode_state, encode_state
from pulse_kernels.protocol import OuterRates
from pulse_kernels.select import exponent_loops, outer_loops
from pulse_registry.format.contribution import Contribution
from pulse_registry.format.merged import Merged
from pulse_registry.format.outer_checkpoint import CheckpointGroups
from pulse_registry.format.patch import Patch
from pulse_registry.format.segment import COLUMNS
from pulse_registry.log import RunState, sealed_hash
from pulse_registry.log.fold import advance
from pulse_registry.log.segmented import snapshot_of, state_of
from pulse_registry.log.segments import fetch
from pulse_registry.outer.mean import GroupLevels
from pulse_registry.outer.snapshot import state_of as outer_state_of
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.pull.fetch import begin_patches
from pulse_registry.pull.keyframe_cells import KeyframeCells
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas import (
    CommitRecord,
    Countersignature,
    FileSet,
    Home,
    KeyframeRef,
    Layout,
    ObjectRef,
    PatchRef,
    SegmentedSnapshot,
    canonical_json,
    unseal_record,
)
from pulse_schemas.outer import OUTER_KINDS, CheckpointRecord, unseal_outer_record
from pulse_schemas.outer_snapshot import OuterSnapshot
from tests.support.meeting import resolve
from tests.support.records import DictStore
from tests.vectors import make, spec_reader


@pytest.fixture(params=["reference", "numba"], scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def stored(name: str) -> dict[str, Any]:
    return json.loads((make.FOLDER / f"{name}.json").read_text(encoding="utf-8"))


def layout_in(document: dict[str, Any]) -> Geometry:
    return Geometry(Layout.model_validate_json(json.dumps(document["layout"])))


def weights_in(geometry: Geometry, tensors: dict[str, str]) -> Weights:
    weights = Weights.empty(geometry)
    for tensor, array in zip(geometry.layout.tensors, weights.arrays, strict=True):
        array[...] = np.frombuffer(bytes.fromhex(tensors[tensor.name]), array.dtype).reshape(array.shape)
    return weights


@pytest.mark.parametrize("name", make.VECTORS)
def test_the_vectors_are_current(name: str):
    assert json.loads(json.dumps(make.VECTORS[name]())) == stored(name), "run: python -m tests.vectors.make"


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


@pytest.mark.parametrize("name", ["segments", "moves", "bases"])
def test_segments_are_named_by_their_hashes_and_are_read_by_the_specification_alone(name: str):
    case = stored(name)
    data = bytes.fromhex(case["snapshot"]["bytes"])
    assert data == canonical_json(json.loads(data))
    assert json.loads(data)["body"] == case["snapshot"]["fields"]
    assert json.loads(data)["blake3"] == blake3(canonical_json(case["snapshot"]["fields"])).hexdigest()
    assert case["snapshot"]["fields"]["last"] == blake3(bytes.fromhex(case["records"][-1])).hexdigest()
    objects = {segment["key"]: bytes.fromhex(segment["bytes"]) for segment in case["segments"]}
    assert spec_reader.read_snapshot(case["snapshot"]["fields"], objects) == case["state"]


@pytest.mark.parametrize("name", ["segments", "moves", "bases"])
def test_a_snapshot_of_segments_says_what_its_records_say(name: str):
    case = stored(name)
    store, folded = DictStore(), RunState("math")
    for segment in case["segments"]:
        store.put(segment["key"], bytes.fromhex(segment["bytes"]))
    for data in map(bytes.fromhex, case["records"]):
        advance(folded, unseal_record(data), sealed_hash(data))
    snapshot = SegmentedSnapshot.unseal(bytes.fromhex(case["snapshot"]["bytes"]))
    state = state_of(snapshot, fetch(store, "math", snapshot.segments, None))
    assert snapshot_of(state, ()) == snapshot_of(folded, ())
    for table in COLUMNS:
        assert [row.model_dump(mode="json") for row in getattr(state.tables, table)] == case["state"][table]


def test_a_base_is_named_by_what_it_holds_and_its_retirement_is_remembered():
    case = stored("bases")
    assert case["id"] == f"{blake3(canonical_json(case['content'])).hexdigest()}-0000"
    records = [json.loads(bytes.fromhex(data))["body"] for data in case["records"]]
    first, retire = records[1], records[4]
    named = [first["keyframe"]["index"], *first["keyframe"]["shards"]]
    assert [item["key"] for item in named] == [f"_bases/{case['id']}/{name}" for name, _, _ in case["content"]["files"]]
    assert {record["format"] for record in (first, retire)} == {"pulse-record/4"}
    assert case["named"] == {case["id"]: None}
    assert case["snapshot"]["fields"]["format"] == "pulse-snapshot/6"
    assert case["snapshot"]["fields"]["shared_bases"] == {case["id"]: retire["seq"]}


def test_files_are_named_by_their_hashes():
    case = stored("records")["file_set"]
    data = bytes.fromhex(case["bytes"])
    assert data == canonical_json(case["document"])
    assert blake3(data).hexdigest() == case["id"] == stored("records")["records"][-1]["fields"]["files"]
    found = {name: bytes.fromhex(contents) for name, contents in case["contents"].items()}
    said = {name: {"blake3": blake3(data).hexdigest(), "size": len(data)} for name, data in found.items()}
    assert case["document"] == {"format": "pulse-files/1", "files": said}
    assert FileSet.parse(data).id == case["id"]


@pytest.mark.parametrize("case", stored("signatures")["signatures"], ids=lambda case: case["key"][:16])
def test_signatures_are_of_the_message_that_the_specification_says(case: dict[str, Any]):
    data, message = bytes.fromhex(case["bytes"]), bytes.fromhex(case["message"])
    envelope = json.loads(data)
    body = canonical_json(envelope["body"])
    assert data == canonical_json(envelope)
    assert message == b"pulse-signed/1\n" + body
    assert envelope["signature"] == {"key": case["key"], "value": case["value"]}
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(case["key"].removeprefix("ed25519:")))
    public.verify(bytes.fromhex(case["value"]), message)  # or it raises
    content = body + b',"signature":' + canonical_json(envelope["signature"])
    assert envelope["blake3"] == blake3(content).hexdigest()
    assert case["blake3"] == blake3(data).hexdigest()
    assert unseal_record(data).model_dump(mode="json") == envelope["body"]


@pytest.mark.parametrize("case", stored("signatures")["countersignatures"], ids=lambda case: case["key"][:16])
def test_countersignatures_name_the_stored_bytes_of_a_record(case: dict[str, Any]):
    data, record = bytes.fromhex(case["bytes"]), bytes.fromhex(case["record"])
    envelope = json.loads(data)
    said = {"format": "pulse-countersignature/1", "run": "math", "seq": 0, "record": blake3(record).hexdigest()}
    assert envelope["body"] == said
    assert bytes.fromhex(case["message"]) == b"pulse-signed/1\n" + canonical_json(said)
    public = Ed25519PublicKey.from_public_bytes(bytes.fromhex(case["key"].removeprefix("ed25519:")))
    public.verify(bytes.fromhex(envelope["signature"]["value"]), bytes.fromhex(case["message"]))  # or it raises
    assert Countersignature.unseal(data).model_dump(mode="json") == said


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


@pytest.mark.parametrize("case", stored("tables")["tables"], ids=lambda case: str(case["counts"][:6]))
def test_tables_are_as_listed(case: dict[str, Any]):
    data = bytes.fromhex(case["bytes"])
    levels, end = read_table(data, 0, len(case["levels"]))
    assert (levels_of(case["counts"]), levels, end) == (case["levels"], case["levels"], len(data))
    assert frequencies(levels) == case["frequencies"]
    found, rest = spec_reader.read_table(data)
    assert (found, rest) == (case["frequencies"][: len(found)], b"")


def test_geometric_tables_are_as_listed():
    document = stored("tables")
    for case in document["geometric"]:
        assert spec_reader.geometric(case["parameter"]) == case["frequencies"]
        assert geometric_table(case["parameter"]) == case["frequencies"]
    every = b"".join(struct.pack("<48H", *spec_reader.geometric(j)) for j in range(128))
    assert blake3(every).hexdigest() == document["geometric_blake3"]
    assert document["geometric_blake3"] in (make.FOLDER.parents[1] / "docs" / "spec.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("coder", ["gap", "class"])
@pytest.mark.parametrize("case", stored("groups")["groups"], ids=lambda case: case["about"])
def test_groups_hold_the_listed_changes(backend: Backend, case: dict[str, Any], coder: Any):
    data, cell_type, cells = bytes.fromhex(case[coder]), CELL_TYPES[case["dtype"]], case["cells"]
    zeros = case["base"] == "zeros"
    base = np.zeros(cells, cell_type.dtype) if zeros else np.frombuffer(bytes.fromhex(case["base"]), cell_type.dtype)
    distance = np.frombuffer(bytes.fromhex(case["distance"]), cell_type.dtype)
    listed = np.frombuffer(bytes.fromhex(case["index"]), "<u4")
    index, found = decode_group(backend, coder, cell_type, cells, len(distance), data, [base])
    assert (index.tolist(), found.tolist()) == (listed.tolist(), distance.tolist())
    changes = spec_reader.read_group(data, coder, case["dtype"], base.tolist(), len(distance))
    assert changes == list(zip(index.tolist(), distance.tolist(), strict=True))
    new = backend.move(base[index], distance, cell_type)
    assert encode_group(backend, coder, cell_type, cells, index, base[index], new, [base]) == data


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


def test_patches_in_parts_hold_the_listed_changes(backend: Backend):
    document = stored("patch-parts")
    geometry, record = layout_in(document), unseal_record(bytes.fromhex(document["record"]["bytes"]))
    assert isinstance(record, CommitRecord)
    assert record.patch is not None
    store = DictStore()
    for key, text in document["objects"].items():
        store.put(key, bytes.fromhex(text))
    [patch] = begin_patches(store, record.run, geometry, [record.patch], map)
    found = []
    for number, entry in patch.entries.items():
        group = geometry.groups[number]
        delta = patch.decode(backend, group)
        new = backend.move(np.zeros(entry.changed, np.uint16), delta.distance, group.cell_type)
        found += [[group.start + int(i), 0, int(cell)] for i, cell in zip(delta.index, new, strict=True)]
    assert found == document["changes"]
    assert patch.entries.delta.hex() == record.digest
    assert [list(change) for change in spec_reader.read_parts(store.objects, document["layout"])] == found


def test_the_record_of_a_patch_in_parts_is_of_the_second_format():
    document = stored("patch-parts")
    case, objects = document["record"], document["objects"]
    data, fields = bytes.fromhex(case["bytes"]), case["fields"]
    assert json.loads(data)["body"] == fields
    assert data == canonical_json(json.loads(data))
    assert case["blake3"] == blake3(data).hexdigest()
    assert unseal_record(data).model_dump(mode="json") == fields
    assert unseal_record(data).seal() == data
    assert fields["format"] == "pulse-record/2"
    ref = fields["patch"]
    head = bytes.fromhex(objects[ref["object"]["key"]])
    assert ref["object"]["size"] == ref["head_size"] == len(head)
    assert ref["object"]["blake3"] == ref["head_blake3"] == blake3(head).hexdigest()
    parts = [bytes.fromhex(objects[key]) for key in sorted(objects.keys() - {ref["object"]["key"]})]
    assert ref["parts"] == sum(map(len, parts))
    assert head + b"".join(parts) == bytes.fromhex(document["file"])


@pytest.mark.parametrize("name", ["keyframes", "keyframes-small-floats"])
def test_keyframes_hold_the_listed_cells(name: str):
    document = stored(name)
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
        entry = json.loads(data[8 : 8 + length])[name]
        assert (entry["dtype"], entry["shape"]) == spec_reader.shard_entry(document["layout"], name)
        start, stop = entry["data_offsets"]
        assert data[8 + length :][start:stop].hex() == document["cells"][name]


def test_outer_records_are_sealed_and_chained_and_of_every_kind():
    previous, kinds = None, set()
    for case in stored("outer")["records"]:
        data, fields = bytes.fromhex(case["bytes"]), case["fields"]
        assert json.loads(data)["body"] == fields
        assert data == canonical_json(json.loads(data))
        assert case["blake3"] == blake3(data).hexdigest()
        record = unseal_outer_record(data)
        assert record.model_dump(mode="json") == fields
        assert record.seal() == data
        assert fields["previous"] == previous
        previous = case["blake3"]
        kinds.add(fields["kind"])
    assert kinds == set(OUTER_KINDS) - {"move", "restart"}


def test_a_move_is_told_by_a_record_of_each_log_and_proved_by_its_write_id():
    case = stored("moves")
    *_, moved = [record for record in map(unseal_record, map(bytes.fromhex, case["records"])) if record.kind == "move"]
    assert case["snapshot"]["fields"]["home"] == {"move": moved.write_id, "to": moved.to, "seq": moved.seq}
    assert (moved.format, case["snapshot"]["fields"]["format"]) == ("pulse-record/4", "pulse-snapshot/6")
    proof, outer = (bytes.fromhex(case[name]["bytes"]) for name in ("home", "outer"))
    assert json.loads(proof)["body"] == case["home"]["fields"] == Home.unseal(proof).model_dump(mode="json")
    assert Home.unseal(proof) == Home(run=moved.run, move=moved.write_id)
    record = unseal_outer_record(outer)
    assert json.loads(outer)["body"] == case["outer"]["fields"] == record.model_dump(mode="json")
    assert (record.kind, record.write_id, record.seal()) == ("move", moved.write_id, outer)


def test_a_restart_is_sealed_and_leads_to_a_snapshot_that_has_it():
    case = stored("restarts")
    record, snapshot = (bytes.fromhex(case[name]["bytes"]) for name in ("record", "snapshot"))
    made, told = unseal_outer_record(record), OuterSnapshot.unseal(snapshot)
    for data, name, one in ((record, "record", made), (snapshot, "snapshot", told)):
        assert json.loads(data)["body"] == case[name]["fields"] == one.model_dump(mode="json")
        assert one.seal() == data
    assert (told.restart, told.seq, told.last) == (made, made.seq, blake3(record).hexdigest())
    state = outer_state_of(told)
    assert (state.open, state.begun, state.retired, state.closed) == (7, 6, 6, [])


@pytest.mark.parametrize("case", stored("outer")["contributions"], ids=lambda case: case["about"])
def test_contributions_hold_what_is_listed(case: dict[str, Any], backend: Backend):
    document, data = stored("outer"), bytes.fromhex(case["bytes"])
    geometry = layout_in(document)
    held = weights_in(geometry, document["weights"])
    ref = ObjectRef(key="objects/contribution/x", size=len(data), blake3=blake3(data).hexdigest())
    found, listed = Contribution.parse(ref, geometry, data), []
    for number in found.entries:
        group = geometry.groups[number]
        index, cells = found.decode(backend, group, [held.copy_of(group)])
        patterns = cells.view(f"<u{cells.itemsize}")
        listed += [[group.start + int(i), int(cell)] for i, cell in zip(index, patterns, strict=True)]
    assert listed == case["sent"]
    tensors = {name: bytes.fromhex(text) for name, text in document["weights"].items()}
    said, read = spec_reader.read_contribution(data, document["layout"], tensors)
    assert read == case["sent"]
    assert said == {"format": found.head.format, **found.head.model_dump(mode="json")}
    assert said["base"] == document["digest"]


@pytest.mark.parametrize("loops", ["reference", "numba"])
def test_the_outer_step_comes_to_the_listed_bits(loops: str):
    document = stored("outer")
    geometry, step = layout_in(document), document["step"]
    sent = {case["about"]: case for case in document["contributions"]}
    parts, plain = [], []
    for one in step["contributions"]:
        case = sent[one["about"]]
        head, cells = spec_reader.read_contribution(
            bytes.fromhex(case["bytes"]),
            document["layout"],
            {name: bytes.fromhex(text) for name, text in document["weights"].items()},
        )
        exponent = head["exponent"]
        index = np.array([i for i, _ in cells], np.uint32)
        levels = np.array([cell for _, cell in cells], np.uint16).view(np.int16)
        parts.append(GroupLevels(index, levels, exponent, one["weight"]))
        plain.append((cells, exponent, one["weight"]))
    held = OuterWeights(geometry, get_backend(loops), outer_loops(loops))
    held.begin(weights_in(geometry, document["weights"]).copy_of)
    assert held.digest().hex() == document["digest"]
    theta, momentum = held.theta.tolist(), held.momentum.tolist()
    least = min(exponent for _, exponent, _ in plain)
    held.step({0: parts}, least, step["weight"], OuterRates(step["rates"]["rate"], step["rates"]["momentum"]))
    assert held.theta.astype("<f4").tobytes().hex() == step["theta"]
    assert held.momentum.astype("<f4").tobytes().hex() == step["momentum"]
    assert held.digest().hex() == step["digest"]
    spec_reader.outer_step(theta, momentum, plain, step["weight"], step["rates"])
    assert struct.pack(f"<{len(theta)}f", *theta).hex() == step["theta"]
    assert struct.pack(f"<{len(momentum)}f", *momentum).hex() == step["momentum"]


def test_the_state_of_outer_rounds_comes_back_bit_for_bit(backend: Backend):
    document = stored("outer-state")
    case, version = document["checkpoint"], np.frombuffer(bytes.fromhex(document["version"]), "<u2")
    wanted = [np.frombuffer(bytes.fromhex(case[name]), "<u4") for name in ("theta", "momentum")]
    found = [np.empty(len(version), np.uint32) for _ in wanted]
    data = bytes.fromhex(case["group"])
    touched = decode_state(backend, exponent_loops(backend.name), version.copy(), data, *found)
    for mine, theirs, digest in zip(found, wanted, case["digests"], strict=True):
        np.testing.assert_array_equal(mine, theirs)
        assert Digest(*backend.digest(mine, 0)).hex() == digest
    assert encode_state(exponent_loops(backend.name), version.copy(), *found) == (data, touched)
    head = bytes.fromhex(case["head"])
    named = ObjectRef(key="k", size=len(head), blake3=blake3(head).hexdigest())
    fields = {
        "run": "r",
        "seq": 1,
        "write_id": "0" * 32,
        "previous": "0" * 64,
        "created_at": "2026-01-01T00:00:00.000Z",
    }
    theta, momentum = case["digests"]
    record = CheckpointRecord(
        **fields, round=case["round"], object=named, parts=len(data), theta=theta, momentum=momentum
    )
    [entry] = CheckpointGroups.parse(record, layout_in(document), head).entries.values()
    assert (entry.changed, entry.size, entry.blake3) == (case["touched"], len(data), blake3(data).digest())
    assert [entry.old_sum.hex(), entry.new_sum.hex()] == case["digests"]


@pytest.mark.parametrize("case", stored("outer-state")["merged"], ids=lambda case: case["bits"])
def test_merged_contributions_are_the_totals(backend: Backend, case: dict[str, Any]):
    document, data = stored("outer-state"), bytes.fromhex(case["bytes"])
    geometry, version = layout_in(document), np.frombuffer(bytes.fromhex(document["version"]), "<u2").copy()
    found = Merged.parse(ObjectRef(key="k", size=len(data), blake3=blake3(data).hexdigest()), geometry, data)
    assert (found.head.bits, found.head.base) == (case["bits"], document["digest"])
    index, totals = found.decode(backend, geometry.groups[0], [version])
    assert [[cell, total] for cell, total in zip(index.tolist(), totals.tolist(), strict=True)] == case["totals"]
