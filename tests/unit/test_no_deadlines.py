"""No test expects anything to happen in time: a busy machine is no failure. tests/support/waiting.py has the way."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

LEAST_S = 30.0
TESTS = Path(__file__).resolve().parents[1]
CLOCKS = {"monotonic", "perf_counter", "process_time", "thread_time", "time"}
CLOCKS |= {f"{name}_ns" for name in CLOCKS}
GUARDED = {"wait", "join", "result", "communicate", "timeout"}  # the seconds may come first, and unnamed
NAMED = GUARDED | {"acquire", "run", "create_connection", "take"}
REQUESTS = {"get", "put", "post", "delete", "head", "request", "stream", "Client", "AsyncClient"}


def reads_a_clock(node: ast.AST, timed: set[str]) -> bool:
    """Tell whether an expression reads a clock, or a name that was made of one."""
    for part in ast.walk(node):
        match part:
            case ast.Name(id=name) if name in timed:
                return True
            case ast.Call(func=ast.Attribute(value=ast.Name(id="time"), attr=name)) if name in CLOCKS:
                return True
            case ast.Call(func=ast.Name(id=name)) if name in CLOCKS - {"time"}:
                return True
    return False


def times_in(function: ast.AST) -> set[str]:
    """Return the names that a function makes of what a clock said."""
    timed: set[str] = set()
    while True:
        before = len(timed)
        for node in ast.walk(function):
            if isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign | ast.NamedExpr) and node.value is not None:
                targets = node.targets if isinstance(node, ast.Assign) else [node.target]
                if reads_a_clock(node.value, timed):
                    timed |= {name.id for target in targets for name in ast.walk(target) if isinstance(name, ast.Name)}
        if len(timed) == before:
            return timed


def seconds_of(call: ast.Call) -> float | None:
    """Return the seconds after which a call gives up, where they are a number in the text."""
    if not isinstance(call.func, ast.Attribute) or call.func.attr not in NAMED:
        return None
    if ast.unparse(call.func.value).endswith(("world", "self", "clock")):  # whose time is not the machine's
        return None
    given = [keyword.value for keyword in call.keywords if keyword.arg == "timeout"]
    for value in given or (call.args[:1] if call.func.attr in GUARDED else []):
        if isinstance(value, ast.Constant) and isinstance(value.value, int | float):
            return float(value.value)
    return None


def deadlines(text: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a test's text that a busy machine could break, and why."""
    reads = any(clock in text for clock in CLOCKS - {"time", "time_ns"}) or "time.time" in text
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and reads:
            timed = times_in(node)
            for part in ast.walk(node):
                if isinstance(part, ast.Assert) and reads_a_clock(part.test, timed):
                    yield part.lineno, "asserts how long something took"
        elif isinstance(node, ast.Assert) and isinstance(node.test, ast.Call):
            if (seconds_of(node.test) or LEAST_S) < 1:
                yield node.lineno, "expects something within less than a second"
        elif isinstance(node, ast.Call):
            if 1 <= (seconds_of(node) or LEAST_S) < LEAST_S:
                yield node.lineno, "gives up soon: HANG_S"
            given = {keyword.arg: keyword.value for keyword in node.keywords}
            match node.func:
                case ast.Attribute(value=ast.Name(id="httpx"), attr=name) if name in REQUESTS:
                    if not {"timeout", "transport"} & given.keys():
                        yield node.lineno, "gives up after httpx's five seconds: timeout=HANG_S"
                case ast.Name(id="settings") | ast.Attribute(attr="settings"):
                    deadline = given.get("deadline", ast.Constant(None))
                    if not isinstance(deadline, ast.Constant) or deadline.value is not None:
                        yield node.lineno, "has a deadline"


@pytest.mark.slow
def test_no_test_has_a_deadline_that_a_busy_machine_could_miss() -> None:
    found = [
        f"{path.relative_to(TESTS.parent)}:{line}: {why}"
        for path in sorted(TESTS.rglob("*.py"))
        for line, why in deadlines(path.read_text())
    ]
    assert found == [], "\n".join(found)


@pytest.mark.parametrize(
    "body",
    [
        "began = time.monotonic()\n    assert time.monotonic() - began < 10",
        "began = perf_counter()\n    work()\n    took = perf_counter() - began\n    assert took < 1",
        "assert done.wait(0.5)",
        "assert done.wait(20)",
        "thread.join(timeout=5)",
        "subprocess.run(command, timeout=20)",
        "httpx.get(url)",
        "settings(max_examples=5, deadline=200)",
    ],
)
def test_what_a_busy_machine_could_break_is_found(body: str) -> None:
    assert len([*deadlines(f"def test():\n    {body}\n")]) == 1


@pytest.mark.parametrize(
    "body",
    [
        "assert done.wait(HANG_S)",
        "tick.wait(0.01)",
        "assert not asked.acquire(timeout=0.1)",
        "httpx.get(url, timeout=HANG_S)",
        "settings(max_examples=5, deadline=None)",
        "page.clock.install(time=time.time() - 7200)",
    ],
)
def test_what_no_load_can_break_is_let_be(body: str) -> None:
    assert [*deadlines(f"def test():\n    {body}\n")] == []
