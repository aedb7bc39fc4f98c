"""The audit: is all there, and whole, that a run's log and its live versions need? It writes nothing.

`LogAudit` looks at the records, the snapshots and the hint, `RunAudit` at the layouts and objects too; what is wrong is
a `Defect`, which says what restores it.
"""

from pulse_registry.doctor.audit.defect import Defect, DefectKind
from pulse_registry.doctor.audit.log import LogAudit
from pulse_registry.doctor.audit.run import RunAudit, audited_runs

__all__ = ["Defect", "DefectKind", "LogAudit", "RunAudit", "audited_runs"]
