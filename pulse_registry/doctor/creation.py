"""Does create-if-absent have exactly one winner? The log stands on this: each of its numbers is given away once."""

from __future__ import annotations

from collections import Counter

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Evidence, Finding, ok, unsafe, warn
from pulse_registry.doctor.race import content_of, judge, race
from pulse_registry.errors import AlreadyExists, StoreUnavailable
from pulse_registry.store import Store
from pulse_registry.testing import Fault, FaultStore

_WAY_OUT = (
    "let one trainer at a time write here, and no compactor beside it; or let all commit through the service (pulse "
    "serve, one replica), which makes the records of a run one after the other; or keep the registry on a store that "
    "has conditional writes"
)
_SIZES = (2_000, 60_000)  # a record of the log, and one that names many objects


def creates_refuse_taken_keys(store: Store, context: Context) -> Finding:
    """Create a key, create it again with other bytes, through both clients; then delete it and create it anew."""
    key = "creation/taken.json"
    store.put(key, b"first", if_absent=True)
    overwritten = sum(not _refuses(client, key, b"second") for client in (store, context.observer))
    kept = content_of(context.observer, key) == b"first"
    store.delete(key)
    freed = not _refuses(store, key, b"third")
    evidence: Evidence = {"overwritten": overwritten, "first bytes kept": str(kept).lower()}
    if overwritten or not kept:
        return unsafe("a second create of a key succeeds, and replaces the first", _WAY_OUT, evidence)
    if not freed:
        return warn(
            "a key that was deleted can't be created again",
            "look for a retention rule or a cache on the bucket; the registry itself never uses a key twice",
            evidence,
        )
    return ok("a create of a taken key is refused and changes nothing", evidence)


def creates_have_one_winner(store: Store, context: Context) -> Finding:
    """Let many writers create the same key at once, round after round."""
    problems: Counter[str] = Counter()
    most = unsure = 0
    slowest = 0.0
    for turn in range(context.plan.rounds):
        key = f"creation/race/{turn:012d}.json"
        size = _SIZES[turn % len(_SIZES)]
        bodies = [(f"{turn} {racer} " * size).encode()[:size] for racer in range(context.plan.racers)]
        attempts = race(context, key, bodies)
        problems += judge(attempts, content_of(context.observer, key))
        most = max(most, sum(attempt.outcome == "won" for attempt in attempts))
        unsure += sum(attempt.unsure for attempt in attempts)
        slowest = max(slowest, *(attempt.seconds for attempt in attempts))
    evidence: Evidence = {
        "rounds": context.plan.rounds,
        "racers": context.plan.racers,
        "most winners in a round": most,
        "asked to try again": unsure,
        "slowest racer, s": round(slowest, 3),
        **problems,
    }
    if problems:
        return unsafe(
            f"of {context.plan.racers} writers that create one key at once, not exactly one wins: up to {most} did",
            _WAY_OUT,
            evidence,
        )
    return ok("of many writers that create the same key at once, exactly one wins, and its bytes stay", evidence)


def lost_answers_can_be_told(store: Store, context: Context) -> Finding:
    """Drop the answer of a create that succeeded, and try again, as a writer on a bad network would."""
    confused = 0
    for sample in range(context.plan.rounds):
        key = f"creation/lost/{sample:012d}.json"
        deaf = FaultStore(store, [Fault("fail_after", verb="put", nth=1)])
        mine = f"the writer of {sample}".encode()
        try:
            deaf.put(key, mine, if_absent=True)
        except StoreUnavailable:
            retried = _refuses(deaf, key, mine)
            rival = _refuses(context.observer, key, b"a rival")
            confused += not (retried and rival and content_of(store, key) == mine)
    evidence: Evidence = {"answers dropped": context.plan.rounds, "not told afterwards": confused}
    if confused:
        return unsafe(
            "a writer that lost an answer can't find out whether its record is there",
            _WAY_OUT,
            evidence,
        )
    return ok("a second try is refused, and reads back its own bytes: the writer knows that it won", evidence)


def large_creates_have_one_winner(store: Store, context: Context) -> Finding:
    """Create an object that goes in parts on a taken key, and let two writers race for a free one."""
    first = context.rng.randbytes(context.plan.large_bytes)
    second = first[1:]
    store.put("creation/large", first, if_absent=True)
    refused = _refuses(store, "creation/large", second)
    kept = content_of(store, "creation/large") == first
    attempts = race(context, "creation/large-race", (first, second))
    problems = judge(attempts, content_of(store, "creation/large-race"))
    evidence: Evidence = {
        "bytes": context.plan.large_bytes,
        "taken key refused": str(refused).lower(),
        "bytes kept": str(kept).lower(),
        **problems,
    }
    if problems or not refused or not kept:
        return warn(
            "creates of objects that are uploaded in parts are not conditional",
            "objects have names of their own, so that honest writers don't meet; but whoever may write can replace a "
            "large object: readers refuse it (BLAKE3), and it is lost. Turn on versioning, or use a newer release of "
            "the store",
            evidence,
        )
    return ok("objects that are uploaded in parts have one winner too", evidence)


def _refuses(store: Store, key: str, body: bytes) -> bool:
    try:
        store.put(key, body, if_absent=True)
    except AlreadyExists:
        return True
    return False
