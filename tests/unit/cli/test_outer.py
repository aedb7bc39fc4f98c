"""``pulse outer``: rounds, records and members as they are stored, and rounds that are made anew and compared."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

import pulse_registry
from pulse_registry.errors import CorruptObject, Diverged
from pulse_registry.outer.log import OuterLog
from pulse_registry.store import FileStore, PrefixStore
from pulse_schemas.outer import CheckpointRecord, CloseRecord, JoinRecord, MergedRecord
from tests.support.command_line import Pulse
from tests.support.outer_rounds import make_rounds, outer_model

ROUNDS = 3


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with a run of three outer rounds, made once; tests copy it."""
    root = tmp_path_factory.mktemp("outer") / "registry"
    make_rounds(str(root), "math", ROUNDS)
    return root


@pytest.fixture
def root(made: Path, tmp_path: Path) -> Path:
    shutil.copytree(made, tmp_path / "registry")
    return tmp_path / "registry"


@pytest.fixture
def at(root: Path) -> tuple[object, ...]:
    return "--root", root, "--run", "math"


def test_rounds_are_listed_with_who_was_there_and_how_much(pulse: Pulse, at: tuple[object, ...]) -> None:
    found = pulse("outer", "log", *at, "--json").json
    assert [(one["round"], one["version"], one["ended"]) for one in found] == [
        (1, 1, True), (2, 2, True), (3, 3, True), (4, 4, False),
    ]  # fmt: skip
    for one in found[:-1]:
        assert (one["contributed"], one["late"]) == (["eu-1", "us-1"], [])
        assert one["density"] == one["entries"] / 2 / 1500
        assert one["bytes"] > one["entries"] / 8
    assert found[-1] == {
        "round": 4, "version": 4, "ended": False, "contributed": [], "late": [], "entries": 0, "density": None,
        "bytes": 0,
    }  # fmt: skip
    shown = pulse("outer", "log", *at)
    assert (shown.code, shown.out.count("eu-1 us-1")) == (0, ROUNDS)


def test_records_are_listed_with_what_counts_for_nothing(pulse: Pulse, at: tuple[object, ...], root: Path) -> None:
    log = OuterLog(PrefixStore(FileStore(root), "math"), "math")
    log.append(lambda _, common: CloseRecord(**common, round=2))
    found = pulse("outer", "log", *at, "--records", "--json").json
    assert [one["kind"] for one in found] == [
        "start", "join", "join", *["contribute"] * 2 * ROUNDS, "leave", "leave", "close",
    ]  # fmt: skip
    assert [one["seq"] for one in found] == [*range(len(found))]
    assert [one["void"] is None for one in found] == [True] * (len(found) - 1) + [False]
    assert found[-1]["void"] == "round 2 is not open; round 4 is"
    assert found[3]["member"] == "eu-1"
    assert found[3]["bytes"] > 0
    assert "round 2 is not open" in pulse("outer", "log", *at, "--records").out


def test_members_are_listed_with_how_they_stand(pulse: Pulse, at: tuple[object, ...], root: Path) -> None:
    log = OuterLog(PrefixStore(FileStore(root), "math"), "math")
    joined = log.append(lambda _, common: JoinRecord(**common, member="late-1"))
    assert joined is not None
    found = pulse("outer", "members", *at, "--json").json
    assert [(one["member"], one["standing"], one["since"], one["last_round"]) for one in found] == [
        ("eu-1", "left", 1, 3), ("late-1", "later", 5, None), ("us-1", "left", 1, 3),
    ]  # fmt: skip
    assert found[1]["term"] == joined.write_id
    assert found[0]["bytes"] > 0
    shown = pulse("outer", "members", *at).out
    assert "late-1" in shown
    assert "later" in shown


def test_rounds_are_made_anew_and_are_what_was_committed(pulse: Pulse, at: tuple[object, ...]) -> None:
    found = pulse("outer", "verify", *at, "--json")
    assert found.code == 0
    assert (found.json["verified"], found.json["differs"]) == (True, None)
    assert [one["digest"] for one in found.json["rounds"]] == [one["committed"] for one in found.json["rounds"]]
    assert len({one["digest"] for one in found.json["rounds"]}) == ROUNDS
    assert pulse("outer", "verify", *at).out == "3 rounds were made anew, and 3 versions are what they came to\n"


def test_the_first_round_that_differs_is_named(pulse: Pulse, at: tuple[object, ...], root: Path) -> None:
    other = root.parent / "other"  # rounds from the same weights, with one member more
    make_rounds(str(other), "math", ROUNDS, members=("eu-1", "us-1", "us-2"))
    shutil.rmtree(root / "math" / "outer")
    shutil.copytree(other / "math" / "outer", root / "math" / "outer")
    found = pulse("outer", "verify", *at, "--json")
    assert (found.code, found.json["verified"], found.json["differs"]) == (5, False, 1)
    assert len(found.json["rounds"]) == 1
    shown = pulse("outer", "verify", *at)
    assert shown.code == 5
    assert shown.out.startswith("round 1 comes to digest ")


