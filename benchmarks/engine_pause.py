"""``python -m benchmarks.engine_pause``: how long a real vLLM stands still for a new version, and what else it costs.

Needs the environment of ``make test-engines``: ``.venv-engines/bin/python -m benchmarks.engine_pause``. A Llama of
random weights is served; its engine core is a process of its own, as in a server. Each step changes a share of the
cells, and one of five ways brings the engine to it, by turns:

- staged: our version is staged beside serving; the pause is apply and the reset of caches.
- followed: the same by ``pulse follow`` over HTTP, of a vLLM server: from the request for the pause until it goes on.
- pulled: the same, fetched and decoded inside the pause.
- reloaded: a full checkpoint on a local disk, by vLLM's ``reload_weights``.
- patched: vLLM's own sparse patches (``load_checkpoint_weight_patches``), in memory before the pause.

After each, all live cells are compared with the version, bit by bit.
"""

from __future__ import annotations

import json
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, Final

import torch
import typer
from rich.console import Console
from safetensors.torch import load_file, save_file

import pulse_registry
from benchmarks.followed_engine import Followed
from benchmarks.results import OUT, Row, machine, versions, write_result
from benchmarks.show import rows_table
from pulse_registry import PushOptions
from pulse_registry.integrations.vllm import WorkerExtension
from tests.engines.support.models import write_files

TITLE: Final = "The pause of a real vLLM, and from a step to new tokens"
WAYS: Final = ("staged", "followed", "pulled", "reloaded", "patched")
PAUSE_LIMIT_MS: Final = 30.0
SETTINGS: Final = {
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "PULSE_VLLM_CPU": "unpacked",
}
Weights = dict[str, torch.Tensor]


class Worker(WorkerExtension):
    """Our worker extension, and vLLM's own sparse patches as calls."""

    def bench_read(self, path: str) -> None:
        """Read patches from a file, before the pause."""
        from vllm.model_executor.model_loader.checkpoint_weight_patch import (  # type: ignore[import-not-found]
            CheckpointWeightPatch,
        )

        worker: Any = self
        found, shapes = load_file(path), json.loads(Path(path).with_suffix(".json").read_text())
        worker.bench_patches = [
            CheckpointWeightPatch(name, tuple(shape), torch.bfloat16, found[f"{name}.values"], found[f"{name}.indices"])
            for name, shape in shapes.items()
        ]

    def bench_patch(self) -> None:
        """Apply what was read."""
        from vllm.model_executor.model_loader.checkpoint_weight_patch import load_checkpoint_weight_patches

        worker: Any = self
        with torch.no_grad():
            load_checkpoint_weight_patches(worker.get_model(), worker.bench_patches)


class Trainer:
    """A policy that changes from step to step, and is handed over in three forms."""

    def __init__(self, config: dict[str, Any], folder: Path, share: float) -> None:
        self.folder, self.share, self.made = folder, share, torch.Generator().manual_seed(0)
        self.weights: Weights = {
            name: (0.05 * torch.randn(shape, generator=self.made) + float(len(shape) == 1)).bfloat16()
            for name, shape in shapes(config).items()
        }
        self.changed: dict[str, torch.Tensor] = {}
        self.registry = pulse_registry.open(
            str(folder / "registry"), run="policy", push=PushOptions(dtype="keep", coder="gap", keyframe_every=None)
        )
        self.version = self.registry.push(0, self.weights).version

    def step(self) -> None:
        """Change a share of the cells to a neighbouring value."""
        for name, tensor in self.weights.items():
            count = max(1, int(tensor.numel() * self.share))
            index = torch.randint(tensor.numel(), (count,), generator=self.made).unique()
            tensor.view(torch.int16).view(-1)[index] ^= 1
            self.changed[name] = index.to(torch.int32)

    def push(self) -> int:
        """Push a version, and return the bytes of it."""
        result = self.registry.push(self.version + 1, self.weights)
        self.version = result.version
        return int(result.nbytes)

    def checkpoint(self) -> int:
        """Write a full checkpoint beside the model's configuration, and return its bytes."""
        path = self.folder / "model" / "model.safetensors"
        save_file(self.weights, path, metadata={"format": "pt"})
        return path.stat().st_size

    def patches(self) -> int:
        """Write the changed cells as vLLM's patches want them, and return their bytes."""
        path, cells = self.folder / "patches.safetensors", dict[str, torch.Tensor]()
        for name, index in self.changed.items():
            cells[f"{name}.indices"] = index
            cells[f"{name}.values"] = self.weights[name].view(-1)[index.long()]
        save_file(cells, path)
        path.with_suffix(".json").write_text(json.dumps({n: list(t.shape) for n, t in self.weights.items()}))
        return path.stat().st_size


