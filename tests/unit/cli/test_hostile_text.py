"""What others wrote is shown as text, by every command: no terminal, no markup and no log acts upon it."""

from __future__ import annotations

import io
import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import pulse_registry
from pulse_registry.cli import progress
from pulse_registry.cli.output import print_error, print_fields, print_table
from pulse_registry.cli.progress import Meter
from pulse_registry.log import LogReader, LogWriter, random_id, utc_now
from pulse_registry.quoting import Lines, cut, json_text, one_line, printable, quoted, say
from pulse_registry.store import PrefixStore, open_store
from tests.security.fuzz.heads import file_of
from tests.support.command_line import Pulse
from tests.support.waiting import until

HOSTILE = {
    "colours": "\x1b[31;1mred",
    "a title": "\x1b]0;owned\x07",
    "a link": "\x1b]8;;http://evil\x1b\\here",
    "C1": "\x9b2J\x9d0;owned\x9c",
    "a line's beginning": "bad\rgood",
    "a line": "bad\npulse: all is well",
    "a page": "\x0b\x0c\x85\x1c",
    "what was typed before": "bad\b\b\b\x7f\x7f\x7fgood",
    "the other direction": "\u202egpj.exe\u2066\u200f",
    "separators of lines": "a\u2028b\u2029c",
    "no width": "a\u200bb\u2060\ufeff",
    "a space that is none": "a\u00a0b\u3000c",
    "unassigned": "\U000e0001\U0010ffff",
    "closing markup": "[/x]",
    "markup": "[bold red]loud[/bold red][link=http://evil]here[/link]",
    "a picture": ":warning::skull:",
    "a format": "{0} {task} %s %(message)s",
    "a formula": "$\\frac{1}$",
    "HTML": "<img src=x onerror=alert(1)>",
}
IN_LAYOUTS = {what: text for what, text in HOSTILE.items() if not re.search(r"[\x00-\x1f\x7f]", text)}


def assert_is_text(shown: str) -> None:
    """Nothing in it but what can be seen, and ends of lines."""
    acts = {letter for letter in shown if letter != "\n" and not letter.isprintable()}
    assert not acts, ascii(shown)


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """A run whose writer, metadata and tensors are hostile, and files and folders that are."""
    folder = tmp_path_factory.mktemp("hostile")
    root = str(folder / "registry")
    model = {f"t{text}": np.ones(4, ml_dtypes.bfloat16) for text in IN_LAYOUTS.values()}
    for step in range(2):
        with pulse_registry.open(
            root, run="math", compute=pulse_registry.ComputeOptions(backend="reference")
        ) as registry:
            registry.push(step, model, metadata={text: [text] for text in HOSTILE.values()})
        model = {name: tensor + 1 for name, tensor in model.items()}
    store = PrefixStore(open_store(root), "math")
    writers = {}
    for what, text in HOSTILE.items():
        writer = LogWriter(store, "math", LogReader(store, "math"), utc_now, random_id, text)
        writer.begin()
        writers[what] = max(store.list("log/"))
    entries = {
        text: {"dtype": "U8", "shape": [1], "data_offsets": [at, at + 1]} for at, text in enumerate(HOSTILE.values())
    }
    about = {"__metadata__": {text: text for text in HOSTILE.values()}}
    tensors = folder / "tensors.safetensors"
    tensors.write_bytes(file_of(json.dumps(about | entries).encode(), bytes(len(HOSTILE))))
    return {"root": root, "folder": folder, "tensors": tensors, "writers": writers}


