"""Patch objects: right, the same bytes every time, readable by safetensors, and each group decodable alone."""

from __future__ import annotations

import json
import struct
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors import safe_open

from pulse_kernels import get_backend
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.format import patch_coding
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import CoderChoice, PatchFile
from pulse_registry.format.sparse_update import SparseUpdate
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas import PatchHead
from tests.support.groups import geometry_of
from tests.support.meeting import resolve
from tests.support.patches import encode_patch
from tests.unit.format.forge import ENTRY, KEY, States, joined, two_states

by_coder = pytest.mark.parametrize("coder", ["gap", "class", "auto"])
NUMBA = get_backend("numba")


@pytest.fixture(scope="module")
def states() -> States:
    return two_states()


def parsed(states: States, file: PatchFile) -> Patch:
    return Patch.parse(states.geometry, file.ref(KEY), joined(file))


def apply(states: States, patch: Patch, weights: Weights) -> None:
    for number, entry in patch.entries.items():
        group = states.geometry.groups[number]
        base = weights.spans(group) if entry.coder == "class" else None
        resolve(NUMBA, group, patch.decode(NUMBA, group, base), weights).apply(NUMBA, weights)


@by_coder
def test_a_patch_leads_from_the_old_cells_to_the_new(states: States, coder: CoderChoice):
    weights = states.weights("old")
    before = weights.digest(NUMBA, map)
    file = states.encode(coder)
    apply(states, parsed(states, file), weights)
    for group in states.geometry.groups:
        assert weights.copy_of(group).tolist() == states.weights("new").copy_of(group).tolist()
    assert before + file.delta == weights.digest(NUMBA, map)


@by_coder
def test_the_directory_tells_each_changed_group_its_size_its_hash_and_its_sums(states: States, coder: CoderChoice):
    file = states.encode(coder)
    entries = parsed(states, file).entries
    changes = {change.group.number: change for change in states.changes()}
    assert list(entries) == [0, 1, 2, 4, 5, 6]
    for (number, entry), data in zip(entries.items(), file.groups, strict=True):
        assert (entry.group, entry.size, entry.blake3) == (number, len(data), blake3(data).digest())
        assert entry.changed == len(changes[number].index)
        assert (entry.old_sum, entry.new_sum) == changes[number].sums(NUMBA)
    assert file.changed == sum(entry.changed for entry in entries.values())
    assert file.delta == sum((entry.new_sum - entry.old_sum for entry in entries.values()), Digest())


@by_coder
def test_the_same_states_give_the_same_bytes_on_every_backend_and_any_number_of_threads(
    states: States, coder: CoderChoice
):
    expected = joined(states.encode(coder))
    assert joined(states.encode(coder)) == expected
    assert joined(states.encode(coder, get_backend("reference"))) == expected
    with ThreadPoolExecutor(3) as pool:
        assert joined(states.encode(coder, map_=pool.map)) == expected


def test_the_order_of_the_models_names_does_not_show_in_the_bytes(states: States):
    geometry = geometry_of(dict(reversed(states.old.items())))
    turned = States(geometry, dict(reversed(states.old.items())), dict(reversed(states.new.items())))
    assert joined(turned.encode()) == joined(states.encode())


@by_coder
def test_the_reference_describes_the_bytes(states: States, coder: CoderChoice):
    file = states.encode(coder)
    ref, data = file.ref(KEY), joined(file)
    assert (ref.base, ref.target, ref.coder, ref.changed) == (4, 5, file.coder, file.changed)
    assert (ref.object.key, ref.object.size, ref.object.blake3) == (KEY, len(data), blake3(data).hexdigest())
    assert ref.head_size == len(file.head)
    assert ref.head_blake3 == blake3(data[: ref.head_size]).hexdigest()
    assert file.nbytes == len(data)


def test_the_head_alone_holds_all_but_the_groups(states: States):
    file = states.encode()
    (length,) = struct.unpack_from("<Q", file.head)
    document = json.loads(file.head[8 : 8 + length])
    assert list(document) == ["__metadata__", "directory", "groups"]
    assert len(file.head) == 8 + length + document["directory"]["shape"][0]
    assert document["directory"]["shape"] == [6 * ENTRY.size]
    assert (8 + length) % 8 == 0


@by_coder
def test_the_safetensors_library_opens_a_patch(states: States, coder: CoderChoice, tmp_path: Path):
    file = states.encode(coder)
    path = tmp_path / "patch.safetensors"
    path.write_bytes(joined(file))
    with safe_open(path, framework="np") as opened:
        assert set(opened.keys()) == {"directory", "groups"}
        head = PatchHead.parse(opened.metadata()["pulse"].encode())
        directory, groups = opened.get_tensor("directory"), opened.get_tensor("groups")
    assert head == PatchHead(layout=states.geometry.id, base=4, target=5, changed=file.changed, groups=6)
    assert directory.tobytes() == file.head[-len(directory) :]
    assert groups.tobytes() == b"".join(file.groups)
    assert (directory.dtype, groups.dtype) == (np.uint8, np.uint8)


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_each_group_decodes_alone_whatever_the_others_hold(states: States, coder: CoderChoice):
    file = states.encode(coder)
    ref, data = file.ref(KEY), joined(file)
    whole = Patch.parse(states.geometry, ref, data)
    weights = states.weights("old")
    for number, entry in whole.entries.items():
        at = len(file.head) + sum(e.size for n, e in whole.entries.items() if n < number)
        only = file.head + bytes(at - len(file.head)) + data[at : at + entry.size]
        patch = Patch.parse(states.geometry, ref, only + bytes(len(data) - len(only)))
        for other in whole.entries:
            group = states.geometry.groups[other]
            if other == number:
                delta = patch.decode(NUMBA, group, weights.spans(group))
                assert delta.index.tolist() == whole.decode(NUMBA, group, weights.spans(group)).index.tolist()
            else:
                with pytest.raises(CorruptObject, match=f"group {other}"):
                    patch.decode(NUMBA, group, weights.spans(group))


