"""A keyframe goes up to the device without a wait a group, and no more of it is pinned than is meant to be."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from pulse_registry.gpu import stream
from pulse_registry.gpu.destination import DeviceDestination
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from tests.support.groups import small_groups


@pytest.mark.parametrize(("most", "waits"), [(256 << 20, 1), (100, 2), (0, 6)])
def test_groups_that_are_filled_are_waited_for_together(
    device: str, most: int, waits: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited, wait = [], stream.DeviceStream.wait
    monkeypatch.setattr(stream, "QUEUED_BYTES", most)
    monkeypatch.setattr(stream.DeviceStream, "wait", lambda self: (waited.append(self), wait(self))[1])
    tensors = {"a": torch.zeros(50, device=device).bfloat16(), "b": torch.zeros(25, device=device).bfloat16()}
    views = read_model(tensors)
    with small_groups(32):  # four groups of 16 cells, and one of 11
        geometry = Geometry(layout_of(views, "keep"))
        target = DeviceDestination.into(geometry, views, torch.device(device))
        with target.filling() as write:
            for group in geometry.groups:
                write(group, np.arange(group.start, group.start + group.cells, dtype=np.uint16))
    assert len(waited) == waits
    assert torch.cat([*tensors.values()]).view(torch.int16).tolist() == list(range(75))
