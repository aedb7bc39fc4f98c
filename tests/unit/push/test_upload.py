"""A patch goes up while its groups are coded, and is the object that it would have been in one piece."""

from __future__ import annotations

import threading
import uuid
from collections.abc import Iterator

import numpy as np
import pytest
from blake3 import blake3

from pulse_registry.errors import CorruptObject
from pulse_registry.format.directory import Entry
from pulse_registry.format.patch_coding import Coded, PatchFile
from pulse_registry.push.upload import store_patch
from pulse_registry.registry import Registry
from pulse_registry.store import MemoryStore, PrefixStore, RetryStore, S3Location, S3Store
from pulse_registry.timeline import Timeline
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from pulse_schemas import Layout, Tensor
from tests.support.inline import Inline
from tests.support.misbehaving_s3 import Request
from tests.support.servers import S3Bucket
from tests.support.waiting import HANG_S
from tests.unit.store.test_s3_faults import MIB, Multipart, served

GEOMETRY = Geometry(Layout(tensors=(Tensor(name="w", dtype="BF16", shape=(40 * MIB,)),)))


@pytest.fixture(autouse=True)
def _credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    monkeypatch.setenv("AWS_CONFIG_FILE", "/dev/null")


def groups(nbytes: int = 4 * MIB) -> list[Coded]:
    found = []
    for number in range(5):
        data = bytes([number]) * (nbytes + number)
        entry = Entry(number, 1, len(data), "gap", blake3(data).digest(), Digest(), Digest(1, number))
        found.append(Coded(entry, data))
    return found


def test_a_patch_is_sent_while_its_last_group_is_coded() -> None:
    began = threading.Event()

    class Watched(Multipart):
        def __call__(self, request: Request) -> None:
            super().__call__(request)
            if self.parts:
                began.set()

    timeline = Timeline()

    def coded() -> Iterator[Coded]:
        *others, last = groups()
        yield from others
        assert began.wait(HANG_S), "no part was sent before the last group was there"
        yield last

    answers = Watched({})
    with served(answers) as (_, store):
        ref = store_patch(store, GEOMETRY, 5, "id", coded(), Inline(), timeline)
    file = PatchFile.of(GEOMETRY, 4, 5, groups())
    assert answers.done == b"".join((file.head, *file.groups))
    assert ref == file.ref(ref.object.key)
    phases = {phase.phase: phase for phase in timeline.phases()}
    assert phases["upload"].start < phases["code"].start, "of the head, which is known last"
    assert phases["upload"].end > phases["hash"].end
    assert phases["upload"].nbytes == ref.size


@pytest.mark.parametrize("number", [0, 1, 5])
def test_a_patch_is_the_same_object_in_a_store_that_takes_it_in_one_piece(number: int) -> None:
    coded = groups(100)[:number]
    store, timeline = MemoryStore(uuid.uuid4().hex), Timeline()
    ref = store_patch(store, GEOMETRY, 5, "id", iter(coded), Inline(), timeline)
    file = PatchFile.of(GEOMETRY, 4, 5, coded)
    assert store.get(ref.object.key) == b"".join((file.head, *file.groups))
    assert ref == file.ref(ref.object.key)
    phases = {phase.phase: phase for phase in timeline.phases()}
    assert phases["hash"].end <= phases["upload"].start, "it is sent when all of it is there"


def test_what_the_coding_raises_is_raised_and_nothing_is_stored() -> None:
    def coded() -> Iterator[Coded]:
        yield groups(10)[0]
        raise CorruptObject("the base is gone")

    store = MemoryStore(uuid.uuid4().hex)
    with pytest.raises(CorruptObject, match="base is gone"):
        store_patch(store, GEOMETRY, 5, "id", coded(), Inline(), Timeline())
    assert not [*store.list("")]


@pytest.mark.slow
def test_a_large_push_goes_to_a_bucket_in_parts_and_is_pulled_bit_for_bit(
    moto_bucket: S3Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in moto_bucket.server.environment.items():
        monkeypatch.setenv(name, value)
    server, folder = moto_bucket.server, uuid.uuid4().hex[:12]
    place = S3Location(moto_bucket.name, server.endpoint, server.region, "path")
    store = PrefixStore(RetryStore(S3Store(place, part_bytes=5 * MIB)), folder)
    random = np.random.default_rng(7)
    # Three groups, of which two together are more than two parts.
    model = {name: np.zeros(MIB + 1, np.int64) for name in ("a", "b", "c", "d")}
    with Registry(store, "run") as registry:
        registry.push(0, model)
        for name in ("a", "d"):
            model[name][:] = random.integers(-(2**62), 2**62, len(model[name]))
        result = registry.push(1, model)
    into = {name: np.zeros_like(cells) for name, cells in model.items()}
    with Registry(store, "run") as registry:
        registry.pull("latest", into=into)
    assert all(np.array_equal(into[name], cells) for name, cells in model.items())
    assert result.nbytes > 10 * MIB
    [found] = store.list("run/objects/patch/")
    answer = server.client().head_object(Bucket=moto_bucket.name, Key=f"{folder}/{found}")
    assert answer["ContentLength"] == result.nbytes
    assert int(answer["ETag"].strip('"').partition("-")[2]) >= 3
    phases = {phase.phase: phase for phase in result.timeline}
    assert phases["upload"].start < phases["code"].end, "the head is coded when parts are on their way"