@pytest.fixture
def hostile(pulse: Pulse, places: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> Pulse:
    monkeypatch.setenv("PULSE_ROOT", places["root"])
    monkeypatch.setenv("PULSE_RUN", "math")
    return pulse


@pytest.mark.parametrize("what", HOSTILE)
def test_a_records_writer_is_shown_as_text(hostile: Pulse, places: dict[str, Any], what: str) -> None:
    answer = hostile("inspect", places["writers"][what])
    assert answer.code == 0
    assert_is_text(answer.out)
    assert printable(HOSTILE[what]) in answer.out
    exact = hostile("inspect", "--json", places["writers"][what])
    assert exact.out.isascii()
    assert_is_text(exact.out)
    assert exact.json["writer"] == HOSTILE[what]


def test_a_files_names_and_metadata_are_shown_as_text(hostile: Pulse, places: dict[str, Any]) -> None:
    answer = hostile("inspect", places["tensors"])
    assert answer.code == 0
    assert_is_text(answer.out)
    for text in HOSTILE.values():
        assert printable(text) in answer.out
    exact = hostile("inspect", "--json", places["tensors"])
    assert_is_text(exact.out)
    assert exact.out.isascii()
    assert [tensor["name"] for tensor in exact.json["tensors"]] == list(HOSTILE.values())
    assert exact.json["metadata"] == {text: text for text in HOSTILE.values()}


COMMANDS: dict[str, Callable[[dict[str, Any]], list[object]]] = {
    "log": lambda at: ["log"],
    "workers of a folder": lambda at: ["workers"],
    "route": lambda at: ["route", "0", "1"],
    "stats": lambda at: ["stats", "--weights", "--tensors"],
    "verify": lambda at: ["verify"],
    "verify all": lambda at: ["verify", "--all"],
    "doctor": lambda at: ["doctor", "--run", "math"],
    "gc": lambda at: ["gc", "--keep-last", 1],
    "compact": lambda at: ["compact"],
    "outer rounds": lambda at: ["outer", "log"],
    "outer records": lambda at: ["outer", "log", "--records"],
    "members": lambda at: ["outer", "members"],
    "tag": lambda at: ["tag"],
    "countersign": lambda at: ["countersign", "--trust", "ed25519:" + "0" * 64],
    "pull": lambda at: ["pull", "--out", at["folder"] / "out"],
    "export": lambda at: ["export", at["folder"] / "exported"],
    "inspect the layout": lambda at: ["inspect", *(keys(at, "layouts"))],
    "inspect a commit": lambda at: ["inspect", "log/000000000001.json"],
    "inspect an index": lambda at: ["inspect", *keys(at, "objects/keyframe", "index.json")],
    "inspect a shard": lambda at: ["inspect", *keys(at, "objects/keyframe", ".safetensors")],
    "inspect a patch": lambda at: ["inspect", *keys(at, "objects/patch")],
    "push": lambda at: ["push", "--step", 5, at["tensors"]],
    "import": lambda at: ["import", imported(at)],
    "a file with a hostile name": lambda at: ["inspect", named(at)],
    "a file that is not there": lambda at: ["push", "--step", 5, at["folder"] / HOSTILE["a title"]],
    "another run": lambda at: ["log", "--run", HOSTILE["colours"]],
    "another root": lambda at: ["log", "--root", f"{at['root']}/{HOSTILE['a line']}"],
    "another tag": lambda at: ["tag", HOSTILE["C1"]],
    "another option": lambda at: ["log", f"--{HOSTILE['the other direction']}"],
    "another command": lambda at: [HOSTILE["a title"]],
}


def keys(at: dict[str, Any], prefix: str, end: str = "") -> list[str]:
    store = PrefixStore(open_store(at["root"]), "math")
    return [key for key in store.list(prefix) if key.endswith(end)][:1]


def named(at: dict[str, Any]) -> Path:
    path = at["folder"] / os.fsdecode(b"a\xff\x1b[31m[x].safetensors")
    path.write_bytes(at["tensors"].read_bytes()[:-1])
    return Path(path)


def imported(at: dict[str, Any]) -> Path:
    folder = at["folder"] / f"in{HOSTILE['colours']}"
    folder.mkdir(exist_ok=True)
    index = {"metadata": {"version": HOSTILE["a line"]}, "weight_map": {HOSTILE["a title"]: "x.safetensors"}}
    (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    return Path(folder)


@pytest.mark.parametrize("command", COMMANDS)
def test_no_command_prints_what_acts_upon_a_terminal(hostile: Pulse, places: dict[str, Any], command: str) -> None:
    for more in ([], ["--json"]):
        answer = hostile(*COMMANDS[command](places), *more)
        assert answer.out or answer.err
        assert_is_text(answer.out + answer.err)
        assert not more or not answer.out or json.loads(answer.out) is not None
        assert not more or answer.out.isascii()


def test_names_of_tokens_are_shown_as_text(pulse: Pulse, tmp_path: Path) -> None:
    file = tmp_path / "tokens.json"
    for text in HOSTILE.values():
        assert_is_text("".join([*(answer := pulse("token", "new", "--name", text, "--file", file)).out, answer.err]))
    answer = pulse("token", "list", "--file", file)
    assert_is_text(answer.out + answer.err)


# -- the mechanism ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("what", HOSTILE)
def test_whatever_is_printed_is_text(capsys: pytest.CaptureFixture[str], what: str) -> None:
    text = HOSTILE[what]
    say(text)
    say(text, error=True)
    print_fields({text: text, "plain": {text: [text]}})
    print_table((text, "n"), [(text, 1), (None, 2)], title=text)
    captured = capsys.readouterr()
    assert_is_text(captured.out + captured.err)
    assert captured.err == f"{printable(text)}\n"
    assert captured.out.count(printable(text)) >= 6
    print_error("Kind", text, json_output=False)
    assert_is_text(capsys.readouterr().err)
    print_error("Kind", text, json_output=True)
    assert json.loads(capsys.readouterr().out) == {"error": "Kind", "message": text}


@pytest.mark.parametrize("what", HOSTILE)
def test_a_terminal_is_shown_its_own_colours_and_no_others(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, what: str
) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")
    print_table((HOSTILE[what],), [(HOSTILE[what],)], title="title")
    out = capsys.readouterr().out
    assert "\x1b[" in out
    assert_is_text(re.sub(r"\x1b\[[0-9;]*m", "", out))
    assert out.count(printable(HOSTILE[what])) == 2


@pytest.mark.parametrize("encoding", ["ascii", "latin-1", "utf-8", "cp1252"])
def test_what_the_terminal_has_no_letters_for_is_escaped(monkeypatch: pytest.MonkeyPatch, encoding: str) -> None:
    raw = io.BytesIO()
    monkeypatch.setattr(sys, "stdout", io.TextIOWrapper(raw, encoding=encoding, write_through=True))
    for text in ("naïve \u0447 \U0001f600 \udcff", *HOSTILE.values()):
        say(text)
        print_table((text,), [(text,)])
    assert_is_text(raw.getvalue().decode(encoding))


def test_a_message_is_cut_in_its_middle(capsys: pytest.CaptureFixture[str]) -> None:
    print_error("Kind", "begin " + "x" * 10_000_000 + " end", json_output=False)
    shown = capsys.readouterr().err
    assert len(shown) < 10_000
    assert shown.startswith("pulse: begin")
    assert shown.endswith(" end\n")
    assert "characters left out" in shown
    assert cut("x" * 8000) == "x" * 8000


def test_what_is_quoted_is_short_and_looked_at_no_further() -> None:
    for value in ("x" * 10**7, ["x" * 10**7] * 10, [[["x"] * 10**6] * 100] * 100, {"a" * 10**6: 1}, 10**19):
        assert len(quoted(value)) <= 200
    for text in HOSTILE.values():
        assert_is_text(quoted(text))
    assert quoted("layer.0") == "'layer.0'"
    assert quoted([3, 0, 2]) == "[3, 0, 2]"


def test_json_is_exact_and_nothing_to_a_terminal() -> None:
    document = {text: [text, 1.5, None] for text in (*HOSTILE.values(), "\x7f", "\ud800", "é")}
    text = json_text(document)
    assert text.isascii()
    assert_is_text(text)
    assert json.loads(text) == document


@pytest.mark.parametrize("what", HOSTILE)
def test_no_line_of_a_log_looks_like_another_record(what: str) -> None:
    stream = io.StringIO()
    handler = logging.StreamHandler(stream)
    handler.setFormatter(Lines("%(levelname)s %(message)s"))
    logger = logging.Logger("test")
    logger.addHandler(handler)
    logger.warning("run %s", HOSTILE[what])
    try:
        raise ValueError(f"{HOSTILE[what]}\nWARNING run forged")
    except ValueError:
        logger.exception("it failed")
    shown = stream.getvalue()
    assert_is_text(shown)
    assert [line for line in shown.splitlines() if line.startswith(("WARNING", "ERROR"))] == [
        f"WARNING run {printable(HOSTILE[what])}",
        "ERROR it failed",
    ]


@pytest.mark.slow
def test_the_librarys_warnings_are_printed_as_text(places: dict[str, Any], tmp_path: Path) -> None:
    """In a process of its own: pytest sets up logging."""
    root = tmp_path / "registry"
    with pulse_registry.open(
        str(root), run="math", compute=pulse_registry.ComputeOptions(backend="reference")
    ) as registry:
        registry.push(0, {"w": np.ones(4, np.float32)})
    (root / "math" / "head").write_bytes(b"\x1b[31m\x9b\xc2\x9bred\n" * 3)
    ours = dict(os.environ, PULSE_ROOT=str(root), PULSE_RUN="math", PYTHONIOENCODING="utf-8")
    command = [sys.executable, "-c", "import sys; from pulse_registry.cli import main; sys.exit(main())", "log"]
    done = subprocess.run(command, env=ours, capture_output=True, text=True, check=True)
    assert "ignoring the head hint" in done.stderr
    assert_is_text(done.stdout + done.stderr)


def test_a_progress_bars_title_is_no_markup(monkeypatch: pytest.MonkeyPatch) -> None:
    class Terminal(io.StringIO):
        encoding = "utf-8"

        def isatty(self) -> bool:
            return True

    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "_PATIENCE_SECONDS", 0.0)
    for text in HOSTILE.values():
        before = len(terminal.getvalue())
        with Meter(f"pull {text}", quiet=False):
            until(lambda: len(terminal.getvalue()) > before)  # noqa: B023 - it is called at once
    shown = terminal.getvalue()
    assert "pull [/x]" in shown
    assert "\x1b]0;owned" not in shown
    assert "\x9b" not in shown


@given(st.text(), st.sampled_from(["ascii", "latin-1", "utf-8", "cp1252", "utf-16"]))
def test_whatever_the_text_what_is_shown_can_be_seen_and_said_again(text: str, encoding: str) -> None:
    shown = printable(text, encoding)
    assert shown.isprintable()
    assert shown.encode(encoding).decode(encoding) == shown == printable(shown, encoding)
    assert json.loads(json_text(text)) == text
    assert json_text(text).isprintable()
    assert one_line(text * 1000).isprintable()
    assert len(one_line(text * 1000)) < 9_000
