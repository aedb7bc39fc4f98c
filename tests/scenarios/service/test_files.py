"""A run's small files through a service: pushed by a trainer without keys of the bucket, pulled by a late worker."""

from __future__ import annotations

from pathlib import Path

import httpx
import pytest
from blake3 import blake3

from pulse_registry import InvalidArgument
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.client.store import ServiceStore
from pulse_registry.format import keys
from pulse_registry.store import PrefixStore
from tests.scenarios.service.policies import opened, policy
from tests.support.service import Service
from tests.support.waiting import HANG_S

CONFIG = {"config.json": b'{"model_type":"x"}', "tokenizer.json": b"{" + b" " * 100_000 + b"}"}


@pytest.mark.slow
def test_a_late_worker_has_all_from_the_service(service: Service, run: str, tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for name, data in CONFIG.items():
        (source / name).write_bytes(data)
    with opened(service, run) as trainer:
        trainer.push(0, policy(0), files=source)
        trainer.push(1, policy(1))
        (source / "config.json").write_bytes(b"{}")
        trainer.push(2, policy(2), files=source)
    with opened(service, run) as worker:
        assert [worker.files(version) for version in (1, 2)] == [CONFIG, CONFIG | {"config.json": b"{}"}]
        pull_checkpoint(worker, 1, into=tmp_path / "out")
    assert {name: (tmp_path / "out" / name).read_bytes() for name in CONFIG} == CONFIG


def test_files_are_found_by_the_version_and_need_a_token(file_service: Service, run: str, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_bytes(CONFIG["config.json"])
    with opened(file_service, run) as trainer:
        trainer.push(0, policy(0), files=tmp_path)
    base, headers = f"{file_service.url}/v1/runs/{run}", {"Authorization": f"Bearer {file_service.token}"}
    body = httpx.get(f"{base}/versions/latest", headers=headers, timeout=HANG_S).json()
    path = f"{base}/{keys.file_key(body['files'])}"
    document = httpx.get(path, headers=headers, timeout=HANG_S)
    assert document.status_code == 200
    assert blake3(document.content).hexdigest() == body["files"]
    [entry] = document.json()["files"].values()
    found = httpx.get(f"{base}/{keys.file_key(entry['blake3'])}", headers=headers, timeout=HANG_S)
    assert found.content == CONFIG["config.json"]
    assert httpx.get(path, timeout=HANG_S).status_code == 401
    for name in ("x", "a" * 63, "A" * 64, f"{'a' * 64}.json", f"{'a' * 64}/x"):
        refused = httpx.get(f"{base}/{keys.FILES}{name}", headers=headers, timeout=HANG_S)
        assert refused.status_code in (400, 404, 422)


def test_a_key_beside_the_hashes_takes_nothing(file_service: Service, run: str) -> None:
    store = PrefixStore(ServiceStore(file_service.url, file_service.token), run)
    with pytest.raises(InvalidArgument, match="is no object's key"):
        store.put(f"{keys.FILES}config.json", b"{}", if_absent=True)
