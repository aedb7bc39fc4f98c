"""The small files that a push carries: which go along, when they are stored, and which version has which."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from pulse_registry import SigningKey, Trust
from pulse_registry.errors import CorruptObject, InvalidArgument, StoreUnavailable, Untrusted
from pulse_registry.format import keys
from pulse_registry.log.fold import fold
from pulse_registry.log.state import RunState
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.push import files as files_module
from pulse_registry.push.files import Files, files_of_model, read_files
from pulse_registry.registry import Registry
from pulse_registry.testing import Fault, FaultStore
from pulse_registry.testing.fault import FaultAction
from pulse_schemas import CommitRecord, FileEntry, FileSet, unseal_record
from tests.support.records import DictStore
from tests.support.registries import (
    RUN,
    change,
    check_store,
    commits,
    failing,
    quick,
    registry_with,
    small_model,
    state_of,
)

CONFIG = {"config.json": b'{"model_type":"llama"}', "tokenizer.json": b"{}", "chat_template.jinja": b"{{ x }}"}


def folder_of(path: Path, contents: Mapping[str, bytes]) -> Path:
    path.mkdir(parents=True, exist_ok=True)
    for name, data in contents.items():
        (path / name).write_bytes(data)
    return path


def objects(store: DictStore) -> set[str]:
    return {key.rpartition("/")[2] for key in store.objects if key.startswith(f"{RUN}/{keys.FILES}")}


def named(store: DictStore) -> list[str | None]:
    """Return what each commit record names."""
    return [record.files for record in commits(store)]


# -- a folder ----------------------------------------------------------------------------------------------------------


def test_data_goes_along_and_weights_code_and_states_of_trainers_do_not(tmp_path: Path) -> None:
    others = ["model.safetensors", "model.safetensors.index.json", "pytorch_model.bin", "x.gguf", "modeling_x.py"]
    others += ["trainer_state.json", "training_args.bin", "optimizer.pt", ".hidden.json", "README", "rng_state.pth"]
    folder = folder_of(tmp_path, CONFIG | dict.fromkeys(others, b"{}"))
    (folder / "sub.json").mkdir()
    assert read_files(folder) == read_files(str(folder)) == read_files(Files(folder)) == CONFIG
    assert read_files(CONFIG) == CONFIG
    assert read_files(Files(folder, also=["modeling_x.py", "README"])).keys() == {*CONFIG, "modeling_x.py", "README"}


@pytest.mark.parametrize(
    ("also", "words"),
    [
        (["../secret.json"], "plain name"),
        (["/etc/passwd"], "plain name"),
        ([".."], "plain name"),
        (["none.py"], "none.py"),
        (["sub"], "can't be read"),
        (["model.safetensors"], "weights"),
        ([".hidden"], r"\.hidden"),
        ("modeling_x.py", "list of names"),
    ],
)
def test_what_is_named_must_be_a_plain_file_of_the_folder(tmp_path: Path, also: Any, words: str) -> None:
    folder = folder_of(tmp_path / "model", CONFIG | {"model.safetensors": b"x", ".hidden": b"x"})
    (folder / "sub").mkdir()
    (tmp_path / "secret.json").write_bytes(b"secret")
    with pytest.raises(InvalidArgument, match=words):
        read_files(Files(folder, also=also))


def test_a_link_may_not_lead_out_of_the_folder(tmp_path: Path) -> None:
    (tmp_path / "secret.json").write_bytes(b"secret")
    folder = folder_of(tmp_path / "model", CONFIG)
    (folder / "vocab.json").symlink_to("config.json")
    assert read_files(folder)["vocab.json"] == CONFIG["config.json"]
    (folder / "special.json").symlink_to("../secret.json")
    with pytest.raises(InvalidArgument, match=r"special\.json is a link that leads out"):
        read_files(folder)


def test_the_links_of_hugging_faces_cache_are_followed_into_its_blobs(tmp_path: Path) -> None:
    blobs = folder_of(tmp_path / "models--x" / "blobs", {"1234": b"{}"})
    folder = folder_of(tmp_path / "models--x" / "snapshots" / "abcd", {})
    (folder / "config.json").symlink_to("../../blobs/1234")
    assert read_files(folder) == {"config.json": b"{}"}
    (blobs / "5678").symlink_to(folder_of(tmp_path / "else", {"x": b"secret"}) / "x")
    (folder / "vocab.json").symlink_to("../../blobs/5678")
    with pytest.raises(InvalidArgument, match="leads out"):
        read_files(folder)


def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "config.json")
    with pytest.raises(InvalidArgument, match="no regular file"):
        read_files(tmp_path)


def test_files_out_of_bounds_are_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for wrong, words in (
        (tmp_path, "no configuration"),
        (tmp_path / "none", "can't be read"),
        (7, "of type int"),
        ({}, "files"),
        ({"x.json": "y"}, "not bytes"),
        ({"../x": b""}, "files"),
    ):
        with pytest.raises(InvalidArgument, match=words):
            read_files(wrong)  # type: ignore[arg-type]
    folder_of(tmp_path, {"config.json": b"x" * 11, "Config.json": b"x"})
    with pytest.raises(InvalidArgument, match="one file"):
        read_files(tmp_path)
    (tmp_path / "Config.json").unlink()
    monkeypatch.setattr(files_module, "FILE_BYTES", 10)
    with pytest.raises(InvalidArgument, match="has 11 bytes, and one file 10 at most"):
        read_files(tmp_path)


# -- pushes ------------------------------------------------------------------------------------------------------------


def test_files_are_stored_once_and_named_only_where_they_change(tmp_path: Path) -> None:
    store, model = DictStore(), small_model()
    folder = folder_of(tmp_path, CONFIG)
    with quick(store) as registry:
        for step in range(5):
            if step == 3:
                (folder / "config.json").write_bytes(b"{}")  # the bytes of the tokenizer's
            change(model, step)
            registry.push(step, model, files=folder if step in (1, 2, 3) else None)
            before = dict(store.objects)
            assert registry.version().files == registry.state().version(step).files
        found = [registry.files(version) for version in range(5)]
        assert registry.files() == found[4]
    assert found == [{}, CONFIG, CONFIG, CONFIG | {"config.json": b"{}"}, CONFIG | {"config.json": b"{}"}]
    said = named(store)
    assert [files is None for files in said] == [True, False, True, False, True]
    formats = [record.format for record in commits(store)]
    assert formats == ["pulse-record/1", "pulse-record/3", "pulse-record/1", "pulse-record/3", "pulse-record/1"]
    contents = {blake3(data).hexdigest() for data in CONFIG.values()}
    assert objects(store) == contents | {files for files in said if files is not None}
    assert {key: before[key] for key in before if keys.FILES in key} == {
        key: data for key, data in store.objects.items() if keys.FILES in key
    }
    for key in objects(store):
        assert blake3(store.objects[f"{RUN}/{keys.file_key(key)}"]).hexdigest() == key


def test_a_state_with_files_survives_its_snapshot(tmp_path: Path) -> None:
    store, model = DictStore(), small_model()
    with quick(store) as registry:
        registry.push(0, model)
        registry.push(1, model, files=folder_of(tmp_path, CONFIG))
        registry.push(2, model)
    state = state_of(store)
    snapshot = state.to_snapshot()
    assert snapshot.format == "pulse-snapshot/4"
    assert RunState.from_snapshot(type(snapshot).unseal(snapshot.seal())).to_snapshot() == snapshot
    records = [unseal_record(store.objects[f"{RUN}/{keys.record_key(seq)}"]) for seq in range(state.seq + 1)]
    assert fold(RUN, records).to_snapshot() == snapshot
    assert [entry.files is None for entry in snapshot.versions] == [True, False, False]


def test_what_a_failed_push_was_to_carry_goes_along_with_the_next(tmp_path: Path) -> None:
    base, model = DictStore(), small_model()
    down: list[str] = []
    faults = [Fault("fail_before", matches=lambda verb, key: any(part in key for part in down) and verb == "put")]
    with quick(FaultStore(base, faults), max_pending=1) as registry:
        registry.push(0, model)
        for part in (keys.FILES, "/log/"):
            change(model, len(part))
            down[:] = [part]
            with pytest.raises(StoreUnavailable):
                registry.push(1, model, files=folder_of(tmp_path, {"config.json": part.encode()}))
            down.clear()
        assert registry.files() == {}
        registry.push(2, model)
        assert registry.files() == {"config.json": b"/log/"}
        registry.push(3, model)
    assert [files is None for files in named(base)] == [True, False, True]


@pytest.mark.parametrize("action", ["fail_before", "fail_after"])
def test_wherever_the_store_fails_no_version_lacks_its_files(tmp_path: Path, action: FaultAction) -> None:
    folder = folder_of(tmp_path, CONFIG)
    for nth in range(1, 40):
        base, model = DictStore(), small_model()
        store, outage = failing(base)
        with quick(store, keyframe_share=1e9) as registry:
            registry.push(0, model)
            change(model, 1)
            outage.arm(nth, action)
            with suppress(StoreUnavailable):
                registry.push(1, model, files=folder)
            failed = outage.heal()
            registry.push(2, model)
            assert registry.files() == CONFIG
            assert registry.files(0) == {}
        check_store(base)
        if not failed:
            assert nth > 5
            return
    raise AssertionError("it never came to its end")


def test_signatures_cover_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may write the bucket, and holds no key, can't give a version other files."""
    monkeypatch.setenv("PULSE_STATE_DIR", str(tmp_path / "seen"))
    key, store, model = SigningKey.generate(), DictStore(), small_model()
    compute = ComputeOptions(backend="reference")
    reading = Options(compute=compute, trust=Trust((key.public,)))
    with registry_with(store, Options(compute=compute, signer=key)) as registry:
        registry.push(0, model, files=folder_of(tmp_path, CONFIG))
    with registry_with(store, reading) as reader:
        assert reader.files() == CONFIG
    record = commits(store)[0]
    other = FileSet(files={"config.json": FileEntry(size=2, blake3=blake3(b"{}").hexdigest())})
    store.objects[f"{RUN}/{keys.file_key(other.id)}"] = other.canonical()
    store.objects[f"{RUN}/{keys.file_key(blake3(b'{}').hexdigest())}"] = b"{}"
    forged = CommitRecord.model_validate(record.model_dump() | {"files": other.id})
    for signer in (None, SigningKey.generate()):
        store.objects[f"{RUN}/{keys.record_key(record.seq)}"] = forged.seal(signer)
        with registry_with(store, reading) as reader, pytest.raises(Untrusted):
            reader.files()


