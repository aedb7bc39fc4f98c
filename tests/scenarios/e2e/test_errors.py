"""What a new user does wrong: the class of the error, and a message that names the object and says what to do."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import pulse_registry
from pulse_registry import (
    BaseMismatch,
    Conflict,
    CorruptObject,
    Fenced,
    InvalidArgument,
    InvalidModel,
    LayoutMismatch,
    NotFound,
    PulseError,
    StoreUnavailable,
    UnsupportedFormat,
)
from tests.support.registries import without_pauses

ROOT = Path(__file__).parents[3]


def model(fill: float = 0.5, shape: tuple[int, ...] = (8, 4), dtype=ml_dtypes.bfloat16) -> dict[str, np.ndarray]:
    return {"layers.0.weight": np.full(shape, fill, dtype), "layers.1.weight": np.full(shape, -fill, dtype)}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A registry with the run ``math`` of two versions."""
    with pulse_registry.open(
        str(tmp_path), run="math", push=pulse_registry.PushOptions(keyframe_share=1e9)
    ) as registry:
        registry.push(10, model(0.5))
        registry.push(20, model(0.75))
    return tmp_path


def stored(root: Path, pattern: str) -> Path:
    (path,) = root.glob(f"math/{pattern}")
    return path


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("", "empty"),
        ("gopher://host/x", "gopher://.*known: .*file://.*local paths"),
        ("memory://", "memory://name"),
        ("file://relative/path", "file:///path"),
        ("memory:x", "memory://"),
    ],
)
def test_a_wrong_url(url: str, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        pulse_registry.open(url, run="math")


def test_a_url_that_is_a_file(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(InvalidArgument, match=r"file is not a folder"):
        pulse_registry.open(str(tmp_path / "file"), run="math")


@pytest.mark.parametrize("run", ["", "Math 7B", "a/b", "..", "-x", "x" * 129, "läufe"])
def test_a_wrong_run_name(tmp_path: Path, run: str) -> None:
    with pytest.raises(InvalidArgument, match="is no run name: 1 to 128 letters"):
        pulse_registry.open(str(tmp_path), run=run)


def test_a_run_that_is_not_there(root: Path) -> None:
    with pytest.raises(NotFound, match=f"no run 'maths' in {root}"):
        pulse_registry.open(str(root), run="maths", create=False)
    with pulse_registry.open(str(root), run="maths") as registry:
        assert registry.versions() == []
        with pytest.raises(NotFound, match=r"'maths'.*no versions yet"):
            registry.load("latest")
        with pytest.raises(NotFound, match=r"'maths'.*no version 3.*none yet"):
            registry.load(3)
    assert not (root / "maths").exists(), "to look is not to create"


def test_a_version_that_is_not_there(root: Path) -> None:
    with pulse_registry.open(str(root), run="math") as registry:
        for call in (registry.load, registry.version, registry.verify):
            with pytest.raises(NotFound, match="'math' has no version 2; the newest is 1"):
                call(2)
        with pytest.raises(NotFound, match="no version -1"):
            registry.load(-1)
        with pytest.raises(NotFound, match="no version of step 30"):
            registry.version(step=30)
        with pytest.raises(NotFound, match="no version that is called 'newest'"):
            registry.load("newest")
        with pytest.raises(InvalidArgument, match="True"):
            registry.load(True)
        with pytest.raises(InvalidArgument, match="not both"):
            registry.version(1, step=10)
        with pytest.raises(NotFound, match="no version 7"):
            registry.route(have=7)


def test_a_model_of_another_shape(root: Path) -> None:
    with pulse_registry.open(str(root), run="math") as registry:
        into = model(0.0, shape=(4, 8))
        with pytest.raises(LayoutMismatch, match=r"'layers.0.weight' is BF16 \[4, 8\] in the model and BF16 \[8, 4\]"):
            registry.pull("latest", into=into)
        assert not into["layers.0.weight"].any()
        with pytest.raises(LayoutMismatch, match=r"'layers.1.weight' of the version is not in the model"):
            registry.pull("latest", into={"layers.0.weight": model()["layers.0.weight"]})
        with pytest.raises(LayoutMismatch, match=r"'layers.2.weight' of the model is not in the version"):
            registry.pull("latest", into=model() | {"layers.2.weight": np.zeros(3, np.int8)})
        with pytest.raises(LayoutMismatch, match=r"layers.0.weight"):
            registry.verify("latest", model=into)
        # A trainer may change the shape: that is a new layout, held whole.
        assert registry.push(30, into).kind == "keyframe"


def test_an_fp16_model_for_a_bf16_run(root: Path) -> None:
    half = model(0.5, dtype=np.float16)
    with pulse_registry.open(str(root), run="math") as registry:
        with pytest.raises(InvalidModel, match=r"'layers.0.weight' is F16.*published as BF16.*dtype='keep'"):
            registry.push(30, half)
        with pytest.raises(LayoutMismatch, match=r"'layers.0.weight' is F16 \[8, 4\] in the model and BF16"):
            registry.pull("latest", into=half)
        assert len(registry.versions()) == 2


def test_something_that_is_no_model(root: Path) -> None:
    with pulse_registry.open(str(root), run="math") as registry:
        with pytest.raises(InvalidModel, match="not list"):
            registry.push(1, [np.zeros(3)])
        with pytest.raises(InvalidModel, match="no tensors"):
            registry.push(1, {})
        with pytest.raises(InvalidModel, match="names are strings"):
            registry.push(1, {1: np.zeros(3, np.float32)})
        with pytest.raises(InvalidModel, match=r"'w'.*<U1"):
            registry.push(1, {"w": np.array(["a"])})
        with pytest.raises(InvalidModel, match=r"a\\nb"):
            registry.push(1, {"a\nb": np.zeros(3, np.float32)})
        frozen = model()
        frozen["layers.1.weight"].flags.writeable = False
        with pytest.raises(InvalidModel, match=r"'layers.1.weight' is read-only"):
            registry.pull("latest", into=frozen)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"coder": "zip"}, "'zip'.*auto, gap, class"),
        ({"dtype": "fp16"}, "'fp16'.*bf16, keep"),
        ({"keyframe_share": 0.0}, "keyframe_share is 0.0"),
        ({"keyframe_every": 0}, "keyframe_every is 0"),
    ],
)
def test_a_wrong_option(tmp_path: Path, options: dict, says: str) -> None:
    with pytest.raises(InvalidArgument, match=says):
        pulse_registry.open(str(tmp_path), run="math", push=pulse_registry.PushOptions(**options))


