"""The ladder says what is missing, from the run's state alone."""

from __future__ import annotations

from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.compaction.ladder import CompactOptions, KeyframeTask, MergeTask, due, part_of, spans_into, stride
from pulse_registry.errors import InvalidArgument
from pulse_schemas import PatchRef
from tests.support.records import OTHER_LAYOUT, Script, chain, keyframe, patch

LADDER = CompactOptions()
BIG = 10**9


def merges(script: Script, after: int = -1) -> list[tuple[int, int]]:
    return [task.versions for task in due(script.state, LADDER, after) if isinstance(task, MergeTask)]


def attach(script: Script, patches: Iterable[PatchRef]) -> Script:
    return script.attach(patches=tuple(patches))


def with_large_keyframe(versions: int) -> Script:
    script = Script().epoch().commit(keyframe=keyframe(0, size=BIG))
    for _ in range(versions - 1):
        script.commit()
    return script


def test_a_run_of_a_few_versions_lacks_the_blocks_of_four() -> None:
    assert merges(chain(13)) == [(0, 4), (4, 8), (8, 12)]


@given(st.integers(1, 10**6))
def test_a_block_begins_at_a_multiple_of_its_stride_and_so_does_its_first_part(target: int) -> None:
    spans = spans_into(target)
    assert (4 in spans) == (target % 4 == 0)
    for span in spans:
        base = target - span
        assert base >= 0
        assert base % stride(span) == 0
        if span > 4:
            part = part_of(span)
            assert span / 4 <= part < span
            assert part in spans_into(base + part)


def test_parts_come_before_what_is_made_of_them() -> None:
    script = with_large_keyframe(65)
    seen: set[tuple[int, int]] = set()
    while missing := merges(script):
        task = missing[0]
        assert task not in seen
        seen.add(task)
        attach(script, [patch(*task, size=10)])
        if task[1] - task[0] > 16:
            assert (task[0], task[0] + part_of(task[1] - task[0])) in seen
    assert {(0, 64), (32, 64)} <= seen


def test_what_is_there_is_not_due() -> None:
    assert merges(attach(chain(9), [patch(0, 4, size=400)])) == [(4, 8)]


def test_nothing_is_due_of_retired_versions_or_across_layouts() -> None:
    assert merges(chain(13).retire(versions=(4,))) == [(8, 12)]
    script = chain(3)
    script.commit(layout=OTHER_LAYOUT)
    for _ in range(9):
        script.commit()
    assert merges(script) == [(4, 8), (8, 12)]


def test_nothing_is_due_of_versions_that_are_forgotten() -> None:
    script = chain(9).retire(versions=(0, 1, 2, 3))
    script.delete()
    assert merges(script) == [(4, 8)]


def test_it_can_go_on_after_a_version() -> None:
    assert merges(chain(13), after=4) == [(4, 8), (8, 12)]
    assert merges(chain(13), after=11) == [(8, 12)]
    assert merges(chain(13), after=12) == []


@pytest.mark.parametrize(("size", "expected"), [(172, [(4, 6), (6, 8)]), (173, [])])
def test_blocks_of_two_are_made_once_four_patches_are_much_smaller_joined(size: int, expected: list[object]) -> None:
    script = attach(chain(9), [patch(0, 4, size=size)])
    assert [pair for pair in merges(script) if pair[1] - pair[0] == 2] == expected


def test_blocks_of_eight_are_always_made_of_patches_that_lead_forwards_alone() -> None:
    script = Script().epoch().commit()
    for version in range(1, 9):
        script.commit(patch=patch(version - 1, version, coder="class"))
    assert (0, 8) in merges(script)
    assert (0, 8) not in merges(chain(9))


def test_a_block_whose_first_half_is_nearly_a_keyframe_is_not_worth_it() -> None:
    def grown(size: int) -> list[tuple[int, int]]:
        script = Script().epoch().commit(keyframe=keyframe(0, size=990))  # with its index, 1,000
        for _ in range(32):
            script.commit()
        return merges(attach(script, [patch(0, 16, size=size)]))

    assert (0, 32) in grown(800)
    assert (0, 32) not in grown(801)


@pytest.mark.parametrize(
    ("options", "wanted"),
    [
        (CompactOptions(), False),
        (CompactOptions(keyframe_every=12), True),
        (CompactOptions(keyframe_every=13), False),
        (CompactOptions(keyframe_share=1.1), True),
        (CompactOptions(keyframe_share=1.2), False),
    ],
)
def test_a_keyframe_is_due_by_versions_or_by_bytes_since_the_last_one(options: CompactOptions, wanted: bool) -> None:
    script = chain(13)  # 12 patches of 100 bytes after a keyframe of 1,010
    assert (KeyframeTask(12) in due(script.state, options)) == wanted
    script.attach(keyframes=(keyframe(12, tag=1),))
    assert KeyframeTask(12) not in due(script.state, options)


def test_an_empty_run_lacks_nothing() -> None:
    assert list(due(Script().state, CompactOptions(keyframe_every=1))) == []


@pytest.mark.parametrize("options", [{"keyframe_every": 0}, {"keyframe_share": 0.0}])
def test_options_out_of_range_are_refused(options: dict[str, float]) -> None:
    with pytest.raises(InvalidArgument, match=next(iter(options))):
        CompactOptions(**options)  # type: ignore[arg-type]