def test_files_that_are_there_damaged_are_found_by_the_push(tmp_path: Path) -> None:
    store, model = DictStore(), small_model()
    key = f"{RUN}/{keys.file_key(blake3(CONFIG['config.json']).hexdigest())}"
    store.objects[key] = bytes(len(CONFIG["config.json"]))
    with quick(store) as registry:
        with pytest.raises(CorruptObject, match=keys.FILES):
            registry.push(0, model, files=folder_of(tmp_path, CONFIG))
        store.objects[key] = CONFIG["config.json"]
        registry.push(0, model)
        assert registry.files() == CONFIG


def test_bad_files_cost_no_version(tmp_path: Path) -> None:
    store, model = DictStore(), small_model()
    with quick(store) as registry:
        with pytest.raises(InvalidArgument):
            registry.push(0, model, files=tmp_path / "none")
        registry.push(0, model)
    assert len(commits(store)) == 1


def test_a_reader_refuses_files_that_are_not_what_their_names_say(tmp_path: Path) -> None:
    store, model = DictStore(), small_model()
    with quick(store) as registry:
        registry.push(0, model, files=folder_of(tmp_path, CONFIG))
        [files] = named(store)
        assert files is not None
        intact = dict(store.objects)
        listed = intact[f"{RUN}/{keys.file_key(files)}"]
        wrong = {
            keys.file_key(files): [b"{}", b"", bytes(65_537), listed + b" "],
            keys.file_key(blake3(CONFIG["config.json"]).hexdigest()): [b"", b"{}", CONFIG["config.json"] + b" "],
        }  # fmt: skip
        for key, bodies in wrong.items():
            for body in bodies:
                store.objects[f"{RUN}/{key}"] = body
                with pytest.raises(CorruptObject, match=key):
                    registry.files()
            store.objects = dict(intact)
        assert registry.files() == CONFIG


