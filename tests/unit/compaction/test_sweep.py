"""Every case instead of a sample: merges of many more chains, and a death at every store call of a longer run."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_registry.compaction import CompactOptions
from pulse_registry.errors import PulseError
from tests.support.chains import Chain, chains
from tests.support.groups import small_groups
from tests.support.records import DictStore
from tests.support.registries import check_store, copied, failing, restored
from tests.unit.compaction import test_merge
from tests.unit.compaction.runs import compact, merged, pushed

pytestmark = pytest.mark.sweep


@given(chains(test_merge.LENGTH), st.integers(1, test_merge.LENGTH - 1), st.booleans())
@settings(max_examples=3_000)
def test_many_more_chains_of_gap_patches_merge_to_what_a_diff_gives(chain: Chain, length: int, backwards: bool) -> None:
    test_merge.test_gap_patches_merge_from_either_end_to_what_a_diff_gives.hypothesis.inner_test(
        chain, length, backwards
    )


@given(chains(4), st.lists(test_merge.CODERS, min_size=3, max_size=3))
@settings(max_examples=3_000)
def test_many_more_chains_of_any_coders_merge_from_the_base(chain: Chain, coders) -> None:
    test_merge.test_patches_of_any_coders_merge_from_the_base_to_one_that_leads_to_the_target.hypothesis.inner_test(
        chain, coders
    )


@pytest.mark.parametrize("coder", ["gap", "class"])
@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
def test_a_death_at_any_call_of_a_longer_run_costs_nothing_but_orphans(action, coder: str) -> None:
    options = CompactOptions(keyframe_every=9)
    with small_groups():
        first = DictStore()
        model, states = pushed(first, 18, coder=coder)
        whole, outage = failing(copied(first))
        compact(whole, options)
        calls, expected = len(outage.log), merged(whole)
        for nth in range(1, calls + 1):
            inner = copied(first)
            store, outage = failing(inner)
            outage.arm(nth, action, lasting=action == "fail_before")
            try:
                compact(store, options)
            except PulseError:
                assert outage.fired
            check_store(inner)
            outage.heal()
            compact(store, options)
            check_store(inner)
            assert merged(inner) == expected
            assert restored(inner, model, 17) == states[17]
