"""cp and export."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.command_line import CommandLine

from .conftest import ramp


@pytest.mark.parametrize("name", ["other.zarr", "other.h5"])
def test_cp_copies_a_tensor(name: str, cli: CommandLine, store: Path, tmp_path: Path) -> None:
    found = cli("cp", store, "rows", tmp_path / name, "--json")
    assert found.code == 0, found.err
    assert found.json["tiles"] == 8
    told = cli("read", tmp_path / name, "rows", "--region", "-2:2,0", "--json").json
    assert told["values"] == [-2, -1, 0, 1]
    assert cli("cp", store, "rows", tmp_path / name).code == 0


def test_cp_copies_what_a_tensor_is_computed_from(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    assert cli("cp", store, "twice", tmp_path / "other.zarr", "--upstream").code == 0
    listed = cli("ls", tmp_path / "other.zarr", "--json").json["tensors"]
    assert [each["tensor_id"] for each in listed] == ["rows", "twice"]


def test_cp_replaces_another_tensor_only_where_it_is_told_to(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    with ZarrTileStore(other) as opened:
        InfiniteTensor((4, 4), ramp, TensorWindow((4, 4)), tile_store=opened, tensor_id="rows")[...]
    found = cli("cp", store, "rows", other)
    assert found.code == 1
    assert "shape: stored [4, 4], given [None, None]" in found.err
    assert "give --overwrite to delete the existing tensor" in found.err
    assert cli("ls", other, "--json").json["tensors"][0]["shape"] == [4, 4]
    assert cli("cp", store, "rows", other, "--overwrite").code == 0
    assert cli("ls", other, "--json").json["tensors"][0]["shape"] == [None, None]


def test_cp_copies_a_region(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    other = tmp_path / "other.zarr"
    assert cli("cp", store, "rows", other, "--region", "-1:1,0:4", "--json").json["tiles"] == 2
    assert cli("read", other, "rows", "--region", "-4:4,0", "--json").code == 0
    assert cli("read", other, "rows", "--region", "-4:4,4").code == 1


def test_cp_of_what_cannot_be_creates_no_store(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    for options in (["--region", "0:4"], ["--region", "0:4,0:4,0:4", "--overwrite"]):
        assert cli("cp", store, "rows", tmp_path / "other.zarr", *options).code == 1
    found = cli("cp", store, "columns", tmp_path / "other.zarr")
    assert (found.code, "contains no tensor 'columns'" in found.err) == (1, True)
    assert not (tmp_path / "other.zarr").exists()


def test_export_writes_a_region_which_an_unbounded_tensor_needs(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    target = tmp_path / "a.npy"
    found = cli("export", store, "rows", target)
    assert (found.code, "unbounded along y, x" in found.err) == (2, True)
    assert not target.exists()
    found = cli("export", store, "rows", target, "--region", "-4:4,0:8", "--json")
    assert found.code == 0, found.err
    assert np.array_equal(np.load(target), torch.arange(-4, 4)[:, None].repeat(1, 8))


def test_export_writes_levels_for_viewers_and_pictures_that_fit_a_screen(cli: CommandLine, tmp_path: Path) -> None:
    labels = torch.arange(64 * 96).reshape(64, 96).remainder(5).to(torch.uint8)
    with ZarrTileStore(tmp_path / "s.zarr") as opened:
        window = TensorWindow((64, 96))
        t = InfiniteTensor((64, 96), lambda _: labels, window, dtype="uint8", tile_store=opened, tensor_id="labels")
        t.fill((slice(None), slice(None)), progress=False)

    def exported(name: str, *options: str) -> Path:
        found = cli("export", tmp_path / "s.zarr", "labels", tmp_path / name, *options)
        assert found.code == 0, found.err
        return tmp_path / name

    assert "multiscales" in json.loads((exported("a.zarr", "--pyramid") / "zarr.json").read_text())["attributes"]["ome"]
    with Image.open(exported("a.png", "--every", "3")) as image:
        assert np.array_equal(np.asarray(image), labels[::3, ::3])
    with Image.open(exported("b.png", "--max-pixels", "2000", "--palette")) as image:
        assert (image.mode, image.size) == ("P", (48, 32))
        assert np.array_equal(np.asarray(image), labels[::2, ::2])


def test_export_fills_up_what_is_not_stored_where_it_is_asked_to(cli: CommandLine, store: Path, tmp_path: Path) -> None:
    def exported(*options: str) -> int:
        return cli("export", store, "rows", tmp_path / "a.npy", "--region", "0:4,4:12", *options).code

    assert (exported(), exported("--fill-value", "7")) == (1, 1)
    assert not (tmp_path / "a.npy").exists()
    for options, value in (([], 0), (["--overwrite", "--fill-value", "7"], 7)):
        assert exported("--no-compute", *options) == 0
        assert np.load(tmp_path / "a.npy")[3].tolist() == [3, 3, 3, 3, *[value] * 4]
