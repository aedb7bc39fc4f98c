"""The public surface: what users import and how they call it. A change here is a change to them."""

from __future__ import annotations

import inspect
import os
import subprocess
import sys
from typing import Any

import pytest

import pulse_registry
from pulse_registry import errors
from tests.support.waiting import HANG_S

NAMES = [
    "AccessDenied",
    "AlreadyExists",
    "BaseMismatch",
    "Behind",
    "CacheOptions",
    "CompactOptions",
    "Compactor",
    "ComputeOptions",
    "Conflict",
    "CorruptObject",
    "Diverged",
    "Event",
    "EventKind",
    "Fenced",
    "Files",
    "Forked",
    "GcResult",
    "Gone",
    "InvalidArgument",
    "InvalidModel",
    "Layout",
    "LayoutMismatch",
    "Leg",
    "Mirrored",
    "NetworkOptions",
    "NotFound",
    "OuterSession",
    "PeerLost",
    "Prefetch",
    "PullOptions",
    "PullResult",
    "PulseError",
    "PushOptions",
    "PushResult",
    "QuorumLost",
    "RefusedRecord",
    "Registry",
    "RetentionPolicy",
    "RoundResult",
    "Route",
    "RunStats",
    "Signer",
    "SigningKey",
    "Slice",
    "Staged",
    "StoreUnavailable",
    "TensorChange",
    "Timeline",
    "Trust",
    "UnsupportedFormat",
    "Untrusted",
    "Version",
    "open",
]
SIGNATURES = {
    "open": "(url: 'str | os.PathLike[str] | Sequence[str | os.PathLike[str]]', *, "
    "run: 'str', name: 'str | None' = None, token: 'str | None' = None, create: 'bool' = "
    "True, push: 'PushOptions | None' = None, pull: 'PullOptions | None' = None, compute: 'ComputeOptions | "
    "None' = None, network: 'NetworkOptions | None' = None, cache: 'CacheOptions | str | os.PathLike[str] | "
    "None' = None, trust: 'Trust | Iterable[str] | None' = None, on_event: 'Listener | None' = None, "
    "on_result: 'ResultListener | None' = None, process_group: 'ProcessGroup | None' = None) -> 'Registry'",
    "Registry.push": "(self, step: 'SupportsIndex', model: 'Model', *, metadata: 'Mapping[str, Any] | None' = None, "
    "files: 'FilesArgument | None' = None, wait: 'bool' = True) -> 'PushResult | Future[PushResult]'",
    "Registry.take_over": "(self, model: 'Model') -> 'Version | None'",
    "Registry.pull": "(self, version: 'VersionName' = 'latest', *, into: 'Model', replace: 'bool' = False, "
    "cast: 'bool' = False, check: 'BaseCheck | None' = None, partial: 'bool' = False) -> 'PullResult'",
    "Registry.stage": "(self, version: 'VersionName' = 'latest', *, into: 'Model', replace: 'bool' = False, "
    "cast: 'bool' = False, check: 'BaseCheck | None' = None, partial: 'bool' = False) -> 'Staged'",
    "Registry.versions": "(self) -> 'list[Version]'",
    "Registry.version": "(self, version: 'VersionName | None' = None, *, step: 'int | None' = None) -> 'Version'",
    "Registry.route": "(self, version: 'VersionName' = 'latest', *, have: 'int | None' = None) -> 'Route'",
    "Registry.files": "(self, version: 'VersionName' = 'latest') -> 'dict[str, bytes]'",
    "Registry.layout": "(self, version: 'VersionName' = 'latest') -> 'Layout'",
    "Registry.warm_up": "(self, model: 'Model | None' = None) -> 'None'",
    "Registry.verify": "(self, version: 'VersionName' = 'latest', *, model: 'Model | None' = None, "
    "cast: 'bool' = False, partial: 'bool' = False) -> 'Version'",
    "Registry.watch": "(self, after: 'int | None' = None, *, latest_only: 'bool' = False, poll_seconds: 'float' = 0.5, "
    "timeout: 'float | None' = None) -> 'Iterator[Version]'",
    "Registry.compactor": "(self, options: 'CompactOptions | None' = None) -> 'Compactor'",
    "Registry.prefetch": "(self, *, into: 'Model', poll_seconds: 'float' = 0.5, cast: 'bool' = False, "
    "check: 'BaseCheck | None' = None, partial: 'bool' = False) -> 'Prefetch'",
    "Prefetch.take": "(self, timeout: 'float | None' = 0.0) -> 'Staged | None'",
    "Prefetch.skip": "(self, version: 'int') -> 'None'",
    "Prefetch.pin": "(self, version: 'VersionName | None') -> 'None'",
    "Prefetch.close": "(self) -> 'None'",
    "Registry.tags": "(self) -> 'dict[str, int]'",
    "Registry.tag": "(self, name: 'str', version: 'VersionName | None') -> 'int | None'",
    "Registry.gc": "(self, policy: 'RetentionPolicy | None' = None, *, dry_run: 'bool' = True) -> 'GcResult'",
    "Registry.outer": "(self, model: 'Model', *, member: 'str', inner_steps: 'int' = 8, lr: 'float' = 0.7, "
    "momentum: 'float' = 0.9, gain: 'float | None' = 14.0, quorum: 'int' = 1, grace: 'float' = 60.0, "
    "silence: 'float | None' = None, patience: 'int' = 3, weighting: 'Weighting' = 'equal', "
    "values: 'Values' = 'levels') -> 'OuterSession'",
    "Registry.close": "(self, timeout: 'float | None' = None) -> 'None'",
    "Registry.countersign": "(self, until: 'str') -> 'list[RefusedRecord]'",
    "Registry.load": "(self, version: 'VersionName' = 'latest', *, framework: 'Framework' = 'auto') -> "
    "'dict[str, Any]'",
    "Registry.pickles_as": "(self, reopening: 'Callable[[], object]', *, lacks_key: 'bool' = False) -> 'None'",
    "Registry.refused_records": "(self) -> 'list[RefusedRecord]'",
    "Registry.report": "(self, name: 'str', result: 'PullResult') -> 'None'",
    "Registry.stats": "(self, first: 'VersionName | None' = None, last: 'VersionName' = 'latest', *, "
    "weights: 'bool' = False, keep: 'str | os.PathLike[str] | None' = None) -> 'RunStats'",
    "Registry.state": "(self) -> 'RunState'",
    "Staged.apply": "(self) -> 'PullResult'",
    "Staged.undo": "(self) -> 'None'",
    "Staged.discard": "(self) -> 'None'",
}
FIELDS = {
    "PushResult": "version step kind changed cells nbytes full_nbytes digest phases timeline coalesced",
    "PullResult": "version step digest nbytes objects changed phases timeline avoided checked cells",
    "RoundResult": "round version members late counts entries nbytes cells",
    "Version": "version step kind changed cells nbytes digest created_at layout metadata files",
    "Files": "folder also",
    "PushOptions": "coder dtype keyframe_share keyframe_every keyframe_coding shadow compact max_pending when_full "
    "allow_new_layout expect nonfinite base signing_key",
    "PullOptions": "check nonfinite lease_seconds undo_share spool host_copy",
    "ComputeOptions": "backend threads device",
    "NetworkOptions": "allow_http object_cost cell_cost peer_timeout_s",
    "CacheOptions": "folder max_bytes",
}


