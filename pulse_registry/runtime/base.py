"""A version of another run as what a run begins with: found in that run's log, and shared through the root."""

from __future__ import annotations

import logging
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from typing import Protocol

from pulse_registry.bases.content import placed
from pulse_registry.bases.sharing import share
from pulse_registry.compaction import CompactOptions, Compactor
from pulse_registry.context import Context
from pulse_registry.errors import Gone, InvalidArgument, PulseError
from pulse_registry.log import LogWriter
from pulse_registry.log.names import LATEST, run_name, version_name
from pulse_registry.push.founding import BaseVersion
from pulse_registry.results import VersionName
from pulse_registry.runtime.stores import StoreStack
from pulse_registry.versions import Versions
from pulse_schemas import KeyframeRef

_logger = logging.getLogger(__name__)


class Lender(Protocol):
    """The run that another one begins with, opened; a `Runtime`."""

    run: str
    stores: StoreStack
    versions: Versions

    def context(self) -> Context:
        """Return what pulls work with."""
        ...

    def compactor(self, context: Context, options: CompactOptions) -> Compactor:
        """Return what makes keyframes."""
        ...

    def writer(self) -> LogWriter:
        """Return a writer of its log."""
        ...

    def end(self) -> BaseException | None:
        """Close it."""
        ...


class RunAsBase:
    """The version that ``PushOptions.base`` names, for one run that begins with it; a `push.founding.Base`."""

    def __init__(self, named: str, run: str, opened: Callable[[str], Lender]) -> None:
        """Take apart what the option says; no I/O yet.

        Args:
            named: ``RUN`` or ``RUN@VERSION``.
            run: that begins.
            opened: opens another run of the same root.

        Raises:
            InvalidArgument: it names no run, no version, or the run itself.
        """
        lender, at, version = named.partition("@")
        self._run, self._opened, self._lender = run, opened, run_name(lender)
        self._version: VersionName = LATEST
        if at:
            is_number = version.isascii() and version.isdecimal() and len(version) < 19
            self._version = int(version) if is_number else version_name(version)
        if self._lender == run:
            raise InvalidArgument(f"run {run!r} can't begin with a version of its own: base names another run")

    def find(self) -> BaseVersion:
        """Return the version, as its run's log says now; nothing is written.

        Raises:
            NotFound, Gone: there is no such run or version.
            CorruptObject, Untrusted, UnsupportedFormat, StoreUnavailable: its log can't be read.
        """
        with self._open() as lender:
            state, entry = lender.versions.found(self._version)
            if state.is_retired(entry.version):
                raise Gone(f"version {entry.version} of run {lender.run!r} was retired; begin with another version")
            layout = lender.context().geometry(entry.layout).layout
        return BaseVersion(f"{lender.run}@{entry.version}", entry, layout)

    def share(self, found: BaseVersion, spent: Collection[str]) -> KeyframeRef:
        """Make its keyframe, which is made if there is none, a shared base that is none of ``spent``; refer to it.

        Its own run goes on with the shared files as well, where this process may write to it: its collector then
        retires what it has of its own.

        Raises:
            PulseError: the keyframe can't be read, made or copied.
        """
        entry = found.entry
        with self._open() as lender:
            context = lender.context()
            keyframe = lender.versions.state().keyframe(entry.version) or self._made(lender, context, entry.version)
            base = self._shared(lender, self._run, found, keyframe, spent)
            if keyframe.base is None:
                self._go_on(lender, found, keyframe, base)
        return placed(keyframe, base, 0)

    def _shared(
        self, lender: Lender, run: str, found: BaseVersion, keyframe: KeyframeRef, spent: Collection[str] = ()
    ) -> str:
        """Let a run refer to the base, which is made if it is not there: by the service, if there is one."""
        gateway, entry = lender.stores.gateway, found.entry
        if gateway is not None:
            return gateway.share(run, lender.run, entry.version)
        root, source, each = lender.stores.home_of(run), lender.stores.below_cache, lender.context().fetch_map
        return share(root, run, source, entry.layout, entry.digest, keyframe, spent, each=each).base

    def _made(self, lender: Lender, context: Context, version: int) -> KeyframeRef:
        compactor = lender.compactor(context, CompactOptions())
        try:
            return compactor.keyframe(version)
        finally:
            compactor.close()

    def _go_on(self, lender: Lender, found: BaseVersion, keyframe: KeyframeRef, base: str) -> None:
        """Attach the shared files to the version that they are of. Where that can't be, it keeps its own as well."""
        version = found.entry.version
        try:
            writer = lender.writer()
            writer.check("attach")
            if base not in lender.versions.state().bases and self._shared(lender, lender.run, found, keyframe) == base:
                writer.attach(keyframes=[placed(keyframe, base, version)])
        except PulseError as error:
            _logger.info("run %s keeps a copy of its own of version %d: %s", lender.run, version, error)

    @contextmanager
    def _open(self) -> Iterator[Lender]:
        lender = self._opened(self._lender)
        try:
            yield lender
        finally:
            lender.end()
