"""What `open` does before anything is pushed or pulled: little, and it lets go of it where it fails."""

from __future__ import annotations

import pickle
import shutil
import subprocess
import sys
from pathlib import Path

import numpy
import pytest

import pulse_kernels
import pulse_registry
from pulse_kernels import BackendName
from pulse_registry import AccessDenied, Event, InvalidArgument, NotFound, PulseError, Registry, opening
from pulse_registry.options import ComputeOptions, Options
from pulse_registry.store import MemoryStore
from pulse_registry.weights import backend as backends


def python(code: str, *arguments: str | Path) -> list[str]:
    """Run code in a new process, where warnings are errors, and return the words that it prints."""
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", code, *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout.split()


@pytest.mark.slow
def test_a_script_that_opens_and_ends_loads_no_kernel_and_starts_no_thread(tmp_path: Path):
    code = """
import atexit, sys, threading
import pulse_registry
atexit.register(lambda: print("numba" in sys.modules))
registry = pulse_registry.open(sys.argv[1], run="run", name="host-1")
registry.versions()
print(threading.active_count())
"""
    assert python(code, tmp_path) == ["1", "False"]


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["cuda", "numba"])
def test_a_backend_that_is_not_there_is_refused_by_open_in_the_callers_thread(backend: str):
    code = """
import sys, threading
sys.modules["numba"] = None
import pulse_registry
try:
    pulse_registry.open("memory://x", run="run", compute=pulse_registry.ComputeOptions(backend=sys.argv[1]))
except pulse_registry.InvalidArgument as error:
    print("refused", sys.argv[1] in str(error), threading.active_count())
"""
    assert python(code, backend) == ["refused", "True", "1"]


def test_without_numba_auto_works():
    code = """
import sys
sys.modules["numba"] = None
import numpy, pulse_registry
with pulse_registry.open("memory://x", run="run", push=pulse_registry.PushOptions(dtype="keep")) as registry:
    print(registry.push(0, {"w": numpy.zeros(4, numpy.float32)}).version)
    registry.warm_up()
"""
    assert python(code) == ["0"]


class Connected(MemoryStore):
    """A store with connections to close, whose log can't be read."""

    closed = 0

    def get(self, key, byte_range=None, *, max_bytes=None):
        raise AccessDenied(f"{key}: no")

    def list(self, prefix="", start_after=None):
        raise AccessDenied("no")

    def close(self) -> None:
        self.closed += 1


@pytest.mark.parametrize(
    "arguments", [{"run": "run", "create": False}, {"run": "NO NAME"}, {"run": "r", "name": "no name"}]
)
def test_an_open_that_fails_closes_its_connections(arguments, monkeypatch: pytest.MonkeyPatch):
    store = Connected("connected")
    monkeypatch.setattr(opening, "connect_roots", lambda *_, **__: store)
    with pytest.raises(PulseError):
        pulse_registry.open("memory://x", **{"run": "run", **arguments})
    assert store.closed


def test_threads_are_an_option_of_open():
    with pytest.raises(InvalidArgument, match="threads"):
        pulse_registry.open("memory://x", run="run", compute=pulse_registry.ComputeOptions(threads=0))


@pytest.fixture
def sealed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A host whose package folder and home can't be written: a file is in the way, since root may write all."""
    package = Path(pulse_kernels.__file__).parent
    shutil.copytree(package, tmp_path / "site/pulse_kernels", ignore=shutil.ignore_patterns("__pycache__"))
    for blocked in (tmp_path / "site/pulse_kernels/cpu/loops/__pycache__", tmp_path / "home"):
        blocked.write_text("in the way")
    monkeypatch.delenv("NUMBA_CACHE_DIR", raising=False)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path / "site"))
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "home/cache"))


TELLS = """
import logging, numpy, sys, pulse_registry
logging.getLogger("pulse_registry").disabled = True
events = []
with pulse_registry.open("memory://x", run="run", on_event=events.append) as registry:
    print(*(event.kind for event in events), "numba" in sys.modules)
    print(*(part in event.message for event in events for part in ("NUMBA_CACHE_DIR", "warm_up()", *sys.argv[1:])))
    registry.push(0, {"w": numpy.zeros(4, numpy.float32)})
    print(len(events))
"""


@pytest.mark.slow
@pytest.mark.usefixtures("sealed")
def test_where_no_folder_keeps_the_kernels_open_tells_so_before_a_push_waits_for_them():
    assert python(TELLS) == ["kernels_not_cached", "False", "True", "False", "1"]


