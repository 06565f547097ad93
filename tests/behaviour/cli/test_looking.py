"""ls, info, read, stats and coverage."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    UncoveredPixelsWarning,
    ZarrTileStore,
)
from tests.support.command_line import CommandLine

from .conftest import ramp


def test_ls_lists_tensors(cli: CommandLine, store: Path) -> None:
    found = cli("ls", store)
    assert found.code == 0
    assert found.out.splitlines() == [
        "tensor_id  shape         dims  dtype    tile_size",
        "rows       (None, None)  y, x  float32  (4, 4)",
        "twice      (8, None)           float32  (8, 4)",
    ]
    assert cli("ls", store, "--json").json == {
        "store": str(store),
        "tensors": [
            {"tensor_id": "rows", "shape": [None, None], "dtype": "float32", "dims": ["y", "x"], "tile_size": [4, 4]},
            {"tensor_id": "twice", "shape": [8, None], "dtype": "float32", "dims": None, "tile_size": [8, 4]},
        ],
        "groups": [],
    }


def test_ls_of_a_blob_says_what_it_is(cli: CommandLine, tmp_path: Path) -> None:
    with TensorBlob.open(tmp_path / "b", "w", dtype="bfloat16", shape=(2, 3)) as blob:
        blob.write(torch.ones(5, 2, 3, dtype=torch.bfloat16))
    found = cli("ls", tmp_path / "b")
    assert (found.code, "TensorBlob" in found.err) == (1, True)


def test_ls_counts_tiles_where_it_is_asked_to(cli: CommandLine, store: Path) -> None:
    counted = {each["tensor_id"]: each["tiles"] for each in cli("ls", "-l", store, "--json").json["tensors"]}
    assert counted == {"rows": 8, "twice": 1}
    headings, rows, *_ = cli("ls", "-l", store).out.splitlines()
    assert headings.split()[-3:] == ["tiles", "partial", "bytes"]
    assert rows.split()[-4:] == ["8", "0", "260", "B"]


def test_ls_lists_groups_and_hdf5(cli: CommandLine, tmp_path: Path) -> None:
    path = tmp_path / "s.h5"
    with HDF5TileStore(path) as opened:
        t = InfiniteTensor((8, None), ramp, TensorWindow((4, 4)), tile_store=opened, tensor_id="t")
        TensorGroup({"t": t}).save(opened, "all")
    found = cli("ls", path)
    assert found.out.splitlines()[-1] == "groups: all"
    assert "(8, None)" in found.out


def test_ls_names_a_tensor_that_cannot_be_read_and_lists_the_others(cli: CommandLine, store: Path) -> None:
    document = store / "t-rows" / "zarr.json"
    document.write_text(document.read_text().replace("float32", "float64"))
    found = cli("ls", store)
    assert found.code == 1
    assert "twice" in found.out
    assert "definition of tensor 'rows'" in found.err


def test_ls_prints_no_control_characters(cli: CommandLine, tmp_path: Path) -> None:
    window = TensorWindow((4, 4))
    with ZarrTileStore(tmp_path / "s") as opened:
        InfiniteTensor((8, 8), ramp, window, tile_store=opened, tensor_id="a\x1b[2J\n[red]b")[0, 0]
    assert cli("ls", tmp_path / "s").out.splitlines()[1].startswith("a\\x1b[2J\\n[red]b  (8, 8)")


def test_info_tells_what_is_stored(cli: CommandLine, store: Path) -> None:
    found = cli("info", store, "twice")
    assert found.code == 0
    facts = dict(line.split(maxsplit=1) for line in found.out.splitlines())
    assert facts["shape"] == "(8, None)"
    assert facts["reads"] == "rows"
    assert (facts["tiles"], facts["partial"]) == ("1", "0")
    told = cli("info", store, "twice", "--json").json
    assert (told["tensor_id"], told["tiles_complete"], told["definition"]["shape"]) == ("twice", 1, [8, None])


def test_info_of_a_group_tells_what_it_is_made_of_and_which_tensor_is_not_there(cli: CommandLine, store: Path) -> None:
    with ZarrTileStore(store) as opened:
        depth = InfiniteTensor((None, None), ramp, TensorWindow((4, 4)), tile_store=opened, tensor_id="depth")
        tensors = {"height": opened.open("rows"), "soil": {"depth": depth}}
        TensorGroup(tensors, scale={("soil", "depth"): Fraction(1, 2)}).save(opened, "world")
    found = cli("info", store, "world")
    assert found.code == 0
    assert found.out.splitlines() == [
        "name        tensor_id  shape         dtype    shares        scale",
        "height      rows       (None, None)  float32  y, x          1, 1",
        "soil/depth  depth      (None, None)  float32  dim_0, dim_1  1/2, 1/2",
    ]
    told = cli("info", store, "world", "--json").json
    assert (told["group_id"], len(told["members"])) == ("world", 2)
    assert told["members"][1].items() >= {"name": "soil/depth", "tensor_id": "depth", "scale": ["1/2", "1/2"]}.items()
    with ZarrTileStore(store) as opened:
        opened.clear_tensor("depth")
    found = cli("info", store, "world")
    assert (found.code, "'depth'" in found.err) == (1, True)


def test_read_prints_what_is_stored(cli: CommandLine, store: Path) -> None:
    found = cli("read", store, "rows", "--region", "-2:2,0")
    assert found.code == 0
    assert found.out.splitlines()[0] == "[-2. -1.  0.  1.]"
    told = cli("read", store, "rows", "--region", "-2:2,0", "--json").json
    values = [-2.0, -1.0, 0.0, 1.0]
    assert told == {"shape": [4], "dtype": "float32", "min": -2.0, "max": 1.0, "mean": -0.5, "values": values}


def test_read_computes_nothing(cli: CommandLine, store: Path) -> None:
    found = cli("read", store, "rows", "--region", "0:4,100:104")
    assert (found.code, found.out) == (1, "")
    assert "1 window within [0:4, 100:104] is not stored" in found.err
    assert "give --fill-value" in found.err
    told = cli("read", store, "rows", "--region", "0:1,6:10", "--fill-value", "-1", "--json").json
    assert told["values"] == [[0.0, 0.0, -1.0, -1.0]]


@pytest.mark.parametrize("name", ["a.npy", "a.png"])
def test_read_replaces_only_what_it_is_told_to(name: str, cli: CommandLine, store: Path, tmp_path: Path) -> None:
    target = tmp_path / name
    target.write_bytes(b"mine")
    options = [store, "rows", "--region", "0:4,0:8", "-o", target]
    found = cli("read", *options)
    assert (found.code, "--overwrite" in found.err) == (1, True)
    assert target.read_bytes() == b"mine"
    assert cli("read", *options, "--overwrite").code == 0
    if name.endswith("npy"):
        assert np.array_equal(np.load(target), torch.arange(4)[:, None].repeat(1, 8))
    else:
        with Image.open(target) as picture:
            assert min(picture.size) > 100
    # Like an export, it replaces files, but nothing that a link leads to.
    target.rename(tmp_path / "elsewhere")
    target.symlink_to(tmp_path / "elsewhere")
    before = (tmp_path / "elsewhere").stat()
    assert cli("read", *options, "--overwrite").code == 1
    assert (tmp_path / "elsewhere").stat() == before


def test_read_tells_what_it_does_not_write(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    options = [store, "rows", "--region", "0:4,0:4", "-o"]
    found = cli("read", *options, tmp_path / "a.jpg")
    assert (found.code, "must end with .npy or .png, got" in found.err) == (2, True)
    assert list(tmp_path.glob("a.*")) == []
    found = cli("read", *options, tmp_path / "no" / "a.png")
    assert (found.code, "No such file or directory" in found.err, "Traceback" in found.err) == (1, True, False)


def test_stats_are_those_of_what_is_stored(cli: CommandLine, store: Path) -> None:
    assert cli("stats", store, "rows").out.splitlines() == [
        "pixels           128",
        "min              -8",
        "max              7",
        "mean             -0.5",
        "std              4.609772",
        "2 %, 50 %, 98 %  -8, -0.5, 7",
    ]
    found = cli("stats", store, "rows", "--region", "-2:20,0:2", "--json").json
    assert (found["count"], found["min"], found["max"], found["labels"]) == (20, -2, 7, None)
    assert found["quantiles"]["0.5"] == 2.5


def test_coverage_draws_what_is_stored(cli: CommandLine, store: Path) -> None:
    found = cli("coverage", store, "rows", "--region", "-8:12,-4:8")
    assert found.out.splitlines() == [
        "..####",
        "..####",
        "..####",
        "..####",
        "......",
        "##  stored   ++  partly stored   ..  missing   ~~  no window",
        "down   y from -8 to 12, 4 pixels a cell",
        "right  x from -4 to 8, 4 pixels a cell",
        "8 of 15 tiles stored (53%)",
    ]


def test_coverage_of_three_dimensions_is_over_those_that_are_not_drawn(cli: CommandLine, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s", tile_size=(4, 4, 4)) as opened:
        window = TensorWindow((4, 4, 4), stride=(8, 4, 4))
        with pytest.warns(UncoveredPixelsWarning):
            t = InfiniteTensor((12, 8, None), lambda _: torch.ones(4, 4, 4), window, tile_store=opened, tensor_id="t")
        t[0:4, 0:8, 0:4]
        t[8:12, 0:4, 0:8]
    lines = cli("coverage", tmp_path / "s", "t", "--region", "0:12,0:8,0:12").out.splitlines()
    assert lines[:2] == ["##++..", "++...."]
    assert "each cell covers all of dim_0" in lines
    assert lines[-1] == "4 of 12 tiles stored (33%)"
    assert cli("coverage", tmp_path / "s", "t", "--region", "4:8,0:8,0:4").out.splitlines()[:2] == ["~~", "~~"]


def test_coverage_tells_programs_a_state_for_each_tile(cli: CommandLine, store: Path) -> None:
    told = cli("coverage", store, "rows", "--region", "0:4,-4:8", "--json").json
    counts = {"shape": [1, 3], "tile_size": [4, 4], "tiles": 3, "stored": 2, "uncovered": 0}
    assert told == counts | {"states": [[0, 1, 1]]}
    # Without a region it is about what is stored of an unbounded tensor.
    told = cli("coverage", store, "rows", "--json").json
    assert (told["shape"], told["tiles"], told["stored"]) == ([4, 2], 8, 8)


def test_view_asks_which_tensor_of_several(cli: CommandLine, store: Path) -> None:
    pytest.importorskip("bokeh")
    outcome = cli("view", store)
    assert (outcome.code, "give the ID of one or more: rows, twice" in outcome.err) == (2, True)
    assert cli("view", store, "row", "--no-browser").code == 1
