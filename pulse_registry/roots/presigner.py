"""Signed requests to several roots: reads go to the root that a run is read from, and uploads to its home."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from pulse_registry.store import Presigner, SignedPut, UploadedPart


class NearestPresigner:
    """Signs requests for keys that begin with a run's name; see ``Presigner``."""

    def __init__(self, signers: Sequence[Presigner], nearest: Callable[[str], int], home: Callable[[str], int]) -> None:
        """Take the signers of all roots, and which of them a run is read from now, and written at."""
        self._signers, self._nearest, self._home = signers, nearest, home

    def presign(self, key: str, expires_s: int) -> str:
        """Return a URL that reads an object at the root that its run is read from: see Presigner.presign."""
        return self._signers[self._nearest(_run(key))].presign(key, expires_s)

    def presign_put(self, key: str, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that creates an object at its run's home: see Presigner.presign_put."""
        return self._at_home(key).presign_put(key, size, sha256, expires_s)

    def begin_parts(self, key: str) -> str:
        """Begin an upload in parts at the run's home: see Presigner.begin_parts."""
        return self._at_home(key).begin_parts(key)

    def presign_part(self, key: str, upload_id: str, number: int, size: int, sha256: str, expires_s: int) -> SignedPut:
        """Return a PUT that uploads a part: see Presigner.presign_part."""
        return self._at_home(key).presign_part(key, upload_id, number, size, sha256, expires_s)

    def finish_parts(self, key: str, upload_id: str, parts: Sequence[UploadedPart]) -> None:
        """Make the object of its parts: see Presigner.finish_parts."""
        self._at_home(key).finish_parts(key, upload_id, parts)

    def abort_parts(self, key: str, upload_id: str) -> None:
        """Give up an upload: see Presigner.abort_parts."""
        self._at_home(key).abort_parts(key, upload_id)

    def _at_home(self, key: str) -> Presigner:
        return self._signers[self._home(_run(key))]


def _run(key: str) -> str:
    return key.partition("/")[0]
