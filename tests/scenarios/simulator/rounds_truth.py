"""The truth of outer rounds: a plain fold of their records and objects, as they land in the bucket.

It shares no code with the library's fold, mean or step: it reads the JSON of each record, decodes each contribution by
the weights that it has itself, adds up in whole numbers, and makes the steps of the specification (3.5) in NumPy.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from blake3 import blake3

from pulse_kernels import get_backend
from pulse_registry.errors import PulseError
from pulse_registry.format.contribution import Contribution
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.model import layout_of, read_model
from pulse_schemas import ObjectRef
from tests.scenarios.simulator.policy import MASTERS, ROUNDS, Policy
from tests.scenarios.simulator.truth import RUN, Json, Pushed, Truth, Version
from tests.scenarios.simulator.world import World

_RECORD = re.compile(r"run/outer/log/([0-9]{12})\.json")
_WINDOW, _MOST_MEMBERS, _LEAST_BIT = 12, 256, 173
GEOMETRY = Geometry(layout_of(read_model(Policy(ROUNDS).tensors), "keep"))
Floats = np.ndarray[Any, np.dtype[np.float32]]
Exact = list[int]
"""A whole number a cell, in units of 2^-173: sums of them are exact."""


def exact(values: Floats) -> Exact:
    """Return float32 values as whole numbers."""
    fractions, exponents = np.frexp(values.astype(np.float64))
    units = (fractions * 2**24).astype(np.int64)
    return [
        int(unit) << int(exponent) + _LEAST_BIT - 24
        for unit, exponent in zip(units.tolist(), exponents.tolist(), strict=True)
    ]


def plus(one: Exact, other: Exact, times: int = 1) -> Exact:
    """Return a sum, of each cell."""
    return [a + times * b for a, b in zip(one, other, strict=True)]


def nothing() -> Exact:
    """Return 0 of each cell."""
    return [0] * GEOMETRY.cells


@dataclass(slots=True)
class Joined:
    """A member's newest term."""

    term: str
    since: int
    missed: int = 0
    left: bool = False


@dataclass(slots=True)
class Fold:
    """What the records say.

    Attributes:
        weights: theta and momentum after each round, from the start on.
        open: contributions to the open round, by member.
        checkpoints: rounds of those that were not retired, oldest first.
        retired: the newest round that was.
        begun: the round after which rounds began anew, or 0.
    """

    start: Json
    rates: dict[int, Json]
    middle: int
    weights: list[tuple[Floats, Floats]]
    members: dict[str, Joined] = field(default_factory=dict)
    open: dict[str, Json] = field(default_factory=dict)
    checkpoints: list[int] = field(default_factory=list)
    retired: int = 0
    begun: int = 0

    @property
    def round(self) -> int:
        """Number of the open round."""
        return len(self.weights)

    @property
    def bits(self) -> bytes:
        """The newest version's cells."""
        return bf16(self.weights[-1][0])

    def awaited(self) -> set[str]:
        """Return whom the open round waits for."""
        patience = self.start["patience"]
        return {
            name
            for name, one in self.members.items()
            if not one.left and one.since <= self.round and one.missed < patience
        }


