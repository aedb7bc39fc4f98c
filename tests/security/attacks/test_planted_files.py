"""What another user of the host plants in a folder that both may write: it is not read, not written through, not kept.

Each of these once changed weights after they were verified, or wrote to, or removed, files of the user who pulled.
"""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from blake3 import blake3

from pulse_registry.cache import CacheFolder
from pulse_registry.cache.partial_object import PartialObject
from pulse_registry.checkpoint import pull_checkpoint
from pulse_registry.checkpoint.files import FileOperations
from pulse_registry.errors import InvalidArgument
from pulse_registry.interop import export_chain
from pulse_registry.options import ComputeOptions, Options, PullOptions
from pulse_registry.process.private_files import NotOurs
from pulse_registry.pull import download
from pulse_registry.pull.download import SpoolFile, remove_stale
from pulse_registry.registry import Registry
from pulse_registry.signing.last_seen import Memory
from pulse_registry.store import FileStore
from pulse_schemas import ObjectRef
from tests.support.others import give_away
from tests.support.registries import Model, bits, quick

ROOT = Path(__file__).resolve().parents[3]
MINE = b"this user's own, and nobody asked for it to be changed"
DATA = b"as it was committed" * 1000
REF = ObjectRef(key="objects/k", size=len(DATA), blake3=blake3(DATA).hexdigest())


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A folder that everybody may write, as /tmp is."""
    folder = tmp_path / "shared"
    folder.mkdir()
    folder.chmod(0o1777)
    return folder


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """A file of the user that is attacked, elsewhere."""
    path = tmp_path / "mine"
    path.write_bytes(MINE)
    return path


@pytest.fixture
def model() -> Model:
    return {"w": np.random.default_rng(3).integers(0, 2**16, 40_000, dtype=np.uint16)}


@pytest.fixture
def run(model: Model, tmp_path: Path) -> Path:
    with quick(FileStore(tmp_path / "store")) as registry:
        registry.push(0, model)
    return tmp_path / "store"


def planted(folder: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, name: str) -> int:
    """Put another user's file there, which all may write; return the descriptor by which that user goes on to."""
    path = folder / name
    path.write_bytes(data)
    path.chmod(0o666)
    descriptor = os.open(path, os.O_RDWR)
    give_away(path, monkeypatch)
    return descriptor


# -- the spool --------------------------------------------------------------------------------------------------------


