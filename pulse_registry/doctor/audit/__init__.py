"""The audit: is all there, and whole, that a run's log and its live versions need? It writes nothing.

`RunAudit` looks at the records, the snapshots and the hint, then at the layouts and objects; what is wrong is
a `Defect`, which says what restores it.
"""

from pulse_registry.doctor.audit.defect import Defect, DefectKind
from pulse_registry.doctor.audit.run import RunAudit, audited_runs

__all__ = ["Defect", "DefectKind", "RunAudit", "audited_runs"]
