"""The cells of a fetched keyframe, as arrays over its shards where they lie: in files or in memory."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
import numpy.typing as npt

from pulse_kernels import Backend
from pulse_registry.errors import about
from pulse_registry.format.keyframe import check_shards
from pulse_registry.format.safetensors import head_of
from pulse_registry.process.open_files import reader_of_map
from pulse_registry.process.parallel import Map
from pulse_registry.pull.download import MemoryShard, ShardBytes
from pulse_registry.pull.fetch import fetch_shards
from pulse_registry.pull.landing_digest import LandingDigest
from pulse_registry.store import Store
from pulse_registry.weights.arrays import Weights, arrays_over
from pulse_registry.weights.cell_space import Geometry, Group
from pulse_schemas import KeyframeRef


class FetchedKeyframe(Protocol):
    """The checked cells of a keyframe, all or those that slices hold; close it to give back what they lie in.

    Attributes:
        weights: the cells.
        in_memory: whether they are this process's own memory, and writable, and may become a caller's.
    """

    weights: Weights
    in_memory: bool

    def release(self, group: Group) -> None:
        """Let go of the pages of a group that was read."""
        ...

    def close(self) -> None:
        """Give back files and memory."""
        ...


class KeyframeCells:
    """The checked cells of a keyframe, mapped from files, read-only, or in memory; close it to give the files back.

    Pages of files that were read are given back by ``release``, so that resident memory stays within a few groups.

    Attributes:
        weights: the cells.
        in_memory: whether they are this process's own memory, and writable.
        known: the state digest of the cells, where they were summed as they landed.
    """

    def __init__(
        self, geometry: Geometry, ref: KeyframeRef, files: Sequence[ShardBytes], digest: LandingDigest | None = None
    ) -> None:
        self._files = list(files)
        self._maps = [file.map() for file in files]
        self.in_memory = all(isinstance(file, MemoryShard) for file in files)
        # What was coded lies here as plain shards, of other sizes than the stored ones.
        plain = [part.model_copy(update={"size": len(m)}) for part, m in zip(ref.shards, self._maps, strict=True)]
        ref = ref.model_copy(update={"shards": tuple(plain)})
        shards = check_shards(geometry, ref, [head_of(reader_of_map(mapped), len(mapped)) for mapped in self._maps])
        arrays: list[npt.NDArray[Any]] = []
        memory = [np.frombuffer(mapped, np.uint8) for mapped in self._maps]
        self._places: list[tuple[mmap.mmap, int]] = []
        for shard, mapped, piece in zip(shards, self._maps, memory, strict=True):
            tensors, at = range(shard.first, shard.last), len(shard.header)
            arrays += arrays_over(geometry, piece, tensors, at)
            for number in tensors:
                self._places.append((mapped, at))
                at += geometry.tensor_bytes(number)
        # Pages of files are to be let go of group by group, which takes copies of groups.
        self.weights = Weights(geometry, arrays, pieces=memory if self.in_memory else ())
        self.known = None if digest is None else digest.total(shards)

    @classmethod
    def fetch(
        cls,
        store: Store,
        geometry: Geometry,
        ref: KeyframeRef,
        map_: Map,
        spool: Path | None,
        *,
        in_memory: bool = False,
        backend: Backend | None = None,
    ) -> Self:
        """Fetch and check all files; see ``fetch_shards``. With a backend, their cells are summed as they land.

        Raises:
            CorruptObject: a file is not what was committed.
            NotFound, StoreUnavailable: as the store.
        """
        digest = None if backend is None else LandingDigest(geometry, backend)
        with about(ref.index.key):
            files = fetch_shards(store, geometry, ref, map_, spool, in_memory=in_memory, digest=digest)
            try:
                return cls(geometry, ref, files, digest)
            except BaseException:
                for file in files:
                    file.close()
                raise

    def release(self, group: Group) -> None:
        """Let go of the pages of a group that was read."""
        width = group.cell_type.width
        for span in group.spans if not self.in_memory else ():
            mapped, at = self._places[span.tensor]
            start = -(-(at + span.start * width) // mmap.PAGESIZE) * mmap.PAGESIZE
            stop = (at + span.stop * width) // mmap.PAGESIZE * mmap.PAGESIZE
            if stop > start:
                mapped.madvise(mmap.MADV_DONTNEED, start, stop - start)

    def close(self) -> None:
        """Close the files; maps go when the last array of them does."""
        for file in self._files:
            file.close()
        self._maps.clear()
