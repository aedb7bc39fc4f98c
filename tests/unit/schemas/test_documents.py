"""The stored documents: strict, canonical, sealed, and described by JSON Schema files that are current."""

from __future__ import annotations

import json
import string
from dataclasses import asdict
from pathlib import Path
from typing import get_args

import jsonschema
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from pulse_schemas import (
    BASES,
    DTYPE_ORDER,
    RECORD_KINDS,
    AttachRecord,
    CommitRecord,
    Countersignature,
    Fault,
    FileEntry,
    FileSet,
    Head,
    Home,
    HomeEntry,
    KeyframeRef,
    Layout,
    Lease,
    NextIds,
    ObjectRef,
    PatchRef,
    Retired,
    RetiredKey,
    RetiredVersion,
    RetireRecord,
    Schema,
    SchemaError,
    SegmentedSnapshot,
    SegmentRef,
    SegmentRows,
    Snapshot,
    TagRecord,
    Tensor,
    VersionEntry,
    canonical_json,
    load_json,
    unseal_record,
    unseal_snapshot,
)
from pulse_schemas.api import UrlRequest
from pulse_schemas.export import DOCUMENTS, exported, main
from tests.support.sampling import examples

JSON_FILES = Path(__file__).parents[3] / "schemas" / "json"

hashes = st.text("0123456789abcdef", min_size=64, max_size=64)
ids = st.text("0123456789abcdef", min_size=32, max_size=32)
counts = st.integers(0, 2**63 - 1)
sizes = st.integers(0, 2**13)
runs = st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}", fullmatch=True)
texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)
times = st.datetimes().map(lambda when: f"{when:%Y-%m-%dT%H:%M:%S}.{when.microsecond // 1000:03d}Z".zfill(24))
scalars = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | texts
plain = st.recursive(
    scalars | st.floats(allow_nan=False, allow_infinity=False),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(texts, inner, max_size=3),
    max_leaves=8,
)
names = st.from_regex(r"[a-z][a-z0-9._-]{0,9}", fullmatch=True).filter(lambda name: name != "latest")
metadata = st.dictionaries(texts, plain, max_size=3)
base_ids = st.from_regex(r"[0-9a-f]{64}-[0-9]{4}", fullmatch=True)
base_keys = st.builds("{}{}/model.safetensors".format, st.just(BASES), base_ids)
objects = st.builds(ObjectRef, key=texts.filter(bool) | base_keys, size=counts, blake3=hashes)
keyframes = st.builds(
    KeyframeRef, version=counts, index=objects, shards=st.lists(objects, min_size=1, max_size=3).map(tuple)
)


@st.composite
def patches(draw, base=None):
    start = draw(st.integers(0, 2**62)) if base is None else base
    item = draw(objects)
    return PatchRef(
        base=start,
        target=start + (draw(st.integers(1, 2**61)) if base is None else 1),
        coder=draw(st.sampled_from(["gap", "class"])),
        changed=draw(counts),
        object=item,
        head_size=draw(st.integers(0, item.size)),
        head_blake3=draw(hashes),
    )


SHARED = {"format", "kind", "run", "seq", "epoch", "write_id", "previous", "created_at"}


@st.composite
def common(draw):
    seq = draw(st.integers(0, 2**62))
    return {
        "run": draw(runs),
        "seq": seq,
        "epoch": draw(counts),
        "write_id": draw(ids),
        "previous": draw(hashes) if seq else None,
        "created_at": draw(times),
    }


@st.composite
def commits(draw):
    version = draw(st.integers(0, 2**62))
    cells = draw(counts)
    patch = draw(patches(base=version - 1)) if version and draw(st.booleans()) else None
    keyframe = draw(keyframes).model_copy(update={"version": version})
    return CommitRecord(
        **draw(common()),
        version=version,
        step=draw(st.integers(-(2**63), 2**63 - 1)),
        parent=version - 1 if version else None,
        layout=draw(hashes),
        patch=patch,
        keyframe=keyframe if patch is None or draw(st.booleans()) else None,
        digest=draw(ids),
        changed=draw(st.integers(0, cells)),
        cells=cells,
        metadata=draw(metadata),
        files=draw(st.none() | hashes),
    )


