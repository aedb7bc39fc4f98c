"""Hostile contributions that are in the log, and count: members refuse them with a typed error, and fold nothing.

Whoever writes them has a key of the bucket, or a member's token; the record says what it likes, and so does the object.
"""

from __future__ import annotations

import tracemalloc
import uuid
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from pulse_kernels import get_backend
from pulse_kernels.select import outer_loops
from pulse_registry.errors import BaseMismatch, CorruptObject, NotFound, PulseError
from pulse_registry.format.contribution import contribution_bytes
from pulse_registry.outer.contributions import Contributions
from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.member import Member
from pulse_registry.outer.weights import OuterWeights
from pulse_registry.store import MemoryStore
from pulse_schemas import ObjectRef
from pulse_schemas.heads import ContributionHead
from pulse_schemas.outer import ContributeRecord, JoinRecord, StartRecord
from tests.security.fuzz.patches import rehashed
from tests.support.outer_objects import GEOMETRY, RATES, RUN, contribution, levels, ref_of, values, weights

MEMORY = 3 << 20
"""Bytes that a member may take beside its weights: what a few hundred cells are coded to takes a fraction."""
BACKEND = get_backend("reference")


class Round:
    """A round with one contribution that was forged, and a member that is to fold it."""

    def __init__(self, values: str = "levels") -> None:
        self.store = MemoryStore(uuid.uuid4().hex)
        self.log = OuterLog(self.store, RUN)
        self.weights = OuterWeights(GEOMETRY, BACKEND, outer_loops("reference"))
        self.weights.begin(lambda group: weights(group)[0].copy())
        self.base = self.weights.digest().hex()
        self.log.append(
            lambda _, common: StartRecord(
                **common, version=0, layout=GEOMETRY.id, digest=self.base, rates=RATES, gain=7.0, values=values,
                exponent=-20, quorum=1, patience=2, weighting="equal",
            )
        )  # fmt: skip
        joined = self.log.append(lambda _, common: JoinRecord(**common, member="eu-1"))
        assert joined is not None
        self.term = joined.write_id

    def put(self, data: bytes) -> ObjectRef:
        """Store an object, and return what an honest record would say of it."""
        ref = ref_of(data)
        self.store.put(f"outer/{ref.key}", data)
        return ref

    def contribute(self, ref: ObjectRef, **fields: Any) -> None:
        """Append the record; it ends the round."""
        said = {"entries": sum(len(index) for _, index, _ in levels()), "exponent": -20, "base": self.base} | fields
        self.log.append(
            lambda _, common: ContributeRecord(
                **common, **said, round=1, member="eu-1", term=self.term, steps=8, object=ref
            )
        )

    def member(self) -> Member:
        """Return a member that has read the log."""
        log = OuterLog(self.store, RUN)
        log.refresh()
        member = Member("us-1", log, Contributions(self.store, GEOMETRY, BACKEND), self.weights, grace_s=1.0)
        member.digest = self.weights.digest().hex()
        return member

    def refused(self) -> PulseError:
        """Let a member fold the round, and return why it does not; its weights are what they were."""
        member = self.member()
        before = self.weights.theta.tobytes(), self.weights.momentum.tobytes()
        tracemalloc.start()
        try:
            with pytest.raises(PulseError) as raised:
                member.catch_up()
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert (self.weights.theta.tobytes(), self.weights.momentum.tobytes()) == before
        assert member.round == 0
        assert peak < MEMORY
        return raised.value


def zero() -> bytes:
    (group, index, sent), *_ = levels()
    sent[3] = 0
    return contribution([(group, index, sent)])


def another_float(value: float) -> Callable[[], bytes]:
    def made() -> bytes:
        (group, index, sent), *_ = values()
        sent[3] = value
        return contribution([(group, index, sent)])

    return made


def other_weights() -> bytes:
    """Code by other classes: ranks lead beyond those that these weights have."""
    (group, index, sent), *_ = levels()
    return contribution_bytes(
        BACKEND,
        GEOMETRY,
        lambda changed, groups: ContributionHead(
            layout=GEOMETRY.id, base=base(), round=1, member="eu-1", values="levels", exponent=-20,
            changed=changed, groups=groups,
        ),
        [(group, index, sent)],
        lambda held: [np.zeros(held.cells, np.uint16)],
    )  # fmt: skip


