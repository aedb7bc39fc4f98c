"""What signatures do not stop, shown: docs/security.md says so, and what to do about it."""

from __future__ import annotations

import numpy as np

from pulse_kernels import get_backend
from pulse_kernels.format.digest import coefficients
from pulse_registry import PushOptions, Registry, Trust
from pulse_registry.format.keyframe import write_keyframe
from pulse_registry.log import LogWriter, random_id, utc_now
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import PrefixStore
from pulse_registry.weights.cell_space import Geometry
from pulse_registry.weights.digest import Digest
from tests.security.signing.actors import COMPACTOR, LIMITED, TRAINER, reader
from tests.support.records import DictStore


def twin(cells):
    """Return other cells of one block with the same state digest: a short vector of a lattice, found in no time."""
    from sympy import ZZ  # which takes half a second to import, in each test process
    from sympy.polys.matrices import DomainMatrix

    used = 24
    table = [[int(coefficients(lane)[at]) for lane in (0, 1)] for at in range(used)]
    heavy = 1 << 40  # a vector that changes a lane's sum is a long one
    rows = [[int(at == column) for column in range(used)] + [heavy * c for c in table[at]] for at in range(used)]
    reduced = DomainMatrix(rows, (used, used + 2), ZZ).lll().to_Matrix().tolist()
    change = next(np.array(row[:used], np.int64) for row in reduced if row[used:] == [0, 0] and any(row[:used]))
    other = cells.copy()
    other[:used] = (other[:used].astype(np.int64) + change).astype(np.uint16)
    assert ((other[:used].astype(np.int64) - cells[:used].astype(np.int64)) == change).all()
    return other


def test_a_state_digest_is_no_cryptographic_hash():
    cells = np.full(64, 0x3F80, np.uint16)
    other = twin(cells)
    backend = get_backend("reference")
    assert not np.array_equal(other, cells)
    assert Digest(*backend.digest(other, 0)) == Digest(*backend.digest(cells, 0))


def test_a_key_that_may_attach_can_give_a_version_other_weights(tmp_path):
    store = DictStore()
    weights = {"w": np.full(64, 0x3F80, np.uint16).view(np.float16)}
    options = PushOptions(dtype="keep", keyframe_share=100.0)
    with Registry(
        store, "math", Options(push=options, signer=TRAINER, compute=ComputeOptions(backend="reference"))
    ) as trainer:
        digest = trainer.push(0, weights).digest
        geometry = Geometry(trainer.layout())
    other = twin(weights["w"].view(np.uint16))
    inside = PrefixStore(store, "math")
    forged = write_keyframe(inside, geometry, 0, random_id(), lambda group: other, backend="reference", map_=map)
    believes = reader(inside, None, TRAINER.public, LIMITED)
    LogWriter(inside, "math", believes, utc_now, random_id, "c", signer=COMPACTOR).attach(keyframes=[forged])
    trust = Trust([TRAINER.public, LIMITED], state_dir=tmp_path)
    with Registry(
        store, "math", Options(push=options, trust=trust, compute=ComputeOptions(backend="reference"))
    ) as worker:
        mine = {"w": np.zeros(64, np.float16)}
        assert worker.pull(into=mine).digest == digest
        assert np.array_equal(mine["w"].view(np.uint16), other)
