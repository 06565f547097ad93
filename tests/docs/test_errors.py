"""Every error on the page about errors, raised as a user raises it; and the page lists each of them."""

from __future__ import annotations

import errno
import json
import pickle
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from zarr.storage import MemoryStore, WrapperStore

from infinite_tensor import (
    GridDataset,
    HDF5TileStore,
    InfiniteTensor,
    TensorWindow,
    ZarrTileStore,
    from_array,
    from_raster,
    predict,
    sl,
)
from infinite_tensor.errors import (
    DamagedDataWarning,
    DeviceMismatchError,
    DtypeMismatchError,
    FunctionChangedWarning,
    OutOfMemoryError,
    RegionError,
    ShapeMismatchError,
    StoreError,
    TileAccessError,
    UncoveredPixelsWarning,
    ValidationError,
)
from tests.support.stores import sample

PAGE = (Path(__file__).parents[2] / "docs" / "errors.md").read_text(encoding="utf-8")
ENTRIES = dict(re.findall(r"^### (.+)\n\n((?:(?!#).*\n)*)", PAGE, re.MULTILINE))
"""What the page says about each message, under the words that it quotes of it."""
OF_F = PAGE.partition("## What f returns")[2].partition("\n## ")[0]

FOUR = TensorWindow((4, 4))
IMAGE = torch.rand(3, 40, 50)
NET = torch.nn.Conv2d(3, 5, 3, padding=1)


class Case(NamedTuple):
    """How a user meets an error or a warning: its type, what its message tells to do, and what was done."""

    kind: type[BaseException]
    remedy: str
    provoke: Callable[[], Any]


CASES: dict[str, Case] = {}


def case(words: str, kind: type[BaseException], remedy: str) -> Callable[[Callable[[], Any]], None]:
    """Add a case for a message with these words; `remedy` is a pattern."""

    def add(provoke: Callable[[], Any]) -> None:
        assert words not in CASES
        CASES[words] = Case(kind, remedy, provoke)

    return add


def ones(_ctx: object) -> torch.Tensor:
    return torch.ones(4, 4)


def plane(f: Callable[..., Any] = ones, **options: Any) -> InfiniteTensor:
    return InfiniteTensor((None, None), f, FOUR, **{"tensor_id": "x", **options})


def first_pixel(returned: object) -> None:
    """Read a pixel of a tensor whose ``f`` returns this."""

    def f(_ctx: object) -> Any:
        return returned

    plane(f)[0, 0]


def stored(path: str = "a.zarr", f: Callable[..., Any] = ones) -> str:
    with ZarrTileStore(path) as store:
        plane(f, tile_store=store)[0, 0]
    return path


# Defining a tensor.


@case("window size must be a tuple of ints", ValidationError, r"\(4, 4\)")
def _() -> None:
    TensorWindow(4)  # type: ignore[arg-type]


@case("output_window must be a TensorWindow", ValidationError, r"TensorWindow\(\(4, 4\)\)")
def _() -> None:
    InfiniteTensor((None, None), ones, (4, 4))  # type: ignore[arg-type]


@case("no window of output_window", ValidationError, 'edge="clip"')
def _() -> None:
    InfiniteTensor((3, 3), ones, FOUR)


@case("no window covers", UncoveredPixelsWarning, 'edge="clip"')
def _() -> None:
    InfiniteTensor((10, 10), ones, FOUR)


@case(
    "args_windows must have one TensorWindow per arg", ValidationError, r"args_windows=\[output_window\.padded\(8\)\]"
)
def _() -> None:
    InfiniteTensor((None, None), ones, FOUR, args=[plane()])


@case("change the window, or set args_padding", RegionError, "args_padding .*reflect")
def _() -> None:
    InfiniteTensor((8, 8), lambda _, a: a, FOUR, args=[from_array(torch.ones(8, 8))], args_windows=[FOUR.padded(1)])


@case("must be an InfiniteTensor or a TensorBlob", ValidationError, r"from_array\(a\)")
def _() -> None:
    InfiniteTensor((None, None), ones, FOUR, args=[torch.ones(8, 8)], args_windows=[FOUR])  # type: ignore[list-item]


@case("cannot represent fractions", ValidationError, "declare dtype=torch.float32")
def _() -> None:
    plane(dtype="int64", blend="mean")


