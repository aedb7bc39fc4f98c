"""Pins: the public keys that a reader believes, and what each of them may say."""

from __future__ import annotations

import functools
import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from pulse_registry.errors import InvalidArgument
from pulse_registry.signing.keys import PublicKey, key_text, parse_key
from pulse_schemas import RECORD_KINDS

SNAPSHOT: Final = "snapshot"
OUTER: Final = "outer"
"""Records of outer rounds, all of them; ``outer:eu-1`` those of one member, and what any member may say."""
ANY_MEMBER: Final = f"{OUTER}:"
KINDS: Final = frozenset({SNAPSHOT, OUTER, *RECORD_KINDS})
"""What can be signed: the kinds of records, snapshots of the log, and outer records."""
_MEMBER: Final = re.compile(r"outer:[a-z0-9][a-z0-9._-]{0,63}")


@dataclass(frozen=True, slots=True)
class Pin:
    """A key, and the kinds of documents that it may sign: of ``KINDS``, and ``outer:`` with the name of a member."""

    public: bytes
    key: PublicKey
    kinds: frozenset[str]

    @classmethod
    def parse(cls, text: str) -> Pin:
        """Read ``ed25519:<hex>``, or ``ed25519:<hex>=attach,outer:eu-1`` for a key that may sign no more than that.

        Raises:
            InvalidArgument: the text is not of this form.
        """
        name, limited, listed = text.strip().partition("=")
        kinds = frozenset(listed.split(",")) if limited else KINDS
        other = sorted(kind for kind in kinds if kind not in KINDS and _MEMBER.fullmatch(kind) is None)
        if other:
            raise InvalidArgument(
                f"{', '.join(other)!r} can't be pinned to a key; kinds are {', '.join(sorted(KINDS))}, and "
                f"{OUTER}:MEMBER"
            )
        public = parse_key(name)
        return cls(public, PublicKey(public), kinds)

    def may_sign(self, kind: str) -> bool:
        """Tell whether the key may sign a kind of document: of ``KINDS``, a member's (``outer:eu-1``), or any's."""
        if kind in self.kinds:
            return True
        if not kind.startswith(ANY_MEMBER):
            return False
        return OUTER in self.kinds or (kind == ANY_MEMBER and any(one.startswith(ANY_MEMBER) for one in self.kinds))

    def __str__(self) -> str:
        name = key_text(self.public)
        return name if self.kinds == KINDS else f"{name}={','.join(sorted(self.kinds))}"


class Trust:
    """Pinned keys of a reader, and where it remembers what it has seen.

    Attributes:
        pins: keys, of which each record must have a signature of one.
        max_age_s: the newest record being older than this is told as an event; None: never.
        state_dir: keeps what was seen of each run, for as long as it is there; None for the user's own folder.
    """

    def __init__(
        self,
        keys: Iterable[str],
        *,
        max_age_s: float | None = None,
        state_dir: str | os.PathLike[str] | None = None,
    ) -> None:
        """Pin keys.

        Args:
            keys: public keys as ``ed25519:<hex>``; ``ed25519:<hex>=attach,retire`` limits one to these kinds, and
                ``=outer:eu-1`` to what one member of outer rounds says.
            max_age_s: seconds.
            state_dir: a folder that survives the process; several processes may share it.

        Raises:
            InvalidArgument: no key, a text that is none, the same key twice, or an age that is not over 0; or the
                extra `trust` is not installed.
        """
        if isinstance(keys, str):
            raise InvalidArgument("trust takes a list of keys, not one text")
        self.pins: Sequence[Pin] = tuple(Pin.parse(text) for text in keys)
        if not self.pins:
            raise InvalidArgument("to trust no key at all is to refuse every record: give one, or leave trust out")
        if len({pin.public for pin in self.pins}) < len(self.pins):
            raise InvalidArgument("a key is pinned twice: name all its kinds at once")
        if max_age_s is not None and not max_age_s > 0:
            raise InvalidArgument(f"max_age_s is {max_age_s}; it is in seconds, over 0")
        self.max_age_s = max_age_s
        self.state_dir = None if state_dir is None else Path(state_dir)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({[str(pin) for pin in self.pins]})"

    def __reduce__(self) -> tuple[Callable[..., Trust], tuple[list[str]]]:
        state_dir = None if self.state_dir is None else self.state_dir.absolute()
        make = functools.partial(type(self), max_age_s=self.max_age_s, state_dir=state_dir)
        return make, ([str(pin) for pin in self.pins],)

    def pin(self, public: bytes) -> Pin | None:
        """Return the pin of a key, None where it is not pinned."""
        return next((pin for pin in self.pins if pin.public == public), None)
