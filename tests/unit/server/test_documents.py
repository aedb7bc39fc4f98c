"""Documents in memory: asked for once, kept only if intact, bounded."""

from __future__ import annotations

import pytest

from pulse_registry.errors import NotFound
from pulse_registry.format import keys
from pulse_registry.testing import CountingStore
from pulse_schemas import Head
from pulse_server.runs.documents import DocumentStore
from tests.support.apps import LAYOUT, run_of
from tests.support.records import DictStore

RECORD = run_of(1).records[0].seal()
KEY = f"math/{keys.record_key(0)}"
LAYOUT_KEY = f"math/{keys.layout_key(LAYOUT.id)}"
SNAPSHOT = run_of(1).state.to_snapshot().seal()


def gets(store: CountingStore) -> int:
    return store.calls["get"]


@pytest.mark.parametrize(
    ("key", "data"),
    [(KEY, RECORD), (LAYOUT_KEY, LAYOUT.canonical()), (f"math/{keys.snapshot_key(1)}", SNAPSHOT)],
    ids=["record", "layout", "snapshot"],
)
def test_a_document_is_asked_for_once(key: str, data: bytes) -> None:
    base = CountingStore(DictStore())
    base.put(key, data)
    store = DocumentStore(base)
    assert store.known(key) is None
    for _ in range(3):
        assert store.get(key) == data
    assert (gets(base), store.known(key)) == (1, data)


@pytest.mark.parametrize("damage", [b"", b"junk", RECORD[:-1], RECORD.replace(b"math", b"moth")])
@pytest.mark.parametrize("key", [KEY, LAYOUT_KEY])
def test_damaged_bytes_are_read_again(key: str, damage: bytes) -> None:
    base = CountingStore(DictStore())
    base.put(key, damage)
    store = DocumentStore(base)
    assert store.get(key) == store.get(key) == damage
    assert gets(base) == 2
    whole = RECORD if key == KEY else LAYOUT.canonical()
    base.put(key, whole)
    assert store.get(key) == whole


@pytest.mark.parametrize("key", ["math/head", "math/objects/x", "math/reports/one.json", "math/log/x.json"])
def test_what_may_change_is_read_each_time(key: str) -> None:
    base = CountingStore(DictStore())
    base.put(key, Head(seq=1, snapshot=None).seal())
    store = DocumentStore(base)
    store.get(key)
    base.put(key, Head(seq=2, snapshot=None).seal())
    assert store.get(key) == Head(seq=2, snapshot=None).seal()


def test_that_a_document_is_missing_is_not_remembered() -> None:
    base = DictStore()
    store = DocumentStore(base)
    with pytest.raises(NotFound):
        store.get(KEY)
    base.put(KEY, RECORD)
    assert store.get(KEY) == RECORD


def test_a_record_that_was_created_is_known_at_once_and_ranges_are_not_kept() -> None:
    base = CountingStore(DictStore())
    store = DocumentStore(base)
    store.put(KEY, [RECORD[:5], RECORD[5:]], if_absent=True)
    assert store.known(KEY) == RECORD
    store.put(LAYOUT_KEY, LAYOUT.canonical())
    assert store.get(LAYOUT_KEY, (0, 4)) == LAYOUT.canonical()[:4]
    assert store.known(LAYOUT_KEY) is None


def test_memory_is_bounded_and_the_least_recently_used_go_first() -> None:
    records = {f"math/{keys.record_key(record.seq)}": record.seal() for record in run_of(20).records}
    base = CountingStore(DictStore())
    for key, data in records.items():
        base.put(key, data)
    names = list(records)
    largest = max(map(len, records.values()))
    store = DocumentStore(base, max_bytes=5 * largest)
    for key in names:
        store.get(key)
        store.get(names[0])
    assert store.known(names[0]) is not None
    assert 3 <= sum(store.known(key) is not None for key in names) <= 6
    small = DocumentStore(base, max_document=100)
    small.get(names[0])
    assert small.known(names[0]) is None
