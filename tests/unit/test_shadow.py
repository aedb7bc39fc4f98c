"""The shadow: what was published, pushes on their way included, and back."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import Backend, get_backend
from pulse_registry.digest import Digest
from pulse_registry.geometry import Geometry
from pulse_registry.model import read_model
from pulse_registry.shadow import Shadow, first_shadow
from pulse_registry.weights import Weights
from tests.unit.models import flat_cells, geometry_of, mixed_model, numba, strided, weights_of

Model = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(params=["reference", "numba"], scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def shadow_of(model: Model, version: int = 0, backend: Backend | None = None) -> Shadow:
    return first_shadow(geometry_of(model), read_model(model), backend or numba(), map, version)


def digest_of(geometry: Geometry, model: Model) -> Digest:
    """Return the digest of a model's cells by a full pass of the reference."""
    return weights_of(geometry, {k: v.copy() for k, v in model.items()}).digest(get_backend("reference"), map)


def shadow_cells(shadow: Shadow, version: int | None = None) -> list[int]:
    """Return all cells of the shadow, or those of a version."""
    groups = shadow.geometry.groups
    if version is None:
        return [c for group in groups for c in shadow.weights.copy_of(group).tolist()]
    return [c for group in groups for c in shadow.cells_at(version, group).tolist()]


def change(model: Model, seed: int, count: int = 9) -> None:
    """Change some cells of every tensor, as bits."""
    rng = np.random.default_rng(seed)
    for array in model.values():
        if array.size:
            cells = array.view(f"u{array.itemsize}") if array.ndim else array.reshape(1).view(f"u{array.itemsize}")
            for place in rng.integers(0, array.size, count):
                cells.flat[place] ^= cells.dtype.type(rng.integers(1, 256))


@pytest.mark.parametrize("form", [dict, strided], ids=["contiguous", "strided"])
def test_the_first_shadow_is_a_copy_with_its_digest(backend: Backend, form: Any):
    model = form(mixed_model())
    shadow = shadow_of(model, version=4, backend=backend)
    assert (shadow.version, shadow.digest) == (4, digest_of(shadow.geometry, model))
    before = flat_cells(shadow.geometry, model)
    assert shadow_cells(shadow) == before
    change(model, 1)
    assert shadow_cells(shadow) == before


