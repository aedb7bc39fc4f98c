"""The shadow: what was published, pushes on their way included, and back."""

from __future__ import annotations

import threading
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import Backend, get_backend
from pulse_kernels.cpu.backend import NumbaBackend
from pulse_kernels.spans import arrays_of
from pulse_registry.errors import Conflict
from pulse_registry.format.patch import Patch
from pulse_registry.format.patch_coding import Coded, CoderChoice, PatchFile
from pulse_registry.push.shadow import HostAdvance, HostShadow, first_host_shadow
from pulse_registry.timeline import Timeline
from pulse_registry.weights.arrays import Weights
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_registry.weights.model import read_model
from tests.support.groups import flat_cells, geometry_of, mixed_model, numba, strided, weights_of
from tests.support.inline import Inline
from tests.support.waiting import HANG_S

Model = dict[str, np.ndarray[Any, Any]]


@pytest.fixture(params=["reference", "numba"], scope="module")
def backend(request: pytest.FixtureRequest) -> Backend:
    return get_backend(request.param)


def shadow_of(
    model: Model, version: int = 0, backend: Backend | None = None, pool: Executor | None = None
) -> HostShadow:
    return first_host_shadow(geometry_of(model), read_model(model), backend or numba(), pool or Inline(), version)


def moved(shadow: HostShadow, model: Model, coder: CoderChoice = "gap") -> HostAdvance:
    """Advance to a model's cells, in a publisher's way."""
    return shadow.advance(read_model(model), coder, Timeline())


def advance(shadow: HostShadow, model: Model) -> tuple[int, list[Coded], Digest]:
    """Advance to a model's cells; return the version, its coded groups, and its digest."""
    found = moved(shadow, model)
    return found.version, list(found.coded()), found.digest


def decoded(shadow: HostShadow, coded: list[Coded], before: list[int]) -> dict[int, tuple[int, int]]:
    """Return old and new cells by flat index, as a reader of the patch finds them."""
    file = PatchFile.of(shadow.geometry, 0, 1, coded)
    patch = Patch.parse(shadow.geometry, file.ref("objects/patch/x"), b"".join((file.head, *file.groups)))
    found = {}
    for number in patch.entries:
        group = shadow.geometry.groups[number]
        old = np.array(before[group.start : group.start + group.cells], group.cell_type.dtype)
        delta = patch.decode(numba(), group, [old])
        new = numba().move(old[delta.index], delta.distance, group.cell_type)
        rows = zip(delta.index.tolist(), old[delta.index].tolist(), new.tolist(), strict=True)
        found |= {group.start + place: (a, b) for place, a, b in rows}
    return found


def digest_of(geometry: Geometry, model: Model) -> Digest:
    """Return the digest of a model's cells by a full pass of the reference."""
    return weights_of(geometry, {k: v.copy() for k, v in model.items()}).digest(get_backend("reference"), map)


