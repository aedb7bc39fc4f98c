"""What an error says is one line that can be printed and logged, whatever it quotes."""

from __future__ import annotations

import ast
import logging
from pathlib import Path

import pytest

import pulse_registry.errors as errors
from pulse_registry.client.presigned import PresignedRequests
from pulse_registry.client.problems import TYPE_PREFIX, error_of
from pulse_registry.client.transport import Timeouts
from pulse_registry.errors import CorruptObject, InvalidArgument, PulseError, told
from pulse_schemas.api import SignedRequest

ROOT = Path(__file__).resolve().parents[2]
HOSTILE = "a\x1b[31m\x9b2J\u202e\u2028\r\nWARNING forged"
KINDS = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, PulseError)]


@pytest.mark.parametrize("kind", KINDS)
def test_what_an_error_says_is_a_line_that_can_be_seen(kind: type[PulseError]):
    said = str(kind(f"{HOSTILE}; restore it"))
    assert said.isprintable()
    assert said == "a\\x1b[31m\\x9b2J\\u202e\\u2028\\r\\nWARNING forged; restore it"


def test_what_an_error_says_is_cut_and_its_end_stays():
    said = str(CorruptObject("x" * 10_000_000 + "; restore it"))
    assert len(said) < 9_000
    assert said.endswith("; restore it")


def test_the_errors_of_others_are_told_in_a_line():
    assert told(ValueError(HOSTILE)).isprintable()
    assert told(MemoryError()) == "MemoryError"
    assert len(told(ValueError("x" * 10_000_000))) < 9_000


def test_what_a_service_says_is_cut_and_escaped(caplog: pytest.LogCaptureFixture):
    error = error_of(f"{TYPE_PREFIX}NotFound", 404, HOSTILE * 50_000)
    logging.getLogger("a.users").warning("it failed: %s", error)
    said = caplog.messages[0]
    assert (said.isprintable(), len(said) < 9_000) == (True, True)
    assert isinstance(error_of("\n", 400, HOSTILE), InvalidArgument)


@pytest.mark.parametrize("headers", [{"x": "é"}, {"é": "x"}, {"x": "a\u2028b"}, {"\udcff": "x"}])
def test_headers_that_are_none_are_an_answer_that_is_of_no_use(headers: dict[str, str]):
    bucket = PresignedRequests(Timeouts(connect_s=1.0))
    signed = SignedRequest.model_construct(url="http://127.0.0.1:9/x", headers=headers)
    try:
        with pytest.raises(PulseError):
            bucket.put(signed, "objects/x", [memoryview(b"x")])
    finally:
        bucket.close()


# What prints: the two modules that escape, and four that print nothing but what this process knows itself.
PRINTS = {
    "pulse_registry/cli/output.py",
    "pulse_registry/demo/outer/events.py",  # to the demo that began it, as JSON
    "pulse_registry/demo/vllm/trainer.py",  # to the demo that began it, as JSON
    "pulse_registry/quoting.py",  # `say`, for programs without the CLI
    "server/pulse_server/command.py",
    "server/pulse_server/runs/layout_process.py",  # to the service that began it, as JSON
    "server/pulse_server/openapi.py",
}
# Tables and live displays: of the demo, whose figures are those of its own processes, and of what is made printable.
CONSOLES = {
    "pulse_registry/cli/output.py",
    "pulse_registry/cli/progress.py",
    "pulse_registry/cli/worker_views.py",
    "pulse_registry/demo/display.py",
    "pulse_registry/demo/outer/__main__.py",
    "pulse_registry/demo/show.py",
    "pulse_registry/demo/vllm/__main__.py",
}


def test_nothing_is_printed_but_by_the_module_that_escapes_it():
    printing, consoles = set(), set()
    for package in ("pulse_registry", "pulse_start", "server/pulse_server", "kernels/pulse_kernels"):
        for path in sorted((ROOT / package).rglob("*.py")):
            name = path.relative_to(ROOT).as_posix()
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("rich"):
                    consoles.add(name)
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                if called in ("print", "typer.echo", "typer.secho", "click.echo", "traceback.print_exception"):
                    printing.add(name)
                if called in ("sys.stdout.write", "sys.stderr.write"):
                    printing.add(name)
    assert printing <= PRINTS | {"pulse_registry/demo/show.py"}, "the demo prints its report, which is JSON"
    assert consoles == CONSOLES
