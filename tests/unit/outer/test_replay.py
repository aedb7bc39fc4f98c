"""Rounds that are made again from what is stored, also once their beginning was retired and deleted."""

from __future__ import annotations

import pytest

from pulse_registry.outer.log import OuterLog
from pulse_registry.outer.replay import Replayed, replay
from pulse_schemas.outer import CheckpointRecord
from tests.unit.outer.sessions import BACKEND, GEOMETRY
from tests.unit.outer.test_checkpoints import Team
from tests.unit.retention.test_rounds import after, collect


def replayed(team: Team) -> list[Replayed]:
    versions = team.site.versions
    log = OuterLog(team.site.store, "run", whole=True)
    return [
        *replay(
            log,
            team.site.store,
            BACKEND,
            lambda _: GEOMETRY,
            lambda version, *_: versions.load(version).copy_of,
            versions.digest,
        )
    ]


def test_all_rounds_are_made_again_and_those_after_a_checkpoint_where_the_others_were_deleted() -> None:
    team = after(3)
    last = team.sessions["a"].round
    found = replayed(team)
    assert [one.round for one in found] == list(range(1, last + 1))
    assert not any(one.differs for one in found)
    for _ in range(2):
        collect(team.site.store)
    retired = team.state().retired
    assert retired > 0
    again = replayed(team)
    assert [one.round for one in again] == list(range(retired + 1, last + 1))
    assert [one.digest for one in again] == [one.digest for one in found[retired:]]
    assert all(one.committed is not None for one in again)


@pytest.mark.parametrize("which", ["theta", "momentum"])
def test_a_checkpoint_that_is_not_what_the_rounds_came_to_is_told(which: str) -> None:
    team = after(1)
    record = team.state().checkpoints[0]
    other = record.model_copy(update={which: "0" * 32})
    lying = team.sessions["a"].round

    def wanted(_: object, common: dict[str, object]) -> CheckpointRecord:
        fields = {"round": lying, "object": record.object, "parts": record.parts}
        return CheckpointRecord(**common, **fields, theta=other.theta, momentum=other.momentum)  # type: ignore[arg-type]

    team.round()
    lying = team.sessions["a"].round
    OuterLog(team.site.store, "run").append(wanted)
    found = {one.round: one for one in replayed(team)}
    assert [one.round for one in found.values() if one.differs] == [lying]
    assert (found[lying].checkpoint, found[record.round].checkpoint) == (False, True)