def test_no_changes_make_a_patch_without_groups(states: States, tmp_path: Path):
    file = encode_patch(NUMBA, states.geometry, 4, 5, [])
    assert (file.groups, file.changed, file.coder, file.delta) == ((), 0, "gap", Digest())
    assert parsed(states, file).entries == {}
    (tmp_path / "empty.safetensors").write_bytes(joined(file))
    with safe_open(tmp_path / "empty.safetensors", framework="np") as opened:
        assert opened.get_tensor("groups").shape == (0,)


def test_changes_of_no_cells_are_left_out(states: States):
    assert 3 in [change.group.number for change in states.changes()]
    assert 3 not in parsed(states, states.encode()).entries


def test_the_coder_of_a_patch_is_class_where_any_group_is(states: States, monkeypatch: pytest.MonkeyPatch):
    assert states.encode("gap").coder == "gap"
    assert states.encode("class").coder == "class"
    monkeypatch.setattr(patch_coding, "class_pays", lambda cells, nbytes: False)
    assert states.encode("auto").coder == "gap"
    assert joined(states.encode("auto")) == joined(states.encode("gap"))


def exponents_apart() -> tuple[Geometry, SparseUpdate, np.ndarray]:
    """Return a group in which half of the cells of one exponent of sixteen change, and one cell of each other."""
    cells = (np.arange(1 << 16) % 16 * 0x80 + 0x3000).astype(np.uint16)
    geometry = geometry_of({"w": cells.view(ml_dtypes.bfloat16)}, group_bytes=2 << 16)
    chosen = (cells == 0x3000) & (np.random.default_rng(0).random(len(cells)) < 0.5)
    chosen[:16] = True
    index = np.flatnonzero(chosen).astype(np.uint32)
    return geometry, SparseUpdate(geometry.groups[0], index, cells[index], cells[index] + np.uint16(1)), cells


def test_auto_takes_the_smaller_of_both_where_class_may_pay(monkeypatch: pytest.MonkeyPatch):
    geometry, change, cells = exponents_apart()
    sizes = {}
    asked = []

    def pays(cells: int, nbytes: int) -> bool:
        asked.append((cells, nbytes))
        return True

    monkeypatch.setattr(patch_coding, "class_pays", pays)
    for coder in ("gap", "class", "auto"):
        file = encode_patch(NUMBA, geometry, 0, 1, [change], coder=coder, base_cells=lambda group: [cells])
        sizes[coder] = (len(file.groups[0]), file.coder)
    assert sizes["class"][0] < sizes["gap"][0]
    assert sizes["auto"] == sizes["class"]
    assert asked == [(1 << 16, sizes["gap"][0])]
    # All go up one: in the order of the dtype the same for all, outward not, where signs are mixed.
    signs = np.random.default_rng(1).integers(0, 2, len(cells)).astype(np.uint16) << np.uint16(15)
    mixed, index = cells ^ signs, np.arange(1000, dtype=np.uint32)
    up = NUMBA.move(mixed[:1000], np.ones(1000, np.uint16), change.group.cell_type)
    same = SparseUpdate(change.group, index, mixed[:1000], up)
    sizes = {
        coder: len(encode_patch(NUMBA, geometry, 0, 1, [same], coder=coder, base_cells=lambda g: [mixed]).groups[0])
        for coder in ("gap", "class", "auto")
    }
    assert sizes["gap"] < sizes["class"]
    assert sizes["auto"] == sizes["gap"]


def test_auto_without_base_cells_is_gap(states: States):
    file = encode_patch(NUMBA, states.geometry, 4, 5, states.changes(), coder="auto")
    assert joined(file) == joined(states.encode("gap"))


def test_class_is_weighed_by_the_time_that_its_bytes_save():
    # 16 MiB of BF16 cells: a sparse step does not pay the pass over all cells, a dense one does.
    assert not patch_coding.class_pays(1 << 23, 100_000)
    assert patch_coding.class_pays(1 << 23, 16 << 20)


def test_other_base_cells_than_those_coded_against_are_a_base_mismatch():
    geometry, change, cells = exponents_apart()
    file = encode_patch(NUMBA, geometry, 0, 1, [change], coder="class", base_cells=lambda group: [cells])
    patch = Patch.parse(geometry, file.ref(KEY), joined(file))
    assert patch.decode(NUMBA, change.group, [cells]).index.tolist() == change.index.tolist()
    with pytest.raises(BaseMismatch, match="group 0 was coded against other weights than version 0"):
        patch.decode(NUMBA, change.group, [np.full_like(cells, 0x4000)])


@settings(max_examples=30)
@given(data=st.data(), coder=st.sampled_from(["gap", "class"]))
def test_any_change_of_a_mixed_model_comes_back(data: st.DataObject, coder: CoderChoice):
    states = two_states()
    new = {name: array.copy() for name, array in states.old.items()}
    for array in new.values():
        if array.size:
            cells = array.reshape(-1).view(np.uint8)
            places = data.draw(st.lists(st.integers(0, len(cells) - 1), max_size=12))
            cells[places] ^= data.draw(st.integers(1, 255))
    states = States(states.geometry, states.old, new)
    weights = states.weights("old")
    file = states.encode(coder)
    apply(states, parsed(states, file), weights)
    assert [weights.copy_of(g).tobytes() for g in states.geometry.groups] == [
        states.weights("new").copy_of(g).tobytes() for g in states.geometry.groups
    ]
