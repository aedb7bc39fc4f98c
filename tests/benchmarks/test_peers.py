"""Others' codecs are done right: what they code comes back, and what only has a size has the right one."""

from __future__ import annotations

import math
import sys
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from benchmarks.peers import fireworks, ranks
from benchmarks.peers.paper import PaperCodec
from benchmarks.peers.peer import Peer
from benchmarks.peers.raw import Raw
from benchmarks.states import Cells
from pulse_kernels import CELL_TYPES

BF16 = CELL_TYPES["BF16"]


def two_states(
    share: float, sizes: tuple[int, ...] = (1, 300, 70_001), width: int = 2
) -> tuple[list[Cells], list[Cells]]:
    rng = np.random.default_rng(3)
    old = [rng.integers(0, 1 << 16, size).astype(f"<u{width}") for size in sizes]
    new = [cells ^ (rng.random(len(cells)) < share).astype(cells.dtype) for cells in old]
    return old, new


@pytest.mark.parametrize("codec", [Raw, PaperCodec])
@pytest.mark.parametrize("share", [0.0, 0.0001, 0.01, 1.0])
@pytest.mark.parametrize("width", [1, 2, 4])
def test_decoding_in_place_gives_the_new_cells(codec: type[Raw | PaperCodec], share: float, width: int) -> None:
    old, new = two_states(share, width=width)
    peer: Peer = codec(2)
    live = [cells.copy() for cells in old]
    peer.decode(peer.encode(old, new), live)
    peer.close()
    assert all(np.array_equal(a, b) for a, b in zip(live, new, strict=True))


def test_raw_takes_six_bytes_for_each_changed_bf16_cell() -> None:
    old, new = two_states(0.01)
    changed = sum(int((a != b).sum()) for a, b in zip(old, new, strict=True))
    peer = Raw(1)
    assert sum(map(len, peer.encode(old, new))) == 6 * changed
    peer.close()


@given(st.lists(st.integers(0, 5000), min_size=1, max_size=200))
def test_rice_codes_are_the_shortest_of_their_family_and_read_back(gaps: list[int]) -> None:
    array = np.array(gaps, np.int64)
    coded = ranks.rice(array)
    lengths = {k: sum((gap >> k) + 1 + k for gap in gaps) for k in range(32)}
    best = min(lengths, key=lambda k: (lengths[k], k))
    assert len(coded) == math.ceil(lengths[best] / 8)
    bits = iter(np.unpackbits(np.frombuffer(coded, np.uint8)).tolist())
    for gap in gaps:
        quotient = 0
        while next(bits):
            quotient += 1
        assert (quotient << best) + sum(next(bits) << bit for bit in range(best)) == gap


def test_ranks_take_no_bytes_where_nothing_changes_and_more_where_more_does() -> None:
    old, few = two_states(0.01)
    _, many = two_states(0.1)
    sizes = [ranks.coded_bytes(BF16, old, new) for new in (old, few, many)]
    assert sizes[0] == 0 < sizes[1] < sizes[2]


def test_a_package_that_is_not_installed_is_told(tmp_path: Path) -> None:
    with pytest.raises(fireworks.PeerUnavailable, match="is not installed"):
        fireworks.environment(tmp_path, install=False)


def test_an_installed_package_is_used_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "ready").touch()
    assert fireworks.environment(tmp_path) == tmp_path / "bin" / "python"


def test_a_package_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    with pytest.raises(fireworks.PeerUnavailable, match="fireworks_delta_compression"):
        fireworks.measure(Path(sys.executable), tmp_path, 1)  # this environment does not have it