@pytest.mark.parametrize("step", [1.5, "1", None, True])
def test_a_step_that_is_no_number(root: Path, step) -> None:
    with (
        pulse_registry.open(str(root), run="math") as registry,
        pytest.raises(InvalidArgument, match=r"step is .*integer"),
    ):
        registry.push(step, model())


@pytest.mark.parametrize(
    ("step", "metadata", "says"),
    [
        (2**63, None, "step is an integer of 64 bits"),
        (1, {"loss": float("nan")}, r"metadata\['loss'\] is nan"),
        (1, {"object": object()}, r"metadata\['object'\] is of type object"),
        (1, {"big": 10**30}, r"metadata\['big'\] is an integer of 100 bits"),
        (1, {1: 2}, "metadata has a key of type int"),
    ],
    ids=["a huge step", "NaN", "an object", "a huge number", "a key that is no text"],
)
def test_a_label_that_no_record_can_hold_is_refused_and_the_run_goes_on(root: Path, step, metadata, says) -> None:
    with pulse_registry.open(str(root), run="math") as registry:
        with pytest.raises(InvalidArgument, match=says):
            registry.push(step, model(0.25), metadata=metadata)
        assert registry.push(30, model(0.25)).version == 2
        assert float(registry.load(2)["layers.0.weight"][0, 0]) == 0.25


OBJECTS = {
    "a patch": "objects/patch/*",
    "a shard": "objects/keyframe/*/model-00001-of-00001.safetensors",
    "an index": "objects/keyframe/*/model.safetensors.index.json",
    "a layout": "layouts/*",
    "a record": "log/000000000001.json",
}


@pytest.mark.parametrize("pattern", OBJECTS.values(), ids=OBJECTS)
@pytest.mark.parametrize("damage", ["cut", "flipped", "emptied"])
def test_a_damaged_object_is_named(root: Path, pattern: str, damage: str) -> None:
    path = stored(root, pattern)
    data = path.read_bytes()
    path.write_bytes(
        {"cut": data[:-1], "flipped": data[:-3] + bytes([data[-3] ^ 4]) + data[-2:], "emptied": b""}[damage]
    )
    with pulse_registry.open(str(root), run="math") as registry:
        into = model(9.0)
        with pytest.raises(CorruptObject, match=path.relative_to(root / "math").as_posix()):
            registry.pull("latest", into=into)
        assert float(into["layers.0.weight"][0, 0]) == 9.0
        with pytest.raises(CorruptObject, match=path.relative_to(root / "math").as_posix()):
            registry.verify("latest")