@case("cannot be used", ValidationError, 'device="cpu"')
def _() -> None:
    plane(device="cuda:99")


# Reading.


@case("a slice over it needs a start and a stop", RegionError, "0:512")
def _() -> None:
    plane()[:, 0:4]


@case("is out of range for dimension", RegionError, "from -8 to 7")
def _() -> None:
    from_array(torch.ones(8, 8))[8, 0]


@case("cannot index with", RegionError, "give ints, slices or Ellipsis")
def _() -> None:
    plane()[torch.ones(4, 4) > 0]


@case("reach beyond the limit of 2**51", RegionError, r"from -\d+ to \d+")
def _() -> None:
    plane()[2**60, 0]


@case("which cannot be allocated", OutOfMemoryError, "iter_regions.*fill")
def _() -> None:
    plane()[0 : 2**30, 0 : 2**30]


@case("takes a torch.Tensor, not an InfiniteTensor", TypeError, r"t\[0:512, 0:512\].*t\.map")
def _() -> None:
    torch.mean(plane())  # type: ignore[call-overload]


@case("an InfiniteTensor has no attribute", AttributeError, r"t\[0:512, 0:512\]\.mean")
def _() -> None:
    plane().mean()  # type: ignore[attr-defined]


@case("an InfiniteTensor lacks this operator", TypeError, r"t\.map\(fn\)")
def _() -> None:
    plane() @ plane()  # type: ignore[operator]


@case("a comparison of InfiniteTensors has no single truth value", TypeError, r"\.all\(\)")
def _() -> None:
    bool(plane() == plane())


@case("cannot be changed in place", TypeError, r"t = t \+ 1")
def _() -> None:
    t = plane()
    t += 1


@case("an InfiniteTensor cannot be written to", TypeError, "TensorBlob")
def _() -> None:
    plane()[0, 0] = 1  # type: ignore[index]


@case("this InfiniteTensor has no len()", TypeError, r"t\.shape")
def _() -> None:
    len(plane())


@case("cannot iterate over an InfiniteTensor", TypeError, r"t\[0:512, 0:512\]")
def _() -> None:
    list(plane())


# What f returns.


@case("f must return a torch.Tensor", ValidationError, "end it with return result")
def _() -> None:
    first_pixel(None)


@case("f returned shape", ShapeMismatchError, r"\(4, 5\).*return \(4, 4\)")
def _() -> None:
    first_pixel(torch.ones(4, 5))


@case("but the tensor has dtype", DtypeMismatchError, r"result\.to\(torch\.float32\).*dtype=torch\.float64")
def _() -> None:
    first_pixel(torch.ones(4, 4, dtype=torch.float64))


@case("but the tensor is declared on", DeviceMismatchError, "return a tensor with values")
def _() -> None:
    first_pixel(torch.ones(4, 4, device="meta"))


@case("return one tensor for each window", ShapeMismatchError, "for 4 windows, f returned 1")
def _() -> None:
    plane(lambda _: [torch.ones(4, 4)], batch_size=4)[0:8, 0:8]


@case("while computing window", KeyError, r"window \(0, 0\) of tensor 'x'")
def _() -> None:
    def f(ctx: Any) -> Any:
        return {}[ctx]

    plane(f)[0, 0]


@case("would need itself", ValidationError, "change f to read only windows independent of window")
def _() -> None:
    t = plane(lambda _: t[0:4, 0:4])
    t[0, 0]


# Mapping and predicting.


@case("the channel dimension is unknown", ValidationError, "give dims=")
def _() -> None:
    predict(NET, IMAGE, window=16, progress=False)


