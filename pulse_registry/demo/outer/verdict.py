"""The judgement at the end: do all trainers hold the same bits, and all workers those of the versions?"""

from __future__ import annotations

from pulse_registry.demo.outer.board import Board
from pulse_registry.demo.outer.events import Ended, Pulled
from pulse_registry.demo.outer.settings import BACK, KILLED, LATE, STOPPED, TRAINERS, WORKERS


def problems(board: Board) -> list[str]:
    """Return what is not as it should be, as sentences; SHA-256 of cells is all that is compared."""
    return [*_different(board, board.round), *_unlike(board, board.round), *_did_not_happen(board)]


def _different(board: Board, last: int) -> list[str]:
    """Compare the trainers at the end, and with them the workers."""
    found = []
    if missing := [name for name in TRAINERS if name not in board.trained]:
        return [f"{', '.join(missing)}: did not finish"]
    first = board.trained[TRAINERS[0]]
    for name in TRAINERS:
        one = board.trained[name]
        if one.round != last:
            found.append(f"{name} has ended at round {one.round}, and not at {last}")
        whats = [what for what in ("theta", "momentum", "sha256") if getattr(one, what) != getattr(first, what)]
        found += [f"{what} of {name} is not that of {TRAINERS[0]}" for what in whats]
    for name in WORKERS:
        pulls = board.pulls.get(name, [])
        if not pulls or pulls[-1].version != last:
            found.append(f"{name} does not hold the last round's version")
        elif pulls[-1].sha256 != first.sha256:
            found.append(f"{name} holds other cells than the trainers")
    return found


def _unlike(board: Board, last: int) -> list[str]:
    """Compare what was held after each round, by trainers and workers."""
    held: dict[int, dict[str, str]] = {}
    every: list[Ended | Pulled] = [one for rounds in board.rounds.values() for one in rounds]
    every += [one for pulls in board.pulls.values() for one in pulls]
    for one in every:
        number, name = (one.round, one.trainer) if isinstance(one, Ended) else (one.version, one.worker)
        held.setdefault(number, {})[name] = one.sha256
    found = [
        f"round {number}: {names} hold different cells" for number, names in held.items() if len({*names.values()}) > 1
    ]
    if len({next(iter(names.values())) for names in held.values()}) != len(held):
        found.append("two rounds have the same cells: nothing was trained")
    if sorted(held) != list(range(last + 1)):
        found.append(f"not all of {last} rounds were held by anybody: {sorted(held)}")
    return found


def _did_not_happen(board: Board) -> list[str]:
    """Tell what the run was to show, and has not."""
    there = {name: board.rounds_of(name) for name in TRAINERS}
    found = [f"{name} has missed no round" for name in (STOPPED, KILLED, LATE) if len(there[name]) == board.round]
    for name, change in BACK:
        if not board.is_back(name, change):
            found.append(f"{name} was in no round after it was {change}")
    if len(board.joined.get(KILLED, ())) != 2:
        found.append(f"{KILLED} did not come back")
    if LATE in board.joined and not board.joined[LATE][0].round:
        found.append(f"{LATE} has joined at round 0, which is not late")
    return found