@pytest.mark.slow
@pytest.mark.usefixtures("sealed")
def test_where_no_kernel_is_compiled_yet_open_tells_so_and_the_next_process_has_nothing_to_tell(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    folder = tmp_path / "kernels"
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(folder))
    assert python(TELLS, folder) == ["kernels_not_cached", "False", "False", "True", "True", "1"]
    assert python(TELLS, folder) == ["False", "0"]
    assert list(folder.rglob("*.nbc"))


FOUND = """
from pulse_kernels import loops_folder
from pulse_kernels.cpu.compile import cache_folder
print(loops_folder(), cache_folder())
"""


@pytest.mark.slow
@pytest.mark.usefixtures("sealed")
@pytest.mark.parametrize("writable", ["NUMBA_CACHE_DIR", "XDG_CACHE_HOME", "HOME", None])
def test_the_folder_that_is_looked_into_is_the_one_that_numba_takes(
    writable: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    if writable == "HOME":
        monkeypatch.delenv("XDG_CACHE_HOME")
    if writable is not None:
        monkeypatch.setenv(writable, str(tmp_path / "here"))
    looked, taken = python(FOUND)
    assert looked == taken
    assert looked.startswith(str(tmp_path / "here")) == (writable is not None)


@pytest.mark.parametrize(("backend", "told"), [("reference", []), ("numba", ["kernels_not_cached"])])
def test_a_registry_made_of_a_store_tells_at_its_first_push(
    backend: BackendName, told: list[str], monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(backends, "loops_folder", lambda: None)
    events: list[Event] = []
    with Registry(
        MemoryStore("told"), "run", Options(on_event=events.append, compute=ComputeOptions(backend=backend))
    ) as registry:
        assert events == []
        registry.push(0, {"w": numpy.zeros(4, numpy.float32)})
        registry.push(1, {"w": numpy.ones(4, numpy.float32)})
    assert [event.kind for event in events] == told


def test_kernels_that_are_there_are_looked_at_once_in_a_process(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    looked: list[Path] = []
    monkeypatch.setattr(backends, "loops_folder", lambda: tmp_path)
    monkeypatch.setattr(backends, "loops_exposed", looked.append)
    for _ in range(2):
        told = backends.what_compiles("numba")
        assert told is not None, "there are none yet"
    (tmp_path / "loop.nbi").touch()
    assert [backends.what_compiles("numba") for _ in range(3)] == [None] * 3
    assert looked == [tmp_path] * 3


def test_a_registry_says_what_it_is_without_asking_the_store(tmp_path: Path):
    compute = pulse_registry.ComputeOptions(backend="reference")
    options = {"push": pulse_registry.PushOptions(dtype="keep"), "compute": compute, "name": "host-3"}
    with pulse_registry.open(str(tmp_path), run="math", **options) as registry:
        assert repr(registry) == f"<Registry url={registry.url!r} run='math' name='host-3' newest=None open>"
        registry.push(0, {"w": numpy.zeros(4, numpy.float32)})
        shutil.rmtree(tmp_path / "math")
        assert "newest=0 open" in repr(registry)
    assert "newest=0 closed" in repr(registry)


def test_what_a_registry_says_of_its_url_holds_no_query(monkeypatch: pytest.MonkeyPatch):
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "unused")
    with pulse_registry.open("s3://bucket/prefix?endpoint_url=http://127.0.0.1:1", run="math") as registry:
        assert "s3://bucket/prefix" in repr(registry)
        assert "endpoint_url" not in repr(registry)


def test_a_root_is_a_text_or_a_path_and_nothing_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    with pulse_registry.open(tmp_path / "registry", run="run") as registry:
        registry.push(0, {"w": numpy.arange(9, dtype=numpy.uint16)})
    with pulse_registry.open(str(tmp_path / "registry"), run="run", create=False) as registry:
        assert registry.version("latest").version == 0
    monkeypatch.chdir(tmp_path)
    with pulse_registry.open(Path("registry"), run="run", create=False) as registry:
        carried = pickle.dumps(registry)
    monkeypatch.chdir("/")
    with pickle.loads(carried) as registry:
        assert registry.version("latest").version == 0
    with pytest.raises(InvalidArgument, match="write s3://"):  # a path takes a URL's second slash away
        pulse_registry.open(Path("s3://bucket/policies"), run="run")
    with pytest.raises(NotFound, match=r"no run 'run' in .*elsewhere"):
        pulse_registry.open(tmp_path / "elsewhere", run="run", create=False)
    for wrong in (None, 7, b"registry"):
        with pytest.raises(InvalidArgument, match=r"is a URL or a folder's path, and no (NoneType|int|bytes)"):
            pulse_registry.open(wrong, run="run")  # type: ignore[arg-type]
