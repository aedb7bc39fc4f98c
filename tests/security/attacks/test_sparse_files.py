"""Files of 3 GiB that take no room on a disk, where documents or objects are: what is read of them costs no memory.

They are planted in folders, where a length costs an attacker nothing; a store that says such a length is the same to a
reader (tests/unit/store, tests/unit/client).
"""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

import pulse_registry
from pulse_registry.cli.audited import audit_run
from pulse_registry.cli.described import Source, describe_object
from pulse_registry.errors import CorruptObject, InvalidArgument, PulseError
from pulse_registry.format import keys
from pulse_registry.format.directory import Directory, Entry
from pulse_registry.format.patch_head import head_bytes
from pulse_registry.format.pieces import PIECE_BYTES
from pulse_registry.log import StoreClock
from pulse_registry.pull.fetch import RANGE_BYTES
from pulse_registry.retention.leases import read_leases
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.signing import SigningKey
from pulse_registry.store import FileStore, PrefixStore
from pulse_registry.testing import CountingStore
from pulse_registry.weights.digest import Digest
from pulse_schemas import PatchHead
from tests.security.attacks.edits import commit, first_commit, pieces
from tests.security.attacks.forge import PatchParts, key_of
from tests.security.attacks.make import honest_run
from tests.security.attacks.peak import peak_of
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, copied, garbage, quick

LONG = 3 << 30
MOST = 8 << 20
"""Bytes that a small pull takes, and more."""


def sparse(path: Path, nbytes: int = LONG) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.truncate(nbytes)


@pytest.fixture(params=[False, True], ids=["unsigned", "pinned"])
def pins(request: pytest.FixtureRequest, tmp_path: Path) -> dict[str, Any]:
    key = SigningKey.generate()
    signing = {"push": pulse_registry.PushOptions(signing_key=key)} if request.param else {}
    with pulse_registry.open(str(tmp_path / "bucket"), run=RUN, **signing) as trainer:
        for step in range(2):
            trainer.push(step, {"w": np.full(100, step, np.uint16)})
    return {"trust": pulse_registry.Trust([key.public], state_dir=tmp_path / "state")} if request.param else {}


def pulled(folder: Path, pins: dict[str, Any]) -> tuple[int, PulseError | None]:
    """Pull what is there in little memory; return how much, and the error."""
    into, found = {"w": np.zeros(100, np.uint16)}, list[PulseError]()

    def pull() -> None:
        with pulse_registry.open(str(folder / "bucket"), run=RUN, **pins) as worker:
            try:
                worker.pull("latest", into=into)
            except PulseError as error:
                found.append(error)

    nbytes = peak_of(pull)
    assert set(into["w"]) == ({0} if found else {1})
    return nbytes, found[0] if found else None


@pytest.mark.parametrize("key", [keys.HEAD, keys.snapshot_key(1), keys.snapshot_key(2)])
def test_a_hint_or_a_snapshot_without_end_is_passed_over(tmp_path: Path, pins: dict[str, Any], key: str) -> None:
    folder = tmp_path / "bucket" / RUN
    (folder / keys.HEAD).unlink()
    sparse(folder / key)
    nbytes, error = pulled(tmp_path, pins)
    assert error is None
    assert nbytes < MOST


@pytest.mark.parametrize("seq", [0, 2])
def test_a_record_without_end_is_refused(tmp_path: Path, pins: dict[str, Any], seq: int) -> None:
    sparse(tmp_path / "bucket" / RUN / keys.record_key(seq))
    nbytes, error = pulled(tmp_path, pins)
    assert isinstance(error, CorruptObject)
    assert f"{keys.record_key(seq)}' in" in str(error)
    assert "8388608 are the most" in str(error)
    assert nbytes < MOST


def test_a_layout_without_end_is_refused(tmp_path: Path, pins: dict[str, Any]) -> None:
    (layout,) = (tmp_path / "bucket" / RUN / keys.LAYOUTS).iterdir()
    sparse(layout)
    nbytes, error = pulled(tmp_path, pins)
    assert isinstance(error, CorruptObject)
    assert layout.name in str(error)
    assert nbytes < MOST


def test_a_countersignature_without_end_is_none(tmp_path: Path, pins: dict[str, Any]) -> None:
    if not pins:
        pytest.skip("nobody asks for one")
    pins["trust"] = [SigningKey.generate().public]
    for seq in range(3):
        sparse(tmp_path / "bucket" / RUN / keys.countersignature_key(seq))
    nbytes, error = pulled(tmp_path, pins)
    assert isinstance(error, pulse_registry.Untrusted)
    assert nbytes < MOST


def test_a_lease_without_end_is_none_and_holds_nothing(tmp_path: Path) -> None:
    store = PrefixStore(FileStore(tmp_path), RUN)
    for number in range(3):
        sparse(tmp_path / RUN / keys.lease_key(f"worker-{number}"))
    found: list[Any] = []

    def read() -> None:
        found.append(read_leases(store, RUN, StoreClock(store), datetime.now(UTC), RetentionPolicy()))

    assert peak_of(read) < MOST
    assert not found[0].held
    assert not found[0].dead


