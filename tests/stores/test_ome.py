"""What a stored tensor says to programs that read OME-Zarr 0.5, and why it says nothing where it does not."""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr
from zarr.abc.buffer import Buffer
from zarr.storage import MemoryStore

from infinite_tensor import HDF5TileStore, InfiniteTensor, MemoryTileStore, TensorWindow, TileStore, ZarrTileStore
from tests.support.interpreters import Team

EXTENTS = {"t": 2, "c": 3, "z": 4, "y": 12, "x": 8}
TYPES = {"t": "time", "c": "channel", "z": "space", "y": "space", "x": "space"}
FITTING = [
    "".join(parts) for parts in itertools.product(("", "t"), ("", "c"), ("zyx", "yx", "zx", "zy"))
]  # as the specification allows them


def counting_up(shape: Sequence[int], dtype: torch.dtype = torch.float32) -> torch.Tensor:
    total = torch.Size(shape).numel()
    return torch.arange(total).reshape(*shape).to(dtype)


def named(
    store: TileStore, dims: Sequence[str] | None, shape: Sequence[int | None] | None = None, **options: Any
) -> InfiniteTensor:
    """A tensor of one window, which tells its pixels apart."""
    shape = tuple(EXTENTS[name] for name in dims or ()) if shape is None else tuple(shape)
    size = [4 if extent is None else extent for extent in shape]
    options = {"dtype": torch.float32, "tensor_id": "map", **options}
    return InfiniteTensor(
        shape,
        lambda _ctx: counting_up(size, options["dtype"]),
        TensorWindow(size),
        tile_store=store,
        dims=None if dims is None else tuple(dims),
        **options,
    )


def upper_half_written(path: Path) -> None:
    """Two tiles of 4 x 8 pixels, of which the first is stored."""
    with ZarrTileStore(path, tile_size=(4, 8)) as store:
        t = InfiniteTensor(
            (8, 8),
            lambda ctx: torch.full((4, 8), 5.0 + ctx[0]),
            TensorWindow((4, 8)),
            blend=torch.maximum,
            blend_init=-1,
            tile_store=store,
            tensor_id="map",
            dims=("y", "x"),
        )
        t[0:4, 0:8]


def ome_in(group: zarr.Group) -> Any:
    return group.attrs["ome"]


def path_that_ome_names(group: zarr.Group) -> str:
    (multiscale,) = ome_in(group)["multiscales"]
    (dataset,) = multiscale["datasets"]
    return str(dataset["path"])


def array_that_ome_names(group: zarr.Group) -> zarr.Array[Any]:
    array = group[path_that_ome_names(group)]
    assert isinstance(array, zarr.Array)
    return array


def create_named(path: Path, tensor_id: str) -> str:
    with ZarrTileStore(path) as store:
        named(store, "yx", tensor_id=tensor_id)
        return store.tensor_info(tensor_id).location


