"""The service's garbage collector: retires and deletes in every run, by one policy, every so often.

Every replica that is told to does it. They may do so at the same time: the log decides who was first.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from pulse_registry.bases.collector import BaseCollector
from pulse_registry.errors import Mirrored, NotFound, PulseError
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.outer.log import OuterLog
from pulse_registry.process.parallel import Map
from pulse_registry.retention import Collector, GcResult, RetentionPolicy
from pulse_registry.store import RunStore, Store
from pulse_schemas import Signer
from pulse_server.settings import Settings
from pulse_server.telemetry.metrics import Metrics

logger = logging.getLogger(__name__)


def policy_of(settings: Settings) -> RetentionPolicy:
    """Return what the settings say is kept.

    Raises:
        InvalidArgument: a number is out of its range.
    """
    return RetentionPolicy(
        keep_last=settings.gc_keep_last,
        keep_every=settings.gc_keep_every,
        keep_seconds=settings.gc_keep_seconds,
        grace_seconds=settings.gc_grace_seconds,
        orphan_seconds=settings.gc_orphan_seconds,
    )


class Collecting:
    """Collects one run after the other; asks the store, so call it in a thread."""

    def __init__(
        self,
        store: Store,
        reader_of: Callable[[str], LogReader],
        policy: RetentionPolicy,
        metrics: Metrics,
        each: Map,
        *,
        signer: Signer | None = None,
    ) -> None:
        """Prepare to collect.

        Args:
            store: holds all runs.
            reader_of: makes a reader of a run's log.
            policy: what is kept, in every run.
            metrics: are told how it went.
            each: makes many requests at once.
            signer: signs the records.
        """
        self._store, self._reader_of, self._policy = store, reader_of, policy
        self._metrics, self._each, self._signer = metrics, each, signer

    def collect(self, run: str) -> None:
        """Collect one run; what goes wrong is logged and counted, and made good by the next time.

        Raises:
            Exception: what is none of our errors; it is counted, too.
        """
        try:
            done = self._collect(run)
        except (NotFound, Mirrored):
            return  # a folder that is no run, or not yet; a copy, whose mirror deletes what it needs no more
        except Exception as error:
            self._metrics.collections.labels(type(error).__name__).inc()
            if not isinstance(error, PulseError):
                raise
            logger.warning("run %s: its garbage was not collected: %s", run, error)
            return
        self._metrics.collections.labels("done").inc()
        self._metrics.retired_versions.inc(len(done.plan.versions))
        self._metrics.retired_bytes.inc(done.plan.nbytes + done.orphan_bytes)
        self._metrics.deleted_objects.inc(done.deleted)
        if done.plan.versions or done.deleted:
            logger.info("run %s: %d versions retired, %d objects deleted", run, len(done.plan.versions), done.deleted)

    def collect_bases(self) -> None:
        """Collect the shared bases of the root, or of each root by itself; what goes wrong is as in `collect`.

        Raises:
            Exception: what is none of our errors; it is counted, too.
        """
        roots = self._store.roots()
        for root in (self._store,) if roots is None else roots.stores:
            self._collect_bases(root)

    def _collect_bases(self, root: Store) -> None:
        try:
            found = BaseCollector(root, each=self._each).collect(self._policy.grace_seconds, dry_run=False)
        except Exception as error:
            self._metrics.collections.labels(type(error).__name__).inc()
            if not isinstance(error, PulseError):
                raise
            logger.warning("the shared bases of %s were not collected: %s", root.url, error)
            return
        for base in found:
            if base.due is not None:
                logger.info("the shared base %s was %s: no run refers to it", base.id, base.due)
            if base.due == "deleted":
                self._metrics.deleted_objects.inc(base.files)

    def _collect(self, run: str) -> GcResult:
        store, reader = RunStore(self._store, run), self._reader_of(run)
        writer = LogWriter(store, run, reader, utc_now, random_id, "service", signer=self._signer)
        rounds = OuterLog(store, run, self._signer)
        collector = Collector(store, run, reader, writer, random_id, rounds, each=self._each)
        return collector.collect(self._policy, dry_run=False)
