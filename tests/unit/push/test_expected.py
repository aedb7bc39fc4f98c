"""A first push, and one with another layout, has the tensors that are expected, or is refused before it is written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from pulse_registry.errors import InvalidArgument, InvalidModel
from pulse_registry.push.expected import check_expected
from pulse_registry.push.options import PushOptions
from pulse_schemas import Layout, Tensor
from tests.support.records import DictStore
from tests.support.registries import quick, settle

MODEL = {"a.weight": np.arange(6, dtype=np.float32).reshape(2, 3), "b.bias": np.zeros(4, np.float32)}


def layout(*tensors: tuple[str, Any, tuple[int, ...]], **tied: str) -> Layout:
    made = tuple(Tensor(name=name, dtype=dtype, shape=shape) for name, dtype, shape in tensors)
    return Layout(tensors=tuple(sorted(made, key=lambda tensor: (tensor.dtype != "F32", tensor.name))), tied=tied)


def index(folder: Path, *names: str) -> Path:
    path = folder / "model.safetensors.index.json"
    path.write_text(json.dumps({"weight_map": dict.fromkeys(names, "model-1.safetensors")}))
    return path


PAIR = layout(("a", "BF16", (2,)), ("b", "BF16", (3,)))


@pytest.mark.parametrize(
    ("pushed", "said"),
    [
        (PAIR, None),
        (layout(("a", "BF16", (2,))), "1 missing: 'b'"),
        (layout(("a", "BF16", (2,)), ("b", "BF16", (3,)), ("c", "BF16", ())), "1 unknown: 'c'"),
        (
            layout(("a", "BF16", (2,)), ("b", "F32", (3,))),
            "1 of another shape or dtype: 'b' is F32 [3], and BF16 [3] is expected",
        ),
        (
            layout(("a", "BF16", (3,)), ("c", "BF16", (3,))),
            "1 missing: 'b'; 1 unknown: 'c'; 1 of another shape or dtype: 'a' is BF16 [3], and BF16 [2] is expected",
        ),
        (layout(("a", "BF16", (2,)), ("b", "BF16", (3,)), c="a"), None),
        (layout(("a", "BF16", (2,)), c="a"), "1 missing: 'b'"),
    ],
)
def test_what_differs_from_an_expected_layout_is_named(pushed: Layout, said: str | None) -> None:
    if said is None:
        check_expected(PAIR, pushed, None)
        return
    with pytest.raises(InvalidModel) as refused:
        check_expected(PAIR, pushed, None)
    assert str(refused.value) == f"the model has other tensors than the expected layout: {said}. Nothing was written"


def test_tied_tensors_may_have_any_of_their_names_on_either_side(tmp_path: Path) -> None:
    tied = layout(("embed", "BF16", (2,)), head="embed")
    for other in (
        layout(("embed", "BF16", (2,))),
        layout(("head", "BF16", (2,))),
        layout(("head", "BF16", (2,)), embed="head"),
    ):
        check_expected(tied, other, None)
    check_expected(index(tmp_path, "head"), tied, None)
    with pytest.raises(InvalidModel, match="1 missing: 'norm'"):
        check_expected(index(tmp_path, "head", "norm"), tied, None)


def test_no_more_than_five_of_a_kind_are_named() -> None:
    many = layout(*((f"{number}", "BF16", (1,)) for number in range(8)))
    with pytest.raises(InvalidModel, match=r"8 unknown: '0', '1', '2', '3', '4', and 3 more"):
        check_expected(PAIR, many, None)


def test_a_checkpoints_folder_tells_shapes_and_not_dtypes(tmp_path: Path) -> None:
    save_file({name: array.astype(np.float16) for name, array in MODEL.items()}, tmp_path / "model.safetensors")
    with quick(DictStore(), expect=tmp_path) as registry:
        assert registry.push(0, MODEL).version == 0
    with quick(store := DictStore(), expect=str(tmp_path)) as registry:
        wrong = {**MODEL, "b.bias": np.zeros(5, np.float32)}
        with pytest.raises(InvalidModel, match=r"'b.bias' is \[5\], and \[4\] is expected"):
            registry.push(0, wrong)
        with pytest.raises(InvalidModel, match=r"'b.bias' is \[5\], and \[4\] is expected"):
            registry.take_over(wrong)
        assert store.objects == {}, "not even a term was begun"
        assert registry.push(0, MODEL).version == 0


@pytest.mark.parametrize("anew", [True, False])
def test_an_index_is_asked_when_the_layout_changes_and_only_then(tmp_path: Path, anew: bool) -> None:
    path = index(tmp_path, *MODEL)
    registry = quick(store := DictStore(), expect=path)
    registry.push(0, MODEL)
    if anew:
        registry.close()
        registry = quick(store, expect=path)
    with registry:
        path.rename(tmp_path / "gone.json")
        assert registry.push(1, MODEL).version == 1, "the layout is that of the version before"
        (tmp_path / "gone.json").rename(path)
        settle(registry)  # the second version may have a keyframe written for it
        before = dict(store.objects)
        with pytest.raises(InvalidModel, match=r"index.json: 1 unknown: 'c'\. Nothing was written"):
            registry.push(2, {**MODEL, "c": np.zeros(1, np.float32)})
        assert store.objects == before


def test_what_can_not_be_read_is_told(tmp_path: Path) -> None:
    (tmp_path / "none.json").write_text("{}")
    for path, said in ((tmp_path / "gone.json", "can't be read"), (tmp_path / "none.json", "no checkpoint's index")):
        with quick(DictStore(), expect=path) as registry, pytest.raises(InvalidArgument, match=said):
            registry.push(0, MODEL)
    with (
        quick(DictStore(), expect=tmp_path / "gone") as registry,
        pytest.raises(InvalidArgument, match="can't be read"),
    ):
        registry.push(0, MODEL)
    with pytest.raises(InvalidArgument, match="expect is 3"):
        PushOptions(expect=3)  # type: ignore[arg-type]
