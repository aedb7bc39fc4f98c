"""The board: all that has happened in a run of outer rounds."""

from __future__ import annotations

import time

from pulse_registry.demo.outer.events import Change, Changed, Ended, Event, Joined, Pulled, Trained


class Board:
    """Attributes are what was told, in order.

    Attributes:
        began, ended: seconds since the epoch.
        changes: what was done to trainers.
        joined: by trainer; one that has come back has two.
        rounds: that each trainer has made the step of.
        trained: the last word of each trainer.
        pulls: of each worker.
    """

    def __init__(self) -> None:
        self.began = time.time()
        self.ended: float | None = None
        self.changes: list[Changed] = []
        self.joined: dict[str, list[Joined]] = {}
        self.rounds: dict[str, list[Ended]] = {}
        self.trained: dict[str, Trained] = {}
        self.pulls: dict[str, list[Pulled]] = {}

    def add(self, event: Event) -> None:
        """Take note of an event."""
        match event:
            case Changed():
                self.changes.append(event)
            case Joined():
                self.joined.setdefault(event.trainer, []).append(event)
            case Ended():
                self.rounds.setdefault(event.trainer, []).append(event)
            case Trained():
                self.trained[event.trainer] = event
            case Pulled():
                self.pulls.setdefault(event.worker, []).append(event)

    @property
    def round(self) -> int:
        """Return the newest round that has ended; 0: none has."""
        return max((rounds[-1].round for rounds in self.rounds.values()), default=0)

    @property
    def cells(self) -> int:
        """Return the cells of the model."""
        return next((joined[0].cells for joined in self.joined.values()), 0)

    def seconds(self, at: float) -> float:
        """Return a time as seconds since the run began."""
        return at - self.began

    def rounds_of(self, trainer: str) -> set[int]:
        """Return the rounds that a trainer has contributed to, by whoever knows."""
        return {one.round for rounds in self.rounds.values() for one in rounds if trainer in one.members}

    def has_just_ended(self, trainer: str) -> bool:
        """Tell whether a trainer has made the newest step, and kept its state: it has not contributed since."""
        rounds = self.rounds.get(trainer)
        return rounds is not None and rounds[-1].round == self.round

    def missed(self, trainer: str) -> int:
        """Return how many rounds have ended without a trainer since something was done to it last."""
        since = max((one.at for one in self.changes if one.trainer == trainer), default=self.began)
        ended = [one for rounds in self.rounds.values() for one in rounds]
        return len({one.round for one in ended if one.at > since and trainer not in one.members})

    def is_back(self, trainer: str, change: Change) -> bool:
        """Tell whether a trainer has made a round since something was done to it."""
        done = [one.at for one in self.changes if one.trainer == trainer and one.change == change]
        rounds = self.rounds.get(trainer, [])
        return bool(done and rounds) and rounds[-1].at > done[-1]

    def were_there(self, round_: int) -> tuple[list[str], list[str]]:
        """Return who contributed to a round, and who was late, by whoever knows."""
        for rounds in self.rounds.values():
            for ended in rounds:
                if ended.round == round_:
                    return list(ended.members), list(ended.late)
        return [], []
