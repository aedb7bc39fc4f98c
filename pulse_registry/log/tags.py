"""Tags: the names that stand for versions of a run."""

from __future__ import annotations

from collections.abc import Mapping

from pulse_registry.log.cow import CowDict, CowObject


class Tags(CowObject):
    """Each name stands for one version; a version may have several."""

    def __init__(self) -> None:
        """Begin without names."""
        self._versions = CowDict[str, int]()
        self._counts = CowDict[int, int]()  # names of each version

    @property
    def versions(self) -> Mapping[str, int]:
        """The version that each name stands for."""
        return self._versions

    def __contains__(self, version: int) -> bool:
        """Tell whether a name stands for ``version``."""
        return version in self._counts

    def set(self, name: str, version: int | None) -> None:
        """Let a name stand for a version; None: for none."""
        for number, more in ((self._versions.pop(name, None), -1), (version, 1)):
            if number is None:
                continue
            count = self._counts.pop(number, 0) + more
            if count:
                self._counts[number] = count
        if version is not None:
            self._versions[name] = version
