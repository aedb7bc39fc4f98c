"""The doctor: does a store keep the contract that the registry is built on?

One file a family of checks; each check is a function of a store and a context and returns a finding. `Examination` runs
them all below a prefix of its own and clears up; what they found is a `Report`.
"""

from __future__ import annotations

from pulse_registry.doctor.cleaning import PREFIX, remove_leftovers
from pulse_registry.doctor.context import Context, Plan
from pulse_registry.doctor.examination import CHECKS, Check, Examination
from pulse_registry.doctor.finding import Finding, Level
from pulse_registry.doctor.report import Report

__all__ = [
    "CHECKS",
    "PREFIX",
    "Check",
    "Context",
    "Examination",
    "Finding",
    "Level",
    "Plan",
    "Report",
    "remove_leftovers",
]
