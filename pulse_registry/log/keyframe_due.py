"""When a keyframe of a run's newest version is due: by the versions and the bytes of patches since the last one."""

from __future__ import annotations

from pulse_registry.log.state import RunState


def keyframe_due(state: RunState, keyframe_bytes: int, *, every: int | None, share: float | None) -> bool:
    """Tell whether the newest version is to have a keyframe; where no version has one, it is.

    Args:
        state: of the run.
        keyframe_bytes: what a keyframe has.
        every: versions after which the next one is due; None: never by that.
        share: or it is due where the patches since have more than this share of its bytes; None: never by that.
    """
    latest = state.latest
    if latest is None or (every is None and share is None):
        return False
    nbytes = 0
    for entry in reversed(state.versions):
        if every is not None and latest.version - entry.version >= every:
            return True
        if share is not None and nbytes > share * keyframe_bytes:
            return True
        if state.keyframe(entry.version) is not None:
            return False
        nbytes += sum(patch.size for patch in state.patches_into(entry.version) if patch.base == entry.version - 1)
    return True


def keyframe_soon(state: RunState, keyframe_bytes: int, *, every: int | None, share: float | None) -> bool:
    """Tell whether the version after the newest one would be due, if its patch had as many bytes as the newest one's.

    Args:
        state, keyframe_bytes, every, share: as for ``keyframe_due``.
    """
    latest = state.latest
    if latest is None:
        return False
    last = sum(patch.size for patch in state.patches_into(latest.version) if patch.base == latest.version - 1)
    return keyframe_due(
        state,
        keyframe_bytes,
        every=None if every is None else every - 1,
        share=None if share is None else share - last / max(1, keyframe_bytes),
    )
