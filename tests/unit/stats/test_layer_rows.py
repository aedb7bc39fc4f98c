"""Rows of groups by the layer that each begins in: what heads say, against the states."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from pulse_registry.errors import CorruptObject
from pulse_registry.stats import layer_rows
from pulse_registry.stats.layer_rows import LayerRows, fetch_directory
from pulse_registry.stats.tensor_names import layer_of
from pulse_registry.store import PrefixStore
from pulse_registry.testing import CountingStore
from pulse_registry.weights.cell_space import Geometry
from pulse_schemas import Layout, Tensor
from tests.support.chains import Chain, chains
from tests.support.groups import geometry_of, small_groups
from tests.support.records import DictStore
from tests.support.registries import RUN, change, quick, small_model
from tests.support.sampling import examples
from tests.unit.compaction.runs import NEVER


def plain_rows(geometry: Geometry) -> dict[str, list[int]]:
    """Return the groups that begin in each layer, group by group."""
    found: dict[str, list[int]] = {}
    for group in geometry.groups:
        found.setdefault(layer_of(geometry.layout.tensors[group.spans[0].tensor].name), []).append(group.number)
    return found


@given(chains())
@examples(30)
def test_each_group_counts_where_it_begins(chain: Chain) -> None:
    with small_groups(chain.group_bytes):
        geometry = Geometry(chain.layout)
        rows = LayerRows(geometry)
        groups = plain_rows(geometry)
        assert {row.name for row in rows.rows} == groups.keys()
        for row in rows.rows:
            assert row.cells == sum(geometry.groups[number].cells for number in groups[row.name])
            spans = [span for number in groups[row.name] for span in geometry.groups[number].spans]
            assert set(row.layers) <= {layer_of(geometry.layout.tensors[span.tensor].name) for span in spans}
            assert row.name in row.layers or len(row.layers) == 8


def test_a_layer_without_cells_is_none_that_a_group_goes_on_in() -> None:
    tensors = [("layers.0.w", (3,)), ("layers.1.w", (0,)), ("layers.2.w", (2,))]
    geometry = Geometry(Layout(tensors=tuple(Tensor(name=name, dtype="BF16", shape=shape) for name, shape in tensors)))
    [row] = LayerRows(geometry).rows
    assert (row.name, row.layers, row.cells) == ("layers.0", ("layers.0", "layers.2"), 5)


@pytest.mark.parametrize("coder", ["gap", "class"])
def test_a_head_alone_tells_what_changed(coder: str) -> None:
    store, model = CountingStore(DictStore()), small_model()
    with small_groups(), quick(store, coder=coder, keyframe_share=NEVER) as registry:
        registry.push(0, model)
        change(model, 1)
        registry.push(1, model)
        found = registry.stats(0, weights=True)
        geometry = Geometry(registry.layout())
        [ref] = registry.state().patches
        rows, before = LayerRows(geometry), store.bytes_read
        changed = rows.changed(fetch_directory(PrefixStore(store, RUN), geometry, ref))
        assert store.bytes_read - before == ref.head_size
    assert changed.sum() == found.total.changed == ref.changed
    # Each group of this model begins in the tensor that it is of, and each tensor is its own layer.
    by_tensor = {one.name.split(".")[0]: one.changed for one in found.by_tensor}
    groups = plain_rows(geometry)
    for row, count in zip(rows.rows, changed.tolist(), strict=True):
        whole = {layer for number in groups[row.name] for layer in _layers(geometry, number)}
        if whole == {row.name}:
            assert count == by_tensor[row.name]


def _layers(geometry: Geometry, number: int) -> set[str]:
    return {layer_of(geometry.layout.tensors[span.tensor].name) for span in geometry.groups[number].spans}


def test_a_damaged_head_is_refused() -> None:
    store, model = DictStore(), small_model()
    with small_groups(), quick(store, keyframe_share=NEVER) as registry:
        registry.push(0, model)
        change(model, 1)
        registry.push(1, model)
        geometry, [ref] = Geometry(registry.layout()), registry.state().patches
    data = store.objects[f"{RUN}/{ref.object.key}"]
    store.objects[f"{RUN}/{ref.object.key}"] = data[: ref.head_size - 1] + b"\xff" + data[ref.head_size :]
    with pytest.raises(CorruptObject, match=ref.object.key):
        fetch_directory(PrefixStore(store, RUN), geometry, ref)


def test_of_many_layers_the_last_row_has_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(layer_rows, "MOST_ROWS", 3)
    model = {f"layers.{n}.w": np.zeros(32, np.uint16) for n in range(6)}
    rows = LayerRows(geometry_of(model))
    assert [(row.name, row.cells) for row in rows.rows] == [("layers.0", 32), ("layers.1", 32), ("layers.2", 128)]
