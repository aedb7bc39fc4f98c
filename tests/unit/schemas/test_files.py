"""File sets: which names and sizes they take, and the formats of records and snapshots that name one."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from pulse_schemas import (
    CommitRecord,
    Fault,
    FileEntry,
    FileSet,
    SchemaError,
    Snapshot,
    VersionEntry,
    canonical_json,
    unseal_record,
)
from pulse_schemas.files import FILE_BYTES, FILES_BYTES, MOST_FILES, is_data_file, is_weights_file
from tests.support.records import chain

ENTRY = {"size": 3, "blake3": "a" * 64}
FILES = "f" * 64


def document(**changes: object) -> bytes:
    return canonical_json({"format": "pulse-files/1", "files": {"config.json": ENTRY}, **changes})


HOSTILE_NAMES = [
    "",
    ".",
    "..",
    "../config.json",
    "a/config.json",
    "/etc/passwd",
    "C:\\config.json",
    "a\\b.json",
    "config.json\x00",
    "config.json\n",
    " config.json",
    ".pulse-files.json",
    ".pulse.lock",
    ".bashrc",
    "-rf",
    "é.json",
    "config\u202e.json",
    "a" * 129,
    "model.safetensors",
    "model.SafeTensors",
    "model.safetensors.index.json",
    "adapter_model.safetensors",
    "pytorch_model.bin",
    "training_args.bin",
    "x.gguf",
    "x.pkl",
    "x.pt",
]


@pytest.mark.parametrize("name", HOSTILE_NAMES)
def test_a_name_that_is_not_plain_or_of_weights_is_refused(name: str) -> None:
    with pytest.raises(SchemaError) as refusal:
        FileSet.parse(document(files={name: ENTRY}))
    assert refusal.value.fault is Fault.CORRUPT


@given(st.text(max_size=12) | st.text("./\\ab\x00~ :", max_size=6))
def test_a_name_that_is_taken_stays_in_its_folder(name: str) -> None:
    try:
        FileSet(files={name: FileEntry(size=1, blake3="a" * 64)})
    except ValidationError:
        return
    assert name.isascii()
    assert not name.startswith((".", "-"))
    assert not set(name) & set("/\\\x00~ :\n")
    assert not is_weights_file(name)


@pytest.mark.parametrize(
    "files",
    [
        {},
        {"config.json": ENTRY, "Config.json": ENTRY},
        {"config.json": ENTRY | {"size": FILE_BYTES + 1}},
        {"config.json": ENTRY | {"size": -1}},
        {"config.json": ENTRY | {"size": True}},
        {"config.json": ENTRY | {"blake3": "A" * 64}},
        {"config.json": ENTRY | {"mode": 0o777}},
        {f"{number}.json": ENTRY for number in range(MOST_FILES + 1)},
        {f"{number}.json": ENTRY | {"size": FILE_BYTES} for number in range(FILES_BYTES // FILE_BYTES + 1)},
        [],
        None,
    ],
    ids=range(11),
)
def test_a_set_out_of_its_bounds_is_refused(files: object) -> None:
    with pytest.raises(SchemaError) as refusal:
        FileSet.parse(document(files=files))
    assert refusal.value.fault is Fault.CORRUPT


def test_the_longest_set_fits_its_bound() -> None:
    longest = {f"{number:03d}{'x' * 125}": FileEntry(size=10**6, blake3="a" * 64) for number in range(MOST_FILES)}
    assert len(FileSet(files=longest).canonical()) < 64 << 10


def test_a_newer_set_is_called_so() -> None:
    with pytest.raises(SchemaError, match="upgrade pulse-registry") as refusal:
        FileSet.parse(document(format="pulse-files/2"))
    assert refusal.value.fault is Fault.UNSUPPORTED


def test_code_is_no_data() -> None:
    data = ["config.json", "merges.txt", "chat_template.jinja", "tokenizer.model", "qwen.tiktoken"]
    assert all(map(is_data_file, data))
    assert not any(map(is_data_file, ["modeling_x.py", "run.sh", "x.so", "x.json.py", "Makefile", "x.ipynb", "x.pyc"]))


def test_a_commit_with_files_is_of_the_third_format_and_any_other_is_as_before() -> None:
    plain = chain(1).records[-1]
    assert isinstance(plain, CommitRecord)
    assert plain.format == "pulse-record/1"
    assert b"files" not in plain.canonical()
    named = CommitRecord.model_validate(plain.model_dump(exclude={"format", "files"}) | {"files": FILES})
    assert named.format == "pulse-record/3"
    assert unseal_record(named.seal()) == named
    body = named.model_dump(mode="json")
    for wrong in (body | {"format": "pulse-record/1"}, body | {"format": "pulse-record/2"}, body | {"files": None}):
        with pytest.raises(SchemaError):
            CommitRecord.parse(canonical_json(wrong))
    lacking = {name: value for name, value in body.items() if name != "files"}
    with pytest.raises(SchemaError):
        CommitRecord.parse(canonical_json(lacking))
    with pytest.raises(SchemaError):
        CommitRecord.parse(canonical_json(lacking | {"format": "pulse-record/1", "files": None}))


def test_a_snapshot_with_files_is_of_the_fourth_format_and_any_other_is_as_before() -> None:
    plain = chain(2).state.to_snapshot()
    assert plain.format == "pulse-snapshot/2"
    assert b"files" not in plain.canonical()
    entries = (plain.versions[0], VersionEntry(**plain.versions[1].model_dump(exclude={"files"}), files=FILES))
    fields = {name: getattr(plain, name) for name in Snapshot.model_fields if name not in ("format", "versions")}
    named = Snapshot(**fields, versions=entries)
    assert named.format == "pulse-snapshot/4"
    assert Snapshot.unseal(named.seal()) == named
    with pytest.raises(SchemaError):
        Snapshot.parse(canonical_json(named.model_dump(mode="json") | {"format": "pulse-snapshot/2"}))
