"""When a keyframe of a run's newest version is due: by the versions and the bytes of patches since the last one."""

from __future__ import annotations

from pulse_registry.log.state import RunState


def keyframe_due(state: RunState, keyframe_bytes: int, *, every: int | None, share: float | None) -> bool:
    """Tell whether the newest version is to have a keyframe; where no version has one, it is. In constant time.

    Args:
        state: of the run.
        keyframe_bytes: what a keyframe has.
        every: versions after which the next one is due; None: never by that.
        share: or it is due where the patches since have more than this share of its bytes; None: never by that.
    """
    latest, lag = state.latest, state.keyframe_lag
    if latest is None or (every is None and share is None):
        return False
    if lag is None:
        return True
    old = every is not None and latest.version - lag.version >= every
    return old or (share is not None and lag.nbytes > share * keyframe_bytes)


def keyframe_soon(state: RunState, keyframe_bytes: int, *, every: int | None, share: float | None) -> bool:
    """Tell whether the version after the newest one would be due, if its patch had as many bytes as the newest one's.

    Args:
        state, keyframe_bytes, every, share: as for ``keyframe_due``.
    """
    latest = state.latest
    if latest is None:
        return False
    return keyframe_due(
        state,
        keyframe_bytes,
        every=None if every is None else every - 1,
        share=None if share is None else share - state.direct_bytes(latest.version) / max(1, keyframe_bytes),
    )
