"""A merged patch is, byte for byte, the patch that a diff of its two versions gives, whatever lies between them."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_registry.compaction import merge as merge_module
from pulse_registry.compaction.merge import merge
from pulse_registry.compaction.temp_patch import TempPatch
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import PatchFile
from pulse_registry.pull.route import Leg
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from tests.support.chains import Chain, chains, difference
from tests.support.groups import small_groups
from tests.support.parts import patch_over
from tests.support.patches import encode_patch
from tests.support.records import DictStore

LENGTH = 5
BACKEND = get_backend("numba")
POOL = ThreadPoolExecutor(2)
CODERS = st.sampled_from(["gap", "class", "auto"])


def stored(coded: PatchFile) -> bytes:
    return coded.head + b"".join(coded.groups)


def parsed(geometry: Geometry, coded: PatchFile) -> Patch:
    return patch_over(geometry, coded.ref("objects/patch/x"), stored(coded))


def coded_diff(chain: Chain, geometry: Geometry, base: int, target: int, coder: str) -> PatchFile:
    old, new = chain.weights(geometry, base), chain.weights(geometry, target)
    changes = difference(BACKEND, old, new)
    return encode_patch(BACKEND, geometry, base, target, changes, coder=coder, base_cells=old.spans)  # type: ignore[arg-type]


def leg(patch: Patch, *, inverse: bool = False) -> Leg:
    ends = (patch.ref.base, patch.ref.target)[:: -1 if inverse else 1]
    return Leg("inverse" if inverse else "patch", *ends, patch=patch.ref)


def merged(weights: Weights, legs: Sequence[Leg], patches: Sequence[Patch], *, backwards: bool) -> tuple[bytes, object]:
    coded = merge(BACKEND, POOL, POOL, weights, legs, patches, backwards=backwards)
    store = DictStore()
    with TempPatch(weights.geometry, legs[0].base or 0, legs[-1].target, coded, None) as patch:
        ref = patch.store(store, "objects/patch/x")
    data = b"".join(store.objects[key] for key in sorted(store.objects))  # a head comes before its parts
    assert len(data) == patch.nbytes
    return data, ref


@pytest.mark.slow
@given(chains(LENGTH), st.integers(1, LENGTH - 1), st.booleans())
@settings(max_examples=40)
def test_gap_patches_merge_from_either_end_to_what_a_diff_gives(chain: Chain, length: int, backwards: bool) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        patches = [parsed(geometry, coded_diff(chain, geometry, n, n + 1, "gap")) for n in range(length)]
        weights = chain.weights(geometry, length if backwards else 0)
        data, ref = merged(weights, [leg(patch) for patch in patches], patches, backwards=backwards)
        whole = coded_diff(chain, geometry, 0, length, "gap")
        assert data == stored(whole)
        assert ref == whole.ref("objects/patch/x")


@given(chains(3))
@settings(max_examples=30)
def test_a_way_that_goes_back_first_merges_too(chain: Chain) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        first, both = (parsed(geometry, coded_diff(chain, geometry, 0, n, "gap")) for n in (1, 2))
        legs = [leg(first, inverse=True), leg(both)]
        data, _ = merged(chain.weights(geometry, 2), legs, [first, both], backwards=True)
        assert data == stored(coded_diff(chain, geometry, 1, 2, "gap"))


@given(chains(4), st.lists(CODERS, min_size=3, max_size=3))
@settings(max_examples=40)
def test_patches_of_any_coders_merge_from_the_base_to_one_that_leads_to_the_target(chain: Chain, coders) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        files = [coded_diff(chain, geometry, n, n + 1, coder) for n, coder in enumerate(coders)]
        patches = [parsed(geometry, file) for file in files]
        by_class = {n for patch in patches for n, entry in patch.entries.items() if entry.coder == "class"}
        base = chain.weights(geometry, 0)
        data, ref = merged(base, [leg(patch) for patch in patches], patches, backwards=False)
        found = patch_over(geometry, ref, data)  # type: ignore[arg-type]
        for change in difference(BACKEND, chain.weights(geometry, 0), chain.weights(geometry, 3)):
            entry = found.entries.get(change.group.number)
            if entry is None:
                assert not len(change.index)
                continue
            assert entry.coder == ("class" if change.group.number in by_class else "gap")
            delta = found.decode(BACKEND, change.group, base.spans(change.group))
            assert delta.index.tolist() == change.index.tolist()
            assert delta.distance.tolist() == change.delta(BACKEND).distance.tolist()
            assert (entry.old_sum, entry.new_sum) == change.sums(BACKEND)


@given(chains(3), st.integers(0, 2**32 - 1), st.booleans())
@settings(max_examples=40)
def test_weights_with_a_wrong_cell_that_the_patches_touch_are_refused(chain: Chain, seed: int, backwards: bool) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        patches = [parsed(geometry, coded_diff(chain, geometry, n, n + 1, "gap")) for n in range(2)]
        numbers = sorted({number for patch in patches for number in patch.entries})
        if not numbers:
            return
        rng = np.random.default_rng(seed)
        weights = chain.weights(geometry, 2 if backwards else 0)
        group = geometry.groups[rng.choice(numbers)]
        touched = [patch.decode(BACKEND, group).index for patch in patches if group.number in patch.entries]
        cell = rng.choice(np.concatenate(touched))
        cells = weights.copy_of(group)
        cells[cell] ^= cells.dtype.type(1 << int(rng.integers(0, group.cell_type.bits)))
        weights.fill(group, cells)
        again = [parsed(geometry, coded_diff(chain, geometry, n, n + 1, "gap")) for n in range(2)]
        with pytest.raises(BaseMismatch, match="not that version"):
            merged(weights, [leg(patch) for patch in again], again, backwards=backwards)


def test_what_decodes_to_something_else_is_never_laid_aside(monkeypatch: pytest.MonkeyPatch) -> None:
    patches, weights = _one_step()
    decode = merge_module.decode_group

    def flipped(*args: object) -> tuple[object, object]:
        index, distance = decode(*args)  # type: ignore[arg-type]
        return index, distance + distance.dtype.type(1)

    monkeypatch.setattr(merge_module, "decode_group", flipped)
    with pytest.raises(CorruptObject, match="coded wrongly"):
        merged(weights, [leg(patches[0])], patches, backwards=True)


def _one_step() -> tuple[list[Patch], Weights]:
    model = {"w": np.arange(100, dtype=np.uint16)}
    geometry = Geometry(layout_of(read_model(model), "keep"))
    old, new = Weights(geometry, [model["w"].copy()]), Weights(geometry, [model["w"] * np.uint16(3)])
    coded = encode_patch(BACKEND, geometry, 0, 1, difference(BACKEND, old, new))
    return [parsed(geometry, coded)], new