@pytest.mark.parametrize("key", [keys.HEAD, keys.record_key(2)])
def test_an_audit_tells_of_a_document_without_end(tmp_path: Path, pins: dict[str, Any], key: str) -> None:
    sparse(tmp_path / "bucket" / RUN / key)
    told: list[str] = []

    def audit() -> None:
        found = audit_run(FileStore(tmp_path / "bucket"), RUN, contents=False)
        told.extend(defect.key for defect in found.defects)

    assert peak_of(audit) < MOST
    assert key in told


# -- objects: their records are believed where no keys are pinned ------------------------------------------------------


def planted(tmp_path: Path, store: DictStore, key: str, nbytes: int = LONG) -> CountingStore:
    """Write a run's files, one of them as long as that."""
    for name, data in store.objects.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    sparse(tmp_path / key, nbytes)
    return CountingStore(FileStore(tmp_path))


def refused(store: CountingStore, *, holds: bool, match: str) -> None:
    """Pull version 1 in little memory, which is refused."""
    honest = honest_run("gap")
    into = garbage(honest.weights[1])
    if holds:
        with quick(honest.store) as registry:
            registry.pull(0, into=into)
    was = bits(into)

    def pull() -> None:
        with quick(store) as worker:
            if holds:
                worker.verify(0, model=into)
            with pytest.raises(CorruptObject, match=match):
                worker.pull(1, into=into)

    assert peak_of(pull) < MOST + 2 * RANGE_BYTES
    assert store.bytes_read < MOST + 2 * RANGE_BYTES
    assert bits(into) == was


def test_a_head_that_is_longer_than_the_layout_allows_is_not_read(tmp_path: Path) -> None:
    store = copied(honest_run("gap").store)
    key = key_of(store, "objects/patch")
    commit(lambda r: (r["patch"].update(head_size=LONG - 1), r["patch"]["object"].update(size=LONG)))(store)
    refused(planted(tmp_path, store, key), holds=True, match="a head of 3221225471 bytes was committed, and its layout")


def test_a_group_of_more_bytes_than_its_cells_can_take_is_not_read(tmp_path: Path) -> None:
    store = copied(honest_run("gap").store)
    parts = PatchParts(store)
    head = PatchHead.parse(parts.document["__metadata__"]["pulse"].encode())
    group, changed, _, _, digest, *sums = parts.entries[0]
    entry = Entry(group, changed, LONG, "gap", digest, Digest(*sums[:2]), Digest(*sums[2:]))
    data = head_bytes(head, Directory.of([entry]))
    store.objects[parts.key] = data
    said = {"head_size": len(data), "head_blake3": blake3(data).hexdigest()}
    commit(lambda r: (r["patch"].update(said), r["patch"]["object"].update(size=len(data) + LONG)))(store)
    refused(
        planted(tmp_path, store, parts.key, len(data) + LONG),
        holds=True,
        match="group 0 claims 3221225472 bytes for 200 changed cells",
    )


def test_an_index_that_is_longer_than_any_is_not_read(tmp_path: Path) -> None:
    store = copied(honest_run("gap").store)
    first_commit(lambda r: r["keyframe"]["index"].update(size=LONG))(store)
    refused(planted(tmp_path, store, key_of(store, "index")), holds=False, match="an index of 3221225472 bytes was")


def test_a_shard_that_is_larger_than_the_layout_allows_is_neither_read_nor_made_room_for(tmp_path: Path) -> None:
    store = copied(honest_run("gap").store)
    key = key_of(store, "model-00001")
    zeros = blake3(bytes(PIECE_BYTES)).hexdigest()
    pieces(lambda p: p["blake3"].update({key.rpartition("/")[2]: [zeros] * (LONG // PIECE_BYTES)}))(store)
    first_commit(lambda r: r["keyframe"]["shards"][0].update(size=LONG))(store)
    refused(
        planted(tmp_path, store, key),
        holds=False,
        match="3221225472 bytes of shards were committed",
    )


# -- to look at one ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("beginning", [b"", b"{", b'{"blake3":"', b"\xff" * 8])
@pytest.mark.parametrize("name", ["head", "log/000000000000.json", "objects/keyframe/x/index.json", "x.safetensors"])
def test_to_inspect_a_file_without_end_costs_no_memory(tmp_path: Path, name: str, beginning: bytes) -> None:
    path = tmp_path / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(beginning)
    sparse(path)
    header = beginning == b"\xff" * 8 or name.endswith(".safetensors")
    with path.open("rb") as file:
        for source in (Source.of_key(FileStore(tmp_path), name), Source.of_file(path, file)):

            def inspect(source: Source = source) -> None:
                with pytest.raises((CorruptObject, InvalidArgument)):
                    describe_object(source)

            # A header of safetensors may have 100 MB, which is its library's bound.
            assert peak_of(inspect) < (240 << 20 if header else MOST)
