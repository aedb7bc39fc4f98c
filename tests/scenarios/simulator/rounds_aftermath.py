"""What anybody finds who comes later to outer rounds: the next ones close, all hold the same, and workers pull them."""

from __future__ import annotations

from pulse_registry.outer.log import OuterLog
from pulse_registry.store import PrefixStore
from tests.scenarios.simulator.bucket import Bucket
from tests.scenarios.simulator.outsider import Outsider
from tests.scenarios.simulator.policy import Policy
from tests.scenarios.simulator.process import Process
from tests.scenarios.simulator.rounds import Rounds, Settings
from tests.scenarios.simulator.rounds_truth import RoundsTruth
from tests.scenarios.simulator.truth import RUN
from tests.scenarios.simulator.weather import Weather
from tests.support.records import DictStore

_LONG_S = 2 * 3600.0
_ROUNDS = 3


class RoundsAftermath:
    """As many trainers as the quorum asks for, in fine weather, under names old and new."""

    def __init__(self, bucket: Bucket, truth: RoundsTruth, settings: Settings) -> None:
        self._bucket, self._truth, self._settings = bucket, truth, settings
        self._world = bucket.world
        self._ended = self._target = 0

    def live(self) -> None:
        """Make some rounds, then look at all versions."""
        self._world.pause(_LONG_S)
        if self._truth.astray:
            Outsider(Process(self._bucket, "operator", Weather()), self._truth).restart()
        before, count = self._truth.rounds, max(2, self._settings["quorum"])
        self._target = before + _ROUNDS
        for number in range(count):
            name = f"m{number}" if number % 2 else f"late-{number}"
            self._world.spawn(lambda name=name: self._member(name))  # type: ignore[misc]
        if not self._world.wait(lambda: self._ended == count, 5 * _LONG_S):
            self._world.fail(f"{count} members that come later do not get through {_ROUNDS} rounds")
        self._pull_all()
        self._replay()

    def _member(self, name: str) -> None:
        Rounds(Process(self._bucket, f"later-{name}", Weather()), self._truth, name, self._settings, None).live(
            lambda: self._truth.rounds >= self._target
        )
        self._ended += 1
        self._world.stir()

    def _pull_all(self) -> None:
        """Pull every round's version, as a worker does."""
        registry = Process(self._bucket, "afterwards", Weather()).registry()
        assert self._truth.fold is not None
        ended = self._truth.fold.start["version"] + self._truth.rounds
        if len(self._truth.versions) - 1 != ended:
            self._world.fail(f"there are {len(self._truth.versions)} versions, and {self._truth.rounds} rounds ended")
        for number in sorted(self._truth.live())[-50:]:
            pushed = self._truth.state(number)
            weights = Policy(pushed.kind)
            registry.pull(number, into=weights.tensors, replace=True)
            if weights.bits != pushed.bits:
                self._world.fail(f"version {number} is not what its round has come to")

    def _replay(self) -> None:
        """Compare what the records say with what the snapshots say."""
        store = DictStore()
        store.objects = {key: stored.data for key, stored in self._bucket.objects.items()}
        opened = OuterLog(PrefixStore(store, RUN), RUN).refresh()
        for key in [key for key in store.objects if "/snapshots/" in key or key.endswith("/head")]:
            store.delete(key)
        plain = OuterLog(PrefixStore(store, RUN), RUN).refresh()
        fold = self._truth.fold
        assert fold is not None
        for state in (opened, plain):
            said = (state.open, {name: one.term for name, one in state.members.items()}, state.middle)
            if said != (fold.round, {name: one.term for name, one in fold.members.items()}, fold.middle):
                self._world.fail(f"the outer log says {said}")
