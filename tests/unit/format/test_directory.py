"""The directory of a patch in columns says what its entries say, one by one."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from functools import reduce
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import CorruptObject
from pulse_registry.format.directory import CODERS, ENTRY_BYTES, Directory, Entry
from pulse_registry.format.patch import Patch
from pulse_registry.weights.digest import Digest
from pulse_schemas import ObjectRef, PatchRef

PLAIN = struct.Struct("<IIII32sQQQQ")
WORD = st.integers(0, 2**32 - 1)
DIGESTS = st.builds(Digest, st.integers(0, 2**64 - 1), st.integers(0, 2**64 - 1))
ENTRIES = st.lists(
    st.builds(
        Entry, st.integers(0, 5000), WORD, WORD, st.sampled_from(CODERS), st.binary(min_size=32, max_size=32),
        DIGESTS, DIGESTS
    ),
    max_size=30,
    unique_by=lambda entry: entry.group,
).map(lambda entries: sorted(entries, key=lambda entry: entry.group))  # fmt: skip


def plain(entries: Sequence[Entry]) -> bytes:
    return b"".join(
        PLAIN.pack(
            *(e.group, e.changed, e.size, CODERS.index(e.coder), e.blake3),
            *(e.old_sum.lane_0, e.old_sum.lane_1, e.new_sum.lane_0, e.new_sum.lane_1),
        )
        for e in entries
    )


@given(ENTRIES)
def test_columns_and_entries_are_the_same_bytes(entries: list[Entry]):
    directory = Directory.of(entries)
    assert directory.to_bytes() == plain(entries)
    read = Directory.parse("x", plain(entries))
    assert list(read.values()) == entries
    assert list(read) == [entry.group for entry in entries]
    assert dict(read) == {entry.group: entry for entry in entries}
    assert [read.hash(row) for row in range(len(read))] == [entry.blake3 for entry in entries]
    assert read.coder == ("class" if any(entry.coder == "class" for entry in entries) else "gap")
    assert read.delta == reduce(Digest.__add__, (entry.new_sum - entry.old_sum for entry in entries), Digest())


@given(ENTRIES, st.lists(st.integers(-1, 5001), max_size=20))
def test_what_has_no_entry_is_not_found(entries: list[Entry], asked: list[int]):
    directory = Directory.of(entries)
    there = {entry.group for entry in entries}
    for group in (*asked, *there):
        assert (group in directory) == (group in there)
        assert (directory.get(group) is None) == (group not in there)
    rows = directory.rows_of(asked).tolist()
    assert [entries[row].group for row in rows] == sorted(there & set(asked))
    assert "0" not in directory


@given(ENTRIES.filter(bool), st.integers(len(CODERS), 2**32 - 1), st.integers(0, 29))
def test_a_coder_that_there_is_not_is_refused_by_its_group(entries: list[Entry], coder: int, at: int):
    data = bytearray(plain(entries))
    row = at % len(entries)
    data[row * ENTRY_BYTES + 12 : row * ENTRY_BYTES + 16] = coder.to_bytes(4, "little")
    with pytest.raises(CorruptObject, match=f"^x: the directory names coder {coder} for group {entries[row].group};"):
        Directory.parse("x", bytes(data))


@given(ENTRIES, st.sets(st.integers(0, 5000), max_size=20), st.booleans(), st.integers(1, 2**33))
def test_runs_are_of_the_groups_that_are_wanted(entries: list[Entry], wanted: set[int], everything: bool, nbytes: int):
    places, at = {}, 100
    for entry in entries:
        places[entry.group] = range(at, at + entry.size)
        at += entry.size
    whole = ObjectRef(key="k", size=at, blake3="0" * 64)
    ref = PatchRef(
        base=0, target=1, coder="gap", changed=0, object=whole, head_size=100, head_blake3="0" * 64
    )  # fmt: skip
    patch = Patch(ref, Directory.of(entries), lambda _: b"", b"")
    groups = sorted({entry.group for entry in entries} | wanted) if everything else sorted(wanted)
    runs = patch.missing(nbytes, groups)
    read = [entries[row].group for run in runs for row in run.rows]
    assert read == [group for group in groups if group in places]
    for run in runs:
        first, last = places[run.first], places[run.last]
        assert (run.first, run.last) == (entries[run.rows[0]].group, entries[run.rows[-1]].group)
        assert len(run.rows) == 1 or last.stop - first.start <= nbytes
    for run, following in pairwise(runs):
        beside = run.rows[-1] + 1 == following.rows[0]
        following_stop = places[entries[following.rows[0]].group].stop
        assert not beside or following_stop - places[run.first].start > nbytes, "as long as they may be"


@given(ENTRIES, st.lists(st.integers(0, 3), min_size=30, max_size=30))
def test_pieces_of_a_directory_are_joined_in_group_order(entries: Sequence[Entry], ranks: list[int]) -> None:
    dealt = list(zip(entries, ranks, strict=False))
    pieces = [plain([entry for entry, rank in dealt if rank == one]) for one in range(4)]
    assert Directory.joined("x", pieces).to_bytes() == plain(entries)
    if entries:
        with pytest.raises(CorruptObject, match="out of order"):
            Directory.joined("x", [*pieces, plain(entries[:1])])
