"""A tensor of more than 2**31 cells: no index and no address is a number of 32 bits. Needs a GPU with the room."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch

from pulse_kernels import CELL_TYPES, GROUP_BYTES, encode_group, get_backend
from pulse_kernels.gpu.apply import distance, scatter
from pulse_kernels.gpu.coding.decode import decode_changes
from pulse_kernels.gpu.coding.encode import encode_changes
from pulse_kernels.gpu.diff import diff
from pulse_kernels.gpu.digest import as_lanes, digest, digest_sparse
from pulse_kernels.gpu.tiling import Spans, Tiles
from tests.unit.kernels.gpu.coding import CODERS
from tests.unit.kernels.gpu.inputs import to_host

CELLS = 2**31 + 12_345
NEEDED = 32 * 2**30
EVERY = 997
BF16 = CELL_TYPES["BF16"]
GROUP = GROUP_BYTES // BF16.width


def test_a_tensor_of_more_than_two_to_the_31_cells_is_compared_coded_read_back_and_changed(device: str) -> None:
    if device == "cpu":
        pytest.skip("needs a GPU")
    if torch.cuda.mem_get_info()[0] < NEEDED:
        pytest.skip(f"needs {NEEDED >> 30} GiB of free memory on the GPU")
    edges = np.append(np.arange(0, CELLS, GROUP), CELLS)
    count = len(edges) - 1
    spans = Spans(np.arange(count), np.zeros(count, np.int64), edges[:-1], np.diff(edges))
    tiles = Tiles.cut(spans, edges[:-1].tolist(), [BF16] * count, device)
    torch.manual_seed(0)
    cells = torch.empty(CELLS, dtype=torch.bfloat16, device=device).normal_(0, 0.02).view(torch.int16)
    places = torch.cat([torch.arange(0, CELLS - 1, EVERY, device=device), torch.tensor([CELLS - 1], device=device)])
    live = cells.clone()
    live[places] ^= 3
    base, changes = tiles.over([cells]), diff(tiles.over([live]), tiles.over([cells]))
    owner = torch.repeat_interleave(torch.arange(count, device=device), torch.diff(changes.group_offsets))
    assert torch.equal(tiles.starts[owner] + changes.index, places)
    assert torch.equal(changes.old, cells[places])
    assert torch.equal(changes.new, live[places])
    sums = digest_sparse(changes)
    assert torch.equal(digest(base) + sums[:, 2:] - sums[:, :2], digest(tiles.over([live])))
    backend = get_backend()
    some = [0, 2**31 // GROUP - 1, 2**31 // GROUP, count - 1]
    held = {group: to_host(cells[edges[group] : edges[group + 1]]) for group in some}
    lanes = as_lanes(digest(base))
    assert [lanes[group] for group in some] == [list(backend.digest(held[group], int(edges[group]))) for group in some]
    steps = distance(changes)
    for coder in CODERS:
        coded = encode_changes(changes, coder, base)
        data, cuts = coded.data.cpu().numpy(), coded.offsets
        groups = [data[begin:end].tobytes() for begin, end in pairwise(cuts)]
        for group in some:
            begin, end = (int(at) for at in changes.host_offsets[group : group + 2])
            change = [to_host(part[begin:end]) for part in (changes.index, changes.old, changes.new)]
            alone = encode_group(backend, coder, BF16, len(held[group]), *change, [held[group]])
            assert groups[group] == alone
        moves = decode_changes(tiles, coder, np.diff(changes.host_offsets), groups, base)
        assert torch.equal(moves.index, changes.index)
        assert torch.equal(moves.distance, steps)
    scatter(base, changes)
    assert torch.equal(cells, live)
