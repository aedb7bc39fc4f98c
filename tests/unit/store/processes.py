"""Real processes that write to a file store: a script, as a process to fork must have no threads.

race FOLDER PROCESSES ROUNDS   processes create the same key, round after round; prints who won each, as JSON
crash FOLDER MODE              kills a put before its n-th system call, for n = 0, 1, ..., each in a folder of
                               its own; prints the calls, as JSON
limit FOLDER BYTES             puts more than a file may hold under RLIMIT_FSIZE; prints the error, as JSON
"""

from __future__ import annotations

import json
import multiprocessing
import os
import resource
import signal
import sys
from collections.abc import Sequence
from typing import Any

from pulse_registry.errors import AlreadyExists, PulseError
from pulse_registry.store import FileStore

STEPS = ("mkdir", "open", "writev", "fsync", "close", "link", "replace", "unlink")
OLD = b"old" * 1000
NEW = (b"new1" * 1000, b"new2" * 1000, b"new3" * 1000)


def race(folder: str, processes: int, rounds: int) -> None:
    """Let processes create the same keys at the same moments."""
    context = multiprocessing.get_context("fork")
    start = context.Barrier(processes)
    reader, writer = os.pipe()

    def run(racer: int) -> None:
        store = FileStore(folder)
        for turn in range(rounds):
            start.wait()
            try:
                store.put(f"race/{turn}/deep/key", [bytes([racer]) * 20_000] * 2, if_absent=True)
            except AlreadyExists:
                continue
            os.write(writer, bytes([turn, racer]))

    racers = [context.Process(target=run, args=(racer,)) for racer in range(processes)]
    for racer in racers:
        racer.start()
    for racer in racers:
        racer.join()
    os.close(writer)
    with open(reader, "rb") as wins:
        told = wins.read()
    if any(racer.exitcode for racer in racers):
        raise SystemExit("a process failed")
    print(json.dumps([list(told[at : at + 2]) for at in range(0, len(told), 2)]))


def crash(folder: str, mode: str) -> None:
    """Kill a put at each of its steps, until it gets to its end."""
    calls: list[str] = []
    while True:
        at = len(calls)
        root = f"{folder}/{at}"
        if mode == "replace":
            FileStore(root).put("log/deep/key", OLD)
        reader, writer = os.pipe()
        child = os.fork()
        if not child:
            _die_before(at, writer)
            FileStore(root).put("log/deep/key", NEW, if_absent=mode == "create")
            os._exit(0)
        os.close(writer)
        with open(reader, "rb") as told:
            call = told.read().decode()
        _, status = os.waitpid(child, 0)
        if os.WIFEXITED(status):
            if os.WEXITSTATUS(status):
                raise SystemExit("the put failed")
            break
        calls.append(call)
    print(json.dumps(calls))


def limit(folder: str, size: int) -> None:
    """Put an object that is larger than a file may be."""
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
    try:
        FileStore(folder).put("key", bytes(2 * size))
    except PulseError as error:
        print(json.dumps([type(error).__name__, str(error)]))


def _die_before(at: int, report: int) -> None:
    """Kill this process before its system call number `at`; a write takes only half of what it is given."""
    seen = 0

    def counted(name: str) -> Any:
        call = getattr(os, name)

        def step(*args: Any, **options: Any) -> Any:
            nonlocal seen
            if seen == at:
                os.write(report, name.encode())
                os.kill(os.getpid(), signal.SIGKILL)
            seen += 1
            if name == "writev":
                descriptor, views = args
                return call(descriptor, [views[0][: (views[0].nbytes + 1) // 2]])
            return call(*args, **options)

        return step

    for name in STEPS:
        setattr(os, name, counted(name))


def main(arguments: Sequence[str]) -> None:
    """Run one of the commands."""
    match arguments:
        case ["race", folder, processes, rounds]:
            race(folder, int(processes), int(rounds))
        case ["crash", folder, mode]:
            crash(folder, mode)
        case ["limit", folder, size]:
            limit(folder, int(size))
        case _:
            raise SystemExit(__doc__)


if __name__ == "__main__":
    main(sys.argv[1:])
