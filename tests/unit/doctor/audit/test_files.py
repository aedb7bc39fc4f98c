"""An audit looks at the small files that live versions need."""

from __future__ import annotations

from pathlib import Path

import pytest
from blake3 import blake3

from pulse_registry.doctor.audit import DefectKind, RunAudit
from pulse_registry.format import keys
from pulse_registry.store import PrefixStore
from tests.support.records import DictStore
from tests.support.registries import RUN, commits, quick, small_model

CONFIG = b'{"model_type":"x"}'
FILE = keys.file_key(blake3(CONFIG).hexdigest())


@pytest.fixture
def root(tmp_path: Path) -> DictStore:
    """A run of one version with a file."""
    (tmp_path / "config.json").write_bytes(CONFIG)
    store = DictStore()
    with quick(store) as registry:
        registry.push(0, small_model(), files=tmp_path)
    return store


@pytest.mark.parametrize("contents", [True, False])
def test_a_run_with_its_files_is_whole(root: DictStore, contents: bool) -> None:
    audit = RunAudit(PrefixStore(root, RUN), RUN)
    assert list(audit.defects(contents=contents)) == []
    objects = {key: data for key, data in root.objects.items() if "/objects/" in key}
    assert (audit.objects, audit.nbytes) == (len(objects), sum(map(len, objects.values())))


@pytest.mark.parametrize("contents", [True, False])
@pytest.mark.parametrize("how", ["missing", "flipped", "short"])
@pytest.mark.parametrize("which", ["file", "set"])
def test_what_is_missing_or_damaged_is_named(root: DictStore, which: str, how: str, contents: bool) -> None:
    key = FILE if which == "file" else keys.file_key(commits(root)[0].files or "")
    data = root.objects.pop(f"{RUN}/{key}")
    if how != "missing":
        root.objects[f"{RUN}/{key}"] = data[:-1] if how == "short" else data[:-1] + bytes([data[-1] ^ 1])
    found = {one.key: one.kind for one in RunAudit(PrefixStore(root, RUN), RUN).defects(contents=contents)}
    seen = contents or how == "missing" or which == "set"
    assert found == ({key: DefectKind.MISSING if how == "missing" else DefectKind.DAMAGED} if seen else {})
