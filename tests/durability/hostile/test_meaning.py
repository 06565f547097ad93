"""What a store says that its pixels mean: what of it cannot be read is lost, and the pixels are read."""

from __future__ import annotations

import base64
import contextlib
import json
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, MeaningLostWarning, TensorWindow, open_store
from tests.support.stored import sealed

EXPECTED = torch.arange(64.0).reshape(8, 8)
UNITS = {"kind": "attribute", "called": "units", "value": "m"}


def place(**fields: Any) -> dict[str, Any]:
    whole = {"crs": None, "transform": [1, 0, 0, 0, -1, 0], "gcps": [], "rpcs": None}
    return {"kind": "place", "called": "", "rows": 0, "columns": 1} | whole | fields


def coordinate(**fields: Any) -> dict[str, Any]:
    zeros = base64.b64encode(zlib.compress(bytes(64))).decode()
    return {"kind": "coordinate", "called": "lat", "dims": [0], "values": zeros, "attrs": {}, "dtype": "<f8"} | fields


def code(called: Any, value: Any, along: Any = None) -> dict[str, Any]:
    return {"kind": "code", "called": called, "value": value, "along": along}


def store_that_says(facts: Any, folder: Path, shape: tuple[int, ...] = (8, 8)) -> Path:
    path = folder / "said.zarr"
    t = InfiniteTensor(
        shape, lambda _ctx: EXPECTED, TensorWindow((8, 8)), dims=("y", "x"), tile_store=path, tensor_id="t", edge="clip"
    )
    assert torch.equal(t[:8, :8], EXPECTED)
    t.tile_store.close()
    document = json.loads((path / "t-t" / "zarr.json").read_text())
    kept = {name: value for name, value in document["attributes"]["infinite_tensor"].items() if name != "digest"}
    document["attributes"]["infinite_tensor"] = sealed(kept | {"meaning": {"facts": facts, "lost": []}})
    (path / "t-t" / "zarr.json").write_text(json.dumps(document))
    return path


@pytest.mark.parametrize(
    ("fact", "label"),
    [
        ({"kind": "legend", "called": "of a newer version"}, "legend 'of a newer version'"),
        (place(transform=[1, 2]), "place ''"),
        (place(transform=["NaN"] * 6), "place ''"),
        (place(gcps=[[1, 2, 3]]), "place ''"),
        (place(crs="of another planet"), "CRS"),
        (place(crs=5), "CRS"),
        (place(rpcs={}), "place ''"),
        (code("nodata", "none"), "code 'nodata'"),
        (code("nodata", 10**400), "code 'nodata'"),
        (code("scale", [1, "x"], 1), "code 'scale'"),
        (code("offset", None), "code 'offset'"),
        (coordinate(dtype="<M8[Y]"), "coordinate 'lat'"),
        (coordinate(dtype="|O"), "coordinate 'lat'"),
        (coordinate(dims=[7]), "coordinate 'lat'"),
        (coordinate(values="AAAA"), "coordinate 'lat'"),
        (coordinate(values=["a"] * 8, dtype="<U99999999"), "coordinate 'lat'"),
    ],
)
def test_it_is_told_by_exports_and_to_xarray(fact: Any, label: str, tmp_path: Path) -> None:
    with open_store(store_that_says([fact, UNITS], tmp_path), mode="r") as store:
        t = store.open("t")
        assert torch.equal(t[...], EXPECTED)
        # It shows the words of a CRS, whatever they are.
        with contextlib.nullcontext() if label == "CRS" else pytest.warns(MeaningLostWarning, match=label):
            assert t.to_xarray().attrs["units"] == "m"
        assert torch.equal(torch.as_tensor(t.as_zarr()[...]), EXPECTED)
        assert torch.equal(t.map(lambda x: x, window=4)[...], EXPECTED)
        with pytest.warns(MeaningLostWarning, match=label):
            t.export(..., tmp_path / "out.tif")


@pytest.mark.slow
def test_coordinates_that_swell_are_lost_where_they_are_many(tmp_path: Path) -> None:
    bomb = base64.b64encode(zlib.compress(bytes(2**25), 9)).decode()
    facts = [coordinate(called=f"c{number}", values=bomb) for number in range(100)]
    with open_store(store_that_says(facts, tmp_path, (2**22, 8)), mode="r") as store:
        t = store.open("t")
        assert torch.equal(t[:8], EXPECTED)
        tracemalloc.start()
        with pytest.warns(MeaningLostWarning, match="coordinate 'c99'"):
            t.export((slice(0, 8),), tmp_path / "out.npy")
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**29
