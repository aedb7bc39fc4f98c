"""``python -m tests.unit.log.vast NAME``: logs that are valid, and of which each record would cost by those before it.

It is ended when it has used SECONDS of processor time. Where a record costs by its own bytes, it takes some.
"""

from __future__ import annotations

import resource
import sys
from collections.abc import Callable
from typing import Any

from pulse_registry.compaction.ladder import CompactOptions, due
from pulse_registry.format.keys import patch_key
from pulse_registry.log import RunState
from pulse_registry.log.fold import advance
from pulse_registry.log.keyframe_due import keyframe_due
from pulse_registry.retention.plan import Needs, plan_gc
from pulse_registry.retention.policy import RetentionPolicy
from pulse_schemas import AttachRecord, DeleteRecord, RetireRecord, Snapshot, VersionEntry
from tests.support.records import LAYOUT, RUN, WHEN, chain, keyframe, patch, write_id

SECONDS = 18
MANY = 8_000


class Follower:
    """Folds records one at a time, each into a copy of the state before it, as who follows a log does."""

    def __init__(self, state: RunState) -> None:
        self.state = state

    def add(self, kind: Any, **fields: Any) -> None:
        state = self.state.copy()
        # Built without the schemas' checks, which would take most of the time.
        common = {"run": RUN, "seq": state.seq + 1, "epoch": 1, "write_id": write_id(0), "created_at": WHEN}
        record = kind.model_construct(**common, previous=state.last, **fields)
        advance(state, record, f"{record.seq:064x}")
        self.state = state


def patches_of_one_pair() -> None:
    follower = Follower(chain(3).state)
    patches = [patch(0, 2, tag=100 + n) for n in range(MANY)]
    for one in patches:
        follower.add(AttachRecord, patches=(one,), keyframes=())
    assert follower.state.patches_into(2)[1:] == tuple(patches)
    for one in patches:
        follower.add(RetireRecord, versions=(), keys=(one.object.key,))
    assert len(follower.state.patches_from(0)) == 1
    assert len(follower.state.edges) == 5


def keyframes_of_one_version() -> None:
    follower = Follower(chain(3).state)
    for n in range(MANY):
        follower.add(AttachRecord, patches=(), keyframes=(keyframe(1, size=10_000 - n % 100, tag=100 + n),))
    state = follower.state
    plan = plan_gc(state, RetentionPolicy(), Needs({}, 0, ()))
    assert len(plan.keys) == MANY - 1
    for key in plan.keys:
        follower.add(RetireRecord, versions=(), keys=(key,))
    assert len(follower.state.keyframes_of(1)) == 1


def deletions_while_much_is_retired() -> None:
    follower = Follower(chain(3).state)
    keys = tuple(patch_key(0, 2, write_id(n)) for n in range(20 * MANY))
    follower.add(RetireRecord, versions=(), keys=keys[MANY // 4 :])
    for key in keys[: MANY // 4]:
        follower.add(RetireRecord, versions=(), keys=(key,))
        follower.add(DeleteRecord, until=follower.state.seq)
    assert len(follower.state.retired_keys) == len(keys)


def versions_far_apart() -> None:
    state = _sparse([0, 10**9, 10**12 - 1])
    assert keyframe_due(state, 1 << 40, every=None, share=0.5)
    assert not [*due(state, CompactOptions(keyframe_every=10**12 + 1))]


def _sparse(numbers: list[int]) -> RunState:
    versions = tuple(
        VersionEntry.model_construct(
            version=number, seq=n + 1, step=n, layout=LAYOUT, digest="f" * 32, changed=1, cells=9, created_at=WHEN
        )
        for n, number in enumerate(numbers)
    )
    snapshot = Snapshot.model_construct(
        run=RUN, seq=len(numbers), last="0" * 64, epoch=1, count=numbers[-1] + 1, versions=versions, patches=()
    )
    return RunState.from_snapshot(snapshot.model_copy(update={"keyframes": ()}))


LOGS: dict[str, Callable[[], None]] = {
    made.__name__: made
    for made in (
        patches_of_one_pair,
        keyframes_of_one_version,
        deletions_while_much_is_retired,
        versions_far_apart,
    )
}

if __name__ == "__main__":
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS))
    LOGS[sys.argv[1]]()