def member(path: str) -> Any:
    found: Any = pulse_registry
    for name in path.split("."):
        found = getattr(found, name)
    return found


def test_the_public_names_are_these():
    assert pulse_registry.__all__ == NAMES
    assert all(getattr(pulse_registry, name) is not None for name in NAMES)


@pytest.mark.parametrize("path", SIGNATURES)
def test_signatures_are_as_they_were(path: str):
    assert str(inspect.signature(member(path))) == SIGNATURES[path]


def test_every_method_of_a_registry_is_among_them():
    methods = {name for name, member in vars(pulse_registry.Registry).items() if inspect.isfunction(member)}
    assert {f"Registry.{name}" for name in methods if not name.startswith("_")} <= SIGNATURES.keys()


@pytest.mark.parametrize("name", FIELDS)
def test_results_have_these_fields(name: str):
    assert list(getattr(pulse_registry, name).__dataclass_fields__) == FIELDS[name].split()


def test_registries_prefetches_and_staged_versions_are_context_managers():
    for kind in (pulse_registry.Registry, pulse_registry.Staged, pulse_registry.Prefetch):
        assert hasattr(kind, "__enter__")
        assert hasattr(kind, "__exit__")


def test_every_error_is_public_and_in_one_tree():
    tree = {name for name, kind in vars(errors).items() if isinstance(kind, type) and issubclass(kind, Exception)}
    assert tree <= set(NAMES)
    assert all(issubclass(getattr(pulse_registry, name), pulse_registry.PulseError) for name in tree)
    assert issubclass(pulse_registry.Fenced, pulse_registry.Conflict)
    assert issubclass(pulse_registry.InvalidArgument, ValueError)


def test_public_things_have_docstrings():
    for name in NAMES:
        assert member(name).__doc__, name
    for path in SIGNATURES:
        assert member(path).__doc__, path


@pytest.mark.slow
def test_importing_loads_neither_frameworks_nor_compilers_nor_clients():
    heavy = [
        "torch",
        "numba",
        "llvmlite",
        "transformers",
        "s3fs",
        "boto3",
        "botocore",
        "aiohttp",
        "fastapi",
        "matplotlib",
    ]
    code = f"import sys, pulse_registry; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        timeout=HANG_S,
        check=False,
    )
    assert (done.returncode, done.stderr, done.stdout) == (0, "", "[]\n")
