"""The log of a run: append-only records in a store, and the state that they fold into."""

from pulse_registry.log.append_guard import AppendGuard
from pulse_registry.log.clock import Clock, NewId, random_id, timestamp, utc_now
from pulse_registry.log.fold import Effect, fold, sealed_hash
from pulse_registry.log.guard import Guard
from pulse_registry.log.reader import LogReader
from pulse_registry.log.snapshotter import Snapshotter
from pulse_registry.log.state import RunState
from pulse_registry.log.store_clock import StoreClock
from pulse_registry.log.writer import CommitDraft, LogWriter, MakeRecord

__all__ = [
    "AppendGuard",
    "Clock",
    "CommitDraft",
    "Effect",
    "Guard",
    "LogReader",
    "LogWriter",
    "MakeRecord",
    "NewId",
    "RunState",
    "Snapshotter",
    "StoreClock",
    "fold",
    "random_id",
    "sealed_hash",
    "timestamp",
    "utc_now",
]
