"""What a pull over many patches touches, by counts."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks.growth import chains
from pulse_kernels import get_backend
from pulse_kernels.protocol import Coded
from pulse_registry import open
from pulse_registry.log.state import RunState
from pulse_registry.pull.route import plan
from pulse_registry.store.prices import Prices
from tests.support.records import chain, keyframe, patch

CELLS, LINKS = 100_000, 48


def test_links_take_as_many_cells_as_they_change_and_one_copy_however_many_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chains.push_chain(str(tmp_path), CELLS, LINKS)
    backend, touched = type(get_backend("numba")), dict[str, int]()
    for name in ("union", "locate", "merge", "move_spans", "decode_changes", "move_coded"):

        def counted(self: object, *args: object, name: str = name, plain: object = getattr(backend, name)) -> object:
            of = args[0].counts if isinstance(args[0], Coded) else args[0]
            touched[name] = touched.get(name, 0) + int(of.sum())  # type: ignore[attr-defined]
            return plain(self, *args)  # type: ignore[operator]

        monkeypatch.setattr(backend, name, counted)
    with open(str(tmp_path), run=chains.RUN) as registry:
        model = chains.model_of(CELLS)
        registry.pull(0, into=model)
        for links in (LINKS // 4, LINKS):
            touched.clear()
            registry.pull(0, into=model, replace=True)
            result = registry.pull(links, into=model)
            changed = sum(patch.changed for patch in registry.state().patches if patch.target <= links)
            assert result.objects == links
            assert touched == {"move_coded": changed}


def far_behind(links: int) -> RunState:
    """Return a run whose patches have fewer bytes than the keyframe of its newest version, and many changed cells."""
    script = chain(1)
    for version in range(1, links + 1):
        script.commit(patch=patch(version - 1, version, size=1 << 20).model_copy(update={"changed": 1 << 20}))
    return script.attach(keyframes=(keyframe(links, size=40 << 20),)).state


def test_a_keyframe_is_taken_where_it_is_cheaper_in_time_and_only_there() -> None:
    kinds = {
        (links, cell_cost): plan(far_behind(links), links, have=0, prices=Prices(1 << 14, cell_cost)).legs[0].kind
        for links in (1, 4, 16, 32)
        for cell_cost in (0, 16)
    }
    assert kinds == {
        **{(links, 0): "patch" for links in (1, 4, 16, 32)},
        **{(links, 16): "patch" for links in (1, 4)},
        **{(links, 16): "keyframe" for links in (16, 32)},
    }


@pytest.mark.slow
def test_every_curve_has_a_name_of_its_own() -> None:
    found = chains.curves(quick=True)
    assert len({curve.key for curve in found}) == len(found) == 9
    assert all([size for size, _ in curve.points] == [1, 4, 16] for curve in found)
