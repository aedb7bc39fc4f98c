"""How fast is the store from here? Nothing of the contract, but what a push and a pull will cost."""

from __future__ import annotations

from collections.abc import Callable

from pulse_registry.doctor.context import MB, MOST_BYTES, Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, warn
from pulse_registry.store import Store

_SMALL_BYTES = 2_000
_SLOW_S = 0.5
_SLOW_MB_S = 10.0
_LEAST_S = 1.0


def small_objects_are_quick(store: Store, context: Context) -> Finding:
    """Create and read small objects one after the other: a commit is one of each."""
    data = context.rng.randbytes(_SMALL_BYTES)
    keys = [f"speed/small/{number:06d}" for number in range(context.plan.samples)]
    creates = sorted(_seconds(context, lambda key=key: store.put(key, data, if_absent=True)) for key in keys)  # type: ignore[misc]
    gets = sorted(_seconds(context, lambda key=key: store.get(key, max_bytes=MOST_BYTES)) for key in keys)  # type: ignore[misc]
    evidence: Evidence = {
        "create p50, ms": _milliseconds(creates, 0.5),
        "create p99, ms": _milliseconds(creates, 0.99),
        "get p50, ms": _milliseconds(gets, 0.5),
        "get p99, ms": _milliseconds(gets, 0.99),
    }
    if max(creates[len(creates) // 2], gets[len(gets) // 2]) > _SLOW_S:
        return warn(
            "the store takes long to answer",
            "keep trainer, service and bucket in one region: each version costs a few requests one after the other",
            evidence,
        )
    return ok("small objects are quick", evidence)


def large_objects_are_quick(store: Store, context: Context) -> Finding:
    """Put and get a large object, once each: a keyframe is a few of these."""
    data = context.rng.randbytes(context.plan.large_bytes)
    put = _seconds(context, lambda: store.put("speed/large", data))
    get = _seconds(context, lambda: store.get("speed/large", max_bytes=MOST_BYTES))
    rates = [len(data) / MB / max(seconds, 1e-9) for seconds in (put, get)]
    evidence: Evidence = {"bytes": len(data), "put, MB/s": round(rates[0], 1), "get, MB/s": round(rates[1], 1)}
    # What is over in a moment tells the latency, and no rate.
    if min(rates) < _SLOW_MB_S and max(put, get) >= _LEAST_S:
        return warn(
            f"large objects move at under {_SLOW_MB_S:.0f} MB/s",
            "fewer keyframes and merged patches help readers that are far behind; a bucket nearer to them helps more",
            evidence,
        )
    return ok("large objects move well", evidence)


def _seconds(context: Context, call: Callable[[], object]) -> float:
    began = context.clock()
    call()
    return context.clock() - began


def _milliseconds(ordered: list[float], quantile: float) -> float:
    return round(1e3 * ordered[min(int(quantile * len(ordered)), len(ordered) - 1)], 2)
