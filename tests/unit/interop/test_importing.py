"""What is imported is, bit for bit, what its writer had; what is damaged, foreign or out of order is refused."""

from __future__ import annotations

import itertools
import json
import os
import struct
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zstandard
from safetensors.numpy import load_file, save_file

from pulse_registry.errors import (
    BaseMismatch,
    CorruptObject,
    InvalidArgument,
    LayoutMismatch,
    PulseError,
    UnsupportedFormat,
)
from pulse_registry.interop import Form, Imported, export_chain, export_delta, import_folder, importing
from pulse_registry.interop.checksum import Checksum
from pulse_registry.interop.delta_files import frames_of
from pulse_registry.interop.delta_index import read_index
from pulse_registry.interop.frames import Encoding
from pulse_registry.interop.sources import Link, find_links, ordered
from pulse_registry.registry import Registry
from tests.support.checkpoints import odd_model, save, step_of
from tests.support.records import DictStore
from tests.support.registries import commits, quick, restored
from tests.unit.interop.conftest import Run
from tests.unit.interop.reference import INDEX, State, state_of, write_delta

STATES = list(itertools.accumulate(range(1, 4), step_of, initial=odd_model()))
BITS = [state_of(state) for state in STATES]


def base_checkpoint(folder: Path) -> Path:
    """Write the first state as trainers find it: one file, no index."""
    save(folder / "model.safetensors", STATES[0])
    return folder


def imported(store: DictStore, folder: Path) -> list[Imported]:
    with quick(store) as registry:
        return list(import_folder(registry, folder))


def version_bits(store: DictStore, version: int) -> State:
    return restored(store, STATES[0], version)


@pytest.mark.parametrize("encoding", Encoding)
@pytest.mark.parametrize("checksum", Checksum)
def test_a_chain_becomes_the_versions_that_its_writer_had(encoding: str, checksum: str, tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "weight_v000000")
    for number in range(1, 4):
        write_delta(
            tmp_path / f"weight_v{number:06d}",
            BITS[number - 1],
            BITS[number],
            version=f"{number:06d}",
            base=f"{number - 1:06d}",
            encoding=encoding,
            checksum=checksum,
        )
    store = DictStore()
    made = imported(store, tmp_path)
    assert [(one.version, one.name, one.folder.name) for one in made] == [
        (number, f"{number:06d}", f"weight_v{number:06d}") for number in range(4)
    ]
    assert [version_bits(store, number) for number in range(4)] == BITS
    records = commits(store)
    assert [record.step for record in records] == [0, 1, 2, 3]
    assert [record.digest for record in records] == [one.digest for one in made]
    assert [record.patch is not None for record in records] == [False, True, True, True]
    assert records[2].metadata == {importing.METADATA: {"version": "000002", "base_version": "000001"}}


@pytest.mark.parametrize("form", [Form(), Form(Encoding.OVERWRITE, Checksum.BLAKE3)], ids=["xor", "overwrite"])
def test_what_was_exported_is_imported_with_the_same_digests(run: Run, form: Form, tmp_path: Path) -> None:
    list(export_chain(run.registry, tmp_path, form=form))
    made = imported(DictStore(), tmp_path)
    assert [one.digest for one in made] == [version.digest for version in run.registry.versions()]


def scribble(path: Path) -> None:
    """Change a file's data in place, and no more."""
    data = bytearray(path.read_bytes())
    start = 8 + int.from_bytes(data[:8], "little")
    data[start:] = bytes(byte ^ 0x55 for byte in data[start:])
    path.write_bytes(data)