def base() -> str:
    """Return the digest of the weights that the round begins with."""
    held = OuterWeights(GEOMETRY, BACKEND, outer_loops("reference"))
    held.begin(lambda group: weights(group)[0].copy())
    return held.digest().hex()


def flipped(place: int) -> Callable[[], bytes]:
    """Change a byte of the group, and make its hash fit again."""

    def made() -> bytes:
        data = bytearray(contribution(base=base()))
        data[place] ^= 0x55
        return b"".join(rehashed(bytes(data))[:2])

    return made


MANY = 2**42
OBJECTS: dict[str, tuple[Callable[[], bytes], dict[str, Any], type[PulseError]]] = {
    "a level of 0": (zero, {}, CorruptObject),
    "ranks beyond the classes": (other_weights, {}, BaseMismatch),
    "4 trillion entries in both": (lambda: contribution(changed=MANY), {"entries": MANY}, CorruptObject),
    "4 trillion entries in the record": (contribution, {"entries": MANY}, CorruptObject),
    "4 billion groups": (lambda: contribution(groups=2**32), {}, CorruptObject),
    "another member's": (lambda: contribution(member="us-1"), {}, CorruptObject),
    "of another round": (lambda: contribution(round_=2), {}, CorruptObject),
    "from other weights": (lambda: contribution(base="f" * 32), {}, CorruptObject),
    "of another exponent": (lambda: contribution(exponent=40), {}, CorruptObject),
    "an exponent without bounds": (lambda: contribution(exponent=2**70), {}, CorruptObject),
    "of another layout": (lambda: contribution(layout="f" * 64), {}, CorruptObject),
    "float32 values in rounds of levels": (lambda: contribution(values()), {}, CorruptObject),
    "values that it says are levels": (lambda: contribution(values(), values="levels"), {}, CorruptObject),
    "no contribution": (lambda: b"x" * 99, {}, CorruptObject),
    "nothing": (lambda: b"", {}, CorruptObject),
    **{f"a changed byte, {-place} from its end": (flipped(place), {}, PulseError) for place in (-1, -9, -30, -45)},
}


@pytest.mark.parametrize("what", OBJECTS)
def test_a_forged_contribution_is_refused_and_nothing_is_folded(what: str) -> None:
    make, fields, error = OBJECTS[what]
    forged = Round()
    data = make()
    if "base" not in what and b'"base":"0123456789abcdef' in data:
        data = data.replace(b"0123456789abcdef" * 2, forged.base.encode())
    forged.contribute(forged.put(data), **fields)
    found = forged.refused()
    assert isinstance(found, error), found
    assert "objects/contribution/" in str(found)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf, 2.0**60, 0.0])
def test_a_value_that_is_none_is_refused(value: float) -> None:
    forged = Round("float32")
    data = another_float(value)().replace(b"0123456789abcdef" * 2, forged.base.encode())
    forged.contribute(forged.put(data))
    assert isinstance(forged.refused(), CorruptObject)


def test_a_size_without_bounds_is_refused_before_it_is_read() -> None:
    forged = Round()
    ref = forged.put(contribution())
    forged.contribute(ref.model_copy(update={"size": MANY}))
    found = forged.refused()
    assert isinstance(found, CorruptObject)
    assert "at most" in str(found)


def test_other_bytes_than_were_recorded_and_none_at_all_are_refused() -> None:
    forged = Round()
    ref = forged.put(contribution(base=forged.base))
    forged.contribute(ref.model_copy(update={"blake3": blake3(b"").hexdigest()}))
    assert isinstance(forged.refused(), CorruptObject)
    forged.store.delete(f"outer/{ref.key}")
    assert isinstance(forged.refused(), NotFound)


@pytest.mark.parametrize(("exponent", "counts"), [(-20, True), (-8, True), (-7, False), (-33, False), (60, False)])
def test_a_record_whose_exponent_is_out_of_the_window_counts_for_nothing(exponent: int, counts: bool) -> None:
    forged = Round()
    forged.contribute(forged.put(contribution(base=forged.base, exponent=exponent)), exponent=exponent)
    assert (forged.log.refresh().open == 2) is counts


def test_what_is_honest_is_folded() -> None:
    honest = Round()
    honest.contribute(honest.put(contribution(base=honest.base)))
    before = honest.weights.theta.copy()
    member = honest.member()
    member.catch_up()
    assert member.round == 1
    assert (honest.weights.theta != before).sum() == sum(len(index) for _, index, _ in levels())
