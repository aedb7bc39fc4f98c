"""``python -m benchmarks hops``: what a reader who follows a push or a pull goes through, and how large the house is.

Counted, not timed: a profile hook sees every call of the library's own functions, in all threads, while one operation
on a tiny model goes on. Two runs of the same code give the same figures, but for the order of threads.
"""

from __future__ import annotations

import ast
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import CodeType, FrameType
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import pulse_kernels
import pulse_registry
import pulse_schemas
import pulse_server
from benchmarks.results import OUT, Row, machine, versions, write_result
from pulse_registry.cli.app import app

TITLE = "What a reader of a push or a pull goes through"
OPERATIONS = ("first push", "push of a patch", "pull of one patch", "pull from nothing")
CELLS = 1 << 16
LIBRARY = Path(pulse_registry.__file__).parent
PACKAGES = tuple(
    Path(str(package.__file__)).parent for package in (pulse_registry, pulse_kernels, pulse_schemas, pulse_server)
)

POOLS = ("process/parallel.py",)
"""Files that call what they are handed, as executors of the standard library do."""

Place = tuple[str, str]
"""A function: its file, and its qualified name."""
Call = tuple[Place | None, Place]
"""Caller, None for nobody, and callee."""
Function = ast.FunctionDef | ast.AsyncFunctionDef


@dataclass(frozen=True, slots=True)
class Hops:
    """What one operation goes through in the library.

    Attributes:
        files: that it enters.
        functions: that it enters.
        crossings: calls from a function of one file to one of another. What the standard library calls back counts as
            called by whoever of ours called that; what a new thread begins with, as called by nobody.
        pairs: of files that call each other, both ways.
        arrows: from a function of one file to one of another, each counted once: a loop over five records is no longer
            to follow than one over two. What a pool is handed counts as called by whoever called the pool.
        knots: pairs of files with arrows both ways, by that same count.
        rooms: that it enters: the library's folders, and the modules at its top.
        moves: those of the crossings that lead from one room to another.
    """

    files: int
    functions: int
    crossings: int
    pairs: tuple[tuple[str, str], ...]
    arrows: int = 0
    knots: tuple[tuple[str, str], ...] = ()
    rooms: int = 0
    moves: int = 0

    @classmethod
    def of(cls, calls: Mapping[Call, int], handed: Collection[Call] = ()) -> Hops:
        """Return what calls come to, and those that go through pools: caller, None for nobody, and callee."""
        called = {callee for _, callee in calls}
        crossed, arrows = _crossed(calls), _crossed(handed)
        files = {file for file, _ in called}
        return cls(
            files=len(files),
            functions=len(called),
            crossings=sum(calls[call] for call in crossed),
            pairs=_both_ways(crossed),
            arrows=len(arrows),
            knots=_both_ways(arrows),
            rooms=len({_room(file) for file in files}),
            moves=sum(calls[one, other] for one, other in crossed if _room(one[0]) != _room(other[0])),
        )


def _crossed(calls: Collection[Call]) -> set[tuple[Place, Place]]:
    """Return the calls from one file to another."""
    return {(caller, callee) for caller, callee in calls if caller is not None and caller[0] != callee[0]}


def _room(file: str) -> str:
    """Return the library's folder that a file is in, or the file itself where it is at the top."""
    return file.split("/", 1)[0]


def _both_ways(calls: Collection[tuple[Place, Place]]) -> tuple[tuple[str, str], ...]:
    """Return the pairs of files that call each other."""
    crossed = {(caller[0], callee[0]) for caller, callee in calls}
    return tuple(sorted((one, other) for one, other in crossed if one < other and (other, one) in crossed))


class Profile:
    """Counts the calls of functions below a folder: in the thread that called ``watch``, and in those begun since."""

    def __init__(self, folder: Path) -> None:
        """Watch nothing yet."""
        self._folder = str(folder) + "/"
        self._ours: dict[CodeType, Place | None] = {}
        self._calls: Counter[Call] | None = None
        self._handed: set[Call] = set()

    def watch(self) -> None:
        """Install the hook here, and in the threads that begin from now on."""
        threading.setprofile(self._hook)
        sys.setprofile(self._hook)

    def leave(self) -> None:
        """Take the hook away; threads that run keep it, and it counts nothing."""
        sys.setprofile(None)
        threading.setprofile(None)

    def hops(self, operation: Callable[[], object]) -> Hops:
        """Return what one operation goes through; work that it leaves to threads counts until it returns."""
        calls: Counter[Call] = Counter()
        self._calls, self._handed = calls, set()
        try:
            operation()
        finally:
            self._calls = None
        return Hops.of(calls, self._handed)

    def _hook(self, frame: FrameType, event: str, argument: object) -> None:
        calls = self._calls
        if calls is None or event != "call":
            return
        callee = self._place(frame.f_code)
        if callee is None:
            return
        calls[self._caller(frame, ()), callee] += 1
        self._handed.add((self._caller(frame, POOLS), callee))

    def _caller(self, frame: FrameType, through: Collection[str]) -> Place | None:
        """Return who of ours called a frame, past the standard library and the files to look through."""
        above = frame.f_back
        while above is not None:
            place = self._place(above.f_code)
            if place is not None and place[0] not in through:
                return place
            above = above.f_back
        return None

    def _place(self, code: CodeType) -> Place | None:
        if code not in self._ours:
            file = code.co_filename
            self._ours[code] = (
                (file.removeprefix(self._folder), code.co_qualname) if file.startswith(self._folder) else None
            )
        return self._ours[code]