@case("give map the halo=", ShapeMismatchError, r"fn must return shape \(16, 16\), or \(18, 18\)")
def _() -> None:
    def blurred(region: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.avg_pool2d(region[None], 5, stride=1)[0]

    plane().map(blurred, halo=1, window=16)[0:4, 0:4]


@case("is in training mode", ValidationError, r"net\.eval\(\)")
def _() -> None:
    predict(torch.nn.Sequential(NET, torch.nn.Dropout()), IMAGE, window=(16, 16), progress=False)


@case("so the scale is unknown", ShapeMismatchError, "scale=7/8")
def _() -> None:
    predict(torch.nn.Conv2d(3, 5, 3), IMAGE, window=(16, 16), progress=False)


@case("net must return a tensor", ValidationError, r"lambda batch: net\(batch\)\.logits")
def _() -> None:
    predict(lambda _: object(), IMAGE, window=(16, 16), progress=False)


@case("of the source are unbounded: give a region", ValidationError, r"sl\[0:512, 0:512\]")
def _() -> None:
    predict(NET, plane(), window=(16, 16), progress=False)


@case("got an unexpected keyword argument", TypeError, "its arguments are net, source, store, window")
def _() -> None:
    predict(NET, IMAGE, window=16, preprocess=torch.neg)  # type: ignore[call-overload]


@case("overlap must be a number", ValidationError, "at least 0 and below 1")
def _() -> None:
    predict(NET, IMAGE, window=(16, 16), overlap=25, progress=False)


@case("Give predict another tensor_id", ValidationError, "overwrite=True")
def _() -> None:
    for size in (16, 32):
        predict(NET, IMAGE, "p.zarr", window=(size, size), progress=False)


@case("CUDA out of memory", torch.OutOfMemoryError, "smaller batch_size")
def _() -> None:
    def net(_batch: object) -> torch.Tensor:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    predict(net, IMAGE, window=(16, 16), progress=False)


# Stores.


@case("already contains a tensor", ValidationError, r"stored \[4, 4\], given \[8, 8\].*\n.*clear_tensor\('x', dep")
def _() -> None:
    InfiniteTensor((None, None), ones, TensorWindow((8, 8), (4, 4)), tile_store=stored(), tensor_id="x")


@case("Stored pixels are used unchanged", FunctionChangedWarning, r"clear_tensor\('x', dependants=True\)")
def _() -> None:
    stored()
    stored(f=lambda _: torch.zeros(4, 4))


@case("was opened without f", TileAccessError, r"store\.open\('x', f=\.\.\.\)")
def _() -> None:
    with ZarrTileStore(stored()) as store:
        store.open("x")[100, 100]


@case("contains no tensor", StoreError, "did you mean 'world'")
def _() -> None:
    with ZarrTileStore("a.zarr") as store:
        plane(tile_store=store, tensor_id="world")
        store.open("wrold")


@case("there is no store", StoreError, "mode 'a'")
def _() -> None:
    ZarrTileStore("missing.zarr", mode="r")


@case("but other data", StoreError, "empty folder")
def _() -> None:
    Path("folder").mkdir()
    Path("folder/photo.jpg").touch()
    ZarrTileStore("folder")


@case("a Zarr store is a folder", StoreError, "HDF5TileStore")
def _() -> None:
    HDF5TileStore("a.h5", mode="w").close()
    ZarrTileStore("a.h5")


@case("would be a folder, not a file", ValidationError, r"predict\(\.\.\., 'out.zarr'\).export\(\.\.\., 'out.tif'\)")
def _() -> None:
    predict(NET, IMAGE, "out.tif", window=16, dims=("c", "y", "x"), progress=False)


@case("this version reads up to", StoreError, "later version of this library")
def _() -> None:
    root = Path(stored(), "zarr.json")
    root.write_text(json.dumps(json.loads(root.read_text()) | {"attributes": {"infinite_tensor": {"format": 99}}}))
    ZarrTileStore("a.zarr")


@case("is open in another process", StoreError, "close it there, or share a ZarrTileStore")
def _() -> None:
    program = "import h5py\nwith h5py.File('a.h5', 'w'): print(flush=True), input()"
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        other.stdout.readline()
        try:
            HDF5TileStore("a.h5")
        finally:
            other.communicate("\n")


@case("is closed; open it again", StoreError, "with store:")
def _() -> None:
    with ZarrTileStore("a.zarr") as store:
        t = plane(tile_store=store)
    t[0, 0]


@case("is read-only", ValidationError, r"mode='r\+'")
def _() -> None:
    with ZarrTileStore(stored(), mode="r") as store:
        store.clear_tensor("x")


class FullStore(WrapperStore[MemoryStore]):
    """Storage on a disk that may be full."""

    full = False

    async def set(self, key: str, value: Any) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        await super().set(key, value)

    async def set_if_not_exists(self, key: str, value: Any) -> None:
        await self.set(key, value)


@case("No space left on device", StoreError, r"flush\(\) to try again")
def _() -> None:
    disk = FullStore(MemoryStore())
    with ZarrTileStore(disk) as store:
        t = plane(tile_store=store)
        disk.full = True
        t[0:8, 0:8]
        try:
            store.flush()
        finally:
            # Freed again, so that closing the store succeeds.
            disk.full = False


@case("Unable to locate credentials", StoreError, "AWS_SECRET_ACCESS_KEY.*storage_options")
def _() -> None:
    pytest.importorskip("s3fs")
    ZarrTileStore("s3://bucket/a.zarr", storage_options={"endpoint_url": "http://127.0.0.1:9"})


@case("Could not connect to the endpoint", StoreError, "endpoint_url")
def _() -> None:
    pytest.importorskip("s3fs")
    options = {"endpoint_url": "http://127.0.0.1:9", "key": "me", "secret": "unknown"}
    ZarrTileStore("s3://bucket/a.zarr", storage_options=options)


@case("it is treated as missing", DamagedDataWarning, "computed again if the tensor was opened with its f")
def _() -> None:
    for path in Path(stored()).rglob("partial-*/*/*"):
        content = path.read_bytes()
        path.write_bytes(content[:-1] + bytes([content[-1] ^ 255]))
    stored()


# Large fills and datasets.


@case("max_memory must be at least", ValidationError, r"at least \d+ MiB, .* give more memory")
def _() -> None:
    plane(tile_store="a.zarr").fill(sl[0:80, 0:80], max_memory="1 KB", progress=False)


@case("a start and a stop in each unbounded dimension", ValidationError, r"region=sl\[0:1000, 0:1000\]")
def _() -> None:
    GridDataset(plane(), (4, 4))


@case("no patch of", ValidationError, r"patch_size=\(8, 8\)")
def _() -> None:
    GridDataset(plane(), (16, 16), region=sl[0:8, 0:8])


@case("Can't pickle", AttributeError, "lambda")
def _() -> None:
    try:
        pickle.dumps(plane(lambda _: torch.ones(4, 4)))
    except (AttributeError, pickle.PicklingError) as error:
        # By Python, whose versions differ.
        raise AttributeError(str(error).replace("get local", "pickle local")) from error


# Files and views.


@case("the target must end in one of", ValidationError, r"\.png")
def _() -> None:
    from_array(IMAGE).export(sl[:, :, :], "a.jpg")


@case("format 'png' supports", ValidationError, "palette=True")
def _() -> None:
    from_array(torch.zeros(8, 8, dtype=torch.int64)).export(sl[:, :], "a.png")


@case("already exists; give another path", ValidationError, "overwrite=True")
def _() -> None:
    for _ in range(2):
        from_array(IMAGE).export(sl[:, :, :], "a.npy")


@case("cannot be opened as a raster", StoreError, "from_image")
def _() -> None:
    pytest.importorskip("rasterio")
    from_raster("missing.tif")


@case("Dataset has no geotransform", UserWarning, "")
def _() -> None:
    pytest.importorskip("rasterio")
    from_array(np.zeros((8, 8), "uint8")).export(sl[:, :], "a.png")
    from_raster("a.png")


@case("levels must be given", ValidationError, "levels=6")
def _() -> None:
    plane().pyramid()


@case("needs the package", ImportError, "pip install matplotlib")
def _() -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.pyplot", None)
        plane().show()


def told_by(kind: type[BaseException], provoke: Callable[[], Any]) -> str:
    """The message of the error or the warning, with its notes."""
    if issubclass(kind, Warning):
        with pytest.warns(kind) as caught:
            provoke()
        return str(caught[0].message)
    with pytest.raises(kind) as raised:
        provoke()
    return "\n".join([str(raised.value), *getattr(raised.value, "__notes__", ())])


def test_the_page_has_an_entry_for_each_case_and_no_other() -> None:
    assert set(ENTRIES) == set(CASES)
    assert len(CASES) >= 40


# A client tries for seconds to connect.
@pytest.mark.parametrize("words", sample(CASES, *CASES.keys() - {"Could not connect to the endpoint"}))
def test_a_message_has_the_words_on_the_page_and_says_what_to_do(
    words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    kind, remedy, provoke = CASES[words]
    told = told_by(kind, provoke)
    assert words in told
    assert re.search(remedy, told), told
    if words in OF_F:
        assert "window (0, 0)" in told
        assert f"defined in {__file__}:" in told
