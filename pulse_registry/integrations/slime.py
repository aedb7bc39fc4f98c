"""slime and miles: the hooks that carry their delta folders through a run, in place of a file system that all share.

The trainer's writes each folder into the run, the engine's writes it out again on the engine's host. Both take the
registry and the run from PULSE_ROOT and PULSE_RUN, and tokens, keys and pins as the command line does.
"""

from __future__ import annotations

import atexit
import logging
import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, Final

from tenacity import retry, retry_if_exception_type, stop_after_delay, wait_exponential

from pulse_registry.errors import Conflict, InvalidArgument, NotFound
from pulse_registry.interop import Importer, export_chain
from pulse_registry.interop.delta_index import number_of
from pulse_registry.opening import open as open_run
from pulse_registry.process import environment
from pulse_registry.push.options import PushOptions
from pulse_registry.registry import Registry

_logger = logging.getLogger(__name__)
_OTHERS_S: Final = 1800.0
"""How long an engine waits for another process of its host that writes the same folders."""


def post_write(args: Any, version_dir: str, rollout_engines: Any) -> None:
    """Publish a version's folder as the run's next version (``--custom-update-weight-post-write-path``).

    Called on each rank of the trainer once the folder is whole; the first one does it. What the run has is left out.
    From the first call on this process keeps the run open, with the newest version at hand: one that begins fetches it.

    Args:
        args: slime's; not read.
        version_dir: ``.../weight_v000007``.
        rollout_engines: not read: engines pull.

    Raises:
        InvalidArgument: PULSE_ROOT or PULSE_RUN is not set; or the folder's number is not that of the version that it
            became, so that engines would ask for another one.
        BaseMismatch: the run lacks the version that the folder builds on.
        PulseError: as ``pulse import``; the run is what it was.
    """
    if _rank() != 0:
        return
    with _publisher.made() as (registry, importer):
        for imported in importer.folder(Path(version_dir)):
            _logger.info("version %d is %s: %d cells changed", imported.version, version_dir, imported.changed)
            if number_of(imported.name) not in (None, imported.version):
                raise InvalidArgument(
                    f"{version_dir} became version {imported.version} of run {registry.run!r}, and engines will ask "
                    f"for {imported.name}: begin a run with the checkpoint that training starts from as its version 0"
                )


def pre_read(source_dir: str, target_version: int) -> None:
    """Write the versions up to one that an engine is about to read (``--custom-pull-weights-pre-read-hook``).

    Each is a folder ``weight_v...`` with the delta from the one before, of the encoding that all readers have. Folders
    that are there stay. Version 0 is what engines are started with, and is not written.

    Args:
        source_dir: where the engine looks for them, on its own host.
        target_version: the version's number.

    Raises:
        NotFound: the run has no such version.
        Conflict: another process was at work in the folder for half an hour.
        PulseError: as ``pulse export``; folders that were written stay.
    """
    with _open() as registry:
        _export(registry, Path(source_dir), target_version)


@retry(
    retry=retry_if_exception_type(Conflict),
    wait=wait_exponential(0.05, max=1.0),
    stop=stop_after_delay(_OTHERS_S),
    reraise=True,
)
def _export(registry: Registry, folder: Path, version: int) -> None:
    for exported in export_chain(registry, folder, 0, version):
        _logger.info("%s holds version %d", exported.folder, exported.version)


class _Publisher:
    """What this process publishes by: the environment's run, kept open, with its newest version at hand."""

    def __init__(self) -> None:
        self._of: tuple[str | None, str | None] | None = None
        self._made: tuple[Registry, Importer] | None = None
        self._open = ExitStack()

    @contextmanager
    def made(self) -> Iterator[tuple[Registry, Importer]]:
        """Yield registry and importer; after an error the next call makes them anew."""
        of = environment.ROOT.read(), environment.RUN.read()
        try:
            if self._made is None or of != self._of:
                self.close()
                registry = self._open.enter_context(_open(PushOptions(dtype="keep")))
                self._of, self._made = of, (registry, self._open.enter_context(Importer(registry)))
                atexit.register(self.close)
            yield self._made
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Close the run, if it is open. Idempotent."""
        self._made = None
        atexit.unregister(self.close)
        self._open.close()


_publisher: Final = _Publisher()


def _open(push: PushOptions | None = None) -> Registry:
    root, run = environment.ROOT.read(), environment.RUN.read()
    if root is None or run is None:
        missing = environment.ROOT if root is None else environment.RUN
        raise InvalidArgument(f"{missing.name} is not set: the hooks take the registry and the run from it")
    try:
        return open_run(root, run=run, create=False, push=push)
    except NotFound as error:
        raise NotFound(
            f"{error}: begin it with the checkpoint that training starts from: pulse import --run {run} DIR"
        ) from error


def _rank() -> int:
    distributed = sys.modules.get("torch.distributed")
    together = distributed is not None and distributed.is_available() and distributed.is_initialized()
    return distributed.get_rank() if together else 0  # type: ignore[union-attr]