@pytest.mark.parametrize("name", ["a patch", "a shard", "an index", "a layout"])
def test_a_missing_object_is_named(root: Path, name: str) -> None:
    path = stored(root, OBJECTS[name])
    path.unlink()
    with (
        pulse_registry.open(str(root), run="math") as registry,
        pytest.raises(NotFound, match=path.relative_to(root).as_posix()),
    ):
        registry.pull("latest", into=model(9.0))


def test_a_run_of_a_newer_release(root: Path) -> None:
    from blake3 import blake3

    path = stored(root, "log/000000000001.json")
    body = json.dumps(
        json.loads(path.read_bytes())["body"] | {"format": "pulse-record/7"}, sort_keys=True, separators=(",", ":")
    ).encode()
    path.write_bytes(b'{"blake3":"' + blake3(body).hexdigest().encode() + b'","body":' + body + b"}")
    with (
        pulse_registry.open(str(root), run="math") as registry,
        pytest.raises(UnsupportedFormat, match=r"log/000000000001.json.*pulse-record/7.*upgrade"),
    ):
        registry.load("latest")


def test_weights_that_were_changed_after_they_were_pulled(root: Path) -> None:
    with pulse_registry.open(str(root), run="math") as registry:
        into = model(9.0)
        registry.pull(0, into=into)
        into["layers.0.weight"][3, 2] = 7.0
        with pytest.raises(BaseMismatch, match=r"not version 0.*'layers.0.weight'.*replace=True"):
            registry.pull(1, into=into)
        with pytest.raises(BaseMismatch, match="not those of version 0"):
            registry.verify(0, model=into)
        registry.pull(1, into=into, replace=True)
        assert registry.verify(1, model=into).step == 20


def test_two_trainers_on_one_run(root: Path) -> None:
    with pulse_registry.open(str(root), run="math") as one, pulse_registry.open(str(root), run="math") as other:
        assert one.push(30, model(1.0)).version == 2
        assert other.push(31, model(2.0)).version == 3
        for _ in range(2):
            with pytest.raises(Fenced, match=r"'math': a newer writer began epoch 3; this one, of epoch 2, must stop"):
                one.push(32, model(3.0))
        assert issubclass(Fenced, Conflict)
        assert other.push(33, model(3.0)).version == 4
        assert float(one.load("latest")["layers.0.weight"][0, 0]) == 3.0, "it can still read"


def test_a_full_disk(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with without_pauses(), pulse_registry.open(str(root), run="math") as registry:

        def full(descriptor: int, views: Any) -> int:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

        with monkeypatch.context() as patched:
            patched.setattr(os, "writev", full)
            with pytest.raises(StoreUnavailable, match=r"could not (put|write) '.*No space left on device"):
                registry.push(30, model(1.0))
        assert len(registry.versions()) == 2
        assert registry.push(31, model(1.5)).version == 2
        assert float(registry.load(2)["layers.0.weight"][0, 0]) == 1.5
    assert not list(root.rglob(".pulse-tmp-*"))


@pytest.mark.slow
def test_a_disk_that_is_full_for_real(tmp_path: Path) -> None:
    script = """
import resource, signal, sys, numpy as np, pulse_registry
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
model = {"w": np.random.default_rng(0).random(300_000).astype(np.float32)}
options = {"push": pulse_registry.PushOptions(dtype="keep")}
with pulse_registry.open(sys.argv[1], run="math", **options) as registry:
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 18, resource.RLIM_INFINITY))
    try:
        registry.push(1, model)
    except pulse_registry.StoreUnavailable as error:
        print(error)
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    print(registry.push(2, model).version, len(registry.versions()))
"""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", script, str(tmp_path)],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    refused, pushed = done.stdout.splitlines()
    assert "model-00001-of-00001.safetensors" in refused
    assert "File too large" in refused
    assert pushed == "0 1"
    assert not list(tmp_path.rglob(".pulse-tmp-*"))


def test_a_folder_that_may_not_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*arguments: object, **options: object) -> None:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))

    with without_pauses(), pulse_registry.open(str(tmp_path / "deep"), run="math") as registry:
        with monkeypatch.context() as patched:
            patched.setattr(os, "mkdir", forbidden)
            with pytest.raises(StoreUnavailable, match="Permission denied"):
                registry.push(1, model())
        assert registry.push(1, model()).version == 0


def test_every_error_is_of_one_tree() -> None:
    errors = [getattr(pulse_registry, name) for name in pulse_registry.__all__]
    errors = [error for error in errors if isinstance(error, type) and issubclass(error, Exception)]
    assert len(errors) == 21
    assert all(issubclass(error, PulseError) for error in errors)
