"""Keys and pins as callers give them, or the environment does."""

from __future__ import annotations

import os
from collections.abc import Iterable

from pulse_registry.process import environment
from pulse_registry.signing.keys import SigningKey
from pulse_registry.signing.pinned_keys import Trust
from pulse_schemas import Signer


def signer_of(key: Signer | str | os.PathLike[str] | None) -> Signer | None:
    """Return what signs, given as itself or as a key's file; None takes it from the environment, or signs nothing.

    Raises:
        InvalidArgument: as `SigningKey.load`.
    """
    given = key if key is not None else environment.SIGNING_KEY.read()
    return SigningKey.load(given) if isinstance(given, str | os.PathLike) else given


def trust_of(trust: Iterable[str] | Trust | None) -> Trust | None:
    """Return the pins, given as texts; None takes them from the environment, or believes the store.

    Raises:
        InvalidArgument: as `Trust`.
    """
    if isinstance(trust, Trust):
        return trust
    keys = (environment.TRUST.read() or "").split() if trust is None else trust
    if trust is None and not keys:
        return None
    return Trust(keys)
