"""The table of tiles: where it cuts, and what it refuses."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_kernels import CELL_TYPES
from pulse_kernels.gpu.tiling import TILE, Spans, Tiles

BF16 = CELL_TYPES["BF16"]


def spans(*rows: tuple[int, int, int, int]) -> Spans:
    """Make spans of (group, tensor, start, cells)."""
    return Spans(*(np.array(column, np.int64) for column in zip(*rows, strict=True)))


def test_tiles_end_at_the_ends_of_tensors_and_groups() -> None:
    tiles = Tiles.cut(spans((0, 0, 0, 100), (0, 1, 0, 300), (1, 1, 300, 5)), [50, 450], [BF16, BF16], "cpu", 256)
    assert len(tiles) == 4
    assert tiles.count.tolist() == [100, 256, 44, 5]
    assert tiles.group.tolist() == [0, 0, 0, 1]
    assert tiles.first.tolist() == [0, 100, 356, 0]
    assert tiles.flat.tolist() == [50, 150, 406, 450]
    assert tiles.offsets.tolist() == [0, 3, 4]
    assert tiles.tensor.tolist() == [0, 1, 1, 1]
    assert tiles.start.tolist() == [0, 0, 256, 300]
    assert tiles.group_cells.tolist() == [400, 5]


def test_addresses_and_flat_indices_of_a_tensor_of_more_than_two_to_the_31_cells() -> None:
    cells, group = 5 * 2**30 + 12_345, 2**23
    edges = np.append(np.arange(0, cells, group), cells)
    count = len(edges) - 1
    one = Spans(np.arange(count), np.zeros(count, np.int64), edges[:-1], np.diff(edges))
    tiles = Tiles.cut(one, edges[:-1].tolist(), [BF16] * count, "meta")
    tiling = Tiles.cut(one, edges[:-1].tolist(), [BF16] * count, "cpu").over([FakeTensor(cells)])  # type: ignore[list-item]
    assert len(tiles) == -(-cells // TILE)
    assert tiling.tiles.flat[-1].item() == (cells - 1) // TILE * TILE
    assert tiling.tiles.first.max().item() < group
    assert torch.equal(tiling.address, FakeTensor.ADDRESS + 2 * tiling.tiles.flat)
    assert tiling.tiles.count.sum().item() == cells


class FakeTensor:
    """As much of a tensor as a tiling asks for, without its memory."""

    ADDRESS = 2**46
    dtype = torch.bfloat16
    device = torch.device("cpu")

    def __init__(self, cells: int) -> None:
        self.cells = cells

    def element_size(self) -> int:
        return 2

    def data_ptr(self) -> int:
        return self.ADDRESS

    def is_contiguous(self) -> bool:
        return True

    def numel(self) -> int:
        return self.cells


def test_packed_tiles_lie_end_to_end_by_group() -> None:
    tiles = Tiles.cut(spans((0, 0, 0, 100), (0, 1, 0, 300), (1, 1, 300, 5)), [50, 450], [BF16, BF16], "cpu", 256)
    memory = torch.zeros(405, dtype=torch.int16)
    assert (tiles.packed(memory).address - memory.data_ptr()).tolist() == [0, 200, 712, 800]
    with pytest.raises(ValueError, match="do not hold"):
        tiles.packed(memory[:404])


def test_tiles_of_several_widths_are_refused() -> None:
    with pytest.raises(ValueError, match="one width"):
        Tiles.cut(spans((0, 0, 0, 1), (1, 1, 0, 1)), [0, 1], [BF16, CELL_TYPES["F32"]], "cpu")


@pytest.mark.parametrize("tile", [0, 3, 100])
def test_a_tile_that_is_no_power_of_two_is_refused(tile: int) -> None:
    with pytest.raises(ValueError, match="power of two"):
        Tiles.cut(spans((0, 0, 0, 1)), [0], [BF16], "cpu", tile)


def test_an_empty_span_is_refused() -> None:
    with pytest.raises(ValueError, match="empty"):
        Tiles.cut(spans((0, 0, 0, 1), (0, 1, 0, 0)), [0], [BF16], "cpu")


@pytest.mark.parametrize(
    ("tensor", "message"),
    [
        (torch.zeros(4, 2, dtype=torch.bfloat16).t(), "not contiguous"),
        (torch.zeros(8, dtype=torch.float64), "elements"),
        (torch.zeros(8, dtype=torch.int32), "elements"),
        (torch.zeros(8, dtype=torch.bfloat16, device="meta"), "is on meta"),
        (torch.zeros(7, dtype=torch.bfloat16), "7 cells"),
    ],
)
def test_a_sheet_refuses_a_tensor_that_does_not_hold_its_cells(tensor: torch.Tensor, message: str) -> None:
    tiles = Tiles.cut(spans((0, 0, 0, 8)), [0], [BF16], "cpu")
    with pytest.raises(ValueError, match=message):
        tiles.over([tensor])
