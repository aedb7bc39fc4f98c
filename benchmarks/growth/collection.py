"""Garbage collection of a run that many hold: readers by leases, people by tags; and as many orphans.

Each reader holds another version, so that each has a route of its own to the newest one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial

from benchmarks.growth.curve import Curve, curve_of, processor_ms
from benchmarks.routes import Shape, a_run
from pulse_registry.format import keys
from pulse_registry.log import LogReader, LogWriter, RunState
from pulse_registry.log.fold import advance
from pulse_registry.retention import Collector, Plan, RetentionPolicy, plan_gc
from pulse_registry.retention.plan import Needs, harm
from pulse_registry.testing import CountingStore
from pulse_schemas import Lease, RetireRecord, TagRecord
from tests.support.records import RUN, WHEN, DictStore, chain, clock, ids, patch, write_id

POLICY = RetentionPolicy(keep_last=10, keep_seconds=0, orphan_seconds=0)
_SHAPE = Shape("a full ladder, keyframes", ladder=True, keyframe_every=200)
_ANY_HASH = "0" * 64


@dataclass(frozen=True, slots=True)
class Crowd:
    """A run, and what is asked of its versions."""

    state: RunState
    needs: Needs

    @classmethod
    def of(cls, number: int) -> Crowd:
        """Return a run of 2 x ``number`` versions, half of them held by readers, with so many tags and orphans."""
        state = a_run(_SHAPE, 2 * number)
        for tag in range(number):
            version = 4 * tag % (2 * number)
            advance(state, TagRecord(**_shared(state), name=f"tag-{tag}", version=version), _ANY_HASH)
        orphans = (patch(2 * at, 2 * at + 1, tag=7).object.key for at in range(number))
        held = {f"reader-{at}": 2 * at for at in range(number)}
        return cls(state, Needs(held, young_from=2 * number, orphans=tuple(orphans)))

    def plan(self) -> Plan:
        """Plan what to retire."""
        return plan_gc(self.state, POLICY, self.needs)

    def look_again(self, plan: Plan, after: RunState) -> None:
        """Look whether the plan does harm.

        Raises:
            ValueError: it does.
        """
        wrong = harm(self.state, after, plan, self.needs.held)
        if wrong is not None:
            raise ValueError(wrong)

    def after(self, plan: Plan) -> RunState:
        """Return the state once all of a plan is retired."""
        after = self.state.copy()
        gone = RetireRecord(**_shared(after), versions=plan.versions, keys=(*plan.keys, *plan.orphans))
        advance(after, gone, _ANY_HASH)
        return after


def curves(quick: bool) -> list[Curve]:
    """Measure."""
    sizes = (10, 100) if quick else (100, 1_000, 10_000)
    return [
        _curve(
            "collection.plan", "plan what to retire", "ms", sizes, lambda number: processor_ms(Crowd.of(number).plan, 2)
        ),
        _curve("collection.harm", "look whether a plan does harm", "ms", sizes, _harm_ms),
        _curve("collection.requests", "look at leases and orphans", "requests", sizes, requests),
    ]


def requests(number: int) -> int:
    """Return the requests of a collection that only looks at so many leases, and as many orphans."""
    store = CountingStore(chain(3).store_in(DictStore()))
    for at in range(number):
        lease = Lease(run=RUN, reader=f"reader-{at}", version=at % 3, seconds=3600)
        store.put(keys.lease_key(lease.reader), lease.seal())
        store.put(patch(2, 3, tag=at + 1).object.key, b"x")
    reader = LogReader(store, RUN)
    collector = Collector(store, RUN, reader, LogWriter(store, RUN, reader, clock(), ids(), "gc"), partial(write_id, 9))
    store.reset()
    found = collector.collect(POLICY, dry_run=True)
    if (len(found.held), len(found.plan.orphans)) != (number, number):
        raise ValueError(f"{len(found.held)} leases and {len(found.plan.orphans)} orphans were found of {number}")
    return store.calls.total()


def _harm_ms(number: int) -> float:
    crowd = Crowd.of(number)
    plan = crowd.plan()
    return processor_ms(partial(crowd.look_again, plan, crowd.after(plan)), 2)


def _curve(key: str, what: str, unit: str, sizes: Iterable[int], cost: Callable[[int], float]) -> Curve:
    costs: Iterator[tuple[int, float]] = ((size, cost(size)) for size in sizes)
    return curve_of(key, what, "leases, tags and orphans each", unit, costs, "exponent", 1.15)


def _shared(state: RunState) -> dict[str, object]:
    fields = {"run": state.run, "seq": state.seq + 1, "epoch": state.epoch, "write_id": write_id(9)}
    return fields | {"previous": state.last, "created_at": WHEN}
