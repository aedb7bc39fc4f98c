"""``pulse follow``: what goes together, and what is refused before anything is asked."""

from __future__ import annotations

import pytest

from tests.support.command_line import Pulse, Run


@pytest.mark.parametrize(
    "options",
    [
        (),
        ("--engine", "vllm"),
        ("--engine", "vllm="),
        ("--engine", "trt=http://127.0.0.1:1"),
        ("--engine", "vllm=127.0.0.1:8000"),
        ("--engine", "vllm=http://user:secret@127.0.0.1:8000"),
        ("--engine", "vllm=http://127.0.0.1:1", "--exec", "true"),
        ("--engine", "vllm=http://127.0.0.1:1", "--folder", "x"),
        ("--engine", "sglang=http://127.0.0.1:1"),
        ("--engine", "vllm=http://127.0.0.1:1", "--adapter", "policy"),
        ("--engine", "vllm=http://127.0.0.1:1", "--adapter", "", "--folder", "x"),
        ("--engine", "dir=x", "--adapter", "policy", "--folder", "x"),
        ("--exec", "true", "--adapter", "policy", "--folder", "x"),
        ("--exec", ""),
        ("--exec", "true", "--max-behind", "3"),
        ("--exec", "true", "--max-behind", "3", "--at-most-every", "30s", "--pin", "1"),
        ("--exec", "true", "--at-most-every", "30"),
        ("--exec", "true", "--pin", "*"),
        ("--exec", "true", "--name", "a b"),
        ("--exec", "true", "--name", "engine-0"),
    ],
)
def test_what_does_not_go_together_is_refused(pulse: Pulse, run: Run, options: tuple[str, ...]) -> None:
    answer = pulse("follow", *options)
    assert answer.code == 2, answer
    assert "secret" not in answer.err
    assert answer.err.count("\n") == 1
