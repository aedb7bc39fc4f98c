"""Prefetching of ranks that pull together: each makes ready by itself what all of them apply together.

Nothing that happens in the background is a collective. Ranks see a new version at different times, and make it ready at
different times; one may fail to. So what a rank has ready is only ever a shortcut of its own: ``take``, and every pull,
agree on the version first, and a rank that has another one ready, or none, stages that version then.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass

from pulse_registry.events import Events
from pulse_registry.peers.peers import COORDINATOR
from pulse_registry.peers.vote import Attempt
from pulse_registry.pull.apply import Staged
from pulse_registry.pull.into import Into
from pulse_registry.pull.prefetch import News, Prefetch
from pulse_registry.pull.together import Together
from pulse_registry.results import VersionName

_ROUND_S = 5.0
"""While the coordinator waits for a version to be ready, the others hear from it as often."""
_NOT_YET, _NONE = b"+", b""


@dataclass(frozen=True, slots=True)
class Ranks:
    """What a prefetch needs to know of the ranks that pull together.

    Attributes:
        together: the ranks.
        into: the weights of this one.
        stage: stages a version on all ranks, with what each has ready; a collective.
    """

    together: Together
    into: Into
    stage: Callable[[int], Staged]


class PrefetchTogether(Prefetch):
    """Keeps the newest version staged on one of the ranks that pull together; see ``Prefetch``.

    ``take`` is a collective. It goes by what the first rank has ready: ``skip`` and ``pin`` count there, and are to be
    called on all ranks, so that all have the same version ready.
    """

    def __init__(
        self,
        stage: Callable[[VersionName], Staged],
        number: Callable[[VersionName], int],
        news: News,
        ranks: Ranks,
        events: Events,
        run: str,
    ) -> None:
        """Begin; ``Registry.prefetch`` does it. ``stage`` is no collective. See ``Prefetch``."""
        self._ranks = ranks
        super().__init__(stage, number, news, ranks.into.replica, events, run)

    def take(self, timeout: float | None = 0.0) -> Staged | None:
        """Return the version that the first rank has ready, staged on all ranks; a collective.

        A rank that has it ready too has nothing to fetch; another one stages it now. ``apply`` and ``undo`` of the
        result are collectives as well.

        Args:
            timeout: seconds to wait until the first rank has one ready; None: for as long as it takes. That of the
                other ranks is of no matter.

        Returns:
            None on all ranks if the first one has none ready in time.

        Raises:
            InvalidArgument, PulseError: as ``Prefetch.take``: if it is so on one rank, on all.
            PulseError: a rank could not stage it: as ``Registry.stage``.
            PeerLost: a rank is gone.
        """
        peers, ends = self._ranks.together.peers, None if timeout is None else time.monotonic() + timeout
        first = peers.rank == COORDINATOR
        self._done_with()
        while True:
            attempt = Attempt(peers)
            found = attempt.run(lambda: self._await(ends) if first else self._check(), _NONE)
            attempt.agree("prefetch")
            said = peers.broadcast(found if first else None, "prefetched")
            if said == _NONE:
                return None
            if said != _NOT_YET:
                staged = self._ranks.stage(int(said))
                with self._changed:
                    self._taken = staged
                return staged

    def hand_out(self, version: int, into: Into) -> Staged | None:
        """Give what is ready into the hands of a pull of all ranks; None: it is not what that pulls, or not ready."""
        self._done_with()
        with self._changed:
            ready, mine = self._ready, self._ranks.into
            alike = into.replica is mine.replica and (into.cast, into.partial) == (mine.cast, mine.partial)
            if ready is None or not alike or into.replace or ready.version != version or not ready.fits:
                return None
            self._taken, self._ready = ready, None
            return ready

    def give_back(self, staged: Staged) -> None:
        """Take what was handed out as ready again: the ranks did not stage it together."""
        with self._changed:
            self._taken = None
            if self._closed.is_set() or self._ready is not None or not staged.fits:
                staged.discard()
            else:
                self._ready = staged
            self._changed.notify_all()

    def _done_with(self) -> None:
        """Take what was taken before as done with."""
        with self._changed:
            self._taken = None
            self._changed.notify_all()

    def _check(self) -> bytes:
        self._owner.check(f"this prefetch of run {self._run!r}")
        with self._changed:
            self._check_alive()
        return _NONE

    def _await(self, ends: float | None) -> bytes:
        """Wait for a version to be ready, for a round; return what the other ranks are told."""
        self._check()
        began = time.monotonic()
        due = began + _ROUND_S if ends is None else min(began + _ROUND_S, ends)
        with self._changed:
            while (offered := self._offered()) is None:
                self._check_alive()
                left = due - time.monotonic()
                if left <= 0:
                    return _NONE if due == ends else _NOT_YET
                self._changed.wait(left)
            return b"%d" % offered.version