@st.composite
def layouts(draw):
    names = draw(st.lists(st.text(string.printable[:94], min_size=1, max_size=9), min_size=1, unique=True, max_size=6))
    tensors = [
        Tensor(name=name, dtype=dtype, shape=tuple(draw(st.lists(sizes, min_size=dtype == "F4", max_size=3))))
        for name in names
        for dtype in [draw(st.sampled_from(DTYPE_ORDER))]
    ]
    tensors.sort(key=lambda t: (DTYPE_ORDER.index(t.dtype), t.name))
    return Layout(tensors=tuple(tensors), tied={name + "/tied" + "x" * 10: name for name in names[:2]})


entries = st.builds(
    VersionEntry,
    version=counts,
    seq=counts,
    step=st.integers(-(2**63), 2**63 - 1),
    layout=hashes,
    digest=ids,
    changed=counts,
    cells=counts,
    created_at=times,
    metadata=metadata,
    files=st.none() | hashes,
)
FIELDS = {
    "epoch": {"writer": texts},
    "attach": {
        "patches": st.lists(patches(), max_size=2).map(tuple),
        "keyframes": st.lists(keyframes, max_size=2).map(tuple),
    },
    "retire": {
        "versions": st.lists(counts, max_size=3).map(tuple),
        "keys": st.lists(texts.filter(bool) | base_keys, max_size=3).map(tuple),
    },
    "delete": {"until": counts},
    "tag": {"name": names, "version": st.none() | counts},
    "move": {"to": texts.filter(bool)},
}
"""What each kind of record but commits has beside the fields that all of them share."""


def record_of(name, kind):
    """Return the records of one kind; the fields of a commit depend on one another."""
    if kind is CommitRecord:
        return commits()
    assert kind.model_fields.keys() - SHARED == FIELDS[name].keys(), f"FIELDS[{name!r}] lacks fields, or has too many"
    return st.builds(lambda shared, fields: kind(**shared, **fields), common(), st.fixed_dictionaries(FIELDS[name]))


records = st.one_of(*(record_of(name, kind) for name, kind in RECORD_KINDS.items()))
snapshots = st.builds(
    Snapshot,
    run=runs,
    seq=counts,
    last=hashes,
    epoch=counts,
    count=counts,
    versions=st.lists(entries, max_size=2).map(tuple),
    patches=st.lists(patches(), max_size=2).map(tuple),
    keyframes=st.lists(keyframes, max_size=2).map(tuple),
    retired_versions=st.lists(st.builds(RetiredVersion, version=counts, seq=counts), max_size=3).map(tuple),
    retired_keys=st.lists(st.builds(RetiredKey, key=texts.filter(bool), seq=counts), max_size=3).map(tuple),
    tags=st.dictionaries(names, counts, max_size=3),
)
row_runs = st.lists(st.tuples(counts, st.integers(1, 2**63 - 1)), max_size=2).map(tuple)
segment_rows = st.builds(SegmentRows, rows=counts, dead=row_runs)
segmented = st.builds(
    SegmentedSnapshot,
    run=runs,
    seq=counts,
    last=hashes,
    epoch=counts,
    count=counts,
    segments=st.lists(
        st.builds(
            SegmentRef,
            seq=counts,
            size=counts,
            blake3=hashes,
            versions=segment_rows,
            patches=segment_rows,
            keyframes=segment_rows,
        ),
        max_size=2,
    ).map(tuple),
    next_ids=st.builds(NextIds, versions=counts, patches=counts, keyframes=counts),
    retired=st.lists(
        st.builds(Retired, seq=counts, versions=row_runs, keys=st.lists(texts.filter(bool), max_size=2).map(tuple)),
        max_size=2,
    ).map(tuple),
    tags=st.dictionaries(names, counts, max_size=3),
    home=st.none() | st.builds(HomeEntry, move=ids, to=texts.filter(bool), seq=counts),
    shared_bases=st.dictionaries(base_ids, st.none() | counts, max_size=2),
)
homes = st.builds(Home, run=runs, move=ids)
leases = st.builds(
    Lease,
    run=runs,
    reader=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,20}", fullmatch=True),
    version=counts,
    seconds=st.integers(1, 604_800),
)
heads = st.builds(Head, seq=counts, snapshot=st.none() | counts)
countersignatures = st.builds(Countersignature, run=runs, seq=counts, record=hashes)
file_sets = st.builds(
    FileSet,
    files=st.dictionaries(
        st.from_regex(r"[a-z0-9_][a-z0-9._+-]{0,20}\.json", fullmatch=True).filter(lambda n: ".index." not in n),
        st.builds(FileEntry, size=st.integers(0, 2**20), blake3=hashes),
        min_size=1,
        max_size=4,
    ),
)
documents = st.one_of(records, snapshots, segmented, heads, leases, layouts(), countersignatures, file_sets, homes)


