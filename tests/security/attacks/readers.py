"""Who reads hostile files: each reader returns the error that it got, after it has checked that nothing was changed.

``pull``: a worker that holds version 0 pulls version 1. ``join``: one that holds nothing does. ``log``: a reader folds
all records. ``hint``: it opens the log by its hints. ``trusted``: it pins keys. ``lease``: the garbage collector reads
leases. ``import``: a trainer imports folders of the common delta format.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from pulse_kernels import BackendName
from pulse_registry.errors import PulseError
from pulse_registry.interop import import_folder
from pulse_registry.log import LogReader
from pulse_registry.retention.leases import read_leases
from pulse_registry.retention.policy import RetentionPolicy
from pulse_registry.signing import PinGuard, Trust
from pulse_registry.store import PrefixStore
from tests.security.attacks.row import Ignored, Reader
from tests.security.attacks.runs import ATTACHER, TRUSTED, Run
from tests.support.records import DictStore
from tests.support.registries import RUN, bits, copied, garbage, quick
from tests.support.states import said

_NOW = datetime(2026, 1, 2, tzinfo=UTC)


def read(reader: Reader, honest: Run, store: DictStore, backend: BackendName = "reference") -> Exception | None:
    """Let a reader meet hostile files; return the error, None if it took them.

    Args:
        reader: see above.
        honest: the run that they were made from.
        store: the hostile files and all honest ones.
        backend: of the kernels, where there is something to decode.
    """
    if reader in ("pull", "join"):
        return _pull(honest, store, backend, holds=reader == "pull")
    return _READERS[reader](honest, store)


def _pull(honest: Run, store: DictStore, backend: BackendName, *, holds: bool) -> Exception | None:
    worker = garbage(honest.weights[1])
    if holds:
        with quick(honest.store) as registry:
            registry.pull(0, into=worker)
    was = bits(worker)
    with quick(store, backend=backend) as registry:
        if holds:
            with suppress(PulseError):  # where the record itself is hostile, all of the run is refused
                registry.verify(0, model=worker)
        try:
            registry.pull(1, into=worker)
        except PulseError as error:
            assert bits(worker) == was, "no weight was changed"
            return error
    assert bits(worker) == bits(honest.weights[1]), "what was taken is the version"
    return None


def _log(honest: Run, store: DictStore) -> Exception | None:
    bare = DictStore()
    bare.objects = {key: data for key, data in store.objects.items() if "snapshots" not in key and "head" not in key}
    reader, before = LogReader(PrefixStore(bare, RUN), RUN), _state(honest.store)
    try:
        reader.refresh()
    except PulseError as error:
        assert reader.seen is not None
        assert said(reader.seen) == before, "what is folded is what came before"
        return error
    return None


def _hint(honest: Run, store: DictStore) -> Exception | None:
    with _warnings() as told:
        state = said(LogReader(PrefixStore(store, RUN), RUN).refresh())
    assert state == _state(honest.store), "the state is what the records say"
    return Ignored(*told[:1]) if told else Ignored("")


def _trusted(honest: Run, store: DictStore) -> Exception | None:
    trust = Trust([TRUSTED.public, f"{ATTACHER.public}=attach"])
    try:
        LogReader(PrefixStore(store, RUN), RUN, PinGuard(trust, "memory://", RUN)).refresh()
    except PulseError as error:
        return error
    return None


class _Clock:
    """Knows when everything was written: now."""

    def written(self, key: str) -> datetime:
        return _NOW


def _lease(honest: Run, store: DictStore) -> Exception | None:
    with _warnings() as told:
        try:
            found = read_leases(PrefixStore(store, RUN), RUN, _Clock(), _NOW, RetentionPolicy())  # type: ignore[arg-type]
        except PulseError as error:
            return error
    assert not found.dead, "what may be a reader's is not deleted at once"
    return Ignored(*told) if not found.held else None


def _import(honest: Run, store: DictStore) -> Exception | None:
    target = DictStore()
    with TemporaryDirectory() as name, quick(target) as registry:
        for key, data in store.objects.items():
            path = Path(name, key)
            path.parent.mkdir(exist_ok=True)
            path.write_bytes(data)
        done = 0
        try:
            for imported in import_folder(registry, Path(name)):
                into = garbage(honest.weights[imported.version])
                registry.pull(imported.version, into=into)
                assert bits(into) == bits(honest.weights[imported.version])
                done += 1
        except PulseError as error:
            assert len(registry.versions()) == done < 2, "what was not yielded was not committed"
            return error
    return None


_READERS: dict[str, Callable[[Run, DictStore], Exception | None]] = {
    "log": _log,
    "hint": _hint,
    "trusted": _trusted,
    "lease": _lease,
    "import": _import,
}


def _state(store: DictStore) -> Any:
    bare = copied(store)
    bare.objects = {key: data for key, data in store.objects.items() if "snapshots" not in key and "head" not in key}
    return said(LogReader(PrefixStore(bare, RUN), RUN).refresh())


@contextmanager
def _warnings() -> Iterator[list[str]]:
    """Collect what is logged as a warning, but for what is only read again."""
    told: list[str] = []
    handler = logging.Handler(logging.WARNING)

    def emit(record: logging.LogRecord) -> None:
        if not record.getMessage().endswith("it is read again"):
            told.append(record.getMessage())

    handler.emit = emit  # type: ignore[method-assign]
    logger = logging.getLogger("pulse_registry")
    logger.addHandler(handler)
    try:
        yield told
    finally:
        logger.removeHandler(handler)
