"""Is a put all or nothing? Readers look on while writers replace an object."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial

from pulse_registry.doctor.context import MOST_BYTES, Context
from pulse_registry.doctor.finding import Finding, ok, unsafe
from pulse_registry.errors import CorruptObject, NotFound
from pulse_registry.store import Store

_KEY = "atomicity/object"
_WRITERS = 3
_READERS = 3
_LEAST_BYTES = 100_000


def puts_are_whole(store: Store, context: Context) -> Finding:
    """Replace an object again and again, by bodies of one byte each and of different sizes, and read it meanwhile."""
    done = threading.Event()

    def write(writer: int) -> None:
        for turn in range(context.plan.samples):
            store.put(_KEY, _body(writer + turn * _WRITERS))

    def read() -> Counter[str]:
        seen = Counter([_look(context.observer)])
        while not done.is_set():
            seen[_look(context.observer)] += 1
        return seen

    store.put(_KEY, _body(0))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="pulse-doctor") as pool:
        readers = [pool.submit(read) for _ in range(_READERS)]
        writers: list[Callable[[], None]] = [partial(write, writer) for writer in range(_WRITERS)]
        try:
            context.together(writers)
        finally:
            done.set()
    seen = sum((reader.result() for reader in readers), Counter[str]())
    evidence = {
        "writes": _WRITERS * context.plan.samples,
        "reads": seen.total(),
        "torn": seen["torn"],
        "none": seen["none"],
    }
    if seen["torn"] or seen["none"]:
        return unsafe(
            "readers see a part of an object, or none, while it is replaced",
            "keep the registry on another store: readers take half an object for a damaged one, and fail",
            evidence,
        )
    return ok("readers saw whole objects only while writers replaced them", evidence)


def _body(number: int) -> bytes:
    """Return a body that tells its own size: a byte, repeated as often as the byte says."""
    fill = number % 251
    return bytes([fill]) * (_LEAST_BYTES + fill * 400)


def _look(store: Store) -> str:
    try:
        data = store.get(_KEY, max_bytes=MOST_BYTES)
    except NotFound:
        return "none"
    except CorruptObject:
        return "torn"
    return "whole" if data and data == _body(data[0]) else "torn"