def test_a_folder_that_changes_after_its_check_is_imported_as_it_was_checked(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    list(export_chain(run.registry, tmp_path))
    push, folders = Registry.push, sorted(path for path in tmp_path.iterdir() if path.is_dir())

    def late(registry: Registry, step: int, *what: Any, **how: Any) -> Any:
        for path in folders[step].glob("*.safetensors"):
            scribble(path)
        return push(registry, step, *what, **how)

    monkeypatch.setattr(Registry, "push", late)
    made = imported(DictStore(), tmp_path)
    assert [one.digest for one in made] == [version.digest for version in run.registry.versions()]


def test_frames_stay_what_they_were_when_they_were_read(tmp_path: Path) -> None:
    write_delta(tmp_path / "delta", BITS[0], BITS[1], version="1", base="0", encoding="xor", checksum="xxh3-128")
    index = read_index(tmp_path / "delta")
    assert index is not None
    with frames_of(tmp_path / "delta", index) as frames:
        before = [bytes(frame.data) for frame in frames]
        for path in (tmp_path / "delta").glob("*.safetensors"):
            with path.open("r+b") as file:
                file.write(b"\xff" * path.stat().st_size)
        assert [bytes(frame.data) for frame in frames] == before


def test_an_import_goes_on_where_the_run_is(run: Run, tmp_path: Path) -> None:
    store = DictStore()
    list(export_chain(run.registry, tmp_path, version=1))
    assert [one.version for one in imported(store, tmp_path)] == [0, 1]
    assert imported(store, tmp_path) == []
    list(export_chain(run.registry, tmp_path))
    assert [(one.version, one.name) for one in imported(store, tmp_path)] == [(2, "000002"), (3, "000003")]
    assert [restored(store, run.models[0], number) for number in range(4)] == run.states


def test_a_delta_alone_follows_the_newest_version_of_the_run_it_came_from(run: Run, tmp_path: Path) -> None:
    export_delta(run.registry, tmp_path / "back", 3, 0)
    index = json.loads((tmp_path / "back" / INDEX).read_bytes())
    index["metadata"]["version"] = "4"
    (tmp_path / "back" / INDEX).write_text(json.dumps(index))
    made = list(import_folder(run.registry, tmp_path / "back"))
    assert [(one.version, one.name) for one in made] == [(4, "000004")]
    assert restored(run.store, run.models[0]) == run.states[0]


@pytest.mark.parametrize(
    "names",
    [
        (7, 8, 9),
        ("7", "8", "9"),
        ("000007", 8, "09"),
        ("policy-a", "policy-b", "policy-0"),
        ("\u00b9", "\u00b2", "\u0663"),
        ("9" * 19, "9" * 200, "1" * 256),
    ],
    ids=["numbers", "text", "mixed", "ids", "letters-that-pass-for-digits", "more-digits-than-a-label-has"],
)
def test_versions_are_followed_by_their_names_however_they_are_written(names: tuple[Any, ...], tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "z")
    index = {"metadata": {"version": names[0]}, "weight_map": dict.fromkeys(STATES[0], "model.safetensors")}
    (tmp_path / "z" / INDEX).write_text(json.dumps(index))
    write_delta(tmp_path / "y", BITS[0], BITS[1], version=names[1], base=names[0])
    write_delta(tmp_path / "x", BITS[1], BITS[2], version=names[2], base=names[1])
    store = DictStore()
    assert [one.folder.name for one in imported(store, tmp_path)] == ["z", "y", "x"]
    assert version_bits(store, 2) == BITS[2]
    assert imported(store, tmp_path) == []


def test_a_delta_of_nothing_is_a_version_all_the_same(tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "weight_v000000")
    write_delta(tmp_path / "weight_v000001", BITS[0], BITS[0])
    store = DictStore()
    assert [one.changed for one in imported(store, tmp_path)][1] == 0
    assert version_bits(store, 1) == BITS[0]


def test_a_whole_checkpoint_in_a_chain_begins_it_anew(tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "weight_v000000")
    write_delta(tmp_path / "weight_v000001", BITS[0], BITS[1])
    other = {"other": np.arange(40, dtype=np.uint16)}
    (tmp_path / "weight_v000005").mkdir()
    save_file(other, tmp_path / "weight_v000005" / "model.safetensors")
    (tmp_path / "weight_v000005" / INDEX).write_text(json.dumps({"weight_map": {"other": "model.safetensors"}}))
    after = {"other": bytes(80)}
    write_delta(tmp_path / "weight_v000006", state_of(other), after, version="000006", base="000005")
    store = DictStore()
    assert [one.name for one in imported(store, tmp_path)] == ["000000", "000001", "000005", "000006"]
    assert restored(store, other, 3) == after


def test_nothing_is_left_in_the_spool(tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "in" / "weight_v000000")
    write_delta(tmp_path / "in" / "weight_v000001", BITS[0], BITS[1])
    (tmp_path / "spool").mkdir()
    with quick(DictStore()) as registry:
        found = import_folder(registry, tmp_path / "in", spool=tmp_path / "spool")
        left = [[*(tmp_path / "spool").iterdir()] for _ in found]
        assert left == [[], []], "of two versions"
    assert [*(tmp_path / "spool").iterdir()] == []


# -- what is refused: the folder of version 1, changed in one way; the error, and what it names --------------

Change = Callable[[Path], object]


def index(**metadata: Any) -> Change:
    def change(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_bytes())
        document["metadata"] = {k: v for k, v in (document["metadata"] | metadata).items() if v is not ...}
        (folder / INDEX).write_text(json.dumps(document))

    return change


def placed(name: str, shard: Any) -> Change:
    def change(folder: Path) -> None:
        document = json.loads((folder / INDEX).read_bytes())
        document["weight_map"][name] = shard
        (folder / INDEX).write_text(json.dumps(document))

    return change


def said(text: str) -> Change:
    return lambda folder: (folder / INDEX).write_text(text)


SHARD = "model-00000-of-00001.safetensors"


def header(change: Callable[[dict[str, Any]], object]) -> Change:
    def act(folder: Path) -> None:
        data = (folder / SHARD).read_bytes()
        (length,) = struct.unpack_from("<Q", data)
        document = json.loads(data[8 : 8 + length])
        change(document)
        text = json.dumps(document).encode()
        (folder / SHARD).write_bytes(struct.pack("<Q", len(text)) + text + data[8 + length :])

    return act


def entry(**fields: Any) -> Change:
    return header(lambda document: document["f32"].update(fields))


def framed(data: bytes) -> Change:
    """Put another frame in the place of the one of ``f32``."""

    def change(folder: Path) -> None:
        from safetensors import safe_open

        with safe_open(folder / SHARD, framework="np") as file:
            about, tensors = file.metadata(), {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        save_file(tensors | {"f32": np.frombuffer(data, np.uint8)}, folder / SHARD, about)

    return change


def flipped(folder: Path) -> None:
    data = bytearray((folder / SHARD).read_bytes())
    data[-1] ^= 1
    (folder / SHARD).write_bytes(data)


def zeros(size: int) -> bytes:
    stream = zstandard.ZstdCompressor(level=1).compressobj()
    piece = 1 << 20
    pieces = (stream.compress(bytes(min(piece, size - at))) for at in range(0, size, piece))
    return b"".join(pieces) + stream.flush()


F32 = len(BITS[0]["f32"])
REFUSED: Mapping[str, tuple[Change, type[PulseError], str]] = {
    "index: no JSON": (said("{"), CorruptObject, "weight_v000001/model.safetensors.index.json"),
    "index: a list": (said("[]"), CorruptObject, "is no checkpoint's index"),
    "index: nested too deep": (said("[" * 100_000), CorruptObject, "is no checkpoint's index"),
    "index: no weight_map": (said('{"metadata": {"delta_encoding": "xor"}}'), CorruptObject, "weight_map"),
    "index: no base": (index(base_version=...), CorruptObject, "which version it makes of which"),
    "index: base is a list": (index(base_version=[1]), CorruptObject, "which version it makes of which"),
    "index: base is negative": (index(base_version=-1), CorruptObject, "which version it makes of which"),
    "index: base is not there": (index(base_version="000009"), BaseMismatch, "builds on version 000009"),
    "index: base is itself": (index(base_version="000001"), BaseMismatch, "builds on version 000001"),
    "index: another encoding": (index(delta_encoding="add"), UnsupportedFormat, "'add' is none of xor, overwrite"),
    "index: another compression": (index(compression_format="lz4"), UnsupportedFormat, "lz4"),
    "index: another checksum": (index(checksum_format="crc32"), UnsupportedFormat, "crc32"),
    "index: no checksum": (index(checksum_format=...), CorruptObject, "no checksums"),
    "index: the wrong checksum": (index(checksum_format="blake3"), CorruptObject, "blake3 is"),
    "index: the wrong encoding": (index(delta_encoding="overwrite"), CorruptObject, "tensor '"),
    "index: a shard outside": (placed("f32", "../model.safetensors"), CorruptObject, "no file beside it"),
    "index: a shard's whole path": (placed("f32", "/etc/x.safetensors"), CorruptObject, "no file beside it"),
    "index: a shard that is a number": (placed("f32", 7), CorruptObject, "no file beside it"),
    "index: a shard of another kind": (placed("f32", "weights.pkl"), CorruptObject, "no file beside it"),
    "index: a shard that is missing": (
        placed("f32", "a.safetensors"),
        CorruptObject,
        "a.safetensors is missing",
    ),
    "index: a tensor more": (placed("more", SHARD), CorruptObject, "tensor 'more'"),
    "shard: missing": (lambda folder: (folder / SHARD).unlink(), CorruptObject, "is missing"),
    "shard: empty": (lambda folder: (folder / SHARD).write_bytes(b""), CorruptObject, "is empty"),
    "shard: cut off": (lambda folder: os.truncate(folder / SHARD, 300), CorruptObject, SHARD),
    "shard: a bit flipped": (flipped, CorruptObject, "tensor '"),
    "shard: a header of 2^60 bytes": (
        lambda folder: (folder / SHARD).write_bytes(struct.pack("<Q", 1 << 60) + b"{}"),
        CorruptObject,
        "no whole safetensors file",
    ),
    "shard: no checksums": (header(lambda document: document.pop("__metadata__")), CorruptObject, "no checksum of"),
    "shard: a checksum is missing": (
        header(lambda document: document["__metadata__"].pop("f32")),
        CorruptObject,
        "no checksum of tensor 'f32'",
    ),
    "shard: a checksum is a number": (
        header(lambda document: document["__metadata__"].update(f32=7)),
        CorruptObject,
        "metadata are strings, and 'f32' is none",
    ),
    "shard: another checksum": (
        header(lambda document: document["__metadata__"].update(f32="00000000")),
        CorruptObject,
        "tensor 'f32': its adler32 is",
    ),
    "shard: a tensor less": (header(lambda document: document.pop("f32")), CorruptObject, "tensor '"),
    "shard: an entry of nothing": (
        header(lambda document: document.update(f32=None)),
        CorruptObject,
        "of tensor 'f32' is no JSON object",
    ),
    "shard: not U8": (entry(dtype="I8"), CorruptObject, "tensor 'f32' is no frame"),
    "shard: two dimensions": (
        header(lambda document: document["f32"].update(shape=[1, *document["f32"]["shape"]])),
        CorruptObject,
        "tensor 'f32' is no frame",
    ),
    "shard: another shape": (entry(shape=[1]), CorruptObject, "are not [1] of U8"),
    "shard: before its start": (entry(data_offsets=[-8, 0], shape=[8]), CorruptObject, "'f32' are not two sizes"),
    "shard: past its end": (entry(data_offsets=[0, 9999], shape=[9999]), CorruptObject, "tensor '"),
    "shard: places are fractions": (entry(data_offsets=[0.5, 1]), CorruptObject, "'f32' are not two sizes"),
    "frame: no zstd": (framed(b"none"), CorruptObject, "tensor 'f32': it is no whole zstd frame"),
    "frame: a byte too few": (framed(zeros(F32 - 1)), CorruptObject, "tensor 'f32': its frame ends too soon"),
    "frame: a byte too many": (framed(zeros(F32 + 1)), CorruptObject, "tensor 'f32': its frame holds more"),
    "frame: a bomb": (framed(zeros(1 << 28)), CorruptObject, "tensor 'f32': its frame holds more"),
    "frame: nothing changes": (framed(zeros(F32)), CorruptObject, "tensor 'f32': its adler32 is"),
}


@pytest.fixture(scope="module")
def begun(tmp_path_factory: pytest.TempPathFactory) -> dict[str, bytes]:
    """The objects of a run that holds the first state, as imported."""
    store = DictStore()
    imported(store, base_checkpoint(tmp_path_factory.mktemp("begun") / "weight_v000000"))
    return store.objects


@pytest.mark.parametrize(("change", "error", "words"), REFUSED.values(), ids=REFUSED.keys())
def test_a_damaged_delta_is_refused_and_the_run_is_as_it_was(
    begun: dict[str, bytes], change: Change, error: type[PulseError], words: str, tmp_path: Path
) -> None:
    folder = write_delta(tmp_path / "weight_v000001", BITS[0], BITS[1])
    change(folder)
    store = DictStore()
    store.objects = dict(begun)
    with pytest.raises(error) as caught:
        imported(store, tmp_path)
    assert words in str(caught.value)
    assert len(commits(store)) == 1


def test_a_tensor_that_the_base_does_not_have_is_refused(begun: dict[str, bytes], tmp_path: Path) -> None:
    write_delta(tmp_path / "weight_v000001", BITS[0] | {"more": bytes(4)}, BITS[1] | {"more": b"abcd"})
    store = DictStore()
    store.objects = dict(begun)
    with pytest.raises(LayoutMismatch, match="tensor 'more' is not in version 000000"):
        imported(store, tmp_path)


def test_a_delta_of_another_base_is_refused_by_its_checksums(begun: dict[str, bytes], tmp_path: Path) -> None:
    write_delta(tmp_path / "weight_v000001", BITS[1], BITS[2])
    store = DictStore()
    store.objects = dict(begun)
    with pytest.raises(CorruptObject, match="made of another version 000000"):
        imported(store, tmp_path)
    assert len(commits(store)) == 1


def test_what_came_before_a_damaged_delta_stays_and_the_rest_is_taken_once_it_is_whole(tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "weight_v000000")
    for number in (1, 2, 3):
        name, base = f"{number:06d}", f"{number - 1:06d}"
        write_delta(tmp_path / f"weight_v{name}", BITS[number - 1], BITS[number], version=name, base=base)
    shard = tmp_path / "weight_v000002" / SHARD
    whole = shard.read_bytes()
    flipped(shard.parent)
    store = DictStore()
    with pytest.raises(CorruptObject):
        imported(store, tmp_path)
    assert len(commits(store)) == 2
    shard.write_bytes(whole)
    assert [one.version for one in imported(store, tmp_path)] == [2, 3]
    assert [version_bits(store, number) for number in range(4)] == BITS


@pytest.mark.parametrize("fault", ["another checksum", "no checksum", "a bit flipped"])
def test_a_whole_checkpoint_whose_checksums_do_not_fit_is_refused(run: Run, fault: str, tmp_path: Path) -> None:
    (made,) = export_chain(run.registry, tmp_path, version=0)
    shard = next(made.folder.glob("*.safetensors"))
    tensors, data = load_file(shard), shard.read_bytes()
    (length,) = struct.unpack_from("<Q", data)
    about = json.loads(data[8 : 8 + length])["__metadata__"]
    if fault == "another checksum":
        about["a.weight"] = "0" * 8
    elif fault == "no checksum":
        del about["a.weight"]
    else:
        tensors["a.weight"].reshape(-1).view(np.uint8)[5] ^= 1
    save_file(tensors, shard, about)
    store = DictStore()
    with pytest.raises(CorruptObject, match=r"tensor 'a\.weight'"):
        imported(store, tmp_path)
    assert commits(store) == []


def nothing(folder: Path) -> None:
    folder.mkdir()


def two_of_one_base(folder: Path) -> None:
    base_checkpoint(folder / "weight_v000000")
    write_delta(folder / "a", BITS[0], BITS[1], version="a")
    write_delta(folder / "b", BITS[0], BITS[2], version="b")


def two_of_one_name(folder: Path) -> None:
    base_checkpoint(folder / "weight_v000000")
    base_checkpoint(folder / "again")


def a_gap(folder: Path) -> None:
    base_checkpoint(folder / "weight_v000000")
    write_delta(folder / "weight_v000002", BITS[1], BITS[2], version="000002", base="000001")


def a_delta_alone(folder: Path) -> None:
    write_delta(folder / "weight_v000001", BITS[0], BITS[1])


def a_file(folder: Path) -> None:
    folder.write_text("")


@pytest.mark.parametrize(
    ("make", "error", "words"),
    [
        (lambda folder: None, InvalidArgument, "is not a folder"),
        (a_file, InvalidArgument, "is not a folder"),
        (nothing, InvalidArgument, "holds neither a checkpoint or a delta"),
        (two_of_one_base, InvalidArgument, "both build on version 000000"),
        (two_of_one_name, InvalidArgument, "two folders of the same version"),
        (a_gap, BaseMismatch, "builds on version 000001"),
        (a_delta_alone, BaseMismatch, "builds on version 000000"),
    ],
    ids=["not there", "a file", "nothing in it", "two of one base", "two of one name", "a gap", "a delta alone"],
)
def test_folders_that_make_no_chain_are_refused_before_anything_is_pushed(
    make: Change, error: type[PulseError], words: str, tmp_path: Path
) -> None:
    make(tmp_path / "in")
    store = DictStore()
    with pytest.raises(error, match=words):
        imported(store, tmp_path / "in")
    assert not [key for key in store.objects if "/log/" in key]


def test_a_checkpoint_that_is_older_than_the_run_is_refused(run: Run, tmp_path: Path) -> None:
    base_checkpoint(tmp_path / "in")
    index = {"metadata": {"version": "0x"}, "weight_map": dict.fromkeys(STATES[0], "model.safetensors")}
    (tmp_path / "in" / INDEX).write_text(json.dumps(index))
    registry: Registry = run.registry
    with pytest.raises(InvalidArgument, match="the run is at 000003 already"):
        list(import_folder(registry, tmp_path / "in"))


def test_a_folder_that_changes_while_others_are_imported_is_refused(tmp_path: Path) -> None:
    write_delta(tmp_path / "weight_v000001", BITS[0], BITS[1])
    (link,) = find_links(tmp_path / "weight_v000001")
    assert link.index() is not None
    index(base_version="000003")(tmp_path / "weight_v000001")
    with pytest.raises(CorruptObject, match="was changed while it was imported"):
        link.index()
    (tmp_path / "weight_v000001" / INDEX).unlink()
    with pytest.raises(CorruptObject, match="was changed while it was imported"):
        link.index()


@pytest.mark.slow
def test_a_hundred_thousand_folders_are_put_in_order_each_looked_at_once() -> None:
    compared = 0

    class Name(str):
        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    count = 100_000
    links = [Link(Path("x"), Name(f"{n:06d}"), Name(f"{n - 1:06d}"), indexed=True) for n in range(count, 0, -1)]
    assert [link.version for link in ordered(links, "000000", [])] == [f"{n:06d}" for n in range(1, count + 1)]
    assert compared < 20 * count
