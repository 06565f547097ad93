"""Where exports are written: what is there already, what goes wrong, and who else writes."""

from __future__ import annotations

import os
import re
import threading
import warnings
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import dask.array
import fsspec
import numpy as np
import pytest
import rasterio
import torch
import xarray
import zarr

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    StoreError,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_raster,
    sl,
)
from tests.behaviour.views.exports.scenes import FORMS, REGION, forms, names_in, opened, pattern, plane, truth
from tests.support.interpreters import DEADLINE
from tests.support.reference import Index

files = pytest.mark.parametrize("form", FORMS[1:])


def other(ctx: Index) -> torch.Tensor:
    return pattern(ctx) + 1


@forms
def test_an_existing_target_is_refused_unless_it_is_to_be_overwritten(form: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{form}"
    plane().export(sl[REGION], target)
    with pytest.raises(ValidationError, match=r"'.*' already exists; give another path, or overwrite=True"):
        plane(other).export(sl[REGION], target)
    assert np.array_equal(opened(target), truth())
    plane(other).export(sl[0:8, 0:8], target, overwrite=True)
    assert np.array_equal(opened(target), truth((slice(0, 8), slice(0, 8))) + 1)
    assert names_in(tmp_path) == [f"out.{form}"]


def test_a_folder_that_no_export_wrote_is_never_overwritten(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "tiles.zarr", tile_size=8)
    t = plane(tile_store=store)
    t.fill(sl[REGION], progress=False)
    for overwrite in (False, True):
        with pytest.raises(ValidationError, match=r"already|was not written by export, so it is not overwritten"):
            t.export(sl[REGION], tmp_path / "tiles.zarr", overwrite=overwrite)
    store.close()
    with ZarrTileStore(tmp_path / "tiles.zarr", mode="r") as found:
        assert np.array_equal(found.open("world/height")[REGION].numpy(), truth())


def maximum(path: Path) -> float:
    """The largest pixel of an image as GDAL tells it: of what it has counted before, if it has."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        # What takes its place keeps nothing.
        warnings.simplefilter("ignore", rasterio.errors.RasterioDeprecationWarning)
        with rasterio.open(path) as file:
            return float(file.statistics(1).max)


@pytest.mark.parametrize("form", ["png", "tif"])
def test_what_gdal_has_written_beside_an_image_is_never_taken_for_that_of_the_next(form: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{form}"
    plane().export(sl[REGION], target)
    assert maximum(target) == truth().max()
    assert (tmp_path / f"out.{form}.aux.xml").is_file()
    for ending in ("ovr", "msk"):
        (tmp_path / f"out.{form}.{ending}").touch()
    plane(other).export(sl[REGION], target, overwrite=True)
    assert names_in(tmp_path) == [f"out.{form}"]
    assert maximum(target) == truth().max() + 1


@pytest.mark.parametrize("form", ["png", "tif"])
def test_what_gdal_has_left_of_an_image_that_is_gone_is_something_that_is_there(form: str, tmp_path: Path) -> None:
    (tmp_path / f"out.{form}.aux.xml").touch()
    with pytest.raises(ValidationError, match=r"aux.xml' already exists; give another path, or overwrite"):
        plane().export(sl[REGION], tmp_path / f"out.{form}")
    assert names_in(tmp_path) == [f"out.{form}.aux.xml"]
    plane().export(sl[REGION], tmp_path / f"out.{form}", overwrite=True)
    assert names_in(tmp_path) == [f"out.{form}"]


@files
def test_a_folder_or_a_link_in_the_place_of_a_file_is_never_overwritten(form: str, tmp_path: Path) -> None:
    (tmp_path / f"folder.{form}").mkdir()
    (tmp_path / "precious").write_text("all of it")
    (tmp_path / f"link.{form}").symlink_to(tmp_path / "precious")
    for name in ("folder", "link"):
        with pytest.raises(ValidationError, match="is not a file, so it is not overwritten"):
            plane().export(sl[REGION], tmp_path / f"{name}.{form}", overwrite=True)
    assert (tmp_path / "precious").read_text() == "all of it"


@pytest.mark.parametrize("name", ["thesis.txt", "export.json"])
def test_objects_that_no_export_wrote_are_left_as_they_are(name: str) -> None:
    files = fsspec.filesystem("memory")
    files.pipe_file(f"/theirs/out.zarr/{name}", b"all of it")
    for overwrite in (False, True):
        with pytest.raises(ValidationError, match="was not written by export; give another target"):
            plane().export(sl[REGION], "memory://theirs/out.zarr", overwrite=overwrite)
    assert files.cat_file(f"/theirs/out.zarr/{name}") == b"all of it"
    files.rm("/theirs", recursive=True)


def lazily(target: str, how: str) -> InfiniteTensor:
    """What was exported, as a tensor that reads it only when it is needed."""
    if not target.endswith(".zarr"):
        mapped = target.endswith(".npy")
        return from_array(np.load(target, mmap_mode="r"), dims=("y", "x")) if mapped else from_raster(target)
    group = zarr.open_group(target, mode="r")
    name = "height" if "height" in group else "values"
    array: Any = group[name]
    if how == "xarray":
        array = xarray.open_zarr(target, chunks=None, mask_and_scale=False)[name]
    elif how == "dask":
        array = dask.array.from_zarr(array)
    return from_array(array, dims=("y", "x"))


@pytest.mark.filterwarnings("ignore::rasterio.errors.NotGeoreferencedWarning")
@pytest.mark.parametrize(
    ("form", "how"),
    [("zarr", how) for how in ("zarr", "xarray", "dask")] + [(form, form) for form in FORMS[1:]],
)
def test_an_export_to_disk_over_what_it_reads_has_all_pixels(form: str, how: str, tmp_path: Path) -> None:
    target = f"{tmp_path}/out.{form}"
    plane().export(sl[REGION], target)
    source = lazily(target, how)
    assert isinstance(source.tile_store, MemoryTileStore)
    source.tile_store.cache_size_bytes = 1
    brighter = source.map(lambda x: x + 1, dims=("y", "x"))
    brighter.export(..., target, overwrite=True)
    assert np.array_equal(np.squeeze(opened(target)), truth() + 1)
    if form == "zarr":
        lazily(target, how).export(..., target, overwrite=True, pyramid=2)
        assert np.array_equal(zarr.open_array(target, path="s0/values", mode="r")[...], truth() + 1)


@pytest.mark.parametrize("how", ["zarr", "xarray", "dask"])
def test_an_export_to_a_url_over_what_it_reads_is_refused(how: str, tmp_path: Path) -> None:
    target = f"memory://{tmp_path.name}/out.zarr"
    plane().export(sl[REGION], target)
    source = lazily(target, how)
    for tensor in (source, source.map(lambda x: x + 1, dims=("y", "x"))):
        with pytest.raises(ValidationError, match="another target"):
            tensor.export(..., target, overwrite=True)
    assert np.array_equal(opened(target), truth())
    source.export(..., f"{target}.zarr")
    plane().export(sl[REGION], target, overwrite=True)


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("is_named", [False, True])
@pytest.mark.parametrize("ends", [False, True])
def test_a_second_export_to_a_url_neither_empties_nor_mixes_the_first(
    ends: bool, is_named: bool, overwrite: bool, tmp_path: Path
) -> None:
    target = f"memory://{tmp_path.name}/out.zarr"

    def stopped(_ctx: Index) -> torch.Tensor:
        raise KeyboardInterrupt

    def tensor(f: Any, store: str) -> InfiniteTensor:
        tiles = ZarrTileStore(tmp_path / store, tile_size=8)
        return plane(f, tile_store=tiles, tensor_id="world/height" if is_named else None)

    def begin_the_second(progress: Any) -> None:
        if progress.done < progress.total:
            return
        # The first one has written all chunks, but has not ended.
        with nullcontext() if ends else pytest.raises(KeyboardInterrupt):
            tensor(other if ends else stopped, "2").export(sl[REGION], target, overwrite=overwrite, progress=False)

    with pytest.raises((StoreError, ValidationError), match=r"another|exists") if ends else nullcontext():
        tensor(pattern, "1").export(sl[REGION], target, overwrite=overwrite, progress=begin_the_second)
    assert np.array_equal(opened(target), truth() + 1 if ends else truth())
    assert not any("__export-" in key for key in fsspec.filesystem("memory").find(f"/{tmp_path.name}"))


@forms
def test_what_appears_meanwhile_is_left_as_it_is(form: str, tmp_path: Path) -> None:
    target = tmp_path / f"out.{form}"

    def f(ctx: Index) -> torch.Tensor:
        if form == "zarr":
            target.mkdir(exist_ok=True)
            (target / "theirs").touch()
        else:
            target.write_text("theirs")
        return pattern(ctx)

    with pytest.raises(ValidationError, match="could not be renamed"):
        plane(f, tile_store=None, tensor_id=None).export(sl[REGION], target)
    assert names_in(tmp_path) == [f"out.{form}"]
    assert names_in(target) == ["theirs"] if form == "zarr" else target.read_text() == "theirs"


def fails(ctx: Index, at: Index = (1, 3)) -> torch.Tensor:
    if ctx == at:
        raise RuntimeError("no more")
    return pattern(ctx)


@files
def test_an_error_of_f_comes_through_and_leaves_nothing(form: str, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="no more"):
        plane(fails).export(sl[REGION], tmp_path / f"out.{form}")
    assert names_in(tmp_path) == []


@forms
def test_an_error_of_f_leaves_what_was_to_be_overwritten(form: str, tmp_path: Path) -> None:
    plane().export(sl[REGION], tmp_path / f"out.{form}")
    # In the first window: what is written of a Zarr array before an error stays, to be continued.
    with pytest.raises(RuntimeError, match="no more"):
        plane(partial(fails, at=(-2, 0))).export(sl[REGION], tmp_path / f"out.{form}", overwrite=True)
    assert np.array_equal(opened(tmp_path / f"out.{form}"), truth())
    assert names_in(tmp_path) == [f"out.{form}"]


@forms
def test_one_that_ends_leaves_the_next_one_alone(form: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    target, synchronize = tmp_path / f"out.{form}", os.fsync
    plane().export(sl[REGION], target)
    written, ended = threading.Event(), threading.Event()

    def wait_when_written(progress: Any) -> None:
        if progress.done == progress.total:
            written.set()
            ended.wait(DEADLINE)

    with ThreadPoolExecutor(1) as threads:
        export_next = partial(plane(other).export, sl[REGION], target, overwrite=True, progress=wait_when_written)
        begun: list[Any] = []

        def begin_the_next(descriptor: int) -> None:
            synchronize(descriptor)
            if not begun and not (tmp_path / f".out.{form}.partial").exists():
                begun.append(threads.submit(export_next))
                written.wait(DEADLINE)

        monkeypatch.setattr(os, "fsync", begin_the_next)
        # Without an id it leaves nothing to continue with.
        plane(tensor_id=None).export(sl[REGION], target, overwrite=True)
        ended.set()
        begun[0].result()
    assert np.array_equal(opened(target), truth() + 1)
    assert names_in(tmp_path) == [f"out.{form}"]


@pytest.mark.parametrize(
    ("form", "other_form"), [*((form, form) for form in FORMS), ("npy", "zarr"), ("zarr", "npy"), ("npy", "tif")]
)
def test_two_at_once_of_any_formats_do_not_write_into_each_other(form: str, other_form: str, tmp_path: Path) -> None:
    target = tmp_path / "out"
    formats: Any = {"tif": "tiff"}

    def f(ctx: Index) -> torch.Tensor:
        if not target.exists():
            plane().export(sl[REGION], target, format=formats.get(other_form, other_form))
        return other(ctx)

    with pytest.raises(ValidationError, match=r"could not be renamed to '.*out'"):
        plane(f).export(sl[REGION], target, format=formats.get(form, form))
    target.rename(tmp_path / f"out.{other_form}")
    assert np.array_equal(opened(tmp_path / f"out.{other_form}"), truth())
    assert [name for name in names_in(tmp_path) if not name.startswith(".")] == [f"out.{other_form}"]


@forms
def test_folders_above_the_target_are_made_and_what_cannot_be_written_is_named(form: str, tmp_path: Path) -> None:
    plane().export(sl[REGION], tmp_path / "a" / "b" / f"out.{form}")
    assert np.array_equal(opened(tmp_path / "a" / "b" / f"out.{form}"), truth())
    (tmp_path / "file").touch()
    with pytest.raises(StoreError, match=rf"cannot write '.*out.{form}': (NotADirectory|FileExists)Error"):
        plane().export(sl[REGION], tmp_path / "file" / f"out.{form}")


@forms
@pytest.mark.parametrize("name", ["n" * 245, "n" * 300, "a\0b", "a\udcff" + "b" * 300])
def test_a_name_that_no_file_can_have_is_a_store_error(form: str, name: str, tmp_path: Path) -> None:
    with pytest.raises(StoreError, match=r"(?s)cannot write '.*(too long|null|surrogates)"):
        plane().export(sl[REGION], tmp_path / f"{name}.{form}")
    assert names_in(tmp_path) == []


# Names and formats.


@pytest.mark.parametrize(
    ("name", "form"), [("A.PNG", "png"), ("a.tiff", "tif"), ("a.b.npy", "npy"), ("a.zarr/", "zarr")]
)
def test_the_format_follows_from_the_end_of_the_target(name: str, form: str, tmp_path: Path) -> None:
    plane().export(sl[REGION], f"{tmp_path}/{name}")
    (tmp_path / name).rename(tmp_path / f"found.{form}")
    assert np.array_equal(opened(tmp_path / f"found.{form}"), truth())


def test_a_format_that_is_given_holds_whatever_the_target_is_called(tmp_path: Path) -> None:
    plane().export(sl[REGION], tmp_path / "out.png", format="npy")
    assert np.array_equal(np.load(tmp_path / "out.png"), truth())


@pytest.mark.parametrize(
    ("target", "options", "message"),
    [
        ("out.jpg", {}, r"the target must end in one of .zarr, .npy, .png, .tif, .tiff, got"),
        ("out.npy", {"format": "jpg"}, "format must be one of zarr, npy, png, tiff, got 'jpg'"),
        (3, {}, "target must be a path or a URL, got 3"),
        ("", {}, "target must be a path or a URL as a str"),
        ("s3://bucket/out.npy", {}, "format 'npy' needs a local path, got 's3://bucket/out.npy'; only Zarr"),
        ("out.npy", {"storage_options": {}}, "storage_options are only for Zarr"),
        ("out.npy", {"compute": "skip"}, "compute must be a bool, got 'skip'"),
        ("out.npy", {"fill_value": 3}, "needs compute=False; give both"),
        ("out.npy", {"compute": False, "fill_value": 300}, "fill_value"),
        ("out.npy", {"progress": "yes"}, "progress must be"),
        ("out.npy", {"every": 2}, "every, max_pixels and palette are only for PNG, got format 'npy'; leave them out"),
        ("out.tif", {"max_pixels": 2}, "are only for PNG, got format 'tiff'"),
        ("out.zarr", {"palette": True}, "are only for PNG, got format 'zarr'"),
        ("out.png", {"palette": 3}, "palette must be a bool, got 3"),
        ("out.png", {"every": 0}, "every must be a positive int, got 0"),
        ("out.png", {"max_pixels": -1}, "max_pixels must be a positive int, got -1"),
        ("out.png", {"every": 2, "max_pixels": 9}, "give every=... or max_pixels=..., not both; got 2 and 9"),
        ("out.npy", {"workers": 0}, "workers must be a positive int"),
    ],
)
def test_arguments_that_do_not_fit_are_errors_before_anything_is_written(
    target: Any, options: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError, match=re.escape(message) if "(" not in message else message):
        plane().export(sl[REGION], target, **options)
    assert names_in(tmp_path) == []


def test_a_login_in_a_url_is_not_shown() -> None:
    with pytest.raises(ValidationError) as caught:
        plane().export(sl[REGION], "ftp://user:secret@host/out.npy")
    assert "secret" not in str(caught.value)


# Progress.


@forms
def test_progress_counts_tiles_that_are_written(form: str, tmp_path: Path) -> None:
    told: list[Any] = []
    plane().export(sl[0:16, 0:24], tmp_path / f"out.{form}", progress=told.append)
    assert told[-1].done == told[-1].total
    if form in ("zarr", "npy"):
        assert told[-1].total == 6