def commit(**changes) -> CommitRecord:
    item = ObjectRef(key="objects/p", size=100, blake3="c" * 64)
    patch = PatchRef(base=6, target=7, coder="class", changed=3, object=item, head_size=10, head_blake3="d" * 64)
    fields = {
        "run": "math",
        "seq": 8,
        "epoch": 1,
        "write_id": "0" * 32,
        "previous": "a" * 64,
        "created_at": "2026-01-02T03:04:05.678Z",
        "version": 7,
        "step": 70,
        "parent": 6,
        "layout": "b" * 64,
        "patch": patch,
        "keyframe": None,
        "digest": "f" * 32,
        "changed": 3,
        "cells": 1000,
        "metadata": {"loss": 0.25, "note": "é"},
    }
    return CommitRecord(**(fields | changes))


def sealed(body) -> bytes:
    content = canonical_json(body)
    return canonical_json({"blake3": blake3(content).hexdigest(), "body": body})


@pytest.mark.slow
@given(documents)
def test_every_document_survives_its_canonical_bytes_and_its_seal(document):
    kind = type(document)
    assert kind.parse(document.canonical()) == document
    assert kind.unseal(document.seal()) == document
    assert document.seal() == sealed(document.model_dump(mode="json"))
    assert document.canonical() == canonical_json(json.loads(document.canonical()))


@given(records)
def test_a_record_is_read_back_as_its_own_kind(record):
    again = unseal_record(record.seal())
    assert type(again) is type(record)
    assert again == record


def test_every_single_changed_bit_of_a_sealed_record_is_seen():
    data = commit().seal()
    assert unseal_record(data) == commit()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SchemaError) as caught:
            unseal_record(bytes(flipped))
        assert caught.value.fault is Fault.CORRUPT, "damage is never taken for another format"


@pytest.mark.slow
@examples(60)
@given(st.one_of(snapshots, segmented))
def test_a_snapshot_of_any_format_is_read_as_what_it_is(document):
    assert unseal_snapshot(document.seal()) == document


@pytest.mark.parametrize("document", [Head(seq=7, snapshot=3), Snapshot(
    run="r", seq=0, last="a" * 64, epoch=1, count=0, versions=(), patches=(), keyframes=(), tags={"best": 7}
)])  # fmt: skip
def test_every_single_changed_bit_of_a_sealed_hint_or_snapshot_is_seen(document):
    data = document.seal()
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(SchemaError):
            type(document).unseal(bytes(flipped))


def test_a_sealed_record_that_is_cut_or_lengthened_anywhere_is_refused():
    data = commit().seal()
    for length in range(len(data)):
        with pytest.raises(SchemaError):
            unseal_record(data[:length])
    for more in (b" ", b"}", b"\x00", data):
        with pytest.raises(SchemaError):
            unseal_record(data + more)


@given(st.binary(max_size=300))
def test_bytes_that_are_no_document_raise_nothing_but_schema_error(data):
    for read in (unseal_record, Snapshot.unseal, Head.unseal, Layout.parse, Head.parse, CommitRecord.parse):
        with pytest.raises(SchemaError):
            read(data)


hostile = [
    b"[" * 100_000,
    b'{"a":' * 100_000,
    b'{"format":"pulse-head/1","seq":1,"snapshot":' + b"9" * 10_000 + b"}",
    b'{"format":"pulse-head/1","seq":NaN,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":1,"snapshot":null,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":1e0,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":1.0,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":true,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":"1","snapshot":null}',
    b'{"format":"pulse-head/1","seq":-0,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":-1,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":9223372036854775808,"snapshot":null}',
    b'{"format":"pulse-head/1", "seq":1,"snapshot":null}',
    b'{"seq":1,"format":"pulse-head/1","snapshot":null}',
    b'{"seq":1,"snapshot":null}',
    b'{"format":"pulse-head/1","seq":1}',
    b'{"format":"pulse-head/1","seq":1,"snapshot":null,"x":1}',
    '{"format":"pulse-head/1","seq":1,"snapshot":null}'.encode("utf-16"),
    b'\xef\xbb\xbf{"format":"pulse-head/1","seq":1,"snapshot":null}',
    b'{"format":"\\ud800","seq":1,"snapshot":null}',
]


