"""Regions as Zarr groups: what is in them, and how they go on."""

from __future__ import annotations

import json
import tracemalloc
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import xarray
import zarr

from infinite_tensor import (
    InfiniteTensor,
    Output,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    from_array,
    sl,
)
from tests.behaviour.views.exports.scenes import REGION, names_in, opened, pattern, plane, truth
from tests.behaviour.views.shown import NO_NAMES
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.reference import Index


def test_xarray_finds_one_array_with_dimensions_and_coordinates_and_zarr_its_origin(tmp_path: Path) -> None:
    plane().export(sl[REGION], tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        assert list(found.data_vars) == ["height"]
        assert found["height"].dims == ("y", "x")
        assert int(found["height"].sel(y=-5, x=24)) == truth()[0, -1]
        assert found["y"].to_numpy().tolist() == list(range(-5, 9))
        assert found["x"].to_numpy().tolist() == list(range(2, 25))
    group = zarr.open_group(tmp_path / "out.zarr", mode="r")
    assert sorted(group.array_keys()) == ["height", "x", "y"]
    array = zarr.open_array(tmp_path / "out.zarr" / "height", mode="r")
    assert array.shape == (14, 23)
    assert array.chunks == (8, 8)
    assert array.attrs["infinite_tensor"] == {"tensor_id": "world/height", "origin": [5, -2]}
    assert np.array_equal(array[...], truth())


@pytest.mark.parametrize("options", [{"tensor_id": "run.partial"}, {"dims": ("y.partial", "x")}], ids=str)
def test_a_name_that_ends_in_partial_is_a_name_like_others(options: dict[str, Any], tmp_path: Path) -> None:
    plane(**options).export(sl[REGION], tmp_path / "out.zarr")
    assert np.array_equal(opened(tmp_path / "out.zarr"), truth())
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        assert [list(values.to_numpy()) for values in found.coords.values()] == [list(range(-5, 9)), list(range(2, 25))]


@pytest.mark.slow
def test_coordinates_of_a_long_dimension_are_not_all_in_memory(tmp_path: Path) -> None:
    t = from_array(np.zeros(2**25, np.uint8), dims=("x",))
    tracemalloc.start()
    try:
        t.export(..., tmp_path / "out.zarr")
        assert tracemalloc.get_traced_memory()[1] < 40 * 2**20
    finally:
        tracemalloc.stop()
    assert zarr.open_array(str(tmp_path / "out.zarr/x"), mode="r")[-1] == 2**25 - 1


def test_it_is_a_plain_group_to_which_others_add(tmp_path: Path) -> None:
    plane().export(sl[REGION], tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        found.rename(height="mine").drop_encoding().to_zarr(tmp_path / "out.zarr", mode="a", consolidated=False)
    assert np.array_equal(zarr.open_array(tmp_path / "out.zarr" / "mine", mode="r")[...], truth())


@pytest.mark.parametrize("target", ["memory://exports/out.zarr", "file://{}/out.zarr"])
def test_a_url_is_a_target(target: str, tmp_path: Path) -> None:
    target = target.format(tmp_path)
    plane().export(sl[REGION], target)
    assert np.array_equal(opened(target), truth())
    with pytest.raises(ValidationError, match="already exists"):
        plane().export(sl[REGION], target)
    plane(lambda ctx: pattern(ctx) + 1).export(sl[REGION], target, overwrite=True)
    assert np.array_equal(opened(target), truth() + 1)


def test_chunks_full_of_the_fill_value_are_not_written(tmp_path: Path) -> None:
    t = plane()
    t.fill(sl[0:8, 8:16], progress=False)
    t.export(sl[-8:16, 0:24], tmp_path / "out.zarr", compute=False, fill_value=250)
    assert zarr.open_array(tmp_path / "out.zarr" / "height", mode="r").fill_value == 250
    chunks = [path for path in (tmp_path / "out.zarr" / "height" / "c").rglob("*") if path.is_file()]
    assert len(chunks) == 1


def test_complex_pixels_that_are_like_the_fill_value_are_written(tmp_path: Path) -> None:
    pixel, fill_value = complex("nan"), complex(np.nan, 2)
    t = plane(lambda _ctx: torch.full((4, 4), pixel), "complex64")
    t.fill(sl[0:8, 0:8], progress=False)
    t.export(sl[0:8, 0:16], tmp_path / "out.zarr", compute=False, fill_value=fill_value)
    found = zarr.open_array(tmp_path / "out.zarr" / "height", mode="r")
    assert np.unique(np.imag(np.asarray(found[:, :8]))).tolist() == [0]
    assert np.unique(np.imag(np.asarray(found[:, 8:]))).tolist() == [2]


def test_all_pixels_dropped_but_one_are_an_array_without_dimensions(tmp_path: Path) -> None:
    plane().export(sl[3, 5], tmp_path / "out.zarr")
    assert opened(tmp_path / "out.zarr") == truth((slice(3, 4), slice(5, 6)))[0, 0]


def test_a_dimension_may_be_called_as_arrays_without_a_name_are(tmp_path: Path) -> None:
    pixels = torch.arange(12).reshape(3, 4)
    t = from_array(pixels, dims=("values", "x"))
    t.export(sl[1:3, :], tmp_path / "out.zarr")
    for place, begin in ((tmp_path / "out.zarr", 1), (t.as_zarr().store, 0)):
        with xarray.open_zarr(place, consolidated=False) as found:
            assert np.array_equal(found["values_"].to_numpy(), pixels[begin:])
            assert found["values_"].dims == ("values", "x")
            assert found["values"].to_numpy().tolist() == list(range(begin, 3))


def test_a_random_id_or_one_that_is_no_name_is_not_the_name_of_the_array(tmp_path: Path) -> None:
    for number, name in enumerate([None, "no name", "y"]):
        plane(tensor_id=name).export(sl[REGION], tmp_path / f"{number}.zarr")
        with xarray.open_zarr(tmp_path / f"{number}.zarr") as found:
            assert list(found.data_vars) == ["values"]


# Going on.


class Stopped(Exception):  # noqa: N818  (it is what a test is about)
    """Raised by an f."""


class Scene:
    """A stored tensor whose `f` is stopped at some call, and exports of it."""

    def __init__(self, folder: Path, **options: Any) -> None:
        self.folder = folder
        self.stop_at: int | None = None
        self._f = Counted(pattern, self._told)
        store = ZarrTileStore(folder / "tiles", tile_size=8)
        self.t = plane(self, **{"tile_store": store} | options)

    def __call__(self, ctx: Index) -> torch.Tensor:
        window: torch.Tensor = self._f(ctx)
        return window

    @property
    def calls(self) -> int:
        return len(self._f.calls)

    def _told(self, _ctx: Index) -> None:
        if self.stop_at is not None and self.calls > self.stop_at:
            raise Stopped

    def export(self, region: object = sl[-64:64, 0:64], target: str | None = None, **options: Any) -> list[int]:
        """Export a region; how many tiles had been written each time that was told."""
        done: list[int] = []
        place = target or self.folder / "out.zarr"
        self.t.export(region, place, progress=lambda progress: done.append(progress.done), **options)
        return done

    def stopped(self, after: int = 150, **options: Any) -> None:
        self.stop_at = after
        with pytest.raises(Stopped):
            self.export(**options)
        self.stop_at = None

    def chunks(self) -> dict[str, int]:
        """The chunks that are written, each with the time: of the whole export, or else of the latest."""
        begun = sorted(self.folder.glob(".out.zarr.*.partial"), key=lambda path: path.stat().st_mtime_ns)
        found = [*begun, *self.folder.glob("out.zarr")][-1] / "height" / "c"
        files = [path for path in found.rglob("*") if path.is_file()]
        return {path.relative_to(found).as_posix(): path.stat().st_mtime_ns for path in files}


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Scene:
    # So that each step is a row of tiles.
    monkeypatch.setattr("infinite_tensor.filling.cutting._STEP_BYTES", 1)
    return Scene(tmp_path)


def test_an_export_that_was_stopped_goes_on_with_what_is_missing(scene: Scene) -> None:
    scene.stopped()
    assert not (scene.folder / "out.zarr").exists()
    before, calls = scene.chunks(), scene.calls
    assert 0 < len(before) < 128
    done = scene.export()
    assert done[-1] == 128
    assert done[0] >= len(before)
    after = scene.chunks()
    assert len(after) == 128
    assert {key: after[key] for key in before} == before
    # Those of the call that was stopped are computed again.
    assert scene.calls <= 32 * 16 + calls - len(before) * 4
    assert np.array_equal(opened(scene.folder / "out.zarr"), truth((slice(-64, 64), slice(0, 64))))
    assert names_in(scene.folder) == ["out.zarr", "tiles"]


@pytest.mark.parametrize(
    "options", [{"region": sl[-64:64, 0:56]}, {"compute": False}, {"overwrite": True}, {"version": 2}], ids=str
)
def test_an_export_of_something_else_begins_anew(scene: Scene, options: dict[str, Any]) -> None:
    scene.stopped()
    before = scene.chunks()
    if "version" in options:
        scene.t.tile_store.clear_tensor("world/height")
        scene, options = Scene(scene.folder, **options), {}
    scene.export(**options)
    after = scene.chunks()
    assert not before.items() & after.items()
    stored = scene.t.stored_only()[options.get("region", sl[-64:64, 0:64])]
    assert np.array_equal(opened(scene.folder / "out.zarr") > 0, stored.numpy() > 0)


def test_what_was_written_before_windows_were_dropped_is_not_kept(scene: Scene) -> None:
    scene.stopped()
    before = scene.chunks()
    scene.t.invalidate(sl[-64:-63, 0:1])
    scene.stopped(after=scene.calls + 150)
    assert not before.items() & scene.chunks().items()
    before = scene.chunks()
    scene.export()
    assert before.items() <= scene.chunks().items()


@pytest.mark.parametrize("change", ["dropped", "made again"])
def test_an_export_to_a_url_that_is_outdated_begins_anew(change: str, scene: Scene) -> None:
    target = f"memory://{scene.folder.name}/out.zarr"
    scene.stopped(target=target)
    if change == "dropped":
        scene.t.invalidate()
    else:
        scene.t.tile_store.clear_tensor("world/height")
        scene = Scene(scene.folder, version=2)
    calls = scene.calls
    scene.export(target=target)
    assert scene.calls == calls + 512
    with pytest.raises(ValidationError, match="already exists"):
        scene.export(target=target)


def test_what_is_not_stored_begins_anew(scene: Scene) -> None:
    # Another f may have the same definition, and nothing is stored that would tell.
    in_memory = Scene(scene.folder, tile_store=None)
    in_memory.stopped()
    assert names_in(scene.folder) == ["tiles"]
    in_memory.export()
    assert np.array_equal(opened(scene.folder / "out.zarr"), truth((slice(-64, 64), slice(0, 64))))


def test_an_export_that_wrote_nothing_leaves_nothing(scene: Scene) -> None:
    scene.stopped(after=0)
    assert names_in(scene.folder) == ["tiles"]


def test_a_ctrl_c_says_how_to_go_on(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    def interrupted(_ctx: Index) -> None:
        if scene.calls > 100:
            raise KeyboardInterrupt

    monkeypatch.setattr(scene._f, "_told", interrupted)
    with pytest.raises(KeyboardInterrupt) as caught:
        scene.export()
    assert any("Call export again with the same arguments" in note for note in caught.value.__notes__)


# Groups.


def world(store: TileStore | None = None) -> TensorGroup:
    """A height, and a nested label at half the resolution."""

    def f(ctx: Index) -> dict[str, Any]:
        return {"height": pattern(ctx).to(torch.uint8), "map": {"label": torch.full((2, 2), ctx[0] * 10 + ctx[1])}}

    fine, coarse = TensorWindow((4, 4)), TensorWindow((2, 2))
    outputs = {
        "height": Output((None, None), "uint8", fine, dims=("y", "x")),
        "map": {"label": Output((None, None), "int64", coarse, dims=("y", "x"))},
    }
    return InfiniteTensor.from_multi(f, outputs, tile_store=store or DictTileStore({}, tile_size=8), tensor_id="w")


def test_a_group_is_a_tree_of_arrays(tmp_path: Path) -> None:
    group: Any = world()
    group.export(sl[-4:16, 0:8], tmp_path / "out.zarr")
    with xarray.open_datatree(tmp_path / "out.zarr", engine="zarr") as tree:
        assert np.array_equal(tree["height"].to_numpy(), truth((slice(-4, 16), slice(0, 8))))
        assert np.array_equal(tree["map/label"].to_numpy(), group["map", "label"][-2:8, 0:4].numpy())
        assert tree["map/label_y"].to_numpy().tolist() == list(range(-2, 8))


def test_dimensions_of_a_group_with_other_pixels_have_names_of_their_own(tmp_path: Path) -> None:
    group = TensorGroup({"a": plane(), "b": plane()}, scale={"b": 2})
    group.export(sl[0:8, 0:8], tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        assert found["a"].dims == ("y", "x")
        assert found["b"].dims == ("b_y", "b_x")
        assert found["b"].shape == (16, 16)


@pytest.mark.parametrize("turned", [False, True])
def test_a_group_may_be_called_as_a_dimension_is(turned: bool, tmp_path: Path) -> None:
    members: list[tuple[str, Any]] = [("height", plane()), ("x", {"height": plane()})]
    TensorGroup(dict(members[::-1] if turned else members)).export(sl[REGION], tmp_path / "out.zarr")
    found = zarr.open_group(tmp_path / "out.zarr", mode="r")
    for path in ("height", "x/height"):
        array = found[path]
        assert isinstance(array, zarr.Array)
        assert np.array_equal(array[...], truth())
    assert sorted(found.array_keys()) == ["height", "y"]
    assert sorted(found["x"].array_keys()) == ["height", "x", "y"]  # type: ignore[union-attr]


@pytest.mark.parametrize("dim", [".", "..", "zarr.json", "export.json", "lat/lon", "__y"])
def test_a_dimension_whose_name_no_array_has_is_without_coordinates(dim: str, tmp_path: Path) -> None:
    plane(dims=(dim, "x")).export(sl[REGION], tmp_path / "out.zarr")
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        assert found["height"].dims == (dim, "x")
        assert list(found.coords) == ["x"]
        assert np.array_equal(found["height"].to_numpy(), truth())


@pytest.mark.parametrize("name", NO_NAMES)
def test_a_tensor_of_a_name_that_zarr_does_not_have_is_an_error(name: str, tmp_path: Path) -> None:
    # As ("a", "b"), the other would be in the same place.
    group = TensorGroup({"a": {"b": plane()}, name: plane()})
    with pytest.raises(ValidationError, match=r"cannot be the path of a Zarr array: .* give the tensor another name"):
        group.export(sl[REGION], tmp_path / "out.zarr")
    assert names_in(tmp_path) == []
    TensorGroup({"a": group["a"], "other": group[name]}).export(sl[REGION], tmp_path / "out.zarr")


def test_a_group_that_was_stopped_goes_on(tmp_path: Path) -> None:
    group: Any = world(ZarrTileStore(tmp_path / "tiles", tile_size=8))
    stop = True

    def fails(ctx: Index) -> torch.Tensor:
        if stop:
            raise Stopped
        return pattern(ctx).float()

    late = plane(fails, "float32", tile_store=group["height"].tile_store, tensor_id="late", dims=None)
    both = TensorGroup({"height": group["height"], "late": late})
    with pytest.raises(Stopped):
        both.export(sl[0:16, 0:16], tmp_path / "out.zarr")
    (written,) = tmp_path.glob(".out.zarr.*.partial/height/c/0/0")
    before = written.stat().st_mtime_ns
    stop = False
    both.export(sl[0:16, 0:16], tmp_path / "out.zarr")
    assert (tmp_path / "out.zarr" / "height" / "c" / "0" / "0").stat().st_mtime_ns == before
    with xarray.open_zarr(tmp_path / "out.zarr") as found:
        assert np.array_equal(found["late"].to_numpy(), found["height"].to_numpy())


def test_a_group_is_exported_to_zarr_alone(tmp_path: Path) -> None:
    for target, pyramid in (("out.npy", False), ("out.zarr", True)):
        with pytest.raises(ValidationError, match="one by one"):
            world().export(sl[0:4, 0:4], tmp_path / target, pyramid=pyramid)
    with pytest.raises(TypeError, match="'colour'"):
        world().export(sl[0:4, 0:4], tmp_path / "out.zarr", colour=True)  # type: ignore[call-arg]


def test_the_document_of_an_unfinished_export_is_gone_in_the_end(tmp_path: Path) -> None:
    from_array(np.arange(100).reshape(10, 10), dims=("y", "x"), chunks=5).export(..., tmp_path / "out.zarr")
    assert names_in(tmp_path / "out.zarr") == ["values", "x", "y", "zarr.json"]
    document = json.loads((tmp_path / "out.zarr" / "zarr.json").read_text())
    assert set(document["consolidated_metadata"]["metadata"]) == {"values", "x", "y"}