def measure_hops(folder: Path) -> dict[str, Hops]:
    """Return what each of the operations goes through, on a run in a folder of this machine."""
    model = {"w": np.random.default_rng(0).integers(0, 2**16, CELLS, dtype=np.uint16)}
    weights = {"w": np.zeros(CELLS, np.uint16)}
    found: dict[str, Hops] = {}
    profile = Profile(LIBRARY)
    profile.watch()
    try:
        with (
            pulse_registry.open(folder.as_uri(), run="hops", push=pulse_registry.PushOptions(dtype="keep")) as trainer,
            pulse_registry.open(folder.as_uri(), run="hops") as worker,
        ):

            def push(step: int) -> None:
                model["w"][:: 100 + step] ^= 1
                trainer.push(step, model)

            trainer.warm_up()
            found["first push"] = profile.hops(lambda: push(0))
            push(1)  # what is made once for all patches is no part of one
            found["push of a patch"] = profile.hops(lambda: push(2))
            found["pull from nothing"] = profile.hops(lambda: worker.pull("latest", into=weights))
            push(3)
            worker.pull("latest", into=weights)
            push(4)
            found["pull of one patch"] = profile.hops(lambda: worker.pull("latest", into=weights))
    finally:
        profile.leave()
    if not np.array_equal(weights["w"], model["w"]):
        raise AssertionError("the worker does not hold what was pushed")
    return {operation: found[operation] for operation in OPERATIONS}


def size_of(
    packages: tuple[Path, ...] = PACKAGES, library: Path = LIBRARY, commands: Collection[tuple[Path, str]] | None = None
) -> dict[str, int]:
    """Return lines and files of packages, modules at the library's top level, and the longest list of parameters.

    The last one over all functions, and without the commands of ``pulse``, whose parameters are a command line's flags,
    and the kernels, compiled or a GPU's, which take arrays and numbers and no objects.

    Args:
        packages: their folders.
        library: the one whose modules at the top count.
        commands: file and name of the functions that are commands; None: those of ``pulse``.
    """
    flags = set(commands_of(app) if commands is None else commands)
    files = [path for package in packages for path in sorted(package.rglob("*.py"))]
    texts = [path.read_text(encoding="utf-8") for path in files]
    functions = [
        (path, function) for path, text in zip(files, texts, strict=True) for function in _functions(ast.parse(text))
    ]
    others = [
        function
        for path, function in functions
        if (path, function.name) not in flags and not _is_kernel(path, function)
    ]
    return {
        "lines": sum(len(text.splitlines()) for text in texts),
        "files": len(files),
        "modules at the top": sum(path.name != "__init__.py" for path in library.glob("*.py")),
        "longest list of parameters": max((_parameters(function) for _, function in functions), default=0),
        "longest list of parameters, commands and kernels apart": max(map(_parameters, others), default=0),
    }


def hops_document() -> dict[str, Any]:
    """Count everything, and return the result file's content."""
    with tempfile.TemporaryDirectory() as folder:
        found = measure_hops(Path(folder))
    rows = [
        row
        for operation, hops in found.items()
        for row in (
            Row(f"{operation}.files", f"{operation}: files entered", hops.files, ""),
            Row(f"{operation}.rooms", f"{operation}: rooms entered", hops.rooms, ""),
            Row(f"{operation}.functions", f"{operation}: functions entered", hops.functions, ""),
            Row(f"{operation}.crossings", f"{operation}: calls from file to file", hops.crossings, ""),
            Row(f"{operation}.moves", f"{operation}: calls from room to room", hops.moves, ""),
            Row(f"{operation}.pairs", f"{operation}: pairs of files that call each other", len(hops.pairs), ""),
            Row(f"{operation}.arrows", f"{operation}: arrows from file to file, each once", hops.arrows, ""),
            Row(f"{operation}.knots", f"{operation}: pairs with arrows both ways", len(hops.knots), ""),
        )
    ]
    rows += [Row(name.replace(",", "").replace(" ", "-"), name, value, "") for name, value in size_of().items()]
    return {
        "kind": "hops",
        "title": TITLE,
        "machine": machine(),
        "versions": versions(),
        "rows": [row.document() for row in rows],
        "pairs": {operation: [list(pair) for pair in hops.pairs] for operation, hops in found.items()},
    }


def run(out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "hops.json") -> None:
    """Count what a push and a pull go through, and what the packages come to; write a result file."""
    document = hops_document()
    table = Table(title=TITLE)
    table.add_column("what")
    table.add_column("counted", justify="right")
    for row in document["rows"]:
        table.add_row(row["what"], f"{row['value']:,}")
    console = Console()
    console.print(table)
    for operation, pairs in document["pairs"].items():
        for first, second in pairs:
            console.print(f"{operation}: {first} <-> {second}")
    write_result(out, document)
    console.print(f"written to {out}")


def _functions(tree: ast.Module) -> Iterator[Function]:
    return (node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef))


def _parameters(function: Function) -> int:
    names = [*function.args.posonlyargs, *function.args.args, *function.args.kwonlyargs]
    return len([name for name in names if name.arg not in ("self", "cls")])


def _is_kernel(path: Path, function: Function) -> bool:
    """Return whether numba compiles a function, as it does all in a folder ``loops``, or Triton does."""
    return path.parent.name == "loops" or any(ast.unparse(name).endswith("jit") for name in function.decorator_list)


def commands_of(application: typer.Typer) -> Iterator[tuple[Path, str]]:
    """Yield file and name of the functions that are an application's commands, and its groups' commands."""
    for command in application.registered_commands:
        if command.callback is not None:
            yield Path(command.callback.__code__.co_filename), command.callback.__name__
    for group in application.registered_groups:
        if group.typer_instance is not None:
            yield from commands_of(group.typer_instance)