def test_no_pull_goes_on_with_a_part_that_another_user_has_put_into_its_spool(
    run: Path, model: Model, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (shard,) = run.rglob("model-*.safetensors")
    whole = shard.read_bytes()
    theirs = planted(shared, monkeypatch, whole, f".pulse-{blake3(whole).hexdigest()}.part")
    real = SpoolFile.map

    def map_later(self: SpoolFile) -> mmap.mmap:
        os.pwrite(theirs, bytes(len(whole) - 4096), 4096)  # once all of it has been checked
        return real(self)

    monkeypatch.setattr(SpoolFile, "map", map_later)
    with Registry(
        FileStore(run), "run", Options(pull=PullOptions(spool=shared), compute=ComputeOptions(backend="reference"))
    ) as registry:
        assert bits(registry.load()) == bits(model)
    assert len(list(shared.iterdir())) == 1, "theirs, which is left alone"
    os.close(theirs)


@pytest.mark.parametrize("mode", [0o660, 0o602])
def test_a_part_that_others_may_write_is_not_gone_on_with(shared: Path, mode: int) -> None:
    (shared / f".pulse-{REF.blake3}.part").write_bytes(DATA)
    (shared / f".pulse-{REF.blake3}.part").chmod(mode)
    landing = SpoolFile(REF, shared)
    assert not landing.resumed
    assert landing.read(0, 10) == bytes(10)
    landing.close()


def test_a_part_of_ours_is_gone_on_with(shared: Path) -> None:
    first = SpoolFile(REF, shared)
    first.write(0, memoryview(DATA))
    first.keep()
    again = SpoolFile(REF, shared)
    assert again.resumed
    assert again.read(0, REF.size) == DATA
    again.close()
    assert list(shared.iterdir()) == []


@pytest.mark.parametrize("link", [os.link, os.symlink, lambda _, path: os.mkfifo(path), lambda _, path: path.mkdir()])
def test_a_part_that_is_a_link_changes_no_other_file(
    shared: Path, mine: Path, link: Callable[[Path, Path], None]
) -> None:
    link(mine, shared / f".pulse-{REF.blake3}.part")
    landing = SpoolFile(REF, shared)
    landing.write(0, memoryview(DATA))
    assert landing.map()[:] == DATA
    landing.close()
    assert mine.read_bytes() == MINE


def test_what_another_user_left_in_a_spool_is_not_removed(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, theirs = shared / f".pulse-{'a' * 64}.part", shared / f".pulse-{'b' * 64}.part"
    for path in (ours, theirs):
        path.write_bytes(b"old")
        os.utime(path, (1, 1))
    give_away(theirs, monkeypatch)
    remove_stale(shared, now=1 + 2 * download.STALE_SECONDS)
    assert list(shared.iterdir()) == [theirs]


# -- the node's cache -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", [f"{REF.blake3}.part", ".pulse-cache"])
def test_a_hard_link_in_a_cache_changes_no_other_file(shared: Path, mine: Path, name: str) -> None:
    os.link(mine, shared / name)

    def begin() -> None:
        part = PartialObject(CacheFolder(shared, 1 << 20), REF)
        assert part.lock()
        part.begin()

    with pytest.raises(NotOurs, match="2 names"):
        begin()
    assert mine.read_bytes() == MINE


def test_what_other_users_put_into_a_cache_takes_no_room_of_ours(shared: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a listing says whose a file is: to have another's there takes root")
    folder = CacheFolder(shared, 2 * REF.size)
    part = PartialObject(folder, REF)
    assert part.lock()
    part.begin()
    for number in range(4):
        path = shared / (f"{number:064x}" + ".part" * (number % 2))
        with path.open("wb") as file:
            file.truncate(10 * REF.size)
        os.chown(path, 65534, 65534)
    (shared / ".pulse-cache").write_bytes(b"")  # it is looked through
    folder.allot(os.open(shared / "another", os.O_RDWR | os.O_CREAT), REF.size // 2)
    assert folder.part(REF).exists()
    assert len(list(shared.iterdir())) == 7
    part.close()


# -- what was seen of signed runs -------------------------------------------------------------------------------------


def memory(folder: Path) -> Memory:
    return Memory(folder, "file:///registry", "run")


@pytest.mark.parametrize("name", ["new", "lock", "newest.json"])
@pytest.mark.parametrize("link", [os.link, os.symlink])
def test_a_link_among_what_was_seen_changes_no_other_file(
    shared: Path, mine: Path, name: str, link: Callable[[Path, Path], None]
) -> None:
    seen = memory(shared)
    seen.keep_evidence(1, b"sealed")
    (seen.folder / name).unlink(missing_ok=True)
    link(mine, seen.folder / name)
    if name == "newest.json" or (name == "lock" and link is os.symlink):
        with pytest.raises(InvalidArgument, match=f"can't be kept in .*: {name}: it is .* state_dir"):
            seen.advance(1, b"sealed")
    else:
        seen.advance(1, b"sealed")
    assert mine.read_bytes() == MINE


@pytest.mark.parametrize("what", ["folder", "newest.json"])
def test_another_users_word_for_what_was_seen_is_refused(
    shared: Path, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = memory(shared)
    seen.advance(1, b"sealed")
    give_away(seen.folder if what == "folder" else seen.folder / what, monkeypatch)
    for call in (seen.newest, lambda: seen.advance(2, b"sealed")):
        with pytest.raises(InvalidArgument, match=r"it is not a plain file|it is a folder of user"):
            call()


def test_a_folder_that_leads_elsewhere_is_no_memory(shared: Path, tmp_path: Path) -> None:
    (tmp_path / "theirs").mkdir()
    memory(shared).folder.symlink_to(tmp_path / "theirs")
    with pytest.raises(InvalidArgument, match="it is a link"):
        memory(shared).advance(1, b"sealed")
    assert list((tmp_path / "theirs").iterdir()) == []


def test_what_was_seen_where_an_earlier_release_left_it_open_is_read_and_closed(shared: Path) -> None:
    seen = memory(shared)
    seen.advance(1, b"sealed")
    (seen.folder / "newest.json").chmod(0o664)
    known = seen.newest()
    assert known is not None
    assert known.seq == 1
    seen.folder.chmod(0o755)
    with pytest.raises(InvalidArgument, match=r"newest\.json"):
        seen.newest()
    (seen.folder / "newest.json").chmod(0o600)
    seen.folder.chmod(0o777)
    assert seen.newest() == known
    assert seen.folder.stat().st_mode & 0o777 == 0o700


# -- checkpoint folders and exports -----------------------------------------------------------------------------------


def test_a_lock_that_is_a_link_is_refused_and_cuts_no_other_file(run: Path, shared: Path, mine: Path) -> None:
    (shared / ".pulse.lock").symlink_to(mine)
    with (
        Registry(FileStore(run), "run", Options(compute=ComputeOptions(backend="reference"))) as registry,
        pytest.raises(InvalidArgument, match=r"\.pulse\.lock: it is a link"),
    ):
        pull_checkpoint(registry, into=shared)
    assert mine.read_bytes() == MINE


def test_an_export_empties_no_folder_that_a_link_leads_to(run: Path, shared: Path, tmp_path: Path) -> None:
    home = tmp_path / "home"
    (home / "work").mkdir(parents=True)
    (home / "work" / "thesis").write_bytes(MINE)
    (shared / ".pulse-export").symlink_to(home)
    with (
        Registry(FileStore(run), "run", Options(compute=ComputeOptions(backend="reference"))) as registry,
        pytest.raises(InvalidArgument, match=r"\.pulse-export: it is a link"),
    ):
        list(export_chain(registry, shared, files=FileOperations()))
    assert (home / "work" / "thesis").read_bytes() == MINE


def test_an_export_empties_no_folder_of_another_user(run: Path, shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    theirs = shared / ".pulse-export"
    (theirs / "made").mkdir(parents=True)
    give_away(theirs, monkeypatch)
    with (
        Registry(FileStore(run), "run", Options(compute=ComputeOptions(backend="reference"))) as registry,
        pytest.raises(InvalidArgument, match=r"\.pulse-export: it is a folder of user"),
    ):
        list(export_chain(registry, shared, files=FileOperations()))
    assert (theirs / "made").is_dir()


# -- umask 0 ----------------------------------------------------------------------------------------------------------

OPEN_TO_ALL = """
import os, sys
from pathlib import Path
from pulse_registry.cache import CacheFolder
from pulse_registry.pull.download import SpoolFile
from pulse_registry.signing.last_seen import Memory
from pulse_schemas import ObjectRef
os.umask(0)
root = Path(sys.argv[1])
ref = ObjectRef(key="k", size=8, blake3="0" * 64)
folder = CacheFolder(root / "var/cache/pulse", 1 << 20)
folder.allot(folder.open_part(ref), 8)
CacheFolder(root / "var/disk/pulse").limit()
Memory(root / "home/.local/state", "file:///registry", "run").advance(1, b"sealed")
Memory(root / "home/.local/state", "file:///registry", "run").keep_evidence(1, b"sealed")
SpoolFile(ref, root).write(0, memoryview(b"12345678"))
"""


@pytest.mark.slow
def test_with_umask_0_nobody_else_may_write_what_is_made(tmp_path: Path) -> None:
    subprocess.run([sys.executable, "-c", OPEN_TO_ALL, str(tmp_path)], cwd=ROOT, check=True)
    made = {str(path.relative_to(tmp_path)): path.stat().st_mode & 0o777 for path in tmp_path.rglob("*")}
    assert len(made) == 15
    assert {name: oct(mode) for name, mode in made.items() if mode & 0o022} == {}
    assert {made[name] for name in ("var", "var/cache", "var/cache/pulse", "home", "home/.local")} == {0o700}
