"""A background thread: started by the first news, woken by the next, over once it is told to stop."""

from __future__ import annotations

import threading

import pytest

from pulse_registry.process.background_thread import BackgroundThread


class Doubling:
    """Doubles what it is handed."""

    def __init__(self) -> None:
        self.thread = BackgroundThread("doubling", self._work)
        self.done: list[int] = []
        self._waiting: list[int] = []

    def hand(self, number: int) -> None:
        with self.thread.changed:
            self._waiting.append(number)
            self.thread.wake()

    def _work(self) -> None:
        stopping = False
        while not stopping:
            with self.thread.changed:
                stopping = self.thread.rest(None, lambda: bool(self._waiting))
                self.done += [2 * number for number in self._waiting]
                self._waiting.clear()


def threads() -> list[str]:
    return [thread.name for thread in threading.enumerate() if thread.name == "doubling"]


def test_there_is_no_thread_before_the_first_news_and_none_after_it_was_closed() -> None:
    doubling = Doubling()
    assert threads() == []
    doubling.hand(1)
    assert threads() == ["doubling"]
    doubling.hand(2)
    assert threads() == ["doubling"]
    doubling.thread.close()
    doubling.thread.close()
    assert (threads(), doubling.done) == ([], [2, 4])


def test_one_that_was_told_to_stop_rests_no_more() -> None:
    thread = BackgroundThread("doubling", lambda: None)
    with thread.changed:
        assert not thread.rest(0)
    thread.stop()
    with thread.changed:
        assert thread.stopping
        assert thread.rest(None)


def test_where_no_thread_can_be_started_the_next_call_tries_again(monkeypatch: pytest.MonkeyPatch) -> None:
    def start(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    doubling = Doubling()
    with monkeypatch.context() as no_threads:
        no_threads.setattr(threading.Thread, "start", start)
        with pytest.raises(RuntimeError):
            doubling.hand(1)
    doubling.hand(2)
    doubling.thread.close()
    assert doubling.done == [2, 4]