@pytest.mark.parametrize("number", range(len(hostile)))
def test_a_document_has_one_form_and_every_other_is_refused(number):
    with pytest.raises(SchemaError) as caught:
        Head.parse(hostile[number])
    assert caught.value.fault is Fault.CORRUPT


@pytest.mark.parametrize("kind", DOCUMENTS.values(), ids=lambda kind: kind.__name__)
def test_another_format_version_is_called_so(kind):
    name, number = get_args(kind.model_fields["format"].annotation)[-1].split("/")
    with pytest.raises(SchemaError, match="upgrade pulse-registry") as caught:
        kind.parse(canonical_json({"format": f"{name}/{int(number) + 1}", "new": 1}))
    assert caught.value.fault is Fault.UNSUPPORTED
    with pytest.raises(SchemaError) as caught:
        kind.parse(canonical_json({"format": "else/2"}))
    assert caught.value.fault is Fault.CORRUPT


def test_a_record_of_a_newer_format_or_kind_is_called_so():
    body = commit().model_dump(mode="json")
    for change in ({"kind": "rename"}, {"format": "pulse-record/5"}, {"format": "pulse-record/5", "new": 1}):
        with pytest.raises(SchemaError) as caught:
            unseal_record(sealed(body | change))
        assert caught.value.fault is Fault.UNSUPPORTED


@pytest.mark.parametrize("body", [None, [], "x", 1, {}, {"kind": None}, {"kind": ""}, {"kind": 7}, {"kind": "commit"}])
def test_a_seal_around_what_is_no_record_is_not_enough(body):
    with pytest.raises(SchemaError) as caught:
        unseal_record(sealed(body))
    assert caught.value.fault is Fault.CORRUPT


@pytest.mark.parametrize("field", sorted(CommitRecord.model_fields.keys() - {"files"}))
def test_a_record_without_one_of_its_fields_is_refused(field):
    body = commit().model_dump(mode="json")
    del body[field]
    with pytest.raises(SchemaError):
        unseal_record(sealed(body))


def test_an_unknown_field_is_refused_at_any_depth():
    body = commit().model_dump(mode="json")
    for path in ((), ("patch",), ("patch", "object")):
        changed = json.loads(json.dumps(body))
        inner = changed
        for name in path:
            inner = inner[name]
        inner["extra"] = 1
        with pytest.raises(SchemaError, match="extra"):
            unseal_record(sealed(changed))


@pytest.mark.parametrize(
    "changes",
    [{"seconds": 0}, {"seconds": 604_801}, {"seconds": 1.0}, {"reader": ""}, {"reader": "a/b"}, {"reader": "-a"},
     {"reader": "a" * 161}, {"version": -1}, {"version": None}, {"run": "Math"}],
)  # fmt: skip
def test_a_lease_that_is_out_of_range_is_refused(changes):
    with pytest.raises(ValidationError):
        Lease(**({"run": "math", "reader": "w-1", "version": 7, "seconds": 60} | changes))


@pytest.mark.parametrize("name", ["", "latest", "Best", "7", "a/b", "a" * 65, "best\n", "-x", None])
def test_a_name_that_could_be_taken_for_something_else_is_no_tag(name):
    shared = {
        field: getattr(commit(), field) for field in ("run", "seq", "epoch", "write_id", "previous", "created_at")
    }
    with pytest.raises(ValidationError):
        TagRecord(**shared, name=name, version=1)
    tag = TagRecord(**shared, name="best", version=1)
    with pytest.raises(SchemaError):
        unseal_record(sealed(tag.model_dump(mode="json") | {"name": name}))