def test_rounds_begin_anew_after_somebody_elses_push(pulse: Pulse, at: tuple[object, ...], root: Path) -> None:
    refused = pulse("outer", "restart", *at, "--json")  # no matter who pushed: rounds can begin anew where they are
    assert (refused.code, refused.json) == (0, {"restarted": True, "round": ROUNDS})
    with pulse_registry.open(root, run="math") as outsider:
        for number in (8, 9):
            outsider.push(number, {name: cells * number for name, cells in outer_model().items()})
        others = outsider.load("latest", framework="numpy")
    with pytest.raises(Diverged, match="'pulse outer restart' first lets the rounds begin anew"):
        make_rounds(str(root), "math", 2)
    found = pulse("outer", "restart", *at, "--json")
    assert (found.code, found.json) == (0, {"restarted": True, "round": ROUNDS + 2})
    assert "its rounds began anew from the newest version before" in pulse("outer", "restart", *at).out
    begun = make_rounds(str(root), "math", 0)
    assert all(
        np.array_equal(np.asarray(others[name]).view(np.uint16), begun[name].view(np.uint32) >> 16) for name in begun
    )
    make_rounds(str(root), "math", 2)
    found = pulse("outer", "verify", *at, "--json")
    assert [(one["round"], one["version"]) for one in found.json["rounds"]] == [(6, 6), (7, 7)]
    assert found.json["verified"]
    records = pulse("outer", "log", *at, "--records", "--json").json
    assert [one["round"] for one in records if one["kind"] == "restart"] == [3, 5]


def test_rounds_do_not_begin_anew_from_another_layout_nor_where_there_are_none(
    pulse: Pulse, at: tuple[object, ...], root: Path
) -> None:
    with pulse_registry.open(root, run="math") as outsider:
        outsider.push(8, {"other": np.zeros(4, np.float32)})
    found = pulse("outer", "restart", *at, "--json")
    assert (found.code, found.json["error"]) == (2, "InvalidArgument")
    assert "push a version of theirs" in found.json["message"]
    with pulse_registry.open(root, run="plain") as plain:
        plain.push(0, outer_model())
    assert pulse("outer", "restart", "--root", root, "--run", "plain", "--json").json["error"] == "NotFound"


def test_a_contribution_that_is_gone_or_damaged_is_named(pulse: Pulse, at: tuple[object, ...], root: Path) -> None:
    folder = root / "math" / "outer" / "objects" / "contribution"
    second = next(path for path in folder.iterdir() if path.name.startswith("000000000002-us-1-"))
    held = bytearray(second.read_bytes())
    held[-1] ^= 1
    second.write_bytes(held)
    found = pulse("outer", "verify", *at, "--json")
    assert (found.code, found.json["error"], second.name in found.json["message"]) == (6, "CorruptObject", True)
    second.unlink()
    found = pulse("outer", "verify", *at, "--json")
    assert (found.code, found.json["error"]) == (3, "NotFound")


def test_rounds_begin_anew_where_a_contribution_to_one_is_damaged(
    pulse: Pulse, at: tuple[object, ...], root: Path
) -> None:
    with pulse_registry.open(root, run="math") as registry:
        models = {name: outer_model() for name in ("eu-1", "us-1")}
        sessions = [registry.outer(model, member=name, inner_steps=1, quorum=2) for name, model in models.items()]
        for session in sessions:
            session.join()
        for session, model in zip(sessions, models.values(), strict=True):
            model["a"] += 1.0
            session.contribute()  # the round ends, and then both die
    [sent] = (root / "math" / "outer" / "objects" / "contribution").glob(f"{ROUNDS + 1:012d}-us-1-*")
    sent.write_bytes(sent.read_bytes()[:-1] + b"?")
    with pytest.raises(CorruptObject, match=sent.name):
        make_rounds(str(root), "math", 1)
    refused = pulse("outer", "restart", *at, "--json")
    assert refused.code == 2
    assert "push the newest version once more" in refused.json["message"]
    with pulse_registry.open(root, run="math") as operator:
        operator.push(8, operator.load("latest", framework="numpy"))
    assert pulse("outer", "restart", *at, "--json").json == {"restarted": True, "round": ROUNDS + 1}
    make_rounds(str(root), "math", 2)
    assert [one["round"] for one in pulse("outer", "verify", *at, "--json").json["rounds"]] == [5, 6]


@pytest.mark.parametrize("command", ["log", "members", "verify"])
def test_a_run_without_outer_rounds_has_none(pulse: Pulse, command: str, root: Path) -> None:
    found = pulse("outer", command, "--root", root, "--run", "other", "--json")
    assert (found.code, found.json["error"]) == (3, "NotFound")
    assert "has no outer rounds" in found.json["message"]


LONG = 14


