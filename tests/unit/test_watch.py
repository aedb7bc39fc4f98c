"""Watching a run: every version in its turn, or the newest of what is new."""

from __future__ import annotations

from tests.support.records import DictStore
from tests.support.registries import change, quick, small_model


def test_who_wants_the_newest_only_skips_what_came_while_it_was_busy() -> None:
    store, model = DictStore(), small_model()
    with quick(store) as trainer, quick(store) as worker:
        seen, watch = [], worker.watch(after=-1, latest_only=True, poll_seconds=0.0, timeout=60)
        for step in range(9):
            change(model, step)
            trainer.push(step, model)
            if step % 3 == 2:
                seen.append(next(watch).version)
        assert seen == [2, 5, 8]
        assert [version.version for version in worker.watch(after=-1, timeout=0)] == list(range(9))
        assert [version.version for version in worker.watch(after=4, latest_only=True, timeout=0)] == [8]
        assert list(worker.watch(latest_only=True, timeout=0)) == []
