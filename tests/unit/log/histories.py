"""Random histories of a run, with every kind of record, and a store that counts what is put."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator

from pulse_registry.format import keys
from pulse_registry.log import sealed_hash
from pulse_registry.log.fold import advance
from pulse_registry.log.rules import violation
from pulse_registry.store import Body, body_views
from pulse_schemas import Record
from tests.support.records import RUN, DictStore, Script, keyframe, patch


class CountedStore(DictStore):
    """A store that counts the bytes that are put, by their folder."""

    def __init__(self) -> None:
        super().__init__()
        self.put_bytes: dict[str, int] = {}

    def put(self, key: str, data: Body, *, if_absent: bool = False) -> None:
        content = b"".join(body_views(data))
        folder = key.rpartition("/")[0]
        self.put_bytes[folder] = self.put_bytes.get(folder, 0) + len(content)
        super().put(key, content, if_absent=if_absent)


class History(Script):
    """Makes records at random, each valid, and folds them."""

    def __init__(self, seed: int, *, collect: bool = True, metadata: int = 0) -> None:
        super().__init__(RUN)
        self._random = random.Random(seed)
        self._collect, self._metadata = collect, metadata
        self._merged = 0

    def grow(self, count: int) -> Iterator[tuple[Record, bytes]]:
        """Yield so many more records, each folded, and its sealed bytes."""
        for _ in range(count):
            record = self._next()
            sealed = record.seal()
            self.records.append(record)
            advance(self.state, record, sealed_hash(sealed))
            yield record, sealed

    def _next(self) -> Record:
        if not self.state.epoch:
            return self.make_epoch()
        makers: list[Callable[[], Record]] = [self._attached, self._tagged, self._untagged]
        makers += [self._retired, self._deleted] * self._collect
        if len(self.state.versions) > 2 and self._random.random() < 0.4:
            record = self._random.choice(makers)()
            if violation(self.state, record) is None:
                return record
        noise = f"{self._random.getrandbits(4 * self._metadata):x}" if self._metadata else ""
        return self.make_commit(metadata={"note": noise} if noise else {})

    def _attached(self) -> Record:
        self._merged += 1
        target = self._random.randrange(1, len(self.state.versions))
        if self._random.random() < 0.2:
            return self.make_attach(keyframes=(keyframe(target, shards=2, tag=self._merged),))
        base = self._random.randrange(max(0, target - 64), target)
        return self.make_attach(patches=(patch(base, target, tag=self._merged, coder="gap"),))

    def _tagged(self) -> Record:
        return self.make_tag(name=f"t{self._random.randrange(8)}", version=self._some())

    def _untagged(self) -> Record:
        return self.make_tag(name=f"t{self._random.randrange(8)}", version=None)

    def _retired(self) -> Record:
        """Retire a run of old versions, all that leads to or from them, and now and then an orphan."""
        first = self._some()
        versions = [v for v in range(first, first + self._random.randrange(1, 12)) if self.state.find(v) is not None]
        gone = {
            item.object.key for v in versions for item in (*self.state.patches_into(v), *self.state.patches_from(v))
        }
        gone |= {item.index.key for v in versions for item in self.state.keyframes_of(v)}
        if self._random.random() < 0.3:
            gone.add(keys.patch_key(first, first + 1, f"{self._random.getrandbits(128):032x}"))
        return self.make_retire(versions=tuple(versions), keys=tuple(sorted(gone)))

    def _deleted(self) -> Record:
        return self.make_delete(until=self._random.randrange(max(1, self.state.seq)))

    def _some(self) -> int:
        return self._random.randrange(len(self.state.versions))