@pytest.mark.parametrize("name", ["../x.json", "model.safetensors", ".pulse.lock"])
def test_a_hostile_set_is_refused_though_its_hash_fits(tmp_path: Path, name: str) -> None:
    store, model = DictStore(), small_model()
    with quick(store) as registry:
        registry.push(0, model, files=folder_of(tmp_path, CONFIG))
        record = commits(store)[0]
    [entry] = [e for n, e in fileset(store, record).files.items() if n == "config.json"]
    document = json.dumps(
        {"files": {name: {"blake3": entry.blake3, "size": entry.size}}, "format": "pulse-files/1"},
        separators=(",", ":"),
    ).encode()
    hostile = CommitRecord.model_validate(
        record.model_dump(exclude={"format"}) | {"files": blake3(document).hexdigest()}
    )
    store.objects[f"{RUN}/{keys.file_key(hostile.files or '')}"] = document
    store.objects[f"{RUN}/{keys.record_key(record.seq)}"] = hostile.seal()
    store.objects = {key: data for key, data in store.objects.items() if "snapshots" not in key and "head" not in key}
    with quick(store) as registry, pytest.raises(CorruptObject, match=r"FileSet: files"):
        registry.files()


def fileset(store: DictStore, record: CommitRecord) -> FileSet:
    return FileSet.parse(store.objects[f"{RUN}/{keys.file_key(record.files or '')}"])


