"""The judgement at the end: does every worker hold the trainer's cells, bit for bit, and does the store?"""

from __future__ import annotations

from dataclasses import dataclass

import pulse_registry
from pulse_registry import PulseError
from pulse_registry.demo.board import Board
from pulse_registry.demo.settings import LATE


@dataclass(frozen=True, slots=True)
class Verdict:
    """What was found wrong, and how much was looked at.

    Attributes:
        problems: sentences; none if all is well.
        pulls: pulls whose SHA-256 was compared with the trainer's.
        versions: versions in the store.
    """

    problems: tuple[str, ...]
    pulls: int
    versions: int

    @property
    def good(self) -> bool:
        """Tell whether all is well."""
        return not self.problems


def judge(board: Board) -> Verdict:
    """Compare every pull of every worker with the trainer, and the store with what was published."""
    versions, stored = _stored_problems(board)
    pulls = sum(len(worker.pulls) for worker in board.workers.values())
    return Verdict((*_worker_problems(board), *_rank_problems(board), *stored), pulls, versions)


def _worker_problems(board: Board) -> list[str]:
    problems = []
    last = board.trained.version if board.trained is not None else -1
    for name in board.settings.worker_names:
        worker = board.workers.get(name)
        if worker is None or worker.checked is None:
            problems.append(f"{name} did not finish")
            continue
        for _, pulled in worker.pulls:
            if board.wanted(name, pulled.version) != pulled.sha256:
                problems.append(f"{name} pulled version {pulled.version}, and its cells are not the trainer's")
        if worker.checked.version != last:
            problems.append(f"{name} ended at version {worker.checked.version}; the trainer at {last}")
        elif worker.checked.sha256 != board.wanted(name, last):
            problems.append(f"{name} holds version {last} at the end, and its cells are not the trainer's")
        if name == LATE and worker.pulls[0][1].version < board.settings.late_after:
            problems.append(f"{name} began at version {worker.pulls[0][1].version}, which is not late")
    return problems


def _rank_problems(board: Board) -> list[str]:
    """Return what is wrong with who holds what, and with what the library compared."""
    settings, problems = board.settings, []
    if settings.ranks == 1:
        return []
    if missing := [name for name in (*settings.trainer_names, *settings.sharded_names) if name not in board.shards]:
        return [f"{', '.join(missing)}: it is not known what they hold"]
    sizes = [board.shards[name].cells for name in settings.trainer_names]
    if 0 in board.published and sum(sizes) != board.published[0].cells:
        problems.append(f"the trainer's ranks hold {sizes} cells, and all are {board.published[0].cells}")
    for name in settings.sharded_names:
        for _, pulled in board.workers[name].pulls if name in board.workers else ():
            if pulled.checked != "state":
                problems.append(
                    f"{name} pulled version {pulled.version}, and all ranks' cells were not compared with it"
                )
    return problems


def _stored_problems(board: Board) -> tuple[int, list[str]]:
    """Return the number of versions in the store, and what is wrong with them."""
    settings, problems = board.settings, []
    try:
        with pulse_registry.open(settings.root, run=settings.run, create=False) as registry:
            versions = registry.versions()
            told = [(entry.version, entry.digest) for _, entry in sorted(board.published.items())]
            if [(version.version, version.digest) for version in versions] != told:
                problems.append("the versions in the store are not those that the trainer pushed")
            if len(versions) != settings.steps + 1:
                problems.append(f"the store has {len(versions)} versions; {settings.steps + 1} were to be made")
            registry.verify("latest")
    except PulseError as error:
        return 0, [f"the store failed the check: {type(error).__name__}: {error}"]
    return len(versions), problems