class _NotesWrites(MemoryStore):
    """A store in memory that notes what is written, in order."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[tuple[str, bytes]] = []

    async def set(self, key: str, value: Buffer, *arguments: Any, **options: Any) -> None:
        self.writes.append((key, value.to_bytes()))
        await super().set(key, value, *arguments, **options)

    async def set_if_not_exists(self, key: str, value: Buffer) -> None:
        self.writes.append((key, value.to_bytes()))
        await super().set_if_not_exists(key, value)


class TestAttributes:
    @pytest.mark.parametrize("dims", FITTING)
    def test_they_tell_the_axes_and_the_array(self, tmp_path: Path, dims: str) -> None:
        with ZarrTileStore(tmp_path, tile_size=5) as store:
            named(store, dims)[...]
            location = store.tensor_info("map").location
        ome = ome_in(zarr.open_group(tmp_path / "t-map", mode="r"))
        assert ome["version"] == "0.5"
        (multiscale,) = ome["multiscales"]
        assert multiscale["name"] == "map"
        assert multiscale["axes"] == [{"name": name, "type": TYPES[name]} for name in dims]
        (dataset,) = multiscale["datasets"]
        assert f"t-map/{dataset['path']}" == location
        assert dataset["coordinateTransformations"] == [{"type": "scale", "scale": [1.0] * len(dims)}]

    @pytest.mark.parametrize("dims", FITTING)
    def test_the_array_has_the_pixels_and_the_names_of_the_axes(self, tmp_path: Path, dims: str) -> None:
        with ZarrTileStore(tmp_path, tile_size=5) as store:
            pixels = named(store, dims)[...]
        array = array_that_ome_names(zarr.open_group(tmp_path / "t-map", mode="r"))
        assert array.metadata.dimension_names == tuple(dims)  # type: ignore[union-attr]
        assert torch.equal(torch.from_numpy(array[...]), pixels)

    def test_a_missing_tile_shows_as_the_fill_value(self, tmp_path: Path) -> None:
        upper_half_written(tmp_path)
        array = array_that_ome_names(zarr.open_group(tmp_path / "t-map", mode="r"))
        assert np.unique(array[0:4]).tolist() == [5]
        assert np.unique(array[4:8]).tolist() == [-1]

    def test_a_tensor_that_is_cleared_and_created_again_names_its_new_array(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path) as store:
            named(store, "yx")[...]
            before = store.tensor_info("map").location
            store.clear_tensor("map")
            pixels = named(store, "yx", version=2)[...]
            assert store.tensor_info("map").location != before
        array = array_that_ome_names(zarr.open_group(tmp_path / "t-map", mode="r"))
        assert torch.equal(torch.from_numpy(array[...]), pixels)

    def test_they_are_written_with_the_definition_in_one_write(self) -> None:
        target = _NotesWrites()
        with ZarrTileStore(target) as store:
            named(store, "cyx")[...]
        (written,) = [data for key, data in target.writes if key == "t-map/zarr.json"]
        assert json.loads(written)["attributes"].keys() == {"infinite_tensor", "ome"}

    def test_they_are_no_part_of_the_definition(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "a") as fitting, ZarrTileStore(tmp_path / "b") as unfit:
            definitions = []
            for store, dims in ((fitting, ("y", "x")), (unfit, ("x", "y"))):
                named(store, dims, (8, 8))
                definitions.append(store.tensor_definition("map"))
        assert {key for key in definitions[0] if definitions[0][key] != definitions[1][key]} == {
            "dims",
            "incarnation",
            "digest",
        }

    def test_the_array_is_there_before_they_name_it(self) -> None:
        target = _NotesWrites()
        with ZarrTileStore(target) as store:
            named(store, "yx")
            array = f"{store.tensor_info('map').location}/zarr.json"
        keys = [key for key, _ in target.writes]
        assert keys.index(array) < keys.index("t-map/zarr.json")

    def test_of_processes_that_create_a_tensor_at_once_all_go_by_the_array_of_the_winner(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path):
            pass
        with Team(3) as team:
            for number in range(10):
                (place,) = set(team.together(*[(create_named, tmp_path, f"map-{number}")] * 3))
                group = zarr.open_group(tmp_path / f"t-map-{number}", mode="r")
                assert place == f"t-map-{number}/{path_that_ome_names(group)}"
                assert array_that_ome_names(group).shape == (12, 8)


@pytest.mark.parametrize(
    ("dims", "shape", "options", "said"),
    [
        (("y", "x"), (None, 8), {}, r"needs finite arrays, and shape \(None, 8\) is unbounded"),
        (("x",), (8,), {}, r"2 to 5 dimensions, and shape \(8,\) has 1"),
        (("w", "t", "c", "z", "y", "x"), (1, 1, 1, 1, 4, 4), {}, r"2 to 5 dimensions, and shape .* has 6"),
        (None, (3, 8, 8), {}, r"no names; store a new tensor with names such as dims=\('c', 'y', 'x'\)"),
        (("y", "x", "c"), (8, 8, 3), {}, r"its dims are \('y', 'x', 'c'\), and OME-Zarr needs some of t, c"),
        (("x", "y"), (8, 8), {}, r"in this order"),
        (("c", "t", "y", "x"), (3, 2, 8, 8), {}, r"in this order"),
        (("t", "c", "x"), (2, 3, 8), {}, r"at least two of z, y and x"),
        (("lat", "lon"), (8, 8), {}, r"its dims are \('lat', 'lon'\)"),
        (("dim_0", "y", "x"), (3, 8, 8), {}, r"its dims are \('dim_0', 'y', 'x'\)"),
        (("y", "x"), (8, 8), {"dtype": torch.bfloat16}, "bfloat16 is stored as uint16"),
    ],
)
def test_a_tensor_that_does_not_fit_has_none_and_tells_why(
    tmp_path: Path, dims: Sequence[str] | None, shape: Sequence[int | None], options: dict[str, Any], said: str
) -> None:
    with ZarrTileStore(tmp_path) as store:
        named(store, dims, shape, **options)
        info = store.tensor_info("map")
    assert "ome" not in zarr.open_group(tmp_path / "t-map", mode="r").attrs
    assert info.why_no_ome is not None
    assert re.search(said, info.why_no_ome)
    assert f"OME-Zarr        no: {info.why_no_ome}" in str(info)


def test_what_is_not_stored_in_zarr_has_none(tmp_path: Path) -> None:
    for store in (MemoryTileStore(), HDF5TileStore(tmp_path / "map.h5")):
        named(store, "yx")[...]
        assert store.tensor_info("map").why_no_ome == "nothing of it is stored in Zarr"
        assert "OME-Zarr        no: nothing of it is stored in Zarr" in str(store.tensor_info("map"))
        store.close()


class TestOtherReaders:
    @pytest.mark.parametrize("dims", FITTING)
    def test_ome_zarr_models_validates_and_opens_it(self, tmp_path: Path, dims: str) -> None:
        models = pytest.importorskip("ome_zarr_models")
        with ZarrTileStore(tmp_path, tile_size=5) as store:
            named(store, dims)[...]
        image = models.open_ome_zarr(zarr.open_group(tmp_path / "t-map", mode="r"), version="0.5")
        (multiscale,) = image.attributes.ome.multiscales
        assert [(axis.name, axis.type) for axis in multiscale.axes] == [(name, TYPES[name]) for name in dims]
        assert list(image.members) == [multiscale.datasets[0].path]

    def test_ome_zarr_reads_its_pixels(self, tmp_path: Path) -> None:
        io, reader = pytest.importorskip("ome_zarr.io"), pytest.importorskip("ome_zarr.reader")
        with ZarrTileStore(tmp_path, tile_size=5) as store:
            pixels = named(store, "tczyx")[...]
        (node,) = reader.Reader(io.parse_url(str(tmp_path / "t-map")))()
        (array,) = node.data
        assert torch.equal(torch.from_numpy(array.compute()), pixels)