# -- a transformers model ----------------------------------------------------------------------------------------------


class Config:
    """What transformers' configurations have, as far as it is used."""

    def __init__(self, **fields: Any) -> None:
        self.fields = fields

    def to_json_string(self) -> str:
        return json.dumps(self.fields)


class Policy(dict[str, Any]):
    """A mapping of names to tensors, which is no module, whatever else it has."""

    config = Config(model_type="x")


def module(kind: str = "LlamaForCausalLM", **fields: Any) -> Any:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Linear):  # type: ignore[name-defined, misc]
        config_class = Config

        def __init__(self, width: int = 4) -> None:
            super().__init__(width, 4)
            self.config = Config(model_type="llama", **fields)
            self.generation_config = Config(top_k=3)
            self.dtype = torch.float32

    Module.__name__ = kind
    return Module()


def test_a_models_own_configuration_is_that_of_what_is_published() -> None:
    model = module("FSDPLlamaForCausalLM", architectures=["Other"], dtype="float32")
    found = files_of_model(model, "bf16")
    assert found is not None
    assert json.loads(found["config.json"]) == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "dtype": "bfloat16",
    }
    assert json.loads(found["generation_config.json"]) == {"top_k": 3}
    kept = files_of_model(module(torch_dtype="float32"), "keep")
    assert kept is not None
    assert json.loads(kept["config.json"])["torch_dtype"] == "float32"
    wrapped = files_of_model(pytest.importorskip("torch").nn.DataParallel(model), "bf16")
    assert wrapped == found


def test_what_is_no_transformers_model_has_no_configuration(caplog: pytest.LogCaptureFixture) -> None:
    torch = pytest.importorskip("torch")
    adapter = module()
    adapter.peft_config = {}
    for model in (Policy(w=np.zeros(3)), torch.nn.Linear(2, 2), adapter):
        assert files_of_model(model, "bf16") is None
    broken = module()
    broken.config.to_json_string = lambda: "no JSON"
    assert files_of_model(broken, "bf16") is None
    assert "files=" in caplog.text


def test_the_models_own_are_taken_where_the_run_has_none_or_the_layout_changes(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    store, model = DictStore(), module()

    def step(registry: Registry, number: int, **given: Any) -> None:
        with torch.no_grad():
            model.weight[0, 0] += 1
        registry.push(number, model, **given)

    with quick(store) as registry:
        step(registry, 0)
        model.config.fields["later"] = True  # of a configuration that changes by itself, nothing is made
        step(registry, 1)
        own = registry.files()
        assert own.keys() == {"config.json", "generation_config.json"}
        step(registry, 2, files=folder_of(tmp_path, CONFIG))
        step(registry, 3)
        assert registry.files() == CONFIG
    with quick(store) as registry:  # another process
        step(registry, 4)
        assert registry.files() == CONFIG
        model = type(model)(5)
        step(registry, 5)
        found = registry.files()
        assert found.keys() == {*CONFIG, "generation_config.json"}
        assert json.loads(found["config.json"])["model_type"] == "llama"
        assert found["tokenizer.json"] == CONFIG["tokenizer.json"]
    assert [files is None for files in named(store)] == [False, True, False, True, True, False]