@pytest.mark.parametrize("form", [dict, strided], ids=["contiguous", "strided"])
def test_advance_finds_exactly_the_changed_cells_and_takes_them_over(backend: Backend, form: Any):
    model = form(mixed_model())
    shadow = shadow_of(model, backend=backend)
    before = flat_cells(shadow.geometry, model)
    change(model, 1)
    after = flat_cells(shadow.geometry, model)
    version, changes, digest = shadow.advance(read_model(model), map)
    found = {
        c.group.start + place: (old, new)
        for c in changes
        for place, old, new in zip(c.index.tolist(), c.old.tolist(), c.new.tolist(), strict=True)
    }
    assert found == {k: (a, b) for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert [c.group.number for c in changes] == sorted({c.group.number for c in changes})
    assert all(len(c.index) for c in changes)
    assert shadow_cells(shadow) == after
    assert (version, shadow.version, digest) == (1, 1, shadow.digest)
    assert digest == digest_of(shadow.geometry, model)


def test_advance_over_nothing_is_an_empty_version():
    model = mixed_model()
    shadow = shadow_of(model, version=8)
    digest = shadow.digest
    assert shadow.advance(read_model(model), map) == (9, [], digest)


def test_float32_is_compared_as_the_bf16_that_is_published():
    live = {"w": np.linspace(-3, 3, 100, dtype=np.float32), "n": np.arange(40, dtype=np.int16)}
    geometry = geometry_of(live, "bf16")
    shadow = first_shadow(geometry, read_model(live), numba(), map, 0)
    assert [t.dtype for t in geometry.layout.tensors] == ["BF16", "I16"]
    rounded = live["w"].astype(ml_dtypes.bfloat16).view(np.uint16)
    assert shadow_cells(shadow) == rounded.tolist() + live["n"].tolist()
    live["w"][7] = np.nextafter(live["w"][7], np.float32(9))  # too small a step for BF16
    assert shadow.advance(read_model(live), map)[1] == []
    live["w"][[3, 64, 99]] *= 2
    (first, *_), *_ = changes = shadow.advance(read_model(live), map)[1:]
    assert first.index.tolist() == [3]
    assert shadow_cells(shadow)[:100] == live["w"].astype(ml_dtypes.bfloat16).view(np.uint16).tolist()
    assert sum(len(c.index) for c in changes[0]) == 3


def test_cells_at_returns_each_version_that_is_on_its_way():
    model = mixed_model()
    shadow = shadow_of(model, version=5)
    states = {5: flat_cells(shadow.geometry, model)}
    for version in (6, 7, 8):
        change(model, version)
        assert shadow.advance(read_model(model), map)[0] == version
        states[version] = flat_cells(shadow.geometry, model)
    assert {version: shadow_cells(shadow, version) for version in states} == states
    digests = {version: shadow.digest_at(version) for version in states}
    for version, digest in digests.items():
        copy = Weights.empty(shadow.geometry)
        for group in shadow.geometry.groups:
            copy.fill(group, shadow.cells_at(version, group))
        assert copy.digest(numba(), map) == digest
    assert len(set(digests.values())) == 4
    shadow.settle(6)
    assert shadow.digest_at(7) == digests[7]
    assert {version: shadow_cells(shadow, version) for version in (6, 7, 8)} == {v: states[v] for v in (6, 7, 8)}


def test_cells_at_returns_a_copy():
    model = mixed_model()
    shadow = shadow_of(model)
    for group in shadow.geometry.groups:
        shadow.cells_at(0, group)[:] = 0
    assert shadow_cells(shadow) == flat_cells(shadow.geometry, model)


def test_revert_takes_back_a_version_and_all_after_it():
    model = mixed_model()
    shadow = shadow_of(model)
    states, digests = [flat_cells(shadow.geometry, model)], [shadow.digest]
    for seed in range(4):
        change(model, seed)
        shadow.advance(read_model(model), map)
        states.append(flat_cells(shadow.geometry, model))
        digests.append(shadow.digest)
    shadow.settle(1)
    shadow.revert(5)  # nothing of that version is there
    assert shadow.version == 4
    shadow.revert(3)
    assert (shadow.version, shadow.digest, shadow_cells(shadow)) == (2, digests[2], states[2])
    shadow.revert(1)  # settled: it stays
    assert (shadow.version, shadow.digest, shadow_cells(shadow)) == (1, digests[1], states[1])


def test_what_was_reverted_is_carried_by_the_next_advance():
    model = mixed_model()
    shadow = shadow_of(model)
    before = flat_cells(shadow.geometry, model)
    change(model, 1)
    shadow.advance(read_model(model), map)
    shadow.revert(1)
    change(model, 2)
    version, changes, digest = shadow.advance(read_model(model), map)
    after = flat_cells(shadow.geometry, model)
    assert version == 1
    assert sum(len(c.index) for c in changes) == sum(a != b for a, b in zip(before, after, strict=True))
    assert (digest, shadow_cells(shadow)) == (digest_of(shadow.geometry, model), after)


@settings(max_examples=25)
@given(st.lists(st.one_of(st.just("advance"), st.just("settle"), st.integers(1, 3)), max_size=12))
def test_any_order_of_advance_settle_and_revert_keeps_cells_and_digest_right(steps: list[str | int]):
    model = {"a": np.zeros(50, np.uint16), "b": np.zeros(30, np.uint8)}
    shadow = shadow_of(model)
    states, settled = [flat_cells(shadow.geometry, model)], 0
    for number, action in enumerate(steps):
        if action == "advance":
            change(model, number, count=5)
            assert shadow.advance(read_model(model), map)[0] == len(states)
            states.append(flat_cells(shadow.geometry, model))
        elif action == "settle":
            settled = min(settled + 1, len(states) - 1)
            shadow.settle(settled)
        else:
            back = max(settled + 1, len(states) - int(action))
            shadow.revert(back)
            del states[back:]
        assert (shadow.version, shadow_cells(shadow)) == (len(states) - 1, states[-1])
        assert shadow.digest == shadow.weights.digest(numba(), map)
        for version in range(settled, len(states)):
            assert shadow_cells(shadow, version) == states[version]


def test_groups_may_be_diffed_by_many_threads():
    model = {"w": np.zeros(5000, np.uint16)}
    shadow = shadow_of(model)
    change(model, 1, count=900)
    with ThreadPoolExecutor(4) as pool:
        _, changes, digest = shadow.advance(read_model(model), pool.map)
    assert digest == digest_of(shadow.geometry, model)
    assert len({c.group.number for c in changes}) > 100
    assert shadow_cells(shadow) == model["w"].tolist()


def test_older_versions_can_be_read_at_every_moment_of_an_advance():
    model = {"w": np.zeros(200, np.uint16)}
    shadow = shadow_of(model)
    groups, seen = shadow.geometry.groups, []

    def read() -> None:
        seen.append([cell for group in groups for cell in shadow.cells_at(0, group).tolist()])

    def look() -> None:
        """Read in another thread, as the coding of a push under way does; it must not have to wait for us."""
        reader = threading.Thread(target=read, daemon=True)
        reader.start()
        reader.join(timeout=10)
        assert not reader.is_alive()

    def map_and_look(function: Any, items: Any) -> Any:
        for item in items:
            look()
            yield function(item)
            look()

    for value in (1, 2):
        model["w"][:] = value
        shadow.advance(read_model(model), map_and_look)
    assert len(seen) == 2 * 2 * 3 * len(groups)
    assert all(cells == [0] * 200 for cells in seen)
