"""kill -9 while regions are exported: each target is whole or not there, and the next export goes on."""

from __future__ import annotations

import re
import signal
from multiprocessing.connection import Connection
from pathlib import Path

import numpy as np
import pytest

from infinite_tensor import InfiniteTensor, ZarrTileStore, sl
from tests.behaviour.views.exports.scenes import names_in, opened, pattern, plane, truth
from tests.durability.crash.victims import Called, Done, Flushed
from tests.durability.crash.witness import Witness, survive_every_change
from tests.support.counting import Counted
from tests.support.interpreters import enter_child, exit_code
from tests.support.moments import NEVER, Kill, before
from tests.support.reference import Index

MARK = "[0-9a-f]{16}"
TARGETS = ["out.zarr", "out.npy", "out.png", "out.tif"]
REGIONS = [(slice(-8, 16), slice(0, 16)), (slice(-8, 8), slice(0, 16))]
"""What the first export holds, and the one that takes its place."""


def tensor_in(folder: Path, f: Counted) -> InfiniteTensor:
    return plane(_Named(f), tile_store=ZarrTileStore(folder / "tiles", tile_size=8))


class _Named:
    """An f whose code is the same whoever counts its calls."""

    def __init__(self, f: Counted) -> None:
        self._f = f

    def __call__(self, ctx: Index) -> object:
        return self._f(ctx)


def export_all(sending: Connection, path: Path, kill: Kill) -> None:
    """Export to each format, and once more over that, the same every time, unless killed before."""
    enter_child()
    changes = kill.arm(path)
    t = tensor_in(path, Counted(pattern, lambda ctx: sending.send(Called((0, ctx)))))
    t.fill(sl[REGIONS[0]], progress=False)
    sending.send(Flushed())
    for name in TARGETS:
        if not (path / name).exists():
            t.export(sl[REGIONS[0]], path / name)
        t.export(sl[REGIONS[1]], path / name, overwrite=True)
    t.tile_store.close()
    sending.send(Done(changes()))


def check(folder: Path) -> None:
    for name in TARGETS:
        if (folder / name).exists():
            found = opened(folder / name)
            assert any(np.array_equal(found, truth(region)) for region in REGIONS)
    assert visible(folder) <= {"tiles", *TARGETS}


def visible(folder: Path) -> set[str]:
    """All but what is hidden beside targets."""
    hidden = re.compile(rf"\.out\.(zarr|npy|png|tif)\.{MARK}\.(partial|former)(\.tiled|(\.msk)?\.ovr\.tmp)?")
    return {name for name in names_in(folder) if not hidden.fullmatch(name)}


def survive(folder: Path, kill: Kill) -> None:
    """A process that is killed, and one that does everything after it."""
    folder.mkdir()
    witness = Witness(folder)
    assert witness.see(export_all, kill) == -signal.SIGKILL
    check(folder)
    flushed = set(witness.flushed)
    f = Counted(pattern)
    if flushed:
        _ = tensor_in(folder, f)[REGIONS[0]]
        assert not f.calls
    assert witness.see(export_all, NEVER) == 0
    assert visible(folder) == {"tiles", *TARGETS}
    for name in TARGETS:
        assert np.array_equal(opened(folder / name), truth(REGIONS[1]))


@pytest.mark.parametrize(
    "kill",
    [
        before("os.rename", rf"^\.out\.zarr\.{MARK}\.partial/export\.json"),
        before("os.rename", rf"^\.out\.zarr\.{MARK}\.partial/height/c/", 3, torn=True),
        before("os.rename", rf"^\.out\.zarr\.{MARK}\.partial/height/zarr\.json"),
        before("os.rename", rf"^\.out\.zarr\.{MARK}\.partial/zarr\.json"),
        before("os.remove", rf"^\.out\.zarr\.{MARK}\.partial/export\.json"),
        before("os.rename", r"^out\.zarr$"),
        # Between the old one and the new one.
        before("os.rename", r"^out\.zarr$", 2),
        before("write", rf"^\.out\.npy\.{MARK}\.partial", 3),
        before("os.link", r"^out\.npy$"),
        before("os.rename", r"^out\.npy$"),
        before("os.link", r"^out\.png$"),
        before("os.link", r"^out\.tif$"),
    ],
    ids=str,
)
def test_an_export_survives_a_kill_at_a_weak_moment(tmp_path: Path, kill: Kill) -> None:
    survive(tmp_path / "world", kill)


@pytest.mark.slow
def test_an_export_survives_a_kill_at_every_change(tmp_path: Path) -> None:
    survive_every_change(tmp_path, export_all, survive)


def overwrite_image(path: Path, kill: Kill) -> None:
    enter_child()
    kill.arm(path)
    tensor_in(path, Counted(pattern)).export(sl[REGIONS[1]], path / "out.tif", overwrite=True)


@pytest.mark.parametrize(
    "kill", [before("os.remove", r"^out\.tif\.aux\.xml$"), before("os.rename", r"^out\.tif$")], ids=str
)
def test_what_gdal_wrote_of_an_image_is_never_left_beside_another(kill: Kill, tmp_path: Path) -> None:
    target, sidecar = tmp_path / "out.tif", tmp_path / "out.tif.aux.xml"
    tensor_in(tmp_path, Counted(pattern)).export(sl[REGIONS[0]], target)
    sidecar.write_text("<PAMDataset></PAMDataset>")
    assert exit_code(overwrite_image, tmp_path, kill) == -signal.SIGKILL
    assert np.array_equal(opened(target), truth(REGIONS[0]))
    tensor_in(tmp_path, Counted(pattern)).export(sl[REGIONS[1]], target, overwrite=True)
    assert np.array_equal(opened(target), truth(REGIONS[1]))
    assert not sidecar.exists()
