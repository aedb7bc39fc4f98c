"""A version's step and metadata are checked when they are given, in words of our own, and copied."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from pulse_registry.errors import InvalidArgument
from pulse_registry.log.integers import integer
from pulse_registry.push.labels import METADATA_BYTES, checked_metadata
from pulse_schemas.base import canonical_json, plain_json


@pytest.mark.parametrize("step", [7, -(2**63), np.int64(7), np.uint8(7), np.int32(-7)])
def test_a_step_is_any_integer_of_64_bits(step: Any) -> None:
    found = integer(step, "step")
    assert type(found) is int
    assert found == step


@pytest.mark.parametrize("step", [1.0, "1", None, True, np.True_, np.float32(1), 2**63, -(2**63) - 1])
def test_what_is_no_such_integer_is_refused(step: Any) -> None:
    with pytest.raises(InvalidArgument, match=r"^step is .*integer"):
        integer(step, "step")


def test_an_integer_too_long_to_be_printed_is_refused_as_well() -> None:
    with pytest.raises(InvalidArgument, match="16610 bits"):
        integer(10**5000, "step")
    with pytest.raises(InvalidArgument, match="16610 bits"):
        checked_metadata({"a": 10**5000})


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (None, {}),
        ({"loss": np.float32(0.5), "n": np.int64(3), "ok": np.True_}, {"loss": 0.5, "n": 3, "ok": True}),
        ({"b": ml_dtypes.bfloat16(1.5), "long": np.longdouble(2)}, {"b": 1.5, "long": 2.0}),
        ({"a": (1, [2, {"b": None}])}, {"a": [1, [2, {"b": None}]]}),
        ({"name": np.str_("x"), np.str_("k"): "Größe"}, {"name": "x", "k": "Größe"}),
    ],
)
def test_json_values_and_scalars_of_numpy_are_kept(given: Any, kept: Any) -> None:
    found = checked_metadata(given)
    assert found == kept
    assert canonical_json(found) == canonical_json(kept)


_NESTED: Any = []
for _ in range(40):
    _NESTED = [_NESTED]
_ROUND: Any = {}
_ROUND["again"] = [_ROUND, _ROUND]
_DOUBLED: Any = "x"
for _ in range(30):
    _DOUBLED = [_DOUBLED, _DOUBLED]


@pytest.mark.parametrize(
    ("metadata", "message"),
    [
        ({"loss": float("nan")}, r"metadata\['loss'\] is nan"),
        ({"a": [1.0, {"b": np.float32("inf")}]}, r"metadata\['a'\]\[1\]\['b'\] is inf"),
        ({"a": np.zeros(3)}, r"metadata\['a'\] is of type ndarray.*\.item\(\)"),
        ({"a": b"bytes"}, r"metadata\['a'\] is of type bytes"),
        ({"a": {1, 2}}, "is of type set"),
        ({"a": 1j}, "is of type complex"),
        ({"a": np.datetime64("2020-01-01")}, "is of type date"),
        ({"a": 2**64}, "an integer of 65 bits"),
        ({"a": {3: 4}}, r"metadata\['a'\] has a key of type int"),
        ({None: 1}, "metadata has a key of type NoneType"),
        ({"a": "\ud800"}, "surrogate"),
        ({"\ud800": 1}, "surrogate"),
        ({"a": _NESTED}, "more than 32 levels"),
        (_ROUND, "more than 32 levels deep; perhaps it contains itself"),
        ({"a": _DOUBLED}, "over 65,536 bytes"),
        ({"a": "x" * METADATA_BYTES}, "over 65,536 bytes|takes 65,"),
        ({"a": "\u00e9" * (METADATA_BYTES // 2)}, "metadata takes 65,544 bytes"),
        ([("a", 1)], "metadata is of type list; it is a mapping"),
    ],
)
def test_what_a_record_can_not_keep_is_refused_by_its_place(metadata: Any, message: str) -> None:
    with pytest.raises(InvalidArgument, match=message) as caught:
        checked_metadata(metadata)
    assert "pydantic" not in str(caught.value)
    assert len(str(caught.value)) < 500


def test_the_bound_is_on_the_canonical_bytes() -> None:
    room = METADATA_BYTES - len(canonical_json({"a": ""}))
    assert checked_metadata({"a": "x" * room}) == {"a": "x" * room}
    with pytest.raises(InvalidArgument, match="metadata takes"):
        checked_metadata({"a": "x" * (room + 1)})


_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=5),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text("abc", max_size=3), inner, max_size=4),
    max_leaves=20,
)


@given(st.dictionaries(st.text("abc", max_size=3), _JSON, max_size=4))
def test_what_is_kept_is_what_a_record_takes_and_shares_nothing_with_what_was_given(metadata: Any) -> None:
    found = checked_metadata(metadata)
    assert found == metadata == plain_json(found)
    before = canonical_json(found)
    for value in metadata.values():
        if isinstance(value, list):
            value.append(1)
        elif isinstance(value, dict):
            value["new"] = 1
    metadata["new"] = 1
    assert canonical_json(found) == before