def shapes(config: dict[str, Any]) -> dict[str, tuple[int, ...]]:
    """Return the tensors of a Llama."""
    wide, inner, layers = config["hidden_size"], config["intermediate_size"], config["num_hidden_layers"]
    head, heads, kv_heads = config["head_dim"], config["num_attention_heads"], config["num_key_value_heads"]
    found: dict[str, tuple[int, ...]] = {"model.embed_tokens.weight": (config["vocab_size"], wide)}
    for layer in range(layers):
        of_layer = {
            "self_attn.q_proj": (heads * head, wide),
            "self_attn.k_proj": (kv_heads * head, wide),
            "self_attn.v_proj": (kv_heads * head, wide),
            "self_attn.o_proj": (wide, heads * head),
            "mlp.gate_proj": (inner, wide),
            "mlp.up_proj": (inner, wide),
            "mlp.down_proj": (wide, inner),
            "input_layernorm": (wide,),
            "post_attention_layernorm": (wide,),
        }
        found |= {f"model.layers.{layer}.{name}.weight": shape for name, shape in of_layer.items()}
    return found | {"model.norm.weight": (wide,)}


def config_of(layers: int, wide: int, vocabulary: int) -> dict[str, Any]:
    """Return the configuration of a Llama; 30 layers of 576 and 49,152 tokens are SmolLM2-135M's."""
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "vocab_size": vocabulary,
        "hidden_size": wide,
        "intermediate_size": wide * 8 // 3,
        "num_hidden_layers": layers,
        "num_attention_heads": wide // 64,
        "num_key_value_heads": max(1, wide // 192),
        "head_dim": 64,
        "max_position_embeddings": 512,
        "rms_norm_eps": 1e-5,
        "hidden_act": "silu",
        "attention_bias": False,
        "tie_word_embeddings": True,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "torch_dtype": "bfloat16",
    }


