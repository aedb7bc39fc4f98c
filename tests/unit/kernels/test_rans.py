"""Chunks: the words come back as the changes they were, near the entropy of their tables, and in no other way."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pulse_kernels import CodecError
from pulse_kernels.format.frequencies import frequencies
from pulse_kernels.format.rans import LOWEST, Symbols, Table, bucket, decode_chunk, encode_chunk
from pulse_kernels.format.symbols import GAP_TOKENS, VALUE_SYMBOLS, extra_bits, first_value, unite

GAPS = [Table.of(frequencies([31 - k // 2 for k in range(GAP_TOKENS)])), Table.of(frequencies([5] * GAP_TOKENS))]
VALUES = [Table.of(frequencies([max(1, 31 - k // 8) for k in range(VALUE_SYMBOLS)])), Table.of(frequencies([1] * 252))]


def change(table: int, gap: int, value: int, raw: int = 0) -> Symbols:
    width = extra_bits(gap) + extra_bits(value >> 1)
    return Symbols(table, gap, value, raw & ((1 << width) - 1), width)


def meaning(symbols: Symbols) -> tuple[int, int]:
    """Return the (gap, distance) that symbols stand for, in 64 bits."""
    low = extra_bits(symbols.gap)
    gap = first_value(symbols.gap) + (symbols.raw & ((1 << low) - 1))
    return gap, unite(symbols.value & 1, first_value(symbols.value >> 1) + (symbols.raw >> low), 64)


def some_changes(seed: int, count: int) -> list[Symbols]:
    rng = np.random.default_rng(seed)
    gaps, values = rng.integers(0, GAP_TOKENS, count).tolist(), rng.integers(0, 250, count).tolist()
    return [
        change(k % 2, gap, value, int.from_bytes(rng.bytes(11)))
        for k, (gap, value) in enumerate(zip(gaps, values, strict=True))
    ]


@settings(max_examples=60)
@given(
    st.lists(
        st.builds(change, st.integers(0, 1), st.integers(0, 47), st.integers(0, 249), st.integers(0, 2**84)),
        max_size=30,
    )
)
def test_a_chunk_comes_back(changes: list[Symbols]):
    words = encode_chunk(changes, GAPS, VALUES)
    tables = [each.table for each in changes]
    assert decode_chunk(words, tables, 64, GAPS, VALUES) == [meaning(each) for each in changes]


def test_no_changes_are_the_state_alone():
    assert encode_chunk([], GAPS, VALUES) == [0, 1]
    assert decode_chunk([0, 1], [], 64, GAPS, VALUES) == []


def test_the_words_take_what_the_tables_say():
    changes = some_changes(0, 2048)
    ideal = sum(
        each.width
        + math.log2(4096 / GAPS[each.table].frequency[each.gap])
        + math.log2(4096 / VALUES[each.table].frequency[each.value])
        for each in changes
    )
    words = encode_chunk(changes, GAPS, VALUES)
    assert ideal / 16 < len(words) < ideal / 16 * 1.002 + 2


def test_contexts_follow_the_magnitude_before():
    assert [bucket(m) for m in (0, 1, 14, 15, 16, 2**62)] == [0, 1, 1, 2, 2, 2]
    three = [Table.of(frequencies([k + 1] * GAP_TOKENS)) for k in range(3)]
    values = [Table.of(frequencies([1 + ((s + k) % 7) for s in range(VALUE_SYMBOLS)])) for k in range(3)]
    plain = [(0, 0), (3, 3), (9, 28), (1, 40), (2, 0)]
    contexts = [0, 0, 1, 2, 2]
    changes = [change(context, gap, value) for context, (gap, value) in zip(contexts, plain, strict=True)]
    words = encode_chunk(changes, three, values)
    assert decode_chunk(words, len(changes), 64, three, values) == [meaning(each) for each in changes]


GOOD = some_changes(1, 40)
WORDS = encode_chunk(GOOD, GAPS, VALUES)
TABLES = [each.table for each in GOOD]
BROKEN: dict[str, tuple[list[int], Any]] = {
    "no words": ([], TABLES),
    "one word": (WORDS[:1], TABLES),
    "a word missing": (WORDS[:-1], TABLES),
    "a word left over": ([*WORDS, 0], TABLES),
    "a change missing": (WORDS, TABLES[:-1]),
    "a change more": (WORDS, [*TABLES, 0]),
    "another last word": ([*WORDS[:-1], WORDS[-1] ^ 0x8000], TABLES),
    "the state of no changes": ([0, 2], []),
    "a state below the bound": ([LOWEST - 1, 0], []),
}


@pytest.mark.parametrize("name", BROKEN)
def test_words_that_do_not_end_right_are_refused(name: str):
    words, tables = BROKEN[name]
    with pytest.raises(CodecError, match="chunk"):
        decode_chunk(words, tables, 64, GAPS, VALUES)


def test_a_change_that_needs_an_empty_table_is_refused():
    empty = Table.of([0] * GAP_TOKENS)
    words = encode_chunk([change(0, 5, 5)], GAPS, VALUES)
    with pytest.raises(CodecError, match="empty"):
        decode_chunk(words, [0], 64, [empty, empty], VALUES)


@pytest.mark.parametrize(("value", "raw"), [(58, 2**13 - 1), (60, 0), (61, 0), (249, 0)])
def test_a_distance_wider_than_the_cell_is_refused(value: int, raw: int):
    words = encode_chunk([change(0, 0, value, raw)], GAPS, VALUES)
    with pytest.raises(CodecError, match="does not fit 16 bits"):
        decode_chunk(words, [0], 16, GAPS, VALUES)


def test_the_widest_distances_of_a_cell_are_taken():
    changes = [change(0, 0, 59, 2**13 - 1), change(0, 0, 58, 2**13 - 2)]
    words = encode_chunk(changes, GAPS, VALUES)
    assert [d for _, d in decode_chunk(words, [0, 0], 16, GAPS, VALUES)] == [0x8000, 0x7FFF]
