"""Do ranged reads give the bytes that were asked for? Large objects are fetched in pieces."""

from __future__ import annotations

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, unsafe
from pulse_registry.errors import CorruptObject
from pulse_registry.store import Store

_KEY = "ranges/object"
_BYTES = 300_000


def ranges_are_exact(store: Store, context: Context) -> Finding:
    """Read ranges of an object, from single bytes to all of it, and one past its end."""
    data = context.rng.randbytes(_BYTES)
    store.put(_KEY, data)
    ranges = [(0, 1), (0, _BYTES), (_BYTES - 1, _BYTES), (_BYTES // 2, _BYTES // 2), (1, _BYTES - 1)]
    ranges += [tuple(sorted(context.rng.sample(range(_BYTES + 1), 2))) for _ in range(context.plan.samples)]  # type: ignore[misc]
    wrong = sum(store.get(_KEY, (start, stop)) != data[start:stop] for start, stop in ranges)
    past = sum(_reads_past(store, span) for span in ((_BYTES - 1, _BYTES + 1), (_BYTES + 5, _BYTES + 10)))
    evidence: Evidence = {"ranges": len(ranges), "wrong": wrong, "answered past the end": past}
    if wrong or past:
        return unsafe(
            "ranged reads return other bytes than were asked for",
            "keep the registry on another store, or take away the proxy that drops the Range header: pulls of large "
            "objects fail here",
            evidence,
        )
    return ok("ranged reads return exactly the bytes asked for, and refuse what is past the end", evidence)


def _reads_past(store: Store, span: tuple[int, int]) -> bool:
    try:
        store.get(_KEY, span)
    except CorruptObject:
        return False
    return True