@pytest.mark.parametrize(
    "changes",
    [
        {"seq": 0},
        {"previous": None},
        {"parent": 5},
        {"parent": None},
        {"version": 0},
        {"version": True},
        {"version": 7.0},
        {"version": "7"},
        {"patch": None},
        {"changed": 1001},
        {"step": 2**63},
        {"run": "Math"},
        {"run": "../x"},
        {"run": ""},
        {"run": "a\n"},
        {"write_id": "0" * 31},
        {"write_id": "F" * 32},
        {"digest": "f" * 32 + "\n"},
        {"layout": "b" * 63},
        {"created_at": "2026-01-02T03:04:05Z"},
        {"created_at": "2026-02-30T03:04:05.678Z"},
        {"created_at": "2026-01-02T24:04:05.678Z"},
        {"created_at": "0000-01-02T03:04:05.678Z"},
        {"created_at": "٢٠٢٦-01-02T03:04:05.678Z"},
        {"metadata": []},
    ],
)
def test_a_commit_that_contradicts_itself_or_is_out_of_range_is_refused(changes):
    with pytest.raises(ValidationError):
        commit(**changes)
    body = commit().model_dump(mode="json") | changes
    with pytest.raises(SchemaError):
        unseal_record(sealed(body))


def test_a_patch_leads_forward_and_a_keyframe_has_shards():
    patch = commit().patch
    for changes in ({"target": 6}, {"target": 5}, {"head_size": 101}, {"coder": "other"}):
        with pytest.raises(ValidationError):
            PatchRef(**({name: getattr(patch, name) for name in PatchRef.model_fields} | changes))
    with pytest.raises(ValidationError):
        KeyframeRef(version=1, index=patch.object, shards=())
    with pytest.raises(ValidationError, match="another version"):
        commit(keyframe=KeyframeRef(version=8, index=patch.object, shards=(patch.object,)))
    assert KeyframeRef(version=1, index=patch.object, shards=(patch.object,) * 3).size == 400
    assert patch.size == 100


def nested(depth: int) -> object:
    return [nested(depth - 1)] if depth else 0


@pytest.mark.parametrize(
    "value",
    [
        float("nan"),
        float("inf"),
        2**64,
        -(2**63) - 1,
        "\ud800",
        {1: 2},
        {"\ud800": 1},
        b"x",
        {1, 2},
        object(),
        nested(40),
    ],
)
def test_metadata_that_json_can_not_say_exactly_is_refused_at_once(value):
    with pytest.raises(ValidationError):
        commit(metadata={"x": value})


def test_metadata_is_kept_in_the_form_in_which_it_will_be_read_back():
    record = commit(metadata={"betas": (0.9, (1,)), "deep": nested(20)})
    assert record.metadata == {"betas": [0.9, [1]], "deep": nested(20)}
    assert unseal_record(record.seal()) == record


def test_documents_can_not_be_changed():
    with pytest.raises(ValidationError):
        commit().version = 8  # type: ignore[misc]


@pytest.mark.parametrize(
    ("tensors", "tied"),
    [
        ([("b", "BF16"), ("a", "BF16")], {}),
        ([("a", "BF16"), ("b", "F32")], {}),
        ([("a", "F32"), ("a", "BF16")], {}),
        ([("a", "F32")], {"a": "a"}),
        ([("a", "F32")], {"b": "c"}),
        ([], {}),
        ([("", "F32")], {}),
        ([("a\n", "F32")], {}),
        ([("a", "F128")], {}),
    ],
)
def test_a_layout_has_one_order_and_names_each_tensor_once(tensors, tied):
    with pytest.raises(ValidationError):
        Layout(tensors=tuple(Tensor(name=n, dtype=d, shape=(1,)) for n, d in tensors), tied=tied)


def test_the_id_of_a_layout_is_the_hash_of_its_canonical_bytes():
    layout = Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(2, 3)),))
    assert layout.canonical() == (
        b'{"format":"pulse-layout/1","tensors":[{"dtype":"BF16","name":"w","shape":[2,3]}],"tied":{}}'
    )
    assert layout.id == blake3(layout.canonical()).hexdigest()


@pytest.mark.parametrize("dtype", ["F8_E8M0", "F4"])
def test_a_layout_is_of_the_first_format_that_has_its_dtypes_and_of_no_other(dtype):
    old, new = Tensor(name="a", dtype="F32", shape=(1,)), Tensor(name="b", dtype=dtype, shape=(1,))
    for tensors, named in (((old,), "pulse-layout/1"), ((old, new), "pulse-layout/2"), ((new,), "pulse-layout/2")):
        layout = Layout(tensors=tensors)
        assert layout.format == named
        assert Layout.parse(layout.canonical()) == layout
        other = {"pulse-layout/1": "pulse-layout/2", "pulse-layout/2": "pulse-layout/1"}[named]
        with pytest.raises(SchemaError, match=f"of format '{named}'") as caught:
            Layout.parse(canonical_json(layout.model_dump(mode="json") | {"format": other}))
        assert caught.value.fault is Fault.CORRUPT


