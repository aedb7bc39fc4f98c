"""Runs that share a base of the root: its files come along once, after the run's reference, which goes in time."""

from __future__ import annotations

from pulse_registry.mirror import Mirror
from pulse_registry.retention import RetentionPolicy
from pulse_registry.testing import CountingStore
from pulse_schemas import BASES
from tests.support.bases import LENDER, base_files, broken_promises, lend, opened, tuned
from tests.support.mirrors import retrying
from tests.support.records import DictStore

NOW = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)


class Watched(DictStore):
    def put(self, key, data, *, if_absent=False):
        super().put(key, data, if_absent=if_absent)
        assert not broken_promises(self), f"after {key}"


def fleet() -> DictStore:
    """Return a root with a run that lends, and two that begin with its version."""
    source = DictStore()
    model = lend(source)
    for number, run in enumerate(("math", "code")):
        with opened(source, run, base=LENDER) as registry:
            for step in range(3):
                model = tuned(model, 10 * number + step)
                registry.push(step, model)
    return source


def test_a_base_is_copied_once_for_all_runs_that_name_it():
    source, copied = fleet(), Watched()
    counted = CountingStore(source)
    for run in ("math", "code"):
        with Mirror(counted, copied, run, retrying=retrying) as one:
            one.catch_up()
    assert base_files(copied) == base_files(source)
    assert all(copied.objects[key] == source.objects[key] for key in base_files(source))
    shards = [key for verb, key in counted.ledger if verb == "get" and key in base_files(source)]
    assert len(shards) == len(set(shards)), "each file was fetched once"
    own = {
        key: data
        for key, data in source.objects.items()
        if key.startswith(("math/", "code/")) and "/leases/" not in key
    }
    assert {key: copied.objects[key] for key in own} == own
    with opened(source, "math") as there, opened(copied, "math") as here:
        one, two = tuned(lend(DictStore()), 1), tuned(lend(DictStore()), 2)
        assert there.pull("latest", into=one).digest == here.pull("latest", into=two).digest


def test_a_reference_goes_at_the_copy_once_the_run_has_retired_the_base():
    source, copied = fleet(), DictStore()
    with Mirror(source, copied, "math", retrying=retrying, policy=NOW) as one:
        one.catch_up()
    reference = next(key for key in copied.objects if key.startswith("math/bases/"))
    with opened(source, "math", keyframe_every=1) as registry:
        model = lend(DictStore())
        for step in range(3, 6):
            model = tuned(model, step)
            registry.push(step, model)
        for _ in range(3):
            registry.gc(NOW, dry_run=False)
    assert reference not in source.objects
    for _ in range(2):
        with Mirror(source, copied, "math", retrying=retrying, policy=NOW) as one:
            one.catch_up()
    assert reference not in copied.objects
    assert any(key.startswith(BASES) for key in copied.objects), "which the root's own collector deletes"
