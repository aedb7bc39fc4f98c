"""Quota of a token at a replica: how many names it may keep, and how many bytes.

It counts in memory what this replica was told, and forgets what is not renewed. So a bound asks nothing of the bucket,
and a replica that starts counts anew. Not thread-safe: one event loop asks.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

from pulse_registry.errors import InvalidArgument
from pulse_server.errors import TooManyRequests

Name = TypeVar("Name", bound=Hashable)
_LONGEST_WAIT_S: Final = 60.0


@dataclass(slots=True)
class _Kept(Generic[Name]):
    """What one token keeps: the size of each name and when it is forgotten, least recently renewed first."""

    names: OrderedDict[Name, tuple[int, float]] = field(default_factory=OrderedDict)
    nbytes: int = 0
    soonest: float = float("inf")
    """Nothing is forgotten before."""

    def add(self, name: Name, nbytes: int, until: float) -> None:
        self.drop(name)
        self.names[name] = nbytes, until
        self.nbytes += nbytes
        self.soonest = min(self.soonest, until)

    def drop(self, name: Name) -> None:
        nbytes, _ = self.names.pop(name, (0, 0.0))
        self.nbytes -= nbytes

    def forget(self, now: float) -> list[Name]:
        if now < self.soonest:
            return []
        old = [name for name, (_, until) in self.names.items() if until <= now]
        for name in old:
            self.drop(name)
        self.soonest = min((until for _, until in self.names.values()), default=float("inf"))
        return old


class Quota(Generic[Name]):
    """Counts the names that tokens keep of one kind. Where nobody needs one, all callers are one token."""

    def __init__(self, kind: str, max_names: int, max_bytes: int, *, clock: Callable[[], float]) -> None:
        """Begin with none.

        Args:
            kind: what is counted, in the plural, for messages.
            max_names, max_bytes: of one token.
            clock: monotonic time in seconds.

        Raises:
            InvalidArgument: a bound is below 1.
        """
        if max_names < 1 or max_bytes < 1:
            raise InvalidArgument("a token may keep at least one name and one byte")
        self._kind, self._max_names, self._max_bytes, self._clock = kind, max_names, max_bytes, clock
        self._kept: dict[str, _Kept[Name]] = {}

    def claim(self, token: str, name: Name, nbytes: int, seconds: float) -> None:
        """Count a name of a token for so many seconds from now; one that is counted already is renewed.

        Raises:
            TooManyRequests: the token keeps too much already. What it keeps stays as it is.
        """
        now, kept = self._clock(), self._kept.setdefault(token, _Kept())
        kept.forget(now)
        known, _ = kept.names.get(name, (0, 0.0))
        more = len(kept.names) + (name not in kept.names)
        if more > self._max_names or kept.nbytes - known + nbytes > self._max_bytes:
            raise TooManyRequests(
                f"this token has {len(kept.names):,} {self._kind} of {kept.nbytes:,} bytes, and may have "
                f"{self._max_names:,} of {self._max_bytes:,} bytes: give some up, wait until they run out, or use a "
                "token of its own for each part of the fleet",
                min(max(kept.soonest - now, 1.0), _LONGEST_WAIT_S),
            )
        kept.add(name, nbytes, now + seconds)

    def displace(self, token: str, name: Name, nbytes: int, seconds: float) -> list[Name]:
        """Count a name as `claim` does, and make room for it: return those names of the token that count no more.

        These are those whose time is over, and, if there are too many, those that were renewed least recently.
        """
        now, kept = self._clock(), self._kept.setdefault(token, _Kept())
        kept.add(name, nbytes, now + seconds)
        gone = kept.forget(now)
        while len(kept.names) > 1 and (len(kept.names) > self._max_names or kept.nbytes > self._max_bytes):
            oldest = next(iter(kept.names))
            kept.drop(oldest)
            gone.append(oldest)
        return gone

    def release(self, token: str, name: Name) -> None:
        """Count a name no more; one that is not counted is no error."""
        kept = self._kept.get(token)
        if kept is not None:
            kept.drop(name)
