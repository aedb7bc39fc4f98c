"""`auto` codes with `class` where it may pay, and copies to host memory what it takes."""

from __future__ import annotations

import pytest
import torch

from pulse_registry.gpu import coding
from pulse_registry.gpu.stream import DeviceStream
from pulse_registry.store import MemoryStore
from tests.unit.gpu.models import on_device


@pytest.mark.parametrize(("cells", "tried"), [(4096, ["gap"]), (64, ["gap", "class"])])
def test_class_is_coded_only_where_it_may_pay_and_one_of_them_is_copied(
    device: str, cells: int, tried: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    coded, copied = [], []
    encode, plain = coding.encode_changes, DeviceStream.download
    monkeypatch.setattr(coding, "encode_changes", lambda c, name, base: (coded.append(name), encode(c, name, base))[1])
    monkeypatch.setattr(DeviceStream, "download", lambda self, data: (copied.append(len(data)), plain(self, data))[1])
    model = {"w": torch.zeros(cells, dtype=torch.bfloat16, device=device)}
    with on_device(MemoryStore(f"auto-{cells}"), device, coder="auto") as registry:
        registry.push(0, model)
        copied.clear()
        model["w"][5] = 1.0
        assert registry.push(1, model).changed == 1
    assert coded == tried
    assert len(copied) == 1