class RoundsTruth(Truth):
    """The harness' own fold of both logs.

    Attributes:
        fold: of the outer log; None before its first record.
        models: cells that a member may begin an empty run with, by their digest.
        others: cells that somebody else may push, by their digest.
        astray: whether somebody else has pushed the newest version, and rounds did not begin anew from it.
        restarts: how often rounds began anew.
        sent: what counts of each member's contributions, exactly.
        counted: write ids of contributions that count.
    """

    def __init__(self, world: World, grace: float) -> None:
        super().__init__(world, grace)
        self.fold: Fold | None = None
        self.models: dict[str, bytes] = {}
        self.others: dict[str, bytes] = {}
        self.astray, self.restarts = False, 0
        self.sent: dict[str, Exact] = {}
        self.counted: set[str] = set()
        self._outer_records = 0
        self._outer_last: str | None = None

    @property
    def rounds(self) -> int:
        """How many have ended."""
        return 0 if self.fold is None else self.fold.round - 1

    def holds(self, member: str, term: str) -> bool:
        """Tell whether a term is a member's newest one, and not ended."""
        one = None if self.fold is None else self.fold.members.get(member)
        return one is not None and one.term == term and not one.left

    def lost_quorum(self, seq: int) -> bool:
        """Tell whether too few members are there for the open round to end; true, too, if records followed ``seq``."""
        if self.fold is None or self._outer_records > seq + 1:
            return self.fold is not None
        there = {name for name, one in self.fold.members.items() if not one.left}
        gone = len(there) < len(self.fold.members)
        return gone and len(there | self.fold.open.keys()) < self.fold.start["quorum"]

    def begins(self, bits: bytes) -> None:
        """Take note of the cells that a member would begin an empty run with."""
        self.models[Policy(ROUNDS, bits).digest] = bits

    def put(self, who: str, key: str, data: bytes) -> None:
        """Look at a write before it takes effect."""
        new = self.get(key) is None
        super().put(who, key, data)
        if new and (found := _RECORD.fullmatch(key)):
            self._outer_landed(who, int(found[1]), data)

    # -- versions --------------------------------------------------------------------------------------------------

    def _fold_commit(self, who: str, body: Json) -> None:
        if body["epoch"] < self.epoch:
            self.count("void")
            return
        number, digest = body["version"], body["digest"]
        if number != len(self.versions):
            self.world.fail(f"{who} commits version {number} after version {len(self.versions) - 1}")
        if self.fold is not None and digest in self.others and not self._is_of_round(number, digest):
            bits: bytes | None = self.others[digest]
            self.astray = True
            self.count("others push")
        else:
            bits = self.models.get(digest) if self.fold is None else self._round_bits(who, number)
        if bits is None or (self.fold is None and number):
            self.world.fail(f"{who} begins the run with cells that no member has")
        if Policy(ROUNDS, bits).digest != digest:
            self.world.fail(f"{who} commits version {number}, which is not what its round has come to")
        self.versions.append(Version(number, body, Pushed(ROUNDS, bits), body["write_id"]))
        self._name(who, body, [body["patch"]] if body["patch"] else [], [body["keyframe"]] if body["keyframe"] else [])

    def _is_of_round(self, number: int, digest: str) -> bool:
        """Tell whether a version is what its round has come to: that may be what others pushed, if it moved no cell."""
        assert self.fold is not None
        round_ = number - self.fold.start["version"]
        return 1 <= round_ < self.fold.round and Policy(ROUNDS, bf16(self.fold.weights[round_][0])).digest == digest

    def _round_bits(self, who: str, number: int) -> bytes:
        assert self.fold is not None
        round_ = number - self.fold.start["version"]
        if not 1 <= round_ < self.fold.round:
            self.world.fail(f"{who} commits version {number} of round {round_}, and {self.fold.round} is open")
        return bf16(self.fold.weights[round_][0])

    # -- the outer log ---------------------------------------------------------------------------------------------

    def _outer_landed(self, who: str, seq: int, data: bytes) -> None:
        body = json.loads(data)["body"]
        if seq != self._outer_records or body["seq"] != seq or body["previous"] != self._outer_last:
            self.world.fail(f"{who} writes outer record {seq}, which does not follow {self._outer_records - 1}")
        if body["write_id"] in self._write_ids:
            self.world.fail(f"{who} writes outer record {seq}, whose write landed before")
        self._write_ids.add(body["write_id"])
        self._outer_records, self._outer_last = seq + 1, blake3(data).hexdigest()
        kind = body["kind"]
        self.count(f"outer {kind}")
        if self.fold is None:
            self._fold_start(who, body)
        elif getattr(self, f"_outer_{kind}")(self.fold, body):
            self._close_if_complete(self.fold)
        else:
            self.count(f"void {kind}")

    def _fold_start(self, who: str, body: Json) -> None:
        version = self.versions[body["version"]].state
        if body["kind"] != "start" or body["digest"] != Policy(ROUNDS, version.bits).digest:
            self.world.fail(f"{who} starts rounds from other cells than those of version {body['version']}")
        if body["version"] != len(self.versions) - 1:
            self.world.fail(f"{who} starts rounds from version {body['version']}, which is not the newest")
        self.fold = Fold(body, {1: body["rates"]}, body["exponent"], [self._begun(body["version"])])

    def _outer_join(self, fold: Fold, body: Json) -> bool:
        there = {name for name, one in fold.members.items() if not one.left}
        if body["member"] not in there and len(there) >= _MOST_MEMBERS:
            return False
        since = fold.round + (fold.round > fold.begun + 1)
        fold.members[body["member"]] = Joined(body["write_id"], since)
        return True

    def _outer_leave(self, fold: Fold, body: Json) -> bool:
        holds = self.holds(body["member"], body["term"])
        if holds:
            fold.members[body["member"]].left = True
        return holds

    def _outer_rates(self, fold: Fold, body: Json) -> bool:
        if body["round"] <= fold.round:
            return False
        fold.rates[body["round"]] = body["rates"]
        return True

    def _outer_close(self, fold: Fold, body: Json) -> bool:
        if body["round"] != fold.round or len(fold.open) < fold.start["quorum"]:
            return False
        self._close(fold)
        return True

    def _outer_contribute(self, fold: Fold, body: Json) -> bool:
        """Count a contribution if nothing speaks against it; ``base`` is compared with the weights themselves."""
        name = body["member"]
        if (
            not self.holds(name, body["term"])
            or body["round"] != fold.round
            or name in fold.open
            or abs(body["exponent"] - fold.middle) > _WINDOW
            or body["base"] != Policy(ROUNDS, fold.bits).digest
        ):
            return False
        levels = self._levels(fold, body)
        mass = [level << body["exponent"] + _LEAST_BIT for level in levels]
        self.sent[name] = plus(self.sent.get(name, nothing()), mass)
        self.counted.add(body["write_id"])
        fold.open[name] = body | {"levels": levels}
        fold.members[name].missed = 0
        return True

    def _outer_checkpoint(self, fold: Fold, body: Json) -> bool:
        if not fold.begun < body["round"] < fold.round or not fold.checkpoints[-1:] < [body["round"]]:
            return False
        digests = tuple(Policy(MASTERS, cells.tobytes()).digest for cells in fold.weights[body["round"]])
        if digests != (body["theta"], body["momentum"]):
            self.world.fail(f"outer record {body['seq']} names a checkpoint of other weights than those of its round")
        if self.get(f"{RUN}/outer/{body['object']['key']}") is None:
            self.world.fail(f"outer record {body['seq']} names {body['object']['key']}, which is not there")
        fold.checkpoints.append(body["round"])
        return True

    def _outer_retire(self, fold: Fold, body: Json) -> bool:
        if body["round"] <= fold.retired or body["round"] not in fold.checkpoints[:-1]:
            return False
        fold.retired = body["round"]
        fold.checkpoints = [number for number in fold.checkpoints if number >= fold.retired]
        return True

    def _outer_delete(self, fold: Fold, body: Json) -> bool:
        return int(body["round"]) <= fold.retired

    def _outer_restart(self, fold: Fold, body: Json) -> bool:
        """Go on from a version that somebody else has pushed; rounds up to it have no members."""
        round_, number = body["round"], fold.start["version"] + body["round"]
        if round_ <= fold.begun or round_ < fold.round - 1:
            return False
        if number >= len(self.versions) or self.versions[number].record["digest"] != body["digest"]:
            self.world.fail(f"outer record {body['seq']} lets rounds begin anew from what version {number} is not")
        for gone in range(fold.round, round_ + 1):
            fold.weights.append(self._begun(fold.start["version"] + gone))
        fold.weights[round_] = self._begun(number)
        fold.begun = fold.retired = round_
        fold.checkpoints.clear()
        fold.open.clear()
        for one in fold.members.values():
            one.left = True
        self.astray, self.restarts = number < len(self.versions) - 1, self.restarts + 1
        return True

    def _begun(self, number: int) -> tuple[Floats, Floats]:
        """Return theta and momentum of rounds that begin with a version."""
        theta = (np.frombuffer(self.versions[number].state.bits, np.uint16).astype(np.uint32) << 16).view(np.float32)
        return theta, np.zeros_like(theta)

    def _outer_merged(self, fold: Fold, body: Json) -> bool:
        return int(body["round"]) < fold.round

    def _levels(self, fold: Fold, body: Json) -> list[int]:
        """Decode a contribution by the weights of the round's start."""
        levels = np.zeros(GEOMETRY.cells, np.int64)
        if body["object"] is None:
            return levels.tolist()
        data = self.get(f"{RUN}/outer/{body['object']['key']}")
        if data is None:
            self.world.fail(f"outer record {body['seq']} names {body['object']['key']}, which is not there")
        cells = np.frombuffer(fold.bits, np.uint16)
        try:
            found = Contribution.parse(ObjectRef(**body["object"]), GEOMETRY, data)
            for number in found.entries:
                group = GEOMETRY.groups[number]
                weights = [cells[group.start : group.start + group.cells]]
                index, values = found.decode(get_backend("reference"), group, weights)
                levels[group.start + index.astype(np.int64)] = values
        except PulseError as error:
            self.world.fail(f"the contribution of outer record {body['seq']} can't be decoded: {error!r}")
        if np.count_nonzero(levels) != body["entries"]:
            self.world.fail(f"the contribution of outer record {body['seq']} has not {body['entries']} levels")
        return levels.tolist()

    # -- the step --------------------------------------------------------------------------------------------------

    def _close_if_complete(self, fold: Fold) -> None:
        if fold.open and len(fold.open) >= fold.start["quorum"] and fold.awaited() <= fold.open.keys():
            self._close(fold)

    def _close(self, fold: Fold) -> None:
        awaited, rates = fold.awaited(), fold.rates[max(first for first in fold.rates if first <= fold.round)]
        for name in awaited - fold.open.keys():
            fold.members[name].missed += 1
            self.count("late")
        by_steps = fold.start["weighting"] == "steps"
        weight = sum(fold.open[name]["steps"] if by_steps else 1 for name in fold.open)
        weight += len(awaited - fold.open.keys()) * (rates["inner_steps"] if by_steps else 1)
        exponents = sorted(one["exponent"] for one in fold.open.values() if one["entries"])
        least = exponents[0] if exponents else 0
        total = [0] * GEOMETRY.cells
        for one in fold.open.values():
            times = (one["steps"] if by_steps else 1) << (one["exponent"] - least if one["entries"] else 0)
            total = [before + times * level for before, level in zip(total, one["levels"], strict=True)]
        fold.weights.append(stepped(*fold.weights[-1], total, least, weight, rates))
        fold.middle = exponents[(len(exponents) - 1) // 2] if exponents else fold.middle
        fold.open.clear()
        self.count("rounds")


def stepped(
    theta: Floats, momentum: Floats, total: list[int], least: int, weight: int, rates: Json
) -> tuple[Floats, Floats]:
    """Return theta and momentum after a step, as the specification has it."""
    rate, decay = np.float32(rates["rate"]), np.float32(rates["momentum"])
    gradient = np.array(total, np.int64).astype(np.float32) * np.float32(2.0**least / weight)
    moved = decay * momentum + gradient
    return theta - rate * (gradient + decay * moved), moved


def bf16(theta: Floats) -> bytes:
    """Return float32 values, rounded to BF16 to nearest, ties to even."""
    bits = theta.view(np.uint32).astype(np.uint64)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype(np.uint16).tobytes()
