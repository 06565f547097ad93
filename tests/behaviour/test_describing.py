"""What pixels mean, said after the fact: kept by stores, and shown by pictures, files, xarray and the server."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import rasterio
import torch
from PIL import Image

from infinite_tensor import (
    InfiniteTensor,
    MeaningLostWarning,
    MemoryTileStore,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    from_array,
    sl,
)
from tests.support.building import each_store
from tests.support.serving import served

store = each_store("memory", "zarr", "hdf5", "sqlite")
LABELS = {0: "deep sea #24a", 1: "sand #ffdd88", 3: "#777"}
COLOURS = {0: (34, 68, 170), 1: (255, 221, 136), 3: (119, 119, 119)}
PLACE = (10.0, 0.0, 500_000.0, 0.0, -10.0, 5_000_000.0)


def zones(ctx: tuple[int, ...]) -> torch.Tensor:
    rows, columns = (torch.arange(8) + 8 * n for n in ctx)
    return ((rows[:, None] + columns) % 2 + 2 * ((rows[:, None] + columns) % 4 == 3)).to(torch.uint8)


def made(store: TileStore | None = None, **options: Any) -> InfiniteTensor:
    given = {"dtype": "uint8", "tile_store": store, "tensor_id": "zones"} | options
    return InfiniteTensor((None, None), zones, TensorWindow((8, 8)), **given)


def described(t: InfiniteTensor) -> InfiniteTensor:
    return t.describe(
        dims=("y", "x"),
        crs="EPSG:32632",
        transform=PLACE,
        nodata=255,
        colours=LABELS,
        units="class",
        attributes={"source": "survey", "year": 2026},
    )


def said_by(t: InfiniteTensor) -> dict[str, Any]:
    array = t.to_xarray(sl[2:6, -3:5])
    return {
        "dims": array.dims,
        "attrs": {name: value if isinstance(value, str | list) else int(value) for name, value in array.attrs.items()},
        "y": array["y"].values.tolist(),
        "x": array["x"].values.tolist(),
        "crs": rasterio.crs.CRS.from_wkt(array["spatial_ref"].attrs["crs_wkt"]).to_epsg(),
    }


SAID = {
    "dims": ("y", "x"),
    "attrs": {
        "units": "class",
        "source": "survey",
        "year": 2026,
        "_FillValue": 255,
        "flag_values": [0, 1],
        "flag_meanings": "deep_sea sand",
    },
    "y": [4_999_975.0, 4_999_965.0, 4_999_955.0, 4_999_945.0],
    "x": [499_975.0 + 10 * n for n in range(8)],
    "crs": 32632,
}


def test_it_is_kept_beside_what_was_stored_without(store: TileStore) -> None:
    plain = made(store)
    before = plain[0:16, 0:16]
    t = described(plain)
    assert said_by(t) == SAID
    assert (plain.dims, t.tensor_id, t.to_json()["functions"]) == (
        ("dim_0", "dim_1"),
        "zones",
        plain.to_json()["functions"],
    )
    assert torch.equal(t[0:16, 0:16], before)
    store.flush()
    for later in (store.open("zones"), made(store)):
        assert said_by(later) == SAID
        assert torch.equal(later[0:16, 0:16], before)
    # What is said later takes the place of what was said before, and of nothing else.
    again = store.open("zones").describe(units="kind", nodata=7)
    assert said_by(again) == {**SAID, "attrs": SAID["attrs"] | {"units": "kind", "_FillValue": 7}}  # type: ignore[operator]
    assert said_by(made(store)) == said_by(again)


def test_another_process_and_a_store_that_is_open_elsewhere_find_it(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "w.zarr") as one:
        made(one)[0:8, 0:8]
        with ZarrTileStore(tmp_path / "w.zarr") as other:
            described(other.open("zones"))
        assert ZarrTileStore(tmp_path / "w.zarr", mode="r").open("zones").dims == ("y", "x")
    with ZarrTileStore(tmp_path / "w.zarr", mode="r") as store, pytest.raises(ValidationError, match="read-only"):
        store.open("zones").describe(units="m")


def test_files_say_it(tmp_path: Path) -> None:
    t = described(made())
    t.export(sl[0:16, 0:24], tmp_path / "zones.tif")
    with rasterio.open(tmp_path / "zones.tif") as file:
        assert (file.crs.to_epsg(), [*file.transform[:6]], file.nodata) == (32632, [*PLACE], 255)
        assert {value: file.colormap(1)[value][:3] for value in COLOURS} == COLOURS
        assert file.units == ("class",)
    with pytest.warns(UserWarning, match="nodata"):
        t.export(sl[0:16, 0:24], tmp_path / "zones.png", palette=True)
    with Image.open(tmp_path / "zones.png") as image:
        assert np.array_equal(np.asarray(image), t[0:16, 0:24])
        pixels = np.asarray(image.convert("RGB"))
    for value, colour in COLOURS.items():
        assert (pixels[t[0:16, 0:24].numpy() == value] == colour).all()


def test_pictures_show_the_colours_and_names_of_labels() -> None:
    t = described(made())
    axes = t.show(sl[0:16, 0:24])
    drawn = axes.images[0]
    for value, colour in COLOURS.items():
        assert np.allclose(drawn.cmap(drawn.norm(np.array(value)))[:3], np.array(colour) / 255, atol=1e-6)
    bar = axes.figure.axes[-1] if len(axes.figure.axes) > 1 else axes.child_axes[0]
    assert [text.get_text() for text in bar.get_yticklabels()] == ["deep sea", "sand"]
    mpl.pyplot.close("all")
    # Labels of a raster with a palette, and of more than 20 kinds.
    colours = {n: f"#{n:06x}" for n in range(100)}
    many = from_array(np.arange(100, dtype=np.int16).reshape(10, 10)).describe(colours=colours)
    drawn = many.show().images[0]
    assert np.allclose(drawn.cmap(drawn.norm(np.array(77)))[:3], np.array([0, 0, 77]) / 255, atol=1e-6)
    mpl.pyplot.close("all")


def picture(body: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))[..., :3]


def test_the_server_draws_them_and_levels_hold_the_most_frequent_label() -> None:
    t = described(made())
    region = sl[-8:8, 0:8]
    levels = t.pyramid(1, store=MemoryTileStore())
    assert torch.equal(levels[0][region], t.coarsen(2, "mode")[region])
    with served(t) as server:
        for path in ("/zones/0/0/0.png", "/zones/box?y=0:64&x=0:64&format=png"):
            pixels = picture(server.get(path).content)
            assert tuple(pixels[0, 0]) == COLOURS[0]
            assert tuple(pixels[0, 1]) == COLOURS[1]
        far = picture(server.get("/zones/-1/0/0.png").content)
        assert {tuple(colour) for colour in far.reshape(-1, 3).tolist()} <= {*COLOURS.values()}


def test_what_is_computed_from_it_later_knows_what_it_may() -> None:
    heights = from_array(torch.rand(30, 40), dims=("y", "x")).describe(units="m", crs=4326, transform=PLACE)
    array = (heights + 1).to_xarray()
    assert array.attrs["units"] == "m"
    assert array["y"].values[0] == 4_999_995
    with pytest.warns(MeaningLostWarning, match="units"):
        assert "units" not in (heights > 0.5).to_xarray().attrs


@pytest.mark.parametrize(
    ("given", "word"),
    [
        ({"dims": ("a",)}, "dims must be"),
        ({"dims": ("a", "a")}, "dims must be"),
        ({"crs": "nowhere"}, "crs must be"),
        ({"transform": 3}, "transform must be"),
        ({"transform": (1, 2, 3, 4, 5, "6")}, "transform must be"),
        ({"nodata": 300}, "nodata must be"),
        ({"nodata": "none"}, "nodata must be"),
        ({"colours": {0: "sea"}}, "colours must be"),
        ({"colours": {-1: "sea #fff"}}, "colours must be"),
        ({"colours": {"0": "sea #fff"}}, "colours must be"),
        ({"colours": {}}, "colours must be"),
        ({"units": 3}, "units must be"),
        ({"attributes": [1]}, "attributes must be"),
        ({"attributes": {"f": made}}, "attributes"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(given: dict[str, Any], word: str, tmp_path: Path) -> None:
    t = described(made(ZarrTileStore(tmp_path / "w.zarr")))
    with pytest.raises(ValidationError, match=word):
        t.describe(units="never", **given) if "units" not in given else t.describe(**given)
    assert said_by(ZarrTileStore(tmp_path / "w.zarr").open("zones")) == SAID


def test_labels_are_whole_numbers_and_places_need_rows_and_columns() -> None:
    with pytest.raises(ValidationError, match="float32"):
        from_array(torch.rand(3, 3)).describe(colours=LABELS)
    with pytest.raises(ValidationError, match="rows and columns"):
        from_array(torch.rand(3)).describe(crs=4326)
