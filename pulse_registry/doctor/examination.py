"""An examination: all checks on one store, below a folder of its own, which is removed however it ends."""

from __future__ import annotations

import random
import secrets
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Final, Self

from pulse_registry.doctor import atomicity, clock, creation, listing, ranges, service, signing, speed, visibility
from pulse_registry.doctor.cleaning import PATIENCE_S, PREFIX, LedgerStore, remove_folder
from pulse_registry.doctor.context import MOST_BYTES, Context, Plan
from pulse_registry.doctor.finding import Finding, ok, unsafe, warn
from pulse_registry.doctor.report import WRITABLE, Report
from pulse_registry.errors import AccessDenied, PulseError
from pulse_registry.store import PrefixStore, RetryPolicy, RetryStore, Store


@dataclass(frozen=True, slots=True)
class Check:
    """One question to a store. ``essential``: a store that does not answer it is not shown to be safe."""

    run: Callable[[Store, Context], Finding]
    essential: bool = True

    @property
    def name(self) -> str:
        """What the check shows, in words."""
        return self.run.__name__.replace("_", " ")


CHECKS: Final = (
    Check(visibility.reads_see_writes),
    Check(visibility.listings_see_writes),
    Check(visibility.reads_see_deletes),
    Check(atomicity.puts_are_whole),
    Check(creation.creates_refuse_taken_keys),
    Check(creation.creates_have_one_winner),
    Check(creation.lost_answers_can_be_told),
    Check(creation.large_creates_have_one_winner, essential=False),
    Check(listing.listings_are_complete),
    Check(listing.listings_go_on_after_a_key),
    Check(listing.names_that_begin_alike_are_listed, essential=False),
    Check(ranges.ranges_are_exact),
    Check(signing.signed_gets_are_bounded, essential=False),
    Check(signing.signed_puts_are_conditional, essential=False),
    Check(clock.clocks_agree, essential=False),
    Check(speed.small_objects_are_quick, essential=False),
    Check(speed.large_objects_are_quick, essential=False),
)


SERVICE_CHECKS: Final = (Check(service.the_service_takes_commits_in_turn), Check(service.the_service_answers_quickly))
"""What is examined of a service, to which nothing is written: it deletes nothing."""

CLEARED: Final = "what was written is removed"


class Examination:
    """A store under examination. A context manager: what was written is removed at its end, also after an interrupt."""

    def __init__(
        self,
        store: Store,
        *,
        observer: Store | None = None,
        plan: Plan | None = None,
        checks: Sequence[Check] | None = None,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], float] = time.time,
        pause: Callable[[float], None] = time.sleep,
        rng: random.Random | None = None,
    ) -> None:
        """Prepare an examination. Nothing is asked of the store yet.

        Args:
            store: the store, without retries of its own.
            observer: a second client of it; the same one if not given.
            plan: how much to do.
            checks: what to look at, in this order; if not given, all that applies to a bucket, or to a service.
            clock, now, pause, rng: see Context.
        """
        self._root = store
        self._ledger = LedgerStore(store)
        self._folder = f"{PREFIX}{secrets.token_hex(8)}"
        bare, retries = PrefixStore(self._ledger, self._folder), RetryPolicy(total_s=PATIENCE_S, sleep=pause)
        self._store = RetryStore(bare, retries)
        self._writes = store.gateway() is None
        self._checks = checks if checks is not None else CHECKS if self._writes else SERVICE_CHECKS
        self._cleared = False
        self._context = Context(
            bare=bare,
            observer=RetryStore(PrefixStore(observer or store, self._folder), retries),
            plan=plan or Plan(),
            clock=clock,
            now=now,
            pause=pause,
            rng=rng or random.Random(),
        )

    @property
    def folder(self) -> str:
        """The key prefix, without the last '/', that holds all that the examination writes."""
        return self._folder

    def __enter__(self) -> Self:
        """Begin."""
        return self

    def __exit__(self, *_: object) -> None:
        """Remove what was written, unless `findings` came to its end, and did.

        Raises:
            StoreUnavailable, AccessDenied: something could not be removed.
        """
        if not self._cleared:
            self._clear()

    def findings(self) -> Iterator[Finding]:
        """Run the checks, one as each finding is asked for; the last finding is on clearing up what was written.

        With keys that may only read, the findings are on what these may do.

        Raises:
            AccessDenied: the keys may neither write nor list.
            PulseError: the store does not take and return one object: there is nothing to examine.
        """
        if self._writes:
            try:
                self._store.put("begun", b"pulse doctor was here")
            except AccessDenied as error:
                self._cleared = True  # nothing was written
                yield from self._of_reading_keys(error)
                return
            self._store.get("begun", max_bytes=MOST_BYTES)
        for check in self._checks:
            yield replace(self._outcome(check), check=check.name)
        if self._writes:
            yield replace(self._cleared_up(), check=CLEARED)

    def report(self, findings: Sequence[Finding] | None = None) -> Report:
        """Return the report of findings that were made, or make all of them."""
        return Report(self._root.url, tuple(self.findings() if findings is None else findings))

    def _of_reading_keys(self, refusal: AccessDenied) -> Iterator[Finding]:
        """Yield what there is to say of keys that may not write; raises the refusal where they may not list either."""
        try:
            next(self._store.list(""), None)
        except AccessDenied:
            raise refusal from None
        advice = (
            "run pulse doctor with keys that may write and delete; if these are to read alone, nothing is wrong with "
            "them: pulse verify tries them on a run"
        )
        verdict = f"these keys may list and not write, so that nothing more is examined: {refusal}"
        yield replace(unsafe(verdict, advice), check=WRITABLE)

    def _cleared_up(self) -> Finding:
        try:
            removed = self._clear()
        except PulseError as error:
            self._cleared = True
            return warn(
                f"{self._folder} could not be removed: {type(error).__name__}: {error}",
                "run pulse doctor --clean with credentials that may list and delete; nobody reads the folder",
            )
        return ok("all that the examination wrote is removed", {"objects": removed})

    def _clear(self) -> int:
        removed = remove_folder(self._root, self._folder, self._ledger.keys) if self._ledger.keys else 0
        self._cleared = True
        return removed

    def _outcome(self, check: Check) -> Finding:
        try:
            return check.run(self._store, self._context)
        except PulseError as error:
            verdict = f"could not be shown: {type(error).__name__}: {error}"
            if check.essential:
                return unsafe(verdict, "see to what the error says, and examine the store again")
            return warn(verdict, "see to what the error says, if you need what this check is about")
