"""Are listings complete and in order? Snapshots of a log, runs and what may be deleted are found through them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from itertools import islice, pairwise

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, unsafe, warn
from pulse_registry.errors import StoreUnavailable
from pulse_registry.store import Store

_LOG = "listing/log/"
_ALIKE = "listing/alike/"
# By code points '-' < '.' < '/' < '0' < '_': a store that keeps folders as a tree lists all of `a/` before `a-b`.
_NAMES = ("a-b/x", "a.b/x", "a/b-c", "a/b/c", "a/b0", "a0/x", "a_b/x", "aa/x", "z/0", "z/00")
_WAY_OUT = (
    "keep the registry on another store, or upgrade this one: a listing out of order, or with holes, hides snapshots, "
    "runs and objects"
)


def listings_are_complete(store: Store, context: Context) -> Finding:
    """List more keys of a log than fit into one answer of S3, and by prefixes that are no folders."""
    keys = _fill(store, context)
    wrong = 0
    for prefix in (_LOG, _LOG[:-2], f"{_LOG}00000000000", f"{_LOG}none"):
        wrong += _first(context.observer.list(prefix), keys) != [key for key in keys if key.startswith(prefix)]
    listed = _first(store.list(_LOG), keys)
    evidence: Evidence = {
        "keys": len(keys),
        "missing": len(set(keys) - set(listed)),
        "twice": len(listed) - len(set(listed)),
        "foreign": len(set(listed) - set(keys)),
        "out of order": sum(left > right for left, right in pairwise(listed)),
        "wrong listings": wrong,
    }
    if wrong or listed != keys:
        return unsafe("listings are not complete, or not in order", _WAY_OUT, evidence)
    return ok("listings are complete and in order, over several pages", evidence)


def listings_go_on_after_a_key(store: Store, context: Context) -> Finding:
    """List what comes after a key, after a string between two keys, and after the last one."""
    keys = _fill(store, context)
    starts = (keys[0], keys[len(keys) // 2], keys[-2], keys[-1], f"{keys[0]}0", f"{_LOG}0", f"{_LOG}~")
    wrong = sum(_first(store.list(_LOG, start), keys) != [key for key in keys if key > start] for start in starts)
    evidence: Evidence = {"listings": len(starts), "wrong": wrong}
    if wrong:
        return unsafe("a listing that should go on after a key begins elsewhere", _WAY_OUT, evidence)
    return ok("a listing goes on after any string", evidence)


def names_that_begin_alike_are_listed(store: Store, context: Context) -> Finding:
    """List folders whose names begin alike, as those of the runs ``math`` and ``math-7b`` do."""
    keys = sorted(_ALIKE + name for name in _NAMES)
    context.spread([partial(store.put, key, b"x") for key in keys])
    wrong = sum(_listed(context, start) != [key for key in keys if key > start] for start in ("", *keys))
    evidence: Evidence = {"listings": 1 + len(keys), "wrong": wrong}
    if wrong:
        return warn(
            "folders whose names begin alike are listed out of order, or not at all",
            "give runs of one root names of which none begins with another: of math and math-7b, a list of all runs "
            "may leave one out. What is in a run is not affected",
            evidence,
        )
    return ok("folders whose names begin alike are listed in code-point order", evidence)


def _first(listed: Iterator[str], keys: Sequence[str]) -> list[str]:
    """Return the beginning of a listing, which might have no end: three times the keys that there are."""
    return [*islice(listed, 3 * len(keys))]


def _listed(context: Context, start: str) -> Sequence[str] | None:
    try:
        return _first(context.bare.list(_ALIKE, start or None), _NAMES)
    except StoreUnavailable:
        return None


def _fill(store: Store, context: Context) -> list[str]:
    """Put the keys that the checks list, unless they are there, and return them in order."""
    keys = [f"{_LOG}{number:012d}.json" for number in range(context.plan.listed)]
    if not store.exists(keys[-1]):
        context.spread([partial(store.put, key, b"x") for key in keys[:-1]])
        store.put(keys[-1], b"x")
    return keys