def shadow_cells(shadow: HostShadow, version: int | None = None) -> list[int]:
    """Return all cells of the shadow, or those of a version."""
    groups = shadow.geometry.groups
    if version is None:
        return [c for group in groups for c in shadow.destination().weights.copy_of(group).tolist()]
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
def test_the_first_host_shadow_is_a_copy_with_its_digest(backend: Backend, form: Any):
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
    version, coded, digest = advance(shadow, model)
    changed = {k: (a, b) for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
    assert decoded(shadow, coded, before) == changed
    numbers = [c.entry.group for c in coded]
    assert numbers == sorted({g.number for g in shadow.geometry.groups for k in changed if 0 <= k - g.start < g.cells})
    assert shadow_cells(shadow) == after
    assert (version, shadow.version, digest) == (1, 1, shadow.digest)
    assert digest == digest_of(shadow.geometry, model)


def test_advance_over_nothing_is_an_empty_version():
    model = mixed_model()
    shadow = shadow_of(model, version=8)
    digest = shadow.digest
    assert advance(shadow, model) == (9, [], digest)


def test_float32_is_compared_as_the_bf16_that_is_published():
    live = {"w": np.linspace(-3, 3, 100, dtype=np.float32), "n": np.arange(40, dtype=np.int16)}
    geometry = geometry_of(live, "bf16")
    shadow = first_host_shadow(geometry, read_model(live), numba(), Inline(), 0)
    assert [t.dtype for t in geometry.layout.tensors] == ["BF16", "I16"]
    rounded = live["w"].astype(ml_dtypes.bfloat16).view(np.uint16)
    assert shadow_cells(shadow) == rounded.tolist() + live["n"].tolist()
    live["w"][7] = np.nextafter(live["w"][7], np.float32(9))  # too small a step for BF16
    assert advance(shadow, live)[1] == []
    live["w"][[3, 64, 99]] *= 2
    before = shadow_cells(shadow)
    coded = advance(shadow, live)[1]
    assert set(decoded(shadow, coded, before)) == {3, 64, 99}
    assert shadow_cells(shadow)[:100] == live["w"].astype(ml_dtypes.bfloat16).view(np.uint16).tolist()


def test_cells_at_returns_each_version_that_is_on_its_way():
    model = mixed_model()
    shadow = shadow_of(model, version=5)
    states = {5: flat_cells(shadow.geometry, model)}
    for version in (6, 7, 8):
        change(model, version)
        assert advance(shadow, model)[0] == version
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
        advance(shadow, model)
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
    advance(shadow, model)
    shadow.revert(1)
    change(model, 2)
    version, coded, digest = advance(shadow, model)
    after = flat_cells(shadow.geometry, model)
    assert version == 1
    assert sum(c.entry.changed for c in coded) == sum(a != b for a, b in zip(before, after, strict=True))
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
            assert advance(shadow, model)[0] == len(states)
            states.append(flat_cells(shadow.geometry, model))
        elif action == "settle":
            settled = min(settled + 1, len(states) - 1)
            shadow.settle(settled)
        else:
            back = max(settled + 1, len(states) - int(action))
            shadow.revert(back)
            del states[back:]
        assert (shadow.version, shadow_cells(shadow)) == (len(states) - 1, states[-1])
        assert shadow.digest == shadow.destination().weights.digest(numba(), map)
        for version in range(settled, len(states)):
            assert shadow_cells(shadow, version) == states[version]


def test_groups_may_be_diffed_by_many_threads():
    model = {"w": np.zeros(5000, np.uint16)}
    with ThreadPoolExecutor(4) as pool:
        shadow = shadow_of(model, pool=pool)
        change(model, 1, count=900)
        _, coded, digest = advance(shadow, model)
    assert digest == digest_of(shadow.geometry, model)
    assert len({c.entry.group for c in coded}) > 100
    assert shadow_cells(shadow) == model["w"].tolist()


def test_older_versions_can_be_read_at_every_moment_of_an_advance():
    model = {"w": np.zeros(200, np.uint16)}
    seen: list[list[int]] = []
    looking = False

    def read() -> None:
        seen.append([cell for group in shadow.geometry.groups for cell in shadow.cells_at(0, group).tolist()])

    def look() -> None:
        """Read in another thread, as a keyframe under way does; it must not have to wait for us."""
        if looking:
            reader = threading.Thread(target=read, daemon=True)
            reader.start()
            reader.join(timeout=HANG_S)
            assert not reader.is_alive()

    shadow = shadow_of(model, pool=Inline(look))
    looking = True
    for value in (1, 2):
        model["w"][:] = value
        moved(shadow, model, "class")
    assert len(seen) == 2 * 2 * 2 * len(shadow.geometry.groups)  # around each group's diff, and around its coding
    assert all(cells == [0] * 200 for cells in seen)


def test_what_is_lent_is_the_version_asked_for_and_goes_back_as_it_was():
    model = mixed_model()
    shadow = shadow_of(model)
    states = [flat_cells(shadow.geometry, model)]
    for seed in range(3):
        change(model, seed)
        moved(shadow, model)
        states.append(flat_cells(shadow.geometry, model))
    for version, state in enumerate(states):
        for group in shadow.geometry.groups:
            with suppress(KeyError), shadow.lent(version, group) as spans:
                assert np.concatenate(arrays_of(spans)).tolist() == state[group.start : group.start + group.cells]
                raise KeyError
        assert shadow_cells(shadow) == states[-1]


@pytest.mark.parametrize("coder", ["gap", "class", "auto"])
def test_pushes_that_overtake_their_coding_are_coded_against_their_own_bases(coder: CoderChoice):
    class Late(Inline):
        """Does the coding of groups no sooner than it is told."""

        def __init__(self) -> None:
            super().__init__()
            self.coding: list[tuple[Future[Any], Any, Any]] = []

        def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
            if len(args) == 1:
                return super().submit(function, *args)
            self.coding.append((Future(), function, args))
            return self.coding[-1][0]

    model, late = mixed_model(), Late()
    shadow = shadow_of(model, pool=late)
    states, advances = [flat_cells(shadow.geometry, model)], []
    for seed in range(3):
        change(model, seed)
        advances.append(moved(shadow, model, coder))
        states.append(flat_cells(shadow.geometry, model))
    for future, function, args in reversed(late.coding):
        future.set_result(function(*args))
    for before, after, found in zip(states, states[1:], advances, strict=False):
        expected = {k: (a, b) for k, (a, b) in enumerate(zip(before, after, strict=True)) if a != b}
        assert decoded(shadow, list(found.coded()), before) == expected
    assert shadow_cells(shadow) == states[-1]


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_threads_that_code_and_read_see_whole_versions_while_the_trainer_runs_ahead(coder: CoderChoice):
    model = {"w": np.zeros(640, np.uint16)}
    with ThreadPoolExecutor(3) as pool:
        shadow = shadow_of(model, pool=pool)
        done, torn = threading.Event(), []

        def read() -> None:
            while not done.is_set():
                torn.extend(group for group in shadow.geometry.groups if shadow.cells_at(0, group).any())

        reader = threading.Thread(target=read)
        reader.start()
        advances = []
        for value in range(1, 20):
            model["w"][:] = value
            advances.append(moved(shadow, model, coder))
        files = [PatchFile.of(shadow.geometry, 0, 1, found.coded()) for found in advances]
        done.set()
        reader.join()
    assert not torn
    for value, file in enumerate(files, start=1):
        patch = Patch.parse(shadow.geometry, file.ref("objects/patch/x"), b"".join((file.head, *file.groups)))
        for group in shadow.geometry.groups:
            base = np.full(group.cells, value - 1, np.uint16)
            assert set(patch.decode(numba(), group, [base]).distance.tolist()) == {1}


class Broken(Inline):
    """Fails a group's diff."""

    def __init__(self, call: int) -> None:
        super().__init__()
        self.calls, self.call = 0, call

    def submit(self, function: Any, /, *args: Any, **kwargs: Any) -> Future[Any]:
        self.calls += len(args) == 1
        if self.calls == self.call:
            return super().submit(lambda: 1 // 0)
        return super().submit(function, *args, **kwargs)


def test_an_advance_that_fails_half_way_leaves_the_version_before():
    model = mixed_model()
    groups = len(geometry_of(model).groups)
    for call in range(1, groups + 1):
        model = mixed_model()
        shadow = shadow_of(model, version=3, pool=Broken(groups + groups + call))
        change(model, 1)
        moved(shadow, model)
        cells, digest = shadow_cells(shadow), shadow.digest
        change(model, 2)
        with pytest.raises(ZeroDivisionError):
            moved(shadow, model)
        assert (shadow.version, shadow.digest, shadow_cells(shadow)) == (4, digest, cells)
        assert moved(shadow, model).digest == digest_of(shadow.geometry, model)
        shadow.revert(4)
        assert shadow_cells(shadow) == flat_cells(shadow.geometry, mixed_model())


def test_a_group_that_can_not_be_read_is_left_as_it_was():
    model = mixed_model()
    shadow = shadow_of(model)
    cells = shadow_cells(shadow)
    views = {name: view for name, view in read_model(model).items() if name != "c"}
    with pytest.raises(KeyError):
        shadow.advance(views, "gap", Timeline())
    assert shadow_cells(shadow) == cells
    for group in shadow.geometry.groups:
        shadow.cells_at(0, group)  # raises no Conflict


def test_a_group_whose_diff_was_cut_off_gives_no_cells_of_any_version(monkeypatch: pytest.MonkeyPatch):
    model = mixed_model()
    shadow = shadow_of(model)
    torn = shadow.geometry.groups[-1]
    advance_spans = NumbaBackend.advance_spans

    def cut_off(backend: NumbaBackend, live: Any, base: Any, start: int) -> Any:
        if start == torn.start:
            raise ZeroDivisionError
        return advance_spans(backend, live, base, start)

    monkeypatch.setattr(NumbaBackend, "advance_spans", cut_off)
    with pytest.raises(ZeroDivisionError):
        moved(shadow, model)
    with pytest.raises(Conflict, match=f"group {torn.number} was cut off"):
        shadow.cells_at(0, torn)
    with pytest.raises(Conflict, match=f"group {torn.number} was cut off"), shadow.lent(0, torn):
        pass


def test_an_advance_that_is_stopped_codes_no_more():
    model = {"w": np.zeros(64, np.uint16)}
    with ThreadPoolExecutor(1) as pool:
        shadow = shadow_of(model, pool=pool)
        model["w"][:] = 1
        found = moved(shadow, model)
        first = next(found.coded())
        assert first.entry.group == 0
        found.stop()
    assert shadow_cells(shadow) == [1] * 64
