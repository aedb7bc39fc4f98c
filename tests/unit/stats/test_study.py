"""Stats equal a plain NumPy computation on the recorded states: exact counts, whatever the run has."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.compaction import CompactOptions
from pulse_registry.errors import CorruptObject, InvalidArgument, NotFound
from pulse_registry.format.patch_coding import CoderChoice
from pulse_registry.log import RunState
from pulse_registry.pull.route import Route, plan
from pulse_registry.retention import RetentionPolicy
from pulse_registry.stats import RunStats, band, steps, study
from pulse_registry.testing import CountingStore
from pulse_registry.weights.model import read_model
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.parts import CHANGES, change_groups, small_parts, wide_model
from tests.support.records import DictStore
from tests.support.registries import change, quick, small_model, state_of
from tests.support.sampling import examples
from tests.unit.compaction.runs import NEVER, compact
from tests.unit.stats.plain import State, check


def cells_of(model: Mapping[str, Any]) -> State:
    return {name: view.cells.reshape(-1).copy() for name, view in read_model(model).items()}


@dataclass(frozen=True)
class Script:
    """A run to be made: random states, and how each is pushed; from version ``wider`` on they have one tensor more."""

    chain: Chain
    coders: tuple[CoderChoice, ...]
    wider: int
    compacted: CompactOptions | None
    policy: RetentionPolicy | None

    def run(self) -> tuple[DictStore, dict[int, State]]:
        """Return the run, and those of its states that are not retired."""
        store, states = DictStore(), dict[int, State]()
        for version, (tensors, coder) in enumerate(zip(self.chain.models(), self.coders, strict=True)):
            model = tensors | ({"wider": np.full(5, version, np.float32)} if version >= self.wider else {})
            with quick(store, coder=coder, keyframe_share=NEVER) as registry:
                registry.push(version, model)
            states[version] = cells_of(model)
        if self.compacted is not None:
            compact(store, self.compacted)
        if self.policy is not None:
            with quick(store) as registry:
                registry.gc(self.policy, dry_run=False)
        state = state_of(store)
        return store, {version: cells for version, cells in states.items() if not state.is_retired(version)}


@st.composite
def scripts(draw: st.DrawFn) -> Script:
    chain = draw(chains(length=draw(st.integers(2, 12))))
    count = len(chain.states)
    coders = draw(st.lists(st.sampled_from(["gap", "gap", "gap", "class"]), min_size=count, max_size=count))
    compacted = draw(st.sampled_from([None, CompactOptions(), CompactOptions(keyframe_every=3)]))
    every = st.builds(
        lambda last, every: RetentionPolicy(keep_last=last, keep_every=every, keep_seconds=0, grace_seconds=0),
        st.integers(1, 3),
        st.integers(2, 4),
    )
    return Script(chain, tuple(coders), draw(st.integers(0, 24)), compacted, draw(st.none() | every))


@pytest.mark.slow
@given(scripts(), st.booleans(), st.sampled_from([1, 300, 1 << 30]), st.sampled_from([1, 3, 32]))
@examples(20)
def test_counts_are_those_of_the_states(script: Script, weights: bool, band_bytes: int, batch: int) -> None:
    with pytest.MonkeyPatch.context() as patched, small_groups(script.chain.group_bytes):
        patched.setattr(band, "BAND_BYTES", band_bytes)
        patched.setattr(band, "_BATCH", batch)
        store, states = script.run()
        live, before = sorted(states), dict(store.objects)
        found = walked(store, weights=weights, first=live[0])
        assert store.objects == before
    check(found, states, weights=weights)
    steps = sorted((step.base, step.target) for step in (*found.steps, *found.unseen))
    assert steps == list(itertools.pairwise(live))
    assert {one.why for one in found.unseen} <= ({"layout"} if weights else {"layout", "class", "keyframe", "gone"})


def walked(store: DictStore, *, weights: bool = False, first: int | None = 0) -> RunStats:
    with quick(store) as registry:
        return registry.stats(first, weights=weights)


@pytest.mark.parametrize("weights", [False, True])
def test_windows_of_all_lengths_count_what_went_and_came_back(weights: bool) -> None:
    store, states, model = DictStore(), dict[int, State](), {"w": np.zeros(40, np.float32)}
    with small_groups(), quick(store, coder="gap", keyframe_share=NEVER) as registry:
        for version in range(70):
            model["w"][version % 7] = version % 3  # in seven versions, or three, it is what it was
            registry.push(version, model)
            states[version] = cells_of(model)
        found = registry.stats(0, weights=weights)
    check(found, states, weights=weights)
    by_length = {one.length: one for one in found.by_window}
    assert {length: one.windows for length, one in by_length.items()} == {1: 69, 2: 34, 4: 17, 8: 8, 16: 4, 32: 2}
    assert by_length[1].came_back == 0
    assert by_length[32].came_back > 0
    assert by_length[32].touched == 2 * 7
    assert found.unseen == []


def test_signs_of_zeros_payloads_and_infinities_are_bits() -> None:
    inf, nan = np.float32(np.inf), np.array([0x7FC00001, 0xFFC00002], np.uint32).view(np.float32)
    rows = [[0.0, 1.0, inf, nan[0], 2.0], [-0.0, 1.0, -inf, nan[1], -2.0], [0.0, 1.0, -inf, nan[0], -2.0]]
    store, states = DictStore(), dict[int, State]()
    with quick(store, coder="gap", keyframe_share=NEVER) as registry:
        for version, row in enumerate(rows):
            model = {"w": np.array(row, np.float32)}
            registry.push(version, model)
            states[version] = cells_of(model)
    found = walked(store, weights=True)
    check(found, states, weights=True)
    assert [step.changed.tolist() for step in found.steps] == [[4], [2]]
    assert [None if step.flipped is None else step.flipped.tolist() for step in found.steps] == [[4], [2]]
    assert [None if step.again is None else step.again.tolist() for step in found.steps] == [None, [2]]
    assert found.steps[0].sizes["F32"][0] == 1  # +0 and -0 lie side by side
    [window] = found.windows
    assert (int(window.changed.sum()), int(window.touched.sum())) == (2, 4)


def test_a_step_that_only_a_keyframe_shows_is_seen_with_the_weights() -> None:
    store = DictStore()
    with small_groups(), quick(store, coder="gap", keyframe_share=NEVER, keyframe_every=2) as registry:
        model, states = small_model(), dict[int, State]()
        for version in range(4):
            change(model, version)
            registry.push(version, model)
            states[version] = cells_of(model)
    state = state_of(store)
    keyframed = sorted(keyframe.version for keyframe in state.keyframes if keyframe.version)
    assert keyframed
    with small_groups(), quick(store) as registry:
        # As if the patches into these versions had been retired.
        into, lost = RunState.patches_into, set(keyframed)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(RunState, "patches_into", lambda self, v: () if v in lost else into(self, v))
            patched.setattr(steps, "plan", _without(lost))
            plain, full = registry.stats(0), registry.stats(0, weights=True)
    check(full, states, weights=True)
    check(plain, states, weights=False)
    assert full.unseen == []
    assert {(one.target, one.why) for one in plain.unseen} == {(version, "keyframe") for version in lost}


def _without(lost: set[int]) -> Callable[..., Route]:
    """Plan as if no patch led to some versions."""

    def planned(state: RunState, target: int, **options: Any) -> Route:
        avoid = [patch.object.key for patch in state.patches if patch.target in lost]
        return plan(state, target, **options, avoid=avoid)

    return planned


@pytest.mark.parametrize("weights", [False, True])
def test_a_retired_gap_is_one_step_where_a_merged_patch_leads_over_it(weights: bool) -> None:
    store = DictStore()
    model, states = small_model(), dict[int, State]()
    with small_groups():
        with quick(store, coder="gap", keyframe_share=NEVER) as registry:
            for version in range(9):
                change(model, version)
                registry.push(version, model)
                states[version] = cells_of(model)
        compact(store)
        with quick(store) as registry:
            registry.gc(RetentionPolicy(keep_last=1, keep_every=4, keep_seconds=0, grace_seconds=0), dry_run=False)
            found = registry.stats(0, weights=weights)
    assert [(step.base, step.target) for step in found.steps] == [(0, 4), (4, 8)]
    check(found, states, weights=weights)
    assert found.windows == []


@pytest.mark.parametrize("bands", [1, 1 << 30])
@pytest.mark.parametrize("weights", [False, True])
def test_patches_in_parts_are_counted_as_others_are(weights: bool, bands: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(band, "BAND_BYTES", bands)
    store, model, states = DictStore(), wide_model(), dict[int, State]()
    with small_groups(), small_parts(), quick(store, coder="gap", keyframe_share=NEVER) as registry:
        registry.push(0, model)
        states[0] = cells_of(model)
        for version, groups in enumerate(CHANGES, 1):
            change_groups(model, groups, version)
            registry.push(version, model)
            states[version] = cells_of(model)
        assert any(patch.parts is not None for patch in registry.state().patches)
        found = registry.stats(0, weights=weights)
    check(found, states, weights=weights)
    assert len(found.steps) == len(CHANGES)


def test_each_patch_is_read_once_and_no_keyframe_without_the_weights() -> None:
    counting = CountingStore(DictStore())
    model = small_model()
    with quick(counting, coder="gap", keyframe_share=NEVER) as registry:
        for version in range(5):
            change(model, version)
            registry.push(version, model)
    with quick(counting) as registry:
        registry.state()
        counting.reset()
        registry.stats(0)
    gets = [key for verb, key in counting.ledger if verb == "get" and "objects/" in key]
    assert len(gets) == len(set(gets)) == 4
    assert all("objects/patch/" in key for key in gets)
    assert counting.calls.keys() <= {"get", "list", "size"}


@pytest.mark.parametrize("weights", [False, True])
def test_a_damaged_patch_is_named(weights: bool) -> None:
    store, model = DictStore(), small_model()
    with quick(store, coder="gap", keyframe_share=NEVER) as registry:
        for version in range(3):
            change(model, version)
            registry.push(version, model)
    [key] = [patch.object.key for patch in state_of(store).patches if patch.target == 2]
    store.objects[f"run/{key}"] = store.objects[f"run/{key}"][:-1] + b"\x00"
    with pytest.raises(CorruptObject, match=key):
        walked(store, weights=weights)
    del store.objects[f"run/{key}"]
    with pytest.raises(NotFound, match=key):
        walked(store, weights=weights)


def test_what_a_collector_retires_meanwhile_is_left_out() -> None:
    store, model, states = DictStore(), small_model(), dict[int, State]()
    with quick(store, coder="gap", keyframe_share=NEVER, keyframe_every=4) as trainer:
        for version in range(6):
            change(model, version)
            trainer.push(version, model)
            states[version] = cells_of(model)
        with quick(store) as registry:
            registry.state()
            with pytest.MonkeyPatch.context() as patched:

                def collect_first(*arguments: Any, **options: Any) -> RunStats:
                    patched.undo()
                    policy = RetentionPolicy(keep_last=2, keep_seconds=0, grace_seconds=0)
                    trainer.gc(policy, dry_run=False)
                    live = {patch.object.key for patch in state_of(store).patches}
                    for key in [key for key in store.objects if key.startswith("run/objects/patch/")]:
                        if key.removeprefix("run/") not in live:
                            del store.objects[key]
                    return study.study(*arguments, **options)

                patched.setattr(study, "study", collect_first)
                found = registry.stats(0)
    assert [(step.base, step.target) for step in found.steps] == [(4, 5)]
    check(found, {v: states[v] for v in (4, 5)}, weights=False)


def test_the_older_version_comes_first() -> None:
    store, model = DictStore(), small_model()
    with quick(store) as registry:
        for version in range(3):
            change(model, version)
            registry.push(version, model)
        with pytest.raises(InvalidArgument, match="newer"):
            registry.stats(2, 1)
        assert registry.stats(2, 2).steps == []
        assert registry.stats(2, 2).total.share == 0


def interrupt(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.slow
@pytest.mark.parametrize("weights", [False, True])
def test_with_a_file_only_new_steps_are_read(weights: bool, tmp_path: Path) -> None:
    counting, model, states = CountingStore(DictStore()), small_model(), dict[int, State]()
    file = tmp_path / "stats.json"
    with small_groups(), quick(counting, coder="gap", keyframe_share=NEVER) as registry:

        def push(count: int) -> None:
            for version in range(len(states), len(states) + count):
                change(model, version)
                registry.push(version, model)
                states[version] = cells_of(model)

        push(40)
        registry.stats(0, weights=weights, keep=file)
        counting.reset()
        registry.stats(0, weights=weights, keep=file)
        assert not any("objects/" in key for _, key in counting.ledger)
        push(3)
        counting.reset()
        found = registry.stats(0, weights=weights, keep=file)
        check(found, states, weights=weights)
        read = {key for verb, key in counting.ledger if verb == "get" and "objects/patch" in key}
        assert weights or len(read) == 11  # of the window 32 to 40, and the step before it
        # Another range has other windows, and a first step of which nothing comes before.
        for first in (5, 0, 32):
            found = registry.stats(first, weights=weights, keep=file)
            check(found, {v: s for v, s in states.items() if v >= first}, weights=weights)
        file.write_text("[}")
        check(registry.stats(0, weights=weights, keep=file), states, weights=weights)
        rows = json.loads(file.read_text())
        for row in rows["rows"].values():
            row["changed"] = [1]
        file.write_text(json.dumps(rows))
        check(registry.stats(0, weights=weights, keep=file), states, weights=weights)
        rows = json.loads(file.read_text())
        for number, row in enumerate(rows["rows"].values()):
            if "sizes" in row:
                row["sizes"] = ({"BF16": [1]}, {"none": [1] * 16})[number % 2]
        file.write_text(json.dumps(rows))
        check(registry.stats(0, weights=weights, keep=file), states, weights=weights)
        with pytest.MonkeyPatch.context() as patched:
            patched.setattr(Path, "replace", interrupt)
            with pytest.raises(KeyboardInterrupt):
                registry.stats(0, weights=weights, keep=file)
        assert list(tmp_path.iterdir()) == [file]
        with pytest.raises(InvalidArgument, match="can't be written"):
            registry.stats(0, keep=tmp_path / "none" / "stats.json")