class Measured:
    """An engine that follows, and what each way to a version takes: seconds by way, and bytes."""

    def __init__(self, trainer: Trainer) -> None:
        from vllm import LLM, SamplingParams  # type: ignore[import-not-found]

        self.trainer = trainer
        self.llm = LLM(
            model=str(trainer.folder / "model"),
            skip_tokenizer_init=True,
            enforce_eager=True,
            dtype="bfloat16",
            max_model_len=256,
            worker_extension_cls="benchmarks.engine_pause.Worker",
        )
        self.one_token = SamplingParams(max_tokens=1, temperature=0, detokenize=False, ignore_eos=True)
        self.pauses: dict[str, list[float]] = {way: [] for way in WAYS}
        self.totals: dict[str, list[float]] = {way: [] for way in WAYS}
        self.nbytes: dict[str, list[int]] = {way: [] for way in WAYS}
        self.open()
        self.followed = Followed(trainer.folder, trainer.version, SETTINGS)

    def open(self) -> None:
        """Have the engine find its live cells, and compare them with the newest version."""
        self.rpc("pulse_open", str(self.trainer.folder / "registry"), "policy", self.trainer.version)

    def rpc(self, method: str, *arguments: Any, **named: Any) -> Any:
        """Call a method of the worker."""
        [answer] = self.llm.collective_rpc(method, args=arguments, kwargs=named)
        return answer

    def take_turns(self) -> None:
        """Bring the engine to a new version by each way."""
        for way in WAYS:
            self.trainer.step()
            began = time.perf_counter()
            nbytes = getattr(self, f"_{way}")()
            if way == "followed":
                self.followed.generate()
            else:
                self.llm.generate([{"prompt_token_ids": [1, 5, 9]}], self.one_token, use_tqdm=False)
            self.totals[way].append(time.perf_counter() - began)
            self.nbytes[way].append(nbytes)
            if way in ("reloaded", "patched"):
                self.trainer.push()
                self.open()
            self._bring_all()

    def _bring_all(self) -> None:
        """Bring both engines to the newest version, and compare their cells with it."""
        newest = self.trainer.version
        if self.rpc("pulse_version") != newest:
            self.rpc("pulse_stage", newest)
            self.rpc("pulse_apply", newest)
        if self.followed.verify() != newest:
            self.followed.follow()
        assert self.rpc("pulse_verify") == self.followed.verify() == newest

    @contextmanager
    def _pause(self, way: str) -> Iterator[None]:
        began = time.perf_counter()
        yield
        self.llm.reset_prefix_cache()
        self.pauses[way].append(time.perf_counter() - began)

    def _staged(self) -> int:
        nbytes = self.trainer.push()
        self.rpc("pulse_stage", self.trainer.version)
        while not self.rpc("pulse_ready"):
            time.sleep(0.001)
        with self._pause("staged"):
            self.rpc("pulse_apply", self.trainer.version)
        return nbytes

    def _followed(self) -> int:
        nbytes = self.trainer.push()
        self.pauses["followed"].append(self.followed.follow())
        return nbytes

    def _pulled(self) -> int:
        nbytes = self.trainer.push()
        with self._pause("pulled"):
            self.rpc("pulse_stage", self.trainer.version)
            self.rpc("pulse_apply", self.trainer.version)
        return nbytes

    def _reloaded(self) -> int:
        nbytes = self.trainer.checkpoint()
        with self._pause("reloaded"):
            self.rpc("reload_weights", weights_path=str(self.trainer.folder / "model"))
        return nbytes

    def _patched(self) -> int:
        nbytes = self.trainer.patches()
        self.rpc("bench_read", str(self.trainer.folder / "patches.safetensors"))
        with self._pause("patched"):
            self.rpc("bench_patch")
        return nbytes

    def rows(self) -> list[Row]:
        """Return the figures: medians, and ratios within each turn."""
        pause = {way: 1e3 * statistics.median(self.pauses[way]) for way in WAYS}
        total = {way: statistics.median(self.totals[way]) for way in WAYS}
        sent = {way: statistics.median(self.nbytes[way]) / 1e6 for way in WAYS}
        rows = [Row("pause.staged", "pause, staged", pause["staged"], "ms", "at most", PAUSE_LIMIT_MS)]
        rows += [Row(f"pause.{way}", f"pause, {way}", pause[way], "ms") for way in WAYS[1:]]
        for what, figures in (("pause", self.pauses), ("step to a new token", self.totals)):
            for way in WAYS[1:]:
                ratio = statistics.median(a / b for a, b in zip(figures["staged"], figures[way], strict=True))
                rows.append(Row(f"{what}.{way}.ratio", f"{what}: staged, against {way}", ratio, "x"))
        rows += [Row(f"total.{way}", f"step to a new token, {way}", total[way], "s") for way in WAYS]
        return rows + [Row(f"bytes.{way}", f"bytes, {way}", sent[way], "MB") for way in WAYS]


app = typer.Typer(add_completion=False)


@app.command()
def run(
    layers: Annotated[int, typer.Option(help="Of the model.", min=1)] = 30,
    wide: Annotated[int, typer.Option(help="Its hidden size; a multiple of 192.", min=192)] = 576,
    vocabulary: Annotated[int, typer.Option(help="Its tokens.", min=64)] = 49_152,
    share: Annotated[float, typer.Option(help="Of the cells that change in a step.", min=1e-6, max=0.5)] = 0.01,
    repeats: Annotated[int, typer.Option(help="Of each way, after one to warm up.", min=1)] = 5,
    out: Annotated[Path, typer.Option(help="The result file.")] = OUT / "engine-pause.json",
) -> None:
    """Measure the pause of a real vLLM for a new version, in five ways; write a result file."""
    os.environ.update(SETTINGS)
    config = config_of(layers, wide, vocabulary)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_files(config, folder / "model")
        trainer = Trainer(config, folder, share)
        trainer.checkpoint()
        measured = Measured(trainer)
        with closing(measured.followed):
            measured.take_turns()
            for figures in (measured.pauses, measured.totals, measured.nbytes):
                for values in figures.values():
                    values.clear()
            for _ in range(repeats):
                measured.take_turns()
        cells = sum(tensor.numel() for tensor in trainer.weights.values())
        trainer.registry.close()
    rows = measured.rows()
    console = Console()
    console.print(rows_table(TITLE, rows))
    settings = {"cells": cells, "layers": layers, "share": share, "repeats": repeats}
    document = {"kind": "engine_pause", "title": f"{TITLE}: {cells:,} cells, {share:.1%} changed", "seed": 0}
    document |= {"machine": machine(), "versions": versions(), "settings": settings}
    details: dict[str, Any] = {"pauses_s": measured.pauses, "totals_s": measured.totals, "bytes": measured.nbytes}
    write_result(out, document | {"rows": [row.document() for row in rows]} | details)
    console.print(f"written to {out}")


if __name__ == "__main__":
    app()
