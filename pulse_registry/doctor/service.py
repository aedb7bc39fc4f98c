"""Checks of a service, which takes no keys of the doctor's own and keeps the store behind it to itself."""

from __future__ import annotations

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, warn
from pulse_registry.store import Store

_SLOW_S = 0.5


def the_service_takes_commits_in_turn(store: Store, context: Context) -> Finding:
    """Ask the service for a run that does not exist: whether it is there, and takes the token."""
    store.exists("head")
    return warn(
        "the service answers, and each of its replicas takes commits one after the other; the store behind it can't be "
        "examined from here",
        "with one replica that is safe on any store; with several, run pulse doctor on the bucket's own URL, with the "
        "service's keys",
    )


def the_service_answers_quickly(store: Store, context: Context) -> Finding:
    """Ask small questions one after the other."""
    times = []
    for _ in range(context.plan.samples):
        began = context.clock()
        store.exists("head")
        times.append(context.clock() - began)
    times.sort()
    evidence: Evidence = {
        "p50, ms": round(1e3 * times[len(times) // 2], 2),
        "p99, ms": round(1e3 * times[min(int(0.99 * len(times)), len(times) - 1)], 2),
    }
    if times[len(times) // 2] > _SLOW_S:
        return warn("the service takes long to answer", "look at its metrics, and at the way to it", evidence)
    return ok("the service answers quickly", evidence)
