"""URL paths of the service for the keys of a store. Pure names: no I/O."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final, Literal
from urllib.parse import quote

from pulse_registry.errors import InvalidArgument
from pulse_registry.format import keys
from pulse_registry.log.names import RUN_NAME
from pulse_registry.store.keys import check_key
from pulse_schemas import base_of

Kind = Literal["head", "record", "countersignature", "snapshot", "segment", "layout", "object", "lease", "request"]

_WORKER: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:-]{0,127}")
_RECORD: Final = re.compile(r"log/([0-9]{12})\.json")
_SNAPSHOT: Final = re.compile(r"log/snapshots/([0-9]{12})\.json")
_COUNTERSIGNED: Final = re.compile(r"log/countersigned/([0-9]{12})\.json")
_LAYOUT: Final = re.compile(r"layouts/([0-9a-f]{64})\.json")
_LEASE: Final = re.compile(r"leases/([A-Za-z0-9][A-Za-z0-9._:-]{0,159})\.json")


@dataclass(frozen=True, slots=True)
class Resource:
    """A key of a run, as the service has it.

    Attributes:
        run: the run's name.
        kind: what lies there.
        key: below the run.
        path: of the request that reads it, behind the service's URL.
        folder: in which the log lies that a record, snapshot or hint is of, with a slash; "" is the run's own.
        seq: number of a record, a countersignature or a snapshot, else 0.
    """

    run: str
    kind: Kind
    key: str
    path: str
    seq: int = 0
    folder: str = ""


def run_path(run: str) -> str:
    """Return the path of a run."""
    return f"/v1/runs/{run}"


def log_path(run: str, folder: str = "") -> str:
    """Return the path of a run's log, or of the one in a folder of it, given with its slash."""
    return f"{run_path(run)}/{folder}log"


def snapshots_path(run: str, folder: str = "") -> str:
    """Return the path of the snapshots of a log; ``folder`` as in `log_path`."""
    return f"{run_path(run)}/{folder}snapshots"


def resource_of(key: str) -> Resource:
    """Return where the service keeps a key of its store.

    Raises:
        InvalidArgument: the key is not valid, or nothing that a service gives out.
    """
    check_key(key)
    run, _, rest = key.partition("/")
    if RUN_NAME.fullmatch(run) and rest:
        base = run_path(run)
        folder = keys.OUTER if rest.startswith(keys.OUTER) else ""
        of_log = rest.removeprefix(folder)
        if of_log == keys.HEAD:
            return Resource(run, "head", rest, f"{base}/{rest}", 0, folder)
        if found := _RECORD.fullmatch(of_log):
            seq = int(found[1])
            return Resource(run, "record", rest, f"{log_path(run, folder)}/{seq}", seq, folder)
        if found := _SNAPSHOT.fullmatch(of_log):
            seq = int(found[1])
            return Resource(run, "snapshot", rest, f"{snapshots_path(run, folder)}/{seq}", seq, folder)
        if found := _COUNTERSIGNED.fullmatch(rest):
            path = f"{base}/log/{int(found[1])}/countersignature"
            return Resource(run, "countersignature", rest, path, int(found[1]))
        if keys.segment_of(rest) is not None:
            return Resource(run, "segment", rest, f"{base}/{rest}")
        if found := _LAYOUT.fullmatch(rest):
            return Resource(run, "layout", rest, f"{base}/layouts/{found[1]}")
        if found := _LEASE.fullmatch(rest):
            return Resource(run, "lease", rest, f"{base}/leases/{found[1]}")
        if keys.is_object_key(rest.removeprefix(keys.OUTER)) or base_of(rest) is not None:
            return Resource(run, "object", rest, f"{base}/{quote(rest)}")
    raise InvalidArgument(f"{key!r} is no key of a run's log, layouts, objects or leases: a service has nothing else")


def countersigned_of(prefix: str) -> str | None:
    """Return the run whose countersignatures a listing asks for, None where it asks for something else."""
    run, _, rest = prefix.partition("/")
    return run if RUN_NAME.fullmatch(run) and rest == keys.COUNTERSIGNED else None


def snapshots_of(prefix: str) -> tuple[str, str]:
    """Return the run whose snapshots a listing asks for, and the folder in which their log lies.

    Raises:
        InvalidArgument: it asks for something else.
    """
    run, _, rest = prefix.partition("/")
    folder = rest.removesuffix(keys.SNAPSHOTS)
    if not RUN_NAME.fullmatch(run) or not rest.endswith(keys.SNAPSHOTS) or folder not in ("", keys.OUTER):
        raise InvalidArgument(
            f"a service lists the countersignatures of a run, under <run>/{keys.COUNTERSIGNED}, its snapshots, under "
            f"<run>/{keys.SNAPSHOTS}, and those of its outer rounds, under <run>/{keys.OUTER}{keys.SNAPSHOTS}, not "
            f"{prefix!r}"
        )
    return run, folder


def checked_worker(name: str) -> str:
    """Return a worker's name.

    Raises:
        InvalidArgument: it is not valid.
    """
    if not _WORKER.fullmatch(name):
        raise InvalidArgument(
            f"{name!r} is no name of a worker or a trainer: 1 to 128 letters, digits, '.', '_', ':', '-', "
            "the first a letter or digit"
        )
    return name
