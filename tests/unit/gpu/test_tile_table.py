"""The tile tables of a layout are made once for all threads."""

from __future__ import annotations

import threading

import numpy as np
import pytest
import torch

from pulse_registry.gpu import tile_table
from pulse_registry.gpu.tile_table import TileTable
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model


def test_threads_that_want_the_tile_tables_of_a_layout_at_once_get_the_same(monkeypatch: pytest.MonkeyPatch):
    geometry = Geometry(layout_of(read_model({"w": np.zeros(8, np.float32)}), "keep"))
    together, made, of = threading.Barrier(4), [], TileTable.of

    def make(*arguments):
        made.append(of(*arguments))
        for _ in range(100_000):  # long enough for the others to come by
            pass
        return made[-1]

    monkeypatch.setattr(TileTable, "of", make)

    def want() -> None:
        together.wait(60)
        tile_table.tile_tables(geometry, torch.device("cpu"))

    threads = [threading.Thread(target=want) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(made) == 1
