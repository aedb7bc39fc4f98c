"""Report of an audit, for people and for scripts, and its exit code."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from pulse_registry.cli.exits import exit_code
from pulse_registry.doctor.audit import Defect, DefectKind, RunAudit
from pulse_registry.errors import CorruptObject, Untrusted
from pulse_registry.log import Guard
from pulse_registry.quoting import say
from pulse_registry.store import RetryStore, RunStore, Store


@dataclass(frozen=True, slots=True)
class AuditedRun:
    """One run, and what is wrong with it."""

    run: str
    records: int
    versions: int
    objects: int
    nbytes: int
    defects: Sequence[Defect]

    def document(self) -> dict[str, Any]:
        """Return it as a JSON document."""
        return {
            "run": self.run,
            "whole": not self.defects,
            "records": self.records,
            "versions": self.versions,
            "objects": self.objects,
            "bytes": self.nbytes,
            "defects": [
                {"key": one.key, "kind": one.kind.value, "found": one.found, "remedy": one.remedy}
                for one in self.defects
            ],
        }


def audit_run(
    store: Store, run: str, *, contents: bool, guard: Callable[[], Guard | None] = lambda: None
) -> AuditedRun:
    """Audit one run of a root; calls that fail for a moment are made again.

    Raises:
        InvalidArgument: the store is a service.
        AccessDenied, StoreUnavailable: the store can't be read.
    """
    audit = RunAudit(RunStore(RetryStore(store), run), run, guard)
    defects = [*audit.defects(contents=contents)]
    return AuditedRun(run, audit.log.state.seq + 1, audit.versions, audit.objects, audit.nbytes, defects)


def print_defects(found: AuditedRun) -> None:
    """Print what is wrong with a run, and what restores it: two lines a defect."""
    for defect in found.defects:
        say(f"{found.run}/{defect.key}: {defect.kind}: {defect.found}")
        say(f"  {defect.remedy}")


def verdict(found: AuditedRun) -> str:
    """Return how many defects there are, in words."""
    return f"{len(found.defects):,} defect{'s'[: len(found.defects) != 1]}" if found.defects else "whole"


def defects_code(runs: Sequence[AuditedRun]) -> int:
    """Return the exit code for what was found."""
    kinds = {defect.kind for found in runs for defect in found.defects}
    if DefectKind.UNTRUSTED in kinds:
        return exit_code(Untrusted(""))
    return exit_code(CorruptObject()) if kinds else 0
