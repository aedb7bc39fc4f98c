"""Patches form a groupoid: what a diff finds, a patch carries, joins, negates and undoes, bit for bit."""

from __future__ import annotations

import itertools

import pytest
from blake3 import blake3
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import get_backend
from pulse_registry.errors import BaseMismatch, CorruptObject
from pulse_registry.format.patch_coding import PatchFile
from pulse_registry.format.sparse_update import join
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_registry.weights.digest import Digest
from tests.support.chains import Chain, chains, difference
from tests.support.groups import small_groups
from tests.support.meeting import resolve
from tests.support.parts import patch_over
from tests.support.patches import encode_patch
from tests.support.sampling import examples

CODERS = st.sampled_from(["gap", "class", "auto"])
BACKENDS = [get_backend("reference"), get_backend("numba")]
LENGTH = 7


def stored(coded: PatchFile) -> bytes:
    return coded.head + b"".join(coded.groups)


def coded_with(backend, coder, old: Weights, new: Weights) -> PatchFile:
    changes = difference(backend, old, new)
    return encode_patch(backend, old.geometry, 4, 5, changes, coder=coder, base_cells=old.spans)


@given(chains(), CODERS)
@examples(50)
def test_a_diff_that_is_coded_stored_and_applied_gives_the_target_and_its_undo_the_base(chain: Chain, coder) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        files = []
        for backend in BACKENDS:
            old, new = chain.weights(geometry, 0), chain.weights(geometry, 1)
            coded = coded_with(backend, coder, old, new)
            data, ref = stored(coded), coded.ref("objects/patch/x")
            files.append(data)
            assert ref.object.blake3 == blake3(data[: ref.object.size]).hexdigest()
            assert ref.size == len(data) == coded.nbytes
            assert old.digest(backend, map) + coded.delta == new.digest(backend, map)

            patch = patch_over(geometry, ref, data)
            live = chain.weights(geometry, 0)
            changes = []
            for number in patch.entries:
                group = geometry.groups[number]
                delta = patch.decode(backend, group, live.spans(group))
                changes.append(resolve(backend, group, delta, live))
                entry = patch.entries[number]
                assert changes[-1].sums(backend) == (entry.old_sum, entry.new_sum)
            for change in changes:
                change.apply(backend, live)
            assert bits(live) == bits(new)
            for change in changes:
                change.apply(backend, live)
            assert bits(live) == bits(new), "to apply twice is to apply once"
            for change in changes:
                change.undo(backend, live)
            assert bits(live) == bits(old)
        assert files[0] == files[1], "the backends code the same bytes"
        old, new = chain.weights(geometry, 0), chain.weights(geometry, 1)
        assert stored(coded_with(BACKENDS[0], coder, old, new)) == files[0], "the same states code the same bytes"


def bits(weights: Weights) -> list[bytes]:
    return [array.tobytes() for array in weights.arrays]


@given(chains(LENGTH))
@examples(40)
def test_the_joined_patches_of_a_chain_are_the_diff_of_its_ends(chain: Chain) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        for backend in BACKENDS:
            states = [chain.weights(geometry, n) for n in range(LENGTH)]
            steps = [difference(backend, old, new) for old, new in itertools.pairwise(states)]
            whole = difference(backend, states[0], states[-1])
            for group in geometry.groups:
                deltas = [step[group.number].delta(backend) for step in steps]
                expected = whole[group.number].delta(backend)
                for cut in range(len(deltas) + 1):
                    parts = [join(backend, deltas[:cut], group), join(backend, deltas[cut:], group)]
                    joined = join(backend, parts, group)
                    assert joined.index.tolist() == expected.index.tolist()
                    assert joined.distance.tolist() == expected.distance.tolist()
                back = join(backend, [-delta for delta in reversed(deltas)], group)
                assert (back.index.tolist(), back.distance.tolist()) == (
                    (-expected).index.tolist(),
                    (-expected).distance.tolist(),
                )
                assert len(join(backend, [*deltas, back], group).index) == 0


@given(chains(3), st.lists(CODERS, min_size=2, max_size=2))
@examples(40)
def test_two_stored_patches_lead_from_the_first_state_to_the_last_whatever_their_coders(chain: Chain, coders) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        backend = BACKENDS[1]
        states = [chain.weights(geometry, n) for n in range(3)]
        patches = []
        for coder, old, new in zip(coders, states[:-1], states[1:], strict=True):
            coded = coded_with(backend, coder, old, new)
            patches.append(patch_over(geometry, coded.ref("objects/patch/x"), stored(coded)))
        for group in geometry.groups:
            cells = states[0].copy_of(group)
            for patch in patches:
                if group.number in patch.entries:
                    delta = patch.decode(backend, group, [cells])
                    found = backend.gather(cells, delta.index)
                    backend.scatter(cells, delta.index, backend.move(found, delta.distance, group.cell_type))
            assert cells.tobytes() == states[2].copy_of(group).tobytes()


@given(chains(3), CODERS)
@examples(50)
def test_a_patch_met_with_another_base_never_has_the_sums_of_its_own(chain: Chain, coder) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        backend = BACKENDS[1]
        old, new, other = (chain.weights(geometry, n) for n in range(3))
        coded = coded_with(backend, coder, old, new)
        patch = patch_over(geometry, coded.ref("objects/patch/x"), stored(coded))
        for number, entry in patch.entries.items():
            group: Group = geometry.groups[number]
            index = backend.diff(new.copy_of(group), old.copy_of(group))[0]
            same = (
                backend.gather(old.copy_of(group), index).tolist()
                == backend.gather(other.copy_of(group), index).tolist()
            )
            try:
                delta = patch.decode(backend, group, other.spans(group))
            except (BaseMismatch, CorruptObject):
                assert entry.coder == "class"
                continue
            met = resolve(backend, group, delta, other)
            if delta.index.tolist() == index.tolist():
                assert (met.sums(backend)[0] == entry.old_sum) == same


@given(chains())
@examples(40)
def test_a_digest_is_kept_up_to_date_by_patches_alone(chain: Chain) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        for backend in BACKENDS:
            old, new = chain.weights(geometry, 0), chain.weights(geometry, 1)
            delta = Digest()
            for change in difference(backend, old, new):
                was, now = change.sums(backend)
                delta += now - was
            assert old.digest(backend, map) + delta == new.digest(backend, map)


@pytest.mark.sweep
@given(chains(), CODERS)
@settings(max_examples=5_000)
def test_many_more_diffs_survive(chain: Chain, coder) -> None:
    inner = test_a_diff_that_is_coded_stored_and_applied_gives_the_target_and_its_undo_the_base.hypothesis.inner_test
    inner(chain, coder)