@pytest.fixture(scope="module")
def long(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A registry with a run of so many rounds that checkpoints were written."""
    root = tmp_path_factory.mktemp("long") / "registry"
    make_rounds(str(root), "math", LONG)
    return root


def checkpoints(root: Path) -> list[int]:
    state = OuterLog(PrefixStore(FileStore(root), "math"), "math", whole=True).refresh()
    return [one.round for one in state.checkpoints]


@pytest.mark.slow
def test_rounds_are_made_anew_from_a_checkpoint_on_and_checkpoints_are_compared(pulse: Pulse, long: Path) -> None:
    at = "--root", long, "--run", "math"
    there = checkpoints(long)
    assert there
    whole = pulse("outer", "verify", *at, "--json").json
    assert (whole["verified"], len(whole["rounds"])) == (True, LONG)
    assert [one["round"] for one in whole["rounds"] if one["checkpoint"]] == there
    assert all(one["checkpoint"] in (True, None) for one in whole["rounds"])
    some = pulse("outer", "verify", *at, "--from", there[0], "--json").json
    assert some["verified"]
    assert some["rounds"] == whole["rounds"][there[0] :]
    none = pulse("outer", "verify", *at, "--from", LONG + 1, "--json")
    assert (none.code, none.json["error"]) == (3, "NotFound")


def test_a_checkpoint_of_another_momentum_is_named(pulse: Pulse, long: Path, tmp_path: Path) -> None:
    root = tmp_path / "registry"
    shutil.copytree(long, root)
    log = OuterLog(PrefixStore(FileStore(root), "math"), "math", whole=True)
    (first, *_) = log.refresh().checkpoints
    # A record says that a later checkpoint has the momentum of an earlier one.
    log.append(
        lambda _, common: CheckpointRecord(
            **common, round=LONG, object=first.object, parts=first.parts, theta=first.theta, momentum=first.momentum
        )
    )
    found = pulse("outer", "verify", "--root", root, "--run", "math", "--json")
    assert (found.code, found.json["differs"], found.json["rounds"][-1]["checkpoint"]) == (5, LONG, False)
    assert "than its checkpoint tells of" in pulse("outer", "verify", "--root", root, "--run", "math").out


@pytest.mark.slow
def test_merged_contributions_are_compared_with_what_members_have_sent(
    pulse: Pulse, made: Path, tmp_path: Path
) -> None:
    root = tmp_path / "registry"
    shutil.copytree(made, root)
    at = "--root", root, "--run", "math"
    assert pulse("compact", *at).code == 0
    state = OuterLog(PrefixStore(FileStore(root), "math"), "math", whole=True).refresh()
    assert state.merged
    found = pulse("outer", "verify", *at, "--json").json
    assert found["verified"]
    assert [one["round"] for one in found["rounds"] if one["merged"]] == sorted(state.merged)

    # Another run's totals, which say of themselves that they are of this round.
    other = tmp_path / "other"
    make_rounds(str(other), "math", 1, members=("eu-1", "us-1", "us-2"))
    assert pulse("compact", "--root", other, "--run", "math").code == 0
    forged = OuterLog(PrefixStore(FileStore(other), "math"), "math", whole=True).refresh().merged[1]
    shutil.copytree(made, tmp_path / "plain")
    log = OuterLog(PrefixStore(FileStore(tmp_path / "plain"), "math"), "math", whole=True)
    log.append(
        lambda _, common: MergedRecord(
            **common, round=1, exponent=forged.exponent, entries=forged.entries, object=forged.object
        )
    )
    (there := tmp_path / "plain" / "math" / "outer" / forged.object.key).parent.mkdir(parents=True)
    shutil.copy(other / "math" / "outer" / forged.object.key, there)
    found = pulse("outer", "verify", "--root", tmp_path / "plain", "--run", "math", "--json")
    assert (found.code, found.json["differs"], found.json["rounds"][0]["merged"]) == (5, 1, False)
    assert "than its merged one" in pulse("outer", "verify", "--root", tmp_path / "plain", "--run", "math").out


def test_a_collection_and_a_compaction_tell_of_rounds(pulse: Pulse, at: tuple[object, ...], root: Path) -> None:
    made = pulse("compact", *at, "--json").json["made"]
    assert [one["target"] for one in made if one["kind"] == "round"] == [1, 2, 3]
    late = next((root / "math" / "outer" / "objects" / "contribution").iterdir())
    late.with_name(late.name.replace("-us-1-", "-us-2-").replace("-eu-1-", "-eu-2-")).write_bytes(b"too late")
    options = ("--keep-last", "1", "--keep-for", "0s", "--orphans", "0s", "--grace", "0s")
    plan = pulse("gc", *at, *options, "--json").json
    assert {"version": 0, "why": "outer rounds began with it"} in plan["kept"]
    assert plan["rounds"] == {"round": 0, "retired": 0, "deleted": 1, "orphans": 1, "waiting": 0, "snapshots": 0}
    shown = pulse("gc", *at, *options, "--delete").out
    assert "outer rounds: 1 objects deleted, 1 of which no record names" in shown
    assert pulse("outer", "verify", *at).code == 0
    assert pulse("verify", "--all", root).code == 0