def test_dtypes_that_came_later_left_the_order_of_the_others_as_it_was():
    first = "F64 I64 U64 F32 I32 U32 BF16 F16 I16 U16 F8_E4M3 F8_E5M2 I8 U8 BOOL"
    assert [dtype for dtype in DTYPE_ORDER if dtype not in ("F8_E8M0", "F4")] == first.split()


def test_four_bit_floats_come_in_pairs_along_a_dimension():
    with pytest.raises(ValidationError, match="last dimension"):
        Tensor(name="a", dtype="F4", shape=())


def test_what_is_not_json_is_called_so():
    with pytest.raises(SchemaError, match="not JSON"):
        load_json(b"{")


CLAIMS = {
    "one tensor": [(2**42 + 1,)],
    "two tensors": [(2**41,), (2**41 + 1,)],
    "a square": [(2**32, 2**32)],
    "the most of all dimensions": [(2**63 - 1,) * 32],
    "an empty tensor": [(0, 2**43)],
    "a thousand empty ones": [(0, 2**33)] * 1000,
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_layout_of_more_cells_than_there_may_be_is_neither_made_nor_read(claim):
    tensors = tuple(Tensor(name=f"{n:04d}", dtype="BF16", shape=shape) for n, shape in enumerate(CLAIMS[claim]))
    with pytest.raises(ValidationError, match="more than 4398046511104 cells") as refusal:
        Layout(tensors=tensors)
    assert len(str(refusal.value)) < 1000
    document = canonical_json({"format": "pulse-layout/1", "tensors": [asdict(t) for t in tensors], "tied": {}})
    with pytest.raises(SchemaError, match="more than 4398046511104 cells"):
        Layout.parse(document)


def test_a_layout_may_have_all_the_cells_that_there_may_be():
    tensors = [Tensor(name="a", dtype="BF16", shape=(2**20, 2**21)), Tensor(name="b", dtype="BF16", shape=(2**41, 1))]
    layout = Layout(tensors=tuple(tensors))
    assert Layout.parse(layout.canonical()) == layout


def test_the_json_schema_files_are_current():
    assert {path.name: path.read_text("utf-8") for path in JSON_FILES.iterdir()} == exported(), (
        "run: python -m pulse_schemas.export schemas/json"
    )


def test_the_exporter_writes_the_files_into_the_folder_named(tmp_path, capsys):
    assert main([str(tmp_path / "new")]) == 0
    assert {path.name: path.read_text("utf-8") for path in (tmp_path / "new").iterdir()} == exported()
    assert main([]) == 2
    assert "usage" in capsys.readouterr().err


@pytest.mark.slow
@given(documents)
@settings(max_examples=30)  # each is validated against its schema from scratch
def test_every_document_fits_its_json_schema(document: Schema):
    (name,) = [name for name, kind in DOCUMENTS.items() if kind is type(document)]
    schema = json.loads(exported()[f"{name}.schema.json"])
    jsonschema.Draft202012Validator.check_schema(schema)
    jsonschema.Draft202012Validator(schema).validate(json.loads(document.canonical()))


@pytest.mark.parametrize("entry", [b"1", b"{}", b'{"a":1}', b"[]", b'""'])
@pytest.mark.parametrize("field", [b"patches", b"keyframes", b"versions", b"keys"])
def test_a_list_of_many_faults_is_refused_for_its_first(field: bytes, entry: bytes) -> None:
    for kind in (AttachRecord, RetireRecord, Snapshot, UrlRequest):
        with pytest.raises(ValidationError) as refusal:
            kind.model_validate_json(b'{"%s":[%s]}' % (field, b",".join([entry] * 10_000)))
        assert refusal.value.error_count() < 32


def test_of_many_faults_the_number_is_told() -> None:
    document = b"{" + b",".join(b'"%d":1' % number for number in range(1_000)) + b"}"
    with pytest.raises(SchemaError, match=r"^Head: 100\d faults$") as refusal:
        Head.parse(document)
    assert refusal.value.__cause__ is None
    with pytest.raises(SchemaError, match=r"^Head: .*; and \d more$"):
        Head.parse(b"{" + b",".join(b'"%d":1' % number for number in range(12)) + b"}")
