"""The log of a run: append-only records in a store, and the state that they fold into."""

from pulse_registry.log.append_guard import Admission
from pulse_registry.log.clock import Clock, NewId, random_id, timestamp, utc_now
from pulse_registry.log.guard import Guard
from pulse_registry.log.reader import LogReader
from pulse_registry.log.snapshotter import LogKeeper
from pulse_registry.log.state import Effect, RunState, fold, sealed_hash
from pulse_registry.log.store_clock import StoreClock
from pulse_registry.log.writer import CommitDraft, LogWriter, MakeRecord

__all__ = [
    "Admission",
    "Clock",
    "CommitDraft",
    "Effect",
    "Guard",
    "LogKeeper",
    "LogReader",
    "LogWriter",
    "MakeRecord",
    "NewId",
    "RunState",
    "StoreClock",
    "fold",
    "random_id",
    "sealed_hash",
    "timestamp",
    "utc_now",
]
