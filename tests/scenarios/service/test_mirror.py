"""A service as the source of a mirror, with a token that reads; and a service over a copy, which takes no push."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from pathlib import Path

import numpy as np
import pytest

import pulse_registry
from pulse_registry.cli.app import main
from pulse_registry.client.connect import connect
from pulse_registry.client.copies import CopyStore
from pulse_registry.errors import Fenced, InvalidArgument, Mirrored
from pulse_registry.format import keys
from pulse_registry.mirror import Mirror
from pulse_registry.retention import RetentionPolicy
from pulse_registry.store import Store, open_store
from pulse_schemas import Countersignature
from tests.support.outer_rounds import make_rounds
from tests.support.registries import RUN, change, small_model
from tests.support.service import Service, serving

OWN = ("leases/", "clock", "mirror", "reports/")
"""What a root has for itself."""


def _tree(root: Path) -> dict[str, bytes]:
    store: Store = open_store(str(root))
    own = tuple(f"{RUN}/{name}" for name in OWN)
    return {key: store.get(key) for key in store.list("") if not key.startswith(own)}


def _push(root: str, token: str | None, versions: int) -> None:
    options = pulse_registry.PushOptions(dtype="keep")
    with pulse_registry.open(root, run=RUN, token=token, push=options) as registry:
        first, model = len(registry.versions()), small_model()
        for step in range(first, first + versions):
            change(model, step)
            registry.push(step, model)


def _countersign(root: str, seq: int) -> None:
    of = Countersignature(run=RUN, seq=seq, record="a" * 64)
    open_store(root).put(f"{RUN}/{keys.countersignature_key(seq)}", of.seal())


@pytest.mark.slow
def test_a_run_is_copied_through_a_service_with_a_token_that_reads(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    make_rounds(str(near), RUN, 2)
    _push(str(near), None, 70)
    _countersign(str(near), 2), _countersign(str(near), 40)
    with serving(str(near), tmp_path) as service:
        token = service.new_token("read")
        service.await_token(token)
        monkeypatch.setenv("PULSE_TOKEN", token)
        assert main(["mirror", "--runs", RUN, "--json", service.url, str(far)]) == 0
        [told] = json.loads(capsys.readouterr().out)["runs"]
        assert told["seq"] == told["source_seq"]
        assert _tree(far) == _tree(near)
        store = connect(service.url, token)
        with Mirror(store, open_store(str(far)), RUN) as mirror:
            mirror.step()
            _push(service.url, service.token, 1)
            mirror.wait(60.0)
            assert mirror.step().records > 0
            mirror.catch_up()
        assert _tree(far) == _tree(near)
        assert main(["mirror", service.url, str(far)]) == 2, "it lists no runs"
        with pytest.raises(InvalidArgument, match="is a service as trainers see it"):
            Mirror(open_store(str(near)), store, RUN)


@pytest.mark.slow
def test_a_trainer_behind_a_service_is_told_where_its_run_has_moved(tmp_path: Path) -> None:
    near, far, model = tmp_path / "near", tmp_path / "far", small_model()
    with (
        serving(str(near), tmp_path) as service,
        pulse_registry.open(service.url, run=RUN, token=service.token) as trainer,
    ):
        trainer.push(0, model)
        assert main(["mirror", str(near), str(far)]) == 0
        assert main(["promote", str(far), "--from", str(near), "--runs", RUN]) == 0
        with pytest.raises(Fenced, match=f"record 2 moved it to {far.as_uri()}"):
            trainer.push(1, model)


@pytest.mark.slow
def test_a_mirror_of_a_service_ends_where_the_run_has_moved_to_its_copy_and_goes_on_elsewhere(tmp_path: Path) -> None:
    near, far, third = tmp_path / "near", tmp_path / "far", tmp_path / "third"
    _push(str(near), None, 2)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    with serving(str(near), tmp_path / "a") as old, serving(str(far), tmp_path / "b") as new:
        with Mirror(connect(old.url, old.token), open_store(str(far)), RUN) as mirror:
            mirror.catch_up()
            assert mirror.left is None
            assert main(["promote", str(far), "--from", str(near), "--runs", RUN]) == 0
            mirror.step()
            assert mirror.left is not None
            assert mirror.left.to == far.as_uri()
        for source, root in ((new, near), (new, third), (old, third)):
            with Mirror(connect(source.url, source.token), open_store(str(root)), RUN) as mirror:
                mirror.catch_up()
                assert mirror.left is None
        assert _tree(third) == {key: data for key, data in _tree(far).items() if key != f"{RUN}/{keys.HOME}"}


@pytest.mark.slow
def test_a_run_is_copied_from_one_service_to_another_by_a_mirror_with_two_tokens(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    make_rounds(str(near), RUN, 2)
    _push(str(near), None, 3)
    (tmp_path / "a").mkdir(), (tmp_path / "b").mkdir()
    with serving(str(near), tmp_path / "a") as source, serving(str(far), tmp_path / "b") as destination:
        read, write = source.new_token("read"), destination.new_token("mirror")
        source.await_token(read), destination.await_token(write)
        monkeypatch.setenv("PULSE_TOKEN", read)
        command = ["mirror", "--runs", RUN, "--json", source.url, destination.url]
        monkeypatch.setenv("PULSE_COPY_TOKEN", destination.token)
        assert main(command) == 8, "it is one of scope publish"
        assert not far.exists() or not list(open_store(str(far)).list(f"{RUN}/log/"))
        monkeypatch.setenv("PULSE_COPY_TOKEN", write)
        capsys.readouterr()
        assert main(command) == 0
        [told] = json.loads(capsys.readouterr().out)["runs"]
        assert told["seq"] == told["source_seq"] >= 3
        with pulse_registry.open(destination.url, run=RUN, token=write) as registry:
            assert registry.pull("latest", into=small_model()).version == len(registry.versions()) - 1
    assert _tree(far) == _tree(near)


@pytest.mark.slow
def test_a_copy_is_written_through_a_service_over_any_store(service: Service, tmp_path: Path) -> None:
    near, model = tmp_path / "near", {"w": np.arange(4 << 20, dtype=np.uint16)}
    now = RetentionPolicy(keep_last=1, keep_seconds=0, grace_seconds=0, orphan_seconds=0)
    with pulse_registry.open(str(near), run=RUN, push=pulse_registry.PushOptions(dtype="keep")) as registry:
        for step in range(3):
            model["w"][step * 1000 : step * 1000 + 500] += 1
            registry.push(step, model, files={"config.json": b"{}"})
    token = service.new_token("mirror")
    service.await_token(token)
    copies = CopyStore(service.url, token)
    with Mirror(open_store(str(near)), copies, RUN, policy=now) as mirror:
        done = mirror.catch_up()
        assert done.nbytes > 8 << 20, "a keyframe goes up in parts"
    with pulse_registry.open(str(near), run=RUN) as registry:
        registry.compactor().step()
        for _ in range(2):
            registry.gc(now, dry_run=False)
    for verify in (False, True):
        with Mirror(open_store(str(near)), copies, RUN, policy=now, verify=verify) as mirror:
            mirror.catch_up()
    own = tuple(f"{RUN}/{name}" for name in OWN)
    found = {key: copies.get(key) for key in copies.list(f"{RUN}/") if not key.startswith(own)}
    assert found == _tree(near)
    assert abs(copies.modified(f"{RUN}/log/000000000000.json") - datetime.now(UTC)) < timedelta(days=1)
    copies.close()


@pytest.mark.slow
def test_a_service_over_a_copy_serves_readers_and_takes_no_push(tmp_path: Path) -> None:
    near, far = tmp_path / "near", tmp_path / "far"
    _push(str(near), None, 3)
    with Mirror(open_store(str(near)), open_store(str(far)), RUN) as mirror:
        mirror.catch_up()
    before = _tree(far)
    with serving(str(far), tmp_path) as service:
        with pulse_registry.open(service.url, run=RUN, token=service.token) as registry:
            assert registry.pull("latest", into=small_model()).version == 2
            with pytest.raises(Mirrored, match="holds a copy of"):
                registry.tag("best", 1)
        with pytest.raises(Mirrored):
            _push(service.url, service.token, 1)
    assert {key: data for key, data in _tree(far).items() if "/objects/" not in key} == {
        key: data for key, data in before.items() if "/objects/" not in key
    }
