"""Do reads see completed writes? Through the client that wrote, and through a second one that remembers nothing."""

from __future__ import annotations

from pulse_registry.doctor.context import Context
from pulse_registry.doctor.finding import Finding, ok, unsafe
from pulse_registry.doctor.race import content_of
from pulse_registry.errors import NotFound
from pulse_registry.store import Store

_STALE = (
    "turn off what caches between here and the store (a proxy, a gateway's or a mount's cache), or keep the registry "
    "on another store: a trainer that reads an old log is told that it won when it lost"
)


def reads_see_writes(store: Store, context: Context) -> Finding:
    """Look for a key before it is there, write it, replace it, and read after each, in two clients."""
    stale = 0
    for sample in range(context.plan.samples):
        key = f"visibility/read/{sample:04d}"
        clients = (store, context.observer)
        stale += sum(content_of(client, key) is not None or client.exists(key) for client in clients)
        for text in (f"first {sample}".encode(), f"the second {sample}".encode()):
            store.put(key, text)
            for client in clients:
                stale += not (
                    content_of(client, key) == text and client.exists(key) and _size(client, key) == len(text)
                )
    evidence = {"reads": context.plan.samples * 6, "stale": stale}
    if stale:
        return unsafe("reads miss writes that had completed, or return what was there before", _STALE, evidence)
    return ok("every read saw the write before it", evidence)


def listings_see_writes(store: Store, context: Context) -> Finding:
    """List a folder after each write and each delete, in two clients."""
    keys: list[str] = []
    stale = 0
    changes = min(context.plan.samples, 25)
    clients = (store, context.observer)
    for sample in range(changes):
        keys.append(f"visibility/list/{sample:04d}")
        store.put(keys[-1], b"x")
        stale += sum([*client.list("visibility/list/")] != keys for client in clients)
    while keys:
        store.delete(keys.pop())
        stale += sum([*client.list("visibility/list/")] != keys for client in clients)
    evidence = {"listings": 4 * changes, "stale": stale}
    if stale:
        return unsafe("listings miss keys that were written, or show keys that were deleted", _STALE, evidence)
    return ok("every listing showed the writes and deletes before it", evidence)


def reads_see_deletes(store: Store, context: Context) -> Finding:
    """Delete keys, read them, and delete them once more."""
    left = 0
    for sample in range(context.plan.samples):
        key = f"visibility/delete/{sample:04d}"
        store.put(key, b"x")
        store.delete(key)
        for client in (store, context.observer):
            left += content_of(client, key) is not None or client.exists(key) or _size(client, key) is not None
        store.delete(key)
    evidence = {"deletes": context.plan.samples, "still there": left}
    if left:
        return unsafe(
            "deleted objects can still be read",
            f"{_STALE}. On a bucket, also look whether the credentials may delete",
            evidence,
        )
    return ok("what is deleted is gone, and to delete it again is no error", evidence)


def _size(store: Store, key: str) -> int | None:
    try:
        return store.size(key)
    except NotFound:
        return None
