"""Tensors over HTTP."""

from __future__ import annotations

import asyncio
import io
import queue
import re
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Hashable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import matplotlib as mpl
import numpy as np
import pytest
import tensorstore
import torch
import xarray
import zarr
from PIL import Image

import infinite_tensor
from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    from_array,
    open_store,
    sl,
)
from infinite_tensor.support.stopping import Stopped, stopping
from infinite_tensor.views.colours import PALETTE
from infinite_tensor.views.frame import stored_as_numpy
from infinite_tensor.views.server import app, work
from infinite_tensor.views.server.maptiles import Colours
from infinite_tensor.views.server.served import Settings
from infinite_tensor.views.server.work import Work
from tests.support.command_line import COMMAND
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore
from tests.support.serving import PATIENCE, Served, served

SIDE = 64


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    rows = torch.arange(SIDE)[:, None] + SIDE * ctx[0]
    return (rows * 1000 + torch.arange(SIDE) + SIDE * ctx[1]).float()


def made(store: object = None, f: Callable[..., torch.Tensor] = ramp, **options: Any) -> InfiniteTensor:
    given: dict[str, Any] = {
        "shape": (None, None),
        "tile_store": store,
        "tensor_id": "world",
        "dims": ("y", "x"),
    } | options
    return InfiniteTensor(f=f, output_window=TensorWindow((SIDE, SIDE)), **given)


def files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def image(body: bytes) -> np.ndarray[Any, Any]:
    return np.asarray(Image.open(io.BytesIO(body)).convert("RGBA"))


@pytest.fixture
def world(tmp_path: Path) -> InfiniteTensor:
    """Stored from -128 to 128."""
    with ZarrTileStore(tmp_path / "w.zarr", tile_size=SIDE) as store:
        made(store)[-128:128, -128:128]
    return made(ZarrTileStore(tmp_path / "w.zarr"))


def test_zarr_and_xarray_read_all_levels(tmp_path: Path) -> None:
    world = made(tmp_path / "w.zarr", shape=(300, 130), edge="clip")
    levels = world.pyramid(2)
    world.fill(..., pyramid=True, progress=False)
    levels[1].fill(..., progress=False)
    with served(world) as server:
        group = zarr.open_group(f"{server.url}/world", mode="r")
        said: Any = group.attrs["ome"]
        paths = [each["path"] for each in said["multiscales"][0]["datasets"]]
        assert paths == ["s0/world", "s1/world", "s2/world"]
        for path, tensor in zip(paths, [world, *levels], strict=True):
            found: Any = group[path]
            assert np.array_equal(found[...], tensor[...])
        dataset = xarray.open_dataset(f"{server.url}/world/s1", engine="zarr", chunks=None)
        assert np.array_equal(dataset["world"], levels[0][...])


def test_xarray_reads_what_is_no_image_of_ome_zarr() -> None:
    row = from_array(np.arange(9), dims=("i",))
    with served(row) as server:
        dataset = xarray.open_dataset(f"{server.url}/{row.tensor_id}/s0", engine="zarr", chunks=None)
        assert [array.values.tolist() for array in dataset.data_vars.values()] == [[*range(9)]]


def test_negative_coordinates_are_those_of_the_tensor(world: InfiniteTensor) -> None:
    with served(world) as server:
        dataset = xarray.open_dataset(f"{server.url}/world/s0", engine="zarr", chunks=None)
        assert np.array_equal(dataset["world"].sel(y=-100, x=slice(-3, 3)), world[-100, -3:4])


def test_tensorstore_reads_it(world: InfiniteTensor) -> None:
    with served(world) as server:
        spec = {"driver": "zarr3", "kvstore": {"driver": "http", "base_url": f"{server.url}/world/s0/world/"}}
        found = tensorstore.open(spec, read=True).result()
        assert np.array_equal(found[100:140, :].read().result(), world[-28:12, -128:128])


def test_an_unbounded_tensor_is_shown_where_it_is_stored_or_in_a_region(world: InfiniteTensor) -> None:
    with served(world) as server:
        assert server.get("/world/s0/world/zarr.json").json()["shape"] == [256, 256]
    with served(world, settings=Settings(sl[0:10, -5:5])) as server:
        assert server.get("/world/s0/world/zarr.json").json()["shape"] == [10, 10]
    with served(made(), settings=Settings(sl[0:10, 0 : 2**30 + 1])) as server:
        assert "clients support at most 1073741824" in server.get("/world/zarr.json").text
    with served(made()) as server:
        refused = server.get("/world/zarr.json")
        assert refused.status_code == 422
        assert "--region" in refused.text


def test_only_reading_is_allowed(world: InfiniteTensor) -> None:
    with served(world) as server:
        got = server.get("/world/zarr.json")
        head = server.client.head("/world/zarr.json")
        assert (head.status_code, head.content, head.headers["etag"]) == (200, b"", got.headers["etag"])
        assert server.client.options("/world/zarr.json").headers["allow"] == "GET, HEAD, OPTIONS"
        for method in ("POST", "PUT", "DELETE", "PATCH", "TRACE"):
            assert server.client.request(method, "/world/zarr.json").status_code == 405


@pytest.mark.parametrize(
    "path",
    [
        "/../../etc/passwd",
        "/%2e%2e/%2e%2e/etc/passwd",
        "/world/../../../etc/passwd",
        "/world/s0/world/c/..%2f..%2f..%2fetc/passwd",
        "/world%00/zarr.json",
        "/world/s0/world/c/0/0%00",
        "/world/s0/world/c/00/0",
        "/world/s0/world/c/4/0",
        "/world/s0/world/c/-1/0",
        "/world/s0/world/c/0/0/0",
        f"/{'a' * 20_000}/zarr.json",
        f"/world/0/0/{'9' * 5_000}.png",
        "/world/1/0/0.png",
        "/world/-9/0/0.png",
        "/world/0/٣/0.png",
        "/world/level-1/zarr.json",
        "/world=2Flevel-1/zarr.json",
        "/other/zarr.json",
        "//example.org/zarr.json",
        "/world",
    ],
)
def test_hostile_paths_are_not_found(world: InfiniteTensor, path: str) -> None:
    with served(world) as server, server.send(path.replace("٣", "%D9%A3")) as client:
        assert client.recv(1000).split(b" ")[1] == b"404"
        assert server.get("/world/zarr.json").status_code == 200


def test_hosts_and_origins(world: InfiniteTensor) -> None:
    with served(world) as server:
        assert server.get("/world/zarr.json", Host="evil.example").status_code == 400
        assert "access-control-allow-origin" not in server.get("/world/zarr.json", Origin="https://a.example").headers
    with served(world, cors=["https://a.example"]) as server:
        headers = server.get("/world/zarr.json", Origin="https://a.example").headers
        assert headers["access-control-allow-origin"] == "https://a.example"
        assert "access-control-allow-origin" not in server.get("/world/zarr.json", Origin="https://b.example").headers
        asked = {"Origin": "https://a.example", "Access-Control-Request-Method": "GET"}
        assert server.client.options("/world/zarr.json", headers=asked).status_code == 200
        asked["Access-Control-Request-Method"] = "POST"
        assert server.client.options("/world/zarr.json", headers=asked).status_code == 400


@pytest.mark.parametrize("path", ["/world/zarr.json", "/world/s0/world/c/0/0", "/world/0/0/0.png"])
def test_what_a_client_has_is_not_sent_again(world: InfiniteTensor, path: str) -> None:
    with served(world) as server:
        got = server.get(path)
        assert (got.status_code, got.headers["cache-control"]) == (200, "no-cache")
        again = server.get(path, **{"If-None-Match": f'"other", W/{got.headers["etag"]}'})
        assert (again.status_code, again.content) == (304, b"")
        assert server.get(path, **{"If-None-Match": '"other"'}).status_code == 200


def test_what_has_changed_is_sent_again() -> None:
    value = [1.0]
    tensor = made(f=lambda _ctx: torch.full((SIDE, SIDE), value[0]))
    with served(tensor, settings=Settings(sl[0:64, 0:64])) as server:
        first = server.get("/world/s0/world/c/0/0")
        value[0] = 2.0
        tensor.invalidate(sl[0:64, 0:64])
        again = server.get("/world/s0/world/c/0/0", **{"If-None-Match": first.headers["etag"]})
        assert again.status_code == 200
        assert again.content != first.content


DROP = """
import sys
from infinite_tensor import ZarrTileStore, sl
ZarrTileStore(sys.argv[1]).open("world").invalidate(sl[0:1, 0:1])
"""
CHANGES: dict[str, Callable[[Path, InfiniteTensor], object]] = {
    "invalidated": lambda _path, tensor: tensor.invalidate(sl[0:1, 0:1]),
    "recreated": lambda path, tensor: remade(path, tensor, f=tensor.f),
    "recreated otherwise": lambda path, tensor: remade(path, tensor, f=tensor.f, version=2),
    "deleted": lambda path, _tensor: ZarrTileStore(path).clear_tensor("world"),
    "invalidated elsewhere": lambda path, _tensor: subprocess.run([sys.executable, "-c", DROP, path], check=True),
}


def remade(path: Path, _tensor: InfiniteTensor, **options: Any) -> None:
    with ZarrTileStore(path) as other:
        other.clear_tensor("world")
        made(other, **options)[0:64, 0:64]


@pytest.mark.parametrize(
    ("change", "source"),
    [
        pytest.param(change, source, marks=() if change == source_change else pytest.mark.slow)
        for change in CHANGES
        for source, source_change in {"tensor": "invalidated elsewhere", "store": "recreated otherwise"}.items()
    ],
)
def test_stored_pixels_that_are_dropped_anywhere_are_not_served(tmp_path: Path, change: str, source: str) -> None:
    value = [1.0]
    path = tmp_path / "w.zarr"
    with ZarrTileStore(path, tile_size=SIDE) as store:
        tensor = made(store, f=lambda _ctx: torch.full((SIDE, SIDE), value[0]))
        half = tensor.map(lambda x: x / 2, window=SIDE)
        tensor[0:64, 0:64]
        store.flush()
        served_by = [tensor, half] if source == "tensor" else [ZarrTileStore(path, mode="r")]
        with served(*served_by, settings=Settings(sl[0:64, 0:64], low=0, high=4)) as server:
            paths = ["/world/s0/world/c/0/0", "/world/0/0/0.png"]
            if source == "tensor":
                name = server.get("/").text.split('href="/')[2].partition("/")[0]
                paths += [f"/{name}/0/0/0.png"]
            before = [server.get(asked) for asked in paths]
            assert [each.status_code for each in before] == [200] * len(paths)
            value[0] = 2.0
            CHANGES[change](path, tensor)
            end = time.monotonic() + PATIENCE
            for asked, old in zip(paths, before, strict=True):
                while server.get(asked).content == old.content:
                    assert time.monotonic() < end, asked


def test_what_clients_have_computed_far_away_does_not_move_the_array(world: InfiniteTensor) -> None:
    far = world.map(torch.neg, window=SIDE)
    with served(far, world, world.tile_store) as server:
        for name in re.findall('href="/(.*?)/zarr', server.get("/").text):
            assert server.get(f"/{name}/0/{2**40}/0.png").status_code == 200
        assert server.get("/world/s0/world/zarr.json").json()["shape"] == [256, 256]


def test_a_stored_arg_of_a_given_tensor_is_computed_too(tmp_path: Path) -> None:
    world = made(tmp_path / "w.zarr")
    with served(world.map(torch.neg, window=SIDE), ZarrTileStore(tmp_path / "w.zarr", mode="r")) as server:
        assert server.get("/world/0/4/0.png").headers["cache-control"] == "no-cache"


def test_zarr_is_told_what_is_not_computed(tmp_path: Path) -> None:
    missing = made(ZarrTileStore(tmp_path / "w.zarr", tile_size=4 * SIDE))
    with served(missing, settings=Settings(sl[0:512, 0:512], max_windows=15)) as server:
        refused = server.get("/world/s0/world/c/0/0")
        assert refused.status_code == 422
        assert "needs 16 windows" in refused.text
        assert "needs 16 windows" in refused.headers["x-reason"]
        found: Any = zarr.open_group(f"{server.url}/world", mode="r")["s0/world"]
        with pytest.raises(Exception, match="422"):
            found[0, 0]
    with served(ZarrTileStore(tmp_path / "w.zarr", mode="r"), settings=Settings(sl[0:512, 0:512])) as server:
        assert server.get("/world/s0/world/c/0/0").status_code == 422


def test_map_tiles_are_pixels_in_a_fixed_range() -> None:
    with served(made(), settings=Settings(low=0, high=253)) as server:
        found = image(server.get("/world/0/0/0.png").content)
        assert np.array_equal(found[0, :254], mpl.colormaps["viridis"](np.linspace(0, 1, 254), bytes=True))
        assert (found[1:] == found[1, 0]).all()
        before = image(server.get("/world/0/-1/-1.png").content)
        assert (before == found[0, 0]).all()


def test_map_tiles_of_labels_and_colours() -> None:
    labels = from_array(np.arange(300 * 20).reshape(300, 20) % 20)
    colours = np.random.default_rng(0).integers(0, 256, (3, 600, 700), np.uint8)
    photo = from_array(colours, dims=("c", "y", "x"))
    palette = np.frombuffer(PALETTE, np.uint8).reshape(20, 3)
    with served(labels, photo) as server:
        found = image(server.get(f"/{labels.tensor_id}/0/0/1.png").content)
        assert np.array_equal(found[:44, :20, :3], palette[np.arange(20)][None].repeat(44, 0))
        assert (found[44:, :, 3] == 0).all()
        assert (found[:, 20:, 3] == 0).all()
        found = image(server.get(f"/{photo.tensor_id}/0/1/0.png").content)
        assert np.array_equal(found[..., :3], colours[:, :256, 256:512].transpose(1, 2, 0))
        coarse = photo.coarsen(2)[:, :256, 256:].numpy()
        found = image(server.get(f"/{photo.tensor_id}/-1/1/0.png").content)
        assert np.array_equal(found[:, :94, :3], coarse.transpose(1, 2, 0))
        assert server.get(f"/{photo.tensor_id}/0/3/0.png").status_code == 404


def test_heights_are_no_labels_wherever_the_sea_is() -> None:
    heights = np.zeros((768, 768), np.int16)
    heights[:256, :256] = np.arange(256)[:, None] * 10
    tensor = from_array(heights)
    viridis = mpl.colormaps["viridis"](np.linspace(0, 1, 254), bytes=True)
    with served(tensor) as server:
        path = f"/{tensor.tensor_id}/0/0/0.png"
        # Of one tile that is all sea, these are the colours of labels, until there are heights.
        assert np.array_equal(image(server.get(path.replace("/0/0/0", "/0/1/1")).content)[0, 0], [31, 119, 180, 255])
        assert np.array_equal(
            image(server.get(path).content)[:, 0], viridis[np.rint(np.arange(256) / 255 * 253).astype(int)]
        )
        assert np.array_equal(image(server.get(path.replace("/0/0/0", "/0/1/1")).content)[0, 0], viridis[0])
        assert np.array_equal(image(server.get(path.replace("/0/0/0", "/-1/0/0")).content)[0, 0], viridis[0])


def test_a_volume_is_shown_plane_by_plane() -> None:
    volume = np.zeros((5, 30, 40), np.uint8)
    volume[3] = 7
    tensor = from_array(volume, dims=("z", "y", "x"))
    with served(tensor) as server:
        at = f"/{tensor.tensor_id}/0/0/0.png"
        first, third = server.get(at).content, server.get(f"{at}?at=3").content
        assert first != third
        assert server.get(f"{at}?at=0").content == first
        for query in ("?at=3&v=1", "?v=1&at=3", "?at=%33"):
            assert server.get(f"{at}{query}").content == third
        for wrong in ("9", "-1", "x", "3.0", "", "3%2C4"):
            assert server.get(f"{at}?at={wrong}").status_code == 422


def test_a_map_tile_that_takes_too_much_shows_what_is_stored(world: InfiniteTensor) -> None:
    with served(world, settings=Settings(max_windows=3)) as server:
        found = server.get("/world/0/0/0.png")
        assert (found.status_code, found.headers["cache-control"]) == (200, "no-store")
        assert "etag" not in found.headers
        pixels = image(found.content)
        assert (pixels[1:128, 1:128, 3] == 255).all()
        assert (pixels[128:, 128:, 3] < 255).all()
        coarse = image(server.get("/world/-2/0/0.png").content)
        assert (coarse[1:32, 1:32, 3] == 255).all()
        assert (coarse[32:, 32:, 3] < 255).all()


def test_formulas_count_by_their_pixels() -> None:
    calls: list[torch.Size] = []

    def counted(x: torch.Tensor) -> torch.Tensor:
        calls.append(x.shape)
        return x + 1

    formula = made().map(counted)
    name = formula.tensor_id
    with served(formula, settings=Settings(max_windows=32)) as server:
        server.get(f"/{name}/0/0/0.png")  # chooses the colours
        count = len(calls)
        assert server.get(f"/{name}/-3/0/0.png").headers["cache-control"] == "no-store"
        assert len(calls) == count
        assert server.get(f"/{name}/0/0/0.png").headers["cache-control"] == "no-cache"


def test_map_tiles_from_afar_come_from_a_coarser_source(tmp_path: Path) -> None:
    near, far = Counted(ramp), Counted(ramp)
    world = made(ZarrTileStore(tmp_path / "w.zarr", tile_size=SIDE), f=near)
    world.pyramid(3, sources={4: made(f=far, tensor_id="far").map(lambda x: x * 4)})
    with served(world) as server:
        server.get("/world/0/0/0.png")  # chooses the colours
        calls = len(near.calls)
        assert (image(server.get("/world/-2/9/9.png").content)[..., 3] == 255).all()
        assert (len(near.calls), len(far.calls)) == (calls, 16)


def test_dimensions_of_any_names_are_drawn_as_they_are() -> None:
    tensor = from_array(np.arange(1200, dtype=np.float32).reshape(30, 40), dims=("lat", "lon"))
    with served(tensor) as server:
        pixels = image(server.get(f"/{tensor.tensor_id}/0/0/0.png").content)
        assert len(np.unique(pixels[:30, :40], axis=0)) > 1
        assert server.get(f"/{tensor.tensor_id}/-1/0/0.png").status_code == 404


def test_map_tiles_from_afar_are_computed_of_what_is_stored_without_an_f(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "w.zarr", tile_size=SIDE) as store:
        halves = made(store, lambda _: (torch.arange(SIDE)[:, None] + torch.arange(SIDE)) % 2 * 8.0)
        halves[-512:512, -512:512]
    with open_store(tmp_path / "w.zarr", mode="r") as reader, served(reader) as server:
        found = server.get("/world/-1/0/0.png")
        assert found.headers["cache-control"] == "no-cache"
        near = image(server.get("/world/0/0/0.png").content).reshape(-1, 4)
        # A mean of both.
        assert len({tuple(pixel) for pixel in [*near[:2], image(found.content)[0, 0]]}) == 3
        assert server.get("/world/-1/1/1.png").headers["cache-control"] == "no-store"


def exits(_ctx: object) -> torch.Tensor:
    raise SystemExit("secret")


def doubles(ctx: tuple[int, ...]) -> torch.Tensor:
    return ramp(ctx).double()


def test_a_map_tile_costs_its_own_windows_not_those_of_a_whole_tile_of_the_store(tmp_path: Path) -> None:
    f = Counted(lambda ctx: torch.full((64, 64), float(ctx[0] + ctx[1])))
    with ZarrTileStore(tmp_path / "w.zarr", tile_size=1024) as store:
        base = InfiniteTensor((None, None), f, TensorWindow((64, 64)), tile_store=store, tensor_id="base")
        world = base.map(torch.neg, window=(64, 64), store=store, tensor_id="world")
        with served(world, settings=Settings(low=-8, high=8, max_windows=32)) as server:
            answer = server.get("/world/0/0/0.png")
        assert (image(answer.content)[..., 3] == 255).all()
        assert "no-store" not in answer.headers["cache-control"]
        assert len(f.calls) == 16


def test_what_is_stored_of_tiles_that_are_not_whole_is_shown(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "w.zarr", tile_size=512) as store:
        world = InfiniteTensor(
            (None, None), lapped, TensorWindow((48, 48), (32, 32)), tile_store=store, tensor_id="world"
        )
        world[-40:100, 10:60]
    with ZarrTileStore(tmp_path / "w.zarr", mode="r") as store:
        stored = store.open("world")
        values, missing = stored_as_numpy(stored, sl[-100:200, -100:200])
        there = np.s_[60:200, 110:160]
        assert not missing[there].any()
        assert np.array_equal(values[there], stored[-40:100, 10:60])
        # Nowhere else but in the windows of these pixels.
        assert missing.sum() > 300 * 300 - 176 * 96
        thin, lacks = stored_as_numpy(stored, sl[-100:200:3, -100:200:3])
        assert np.array_equal(lacks, missing[::3, ::3])
        assert np.array_equal(stored_as_numpy(stored, sl[0, -100:200])[1], missing[100])
        assert np.array_equal(thin[~lacks], values[::3, ::3][~lacks])
        with served(store, settings=Settings(low=0, high=5)) as server:
            opaque = image(server.get("/world/0/0/0.png").content)[..., 3] == 255
            assert opaque[1:100, 10:60].all()
            assert opaque.sum() < 136 * 96


def lapped(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((48, 48), float(ctx[0] + 2 * ctx[1]))


def test_a_budget_holds_for_colours_too_and_far_out_nobody_plans() -> None:
    called: list[tuple[int, ...]] = []

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        called.append(tuple(ctx))
        return torch.full((8, 8), 7.0)

    tensor = InfiniteTensor((None, None), f, TensorWindow((8, 8)), tensor_id="world")
    with served(tensor, settings=Settings(max_windows=4)) as server:
        assert server.get("/world/0/0/0.png").headers["cache-control"] == "no-store"
        assert 0 < len(called) <= 4
        # Of 67 million windows.
        far = server.get("/world/-8/0/0.png")
        assert far.headers["cache-control"] == "no-store"
        assert far.elapsed.total_seconds() < 3


@pytest.mark.parametrize("f", [exits, doubles])
def test_an_f_that_fails_leaves_the_server_alone(f: Callable[..., torch.Tensor]) -> None:
    with served(made(f=f), settings=Settings(sl[0:64, 0:64])) as server:
        for path in ("s0/world/c/0/0", "s0/world/c/0/0", "0/0/0.png"):
            failed = server.get(f"/world/{path}")
            assert failed.status_code == 500
            assert "secret" not in failed.text
        assert server.get("/world/zarr.json").status_code == 200


class Slow:
    """An f that waits until it may go on, and tells what it is called for."""

    def __init__(self) -> None:
        self.called: list[int] = []
        self.has_begun = threading.Semaphore(0)
        self.may_end = threading.Semaphore(0)

    def __call__(self, ctx: tuple[int, ...]) -> torch.Tensor:
        self.called.append(ctx[1])
        self.has_begun.release()
        assert self.may_end.acquire(timeout=PATIENCE)
        return ramp(ctx)


def slow(tmp_path: Path) -> tuple[Slow, InfiniteTensor]:
    f = Slow()
    return f, made(ZarrTileStore(tmp_path / "w.zarr", tile_size=SIDE), f, version=1)


def chunk(i: int) -> str:
    return f"/world/s0/world/c/0/{i}"


@pytest.fixture
def queued(monkeypatch: pytest.MonkeyPatch) -> Callable[[int], None]:
    """Waits until so many more answers that are to be computed have been queued."""
    keys, result = queue.SimpleQueue[object](), Work.result

    async def told(work: Work, client: Hashable, key: Hashable, do: Any, until: ExitStack) -> Any:
        if do.keywords["compute"]:
            # The event loop does nothing else before it is queued.
            keys.put(key)
        return await result(work, client, key, do, until)

    monkeypatch.setattr(Work, "result", told)
    return lambda count: [keys.get(timeout=PATIENCE) for _ in range(count)].clear()


def test_who_goes_away_is_not_computed_for(tmp_path: Path, queued: Callable[[int], None]) -> None:
    f, tensor = slow(tmp_path)
    with served(tensor, settings=Settings(sl[0:64, 0:640]), workers=1) as server:
        server.get("/world/zarr.json")
        server.ended.get(timeout=PATIENCE)
        running = server.send(chunk(0))
        assert f.has_begun.acquire(timeout=PATIENCE)
        # One in the queue, one in the queue that another client wants as well, and the one that is running.
        left = [server.send(chunk(1)), server.send(chunk(2)), running]
        with server.send(chunk(2)) as stays:
            queued(4)
            for client in left:
                client.close()
            assert sorted(server.ended.get(timeout=PATIENCE) for _ in left) == [chunk(0), chunk(1), chunk(2)]
            f.may_end.release(3)
            assert stays.recv(1000).startswith(b"HTTP/1.1 200")
        assert server.get(chunk(0)).status_code == 200
    assert f.called == [0, 2]


def test_who_goes_away_is_computed_for_no_longer_than_one_call(tmp_path: Path) -> None:
    f, tensor = slow(tmp_path)
    with served(tensor, settings=Settings(sl[0:64, 0:640]), workers=1) as server:
        with server.send("/world/0/0/0.png"):
            assert f.has_begun.acquire(timeout=PATIENCE)
        assert server.ended.get(timeout=PATIENCE) == "/world/0/0/0.png"
        f.may_end.release(16)
        # By the one thread, after that.
        assert server.get(chunk(9)).status_code == 200
    assert len(f.called) == 2


def test_a_call_of_f_that_has_begun_is_finished_with_all_that_it_reads() -> None:
    called: list[tuple[int, ...]] = []

    def f(ctx: tuple[int, ...]) -> torch.Tensor:
        called.append(tuple(ctx))
        return ramp(ctx)

    inner = made(f=f, tensor_id="inner")
    outer = made(f=lambda ctx: inner[0:64, 128 * ctx[1] : 128 * ctx[1] + 128][:, ::2].contiguous())
    with stopping(lambda: bool(called)), pytest.raises(Stopped):
        outer[0:64, 0:192]
    assert called == [(0, 0), (0, 1)]
    assert outer[0:64, 0:64].shape == (64, 64)
    assert len(called) == 2


def test_two_first_map_tiles_choose_their_colours_once(
    monkeypatch: pytest.MonkeyPatch, queued: Callable[[int], None]
) -> None:
    chosen, choose, may_end = list[object](), Colours.of, threading.Event()

    def f(pixels: torch.Tensor) -> torch.Tensor:
        assert may_end.wait(PATIENCE)
        return pixels * 2

    def told(*given: Any, **options: Any) -> Colours:
        chosen.append(given)
        return choose(*given, **options)

    monkeypatch.setattr(Colours, "of", told)
    tensor = from_array(np.ones((512, 512), np.float32), dims=("y", "x")).map(f)
    with served(tensor, workers=2) as server:
        name = server.get("/").text.split('href="/')[1].partition("/")[0]
        clients = [server.send(f"/{name}/0/{x}/0.png") for x in range(2)]
        queued(2)
        may_end.set()
        for client in clients:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            client.close()
    assert len(chosen) == 1


def test_clients_take_turns(tmp_path: Path, queued: Callable[[int], None]) -> None:
    f, tensor = slow(tmp_path)
    with served(tensor, settings=Settings(sl[0:64, 0:640]), workers=1) as server:
        server.get("/world/zarr.json")
        clients = [server.send(chunk(0))]
        assert f.has_begun.acquire(timeout=PATIENCE)
        clients += [server.send(chunk(i)) for i in (1, 2, 3)]
        queued(4)
        clients.append(server.send(chunk(4), "127.0.0.2"))
        queued(1)
        f.may_end.release(5)
        for client in clients:
            assert client.recv(1000).startswith(b"HTTP/1.1 200")
            client.close()
    assert f.called.index(4) <= 2


def test_stored_pixels_do_not_wait_for_an_f(tmp_path: Path) -> None:
    f, tensor = slow(tmp_path)
    f.may_end.release()
    tensor[0:64, 0:64]
    assert f.has_begun.acquire(timeout=PATIENCE)
    with served(tensor, settings=Settings(sl[0:64, 0:640]), workers=1) as server, server.send(chunk(1)) as waits:
        assert f.has_begun.acquire(timeout=PATIENCE)
        assert server.get(chunk(0)).status_code == 200
        f.may_end.release()
        assert waits.recv(1000).startswith(b"HTTP/1.1 200")


def test_a_client_that_does_not_read_holds_up_the_others_only_for_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(app, "_UNREAD_SECONDS", 0.2)
    monkeypatch.setattr(work, "_MOST_UNSENT_BYTES", 1)
    window = TensorWindow((2048, 2048))
    large = InfiniteTensor((2048, 4096), lambda ctx: torch.full(window.size, float(ctx[1])), window, tensor_id="world")
    with served(large) as server, server.send(chunk(0)) as first:
        assert first.recv(1) == b"H"
        assert len(server.get(chunk(1)).content) == 2**24
        assert server.ended.get(timeout=PATIENCE) == chunk(0)


@pytest.mark.parametrize("suffix", ["zarr", "h5"])
def test_a_store_is_not_changed_by_default(tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"w.{suffix}"
    with open_store(path, tile_size=SIDE) as store:
        made(store)[-64:64, -64:64]
    before = files(tmp_path)
    with open_store(path, mode="r") as store, served(made(store)) as server:
        browse(server)
    assert files(tmp_path) == before


def test_results_are_stored_where_that_is_wanted(tmp_path: Path) -> None:
    path = tmp_path / "w.zarr"
    with ZarrTileStore(path, tile_size=SIDE) as store:
        made(store)[-512:512, -512:512]
        made(store).pyramid(1)
    before = files(tmp_path)
    with served(made(path)) as server:
        browse(server)
    with ZarrTileStore(path) as store, served(store) as server:
        assert server.get("/world/s1/world/c/0/0").status_code == 200
    assert files(tmp_path) == before
    with served(made(path), store_results=True) as server:
        browse(server)
    assert bool(made(path).is_filled(sl[256:512, 512:768]))


def test_an_hdf5_file_that_this_process_writes_is_served_and_nothing_is_stored(tmp_path: Path) -> None:
    with HDF5TileStore(tmp_path / "w.data", tile_size=SIDE) as store:
        tensor = made(store)
        tensor[-64:64, -64:64]
        with served(tensor) as server:
            browse(server)
        assert tensor.coverage(sl[-128:128, -128:128], "stored").sum() == 4


def test_a_store_that_cannot_be_opened_for_reading_is_refused() -> None:
    tensor = made(DictTileStore({}))
    with pytest.raises(ValidationError, match="open it read-only yourself"), served(tensor):
        pass
    with served(tensor, settings=Settings(sl[0:64, 0:64]), store_results=True) as server:
        assert server.get("/world/s0/world/c/0/0").status_code == 200


def browse(server: Served) -> None:
    for key in ("zarr.json", "s0/world/c/0/0", "0/0/0.png", "0/2/1.png", "-1/0/0.png"):
        assert server.get(f"/world/{key}").status_code == 200


def test_serve_warns_of_other_hosts_and_names_a_port_that_is_taken(world: InfiniteTensor) -> None:
    with served(world) as server:
        with pytest.raises(ValidationError, match="give another port, or 0 for a free one"):
            infinite_tensor.serve(world, port=server.port)
        with pytest.warns(UserWarning, match="the server has no authentication"), pytest.raises(ValidationError):
            infinite_tensor.serve(world, host="0.0.0.0", port=server.port)  # noqa: S104
    with pytest.raises(ValidationError, match="sources must be InfiniteTensors"):
        infinite_tensor.serve(3, port=0)  # type: ignore[arg-type]
    with pytest.raises(ValidationError, match="there is nothing to serve"):
        infinite_tensor.serve(port=0)


def test_serve_says_where_it_cannot_run() -> None:
    async def in_a_notebook() -> None:
        infinite_tensor.serve(from_array(np.zeros((4, 4))), port=0)

    with pytest.raises(RuntimeError, match="cannot run on a thread with a running event loop"):
        asyncio.run(in_a_notebook())


MODULE = """
import torch
from infinite_tensor import InfiniteTensor, TensorWindow

world = InfiniteTensor(
    (None, None), lambda ctx: torch.full((64, 64), float(ctx[0])), TensorWindow((64, 64)), tile_store="w.zarr",
    tensor_id="world", dims=("y", "x"),
)
"""


def test_the_command_serves_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / "world.py").write_text(MODULE)
    ZarrTileStore(tmp_path / "w.zarr", mode="w").close()
    command = [*COMMAND, "serve", "w.zarr", "--module", "world.py:world", "--region", "0:128,0:128", "--port", "0"]
    with subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        found = re.search(r"http://127\.0\.0\.1:\d+", process.stderr.readline())
        before = files(tmp_path / "w.zarr")
        assert found is not None
        array: Any = zarr.open_group(f"{found[0]}/world", mode="r")["s0/world"]
        assert array[:, 0].tolist() == [0] * 64 + [1] * 64
        assert httpx.get(f"{found[0]}/").status_code == 200
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 0
    assert files(tmp_path / "w.zarr") == before


ENDLESS = """
import time
import torch
from infinite_tensor import InfiniteTensor, TensorWindow

def f(ctx):
    print("called", flush=True)
    time.sleep(0.5)
    return torch.zeros(8, 8)

world = InfiniteTensor((256, 256), f, TensorWindow((8, 8)), tile_store="w.zarr", tensor_id="world")
"""


def reachable(host: str) -> bool:
    try:
        socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET).close()
    except OSError:
        return False
    return True


@pytest.mark.slow
@pytest.mark.parametrize(("number", "host"), [(signal.SIGINT, "127.0.0.1"), (signal.SIGTERM, "::1")])
def test_the_end_waits_for_one_call_of_f(tmp_path: Path, number: signal.Signals, host: str) -> None:
    if not reachable(host):
        pytest.skip("this machine has no IPv6")
    (tmp_path / "world.py").write_text(ENDLESS)
    ZarrTileStore(tmp_path / "w.zarr", mode="w").close()
    command = [*COMMAND, "serve", "w.zarr", "--module", "world.py:world", "--max-windows", "9999", "--port", "0"]
    command += ["--host", host]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        assert process.stdout is not None
        address = process.stderr.readline().split("/")[2]
        asked = socket.create_connection((host, int(address.rpartition(":")[2])), PATIENCE)
        asked.sendall(f"GET /world/s0/world/c/0/0 HTTP/1.1\r\nHost: {address}\r\n\r\n".encode())
        with asked:
            assert process.stdout.readline() == "called\n"
            process.send_signal(number)
            told, errors = process.communicate(timeout=PATIENCE)
            assert asked.recv(1000).startswith(b"HTTP/1.1 503")
    assert told.count("called") <= 1
    assert errors == ""


@contextmanager
def serving(folder: Path, module: str, *options: str) -> Iterator[tuple[subprocess.Popen[str], Callable[[str], Any]]]:
    """The command in a process of its own, and what asks it for a path."""
    (folder / "world.py").write_text(module)
    if not (folder / "w.zarr").exists():
        ZarrTileStore(folder / "w.zarr", mode="w").close()
    command = [*COMMAND, "serve", "w.zarr", "--module", "world.py:world", "--max-windows", "9999", "--port", "0"]
    with subprocess.Popen(
        [*command, *options], cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stderr is not None
        port = int(re.findall(r":(\d+)/", process.stderr.readline())[0])

        def asked(path: str) -> socket.socket:
            client = socket.create_connection(("127.0.0.1", port), PATIENCE)
            client.sendall(f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n".encode())
            return client

        try:
            yield process, asked
        finally:
            process.kill()


HANGS = """
import threading
import torch
from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from infinite_tensor.support.exit import flush_at_exit

class Hanging:
    def _flush_at_exit(self):
        print("flush", flush=True)
        threading.Event().wait()

def f(ctx):
    if ctx != (0, 0):
        print("called", flush=True)
        threading.Event().wait()
    return torch.ones(8, 8)

store = ZarrTileStore("w.zarr", tile_size=8)
world = InfiniteTensor((8, 16), f, TensorWindow((8, 8)), tile_store=store, tensor_id="world")
"""


@pytest.mark.slow
@pytest.mark.parametrize("flush", ["ends", "hangs"])
def test_a_second_ctrl_c_does_not_wait_for_f_and_a_third_waits_for_nothing(tmp_path: Path, flush: str) -> None:
    hanging = "" if flush == "ends" else "hanging = Hanging()\nflush_at_exit(hanging)\n"
    with serving(tmp_path, HANGS + hanging, "--store-results") as (process, asked):
        assert process.stdout is not None
        with asked(chunk(0)) as done, asked(chunk(1)) as waits:
            assert done.recv(1000).startswith(b"HTTP/1.1 200")
            assert process.stdout.readline() == "called\n"
            process.send_signal(signal.SIGINT)
            assert waits.recv(1000).startswith(b"HTTP/1.1 503")
        process.send_signal(signal.SIGINT)
        if flush == "hangs":
            assert process.stdout.readline() == "flush\n"
            process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE) == 130
    if flush == "ends":
        assert bool(ZarrTileStore(tmp_path / "w.zarr", mode="r").open("world").is_filled(sl[0:8, 0:8]))


LARGE = """
from infinite_tensor import ZarrTileStore

world = ZarrTileStore("w.zarr", mode="r", cache_size_bytes=2**20).open("world")
"""


@pytest.mark.slow
@pytest.mark.parametrize("asks", ["the same", "others"])
def test_memory_is_bounded_whatever_clients_do_not_read(tmp_path: Path, asks: str) -> None:
    with ZarrTileStore(tmp_path / "w.zarr", tile_size=2048) as store:
        f, window = lambda ctx: torch.full((2048, 2048), float(ctx[1])), TensorWindow((2048, 2048))
        # The chunks of the second row are no whole tiles, which the store would share.
        world = InfiniteTensor((2050, 60 * 2048), f, window, tile_store=store, tensor_id="world", edge="clip")
        world.fill(sl[2048:2050, :], progress=False)
    with serving(tmp_path, LARGE) as (process, asked), ExitStack() as clients:
        for i in range(4):
            read_all(asked(last_row(i)))
        before = peak_mib(process.pid)
        waits = set[socket.socket]()
        for i in range(60):
            waits.add(client := clients.enter_context(asked(last_row(i if asks == "others" else 0))))
            if asks == "the same":
                # So each is an answer of its own.
                client.recv(1, socket.MSG_PEEK)
        begun = set[socket.socket]()
        # Until all are sent, or nothing has come for a second.
        while ready := select.select(list(waits - begun), [], [], 1)[0]:
            begun.update(ready)
        while waits:
            for client in select.select(list(waits), [], [], PATIENCE)[0]:
                read_all(client)
                waits.remove(client)
        # Of 960: 128 of answers that wait, and what each thread works on.
        assert peak_mib(process.pid) - before < 350


def last_row(i: int) -> str:
    return f"/world/s0/world/c/1/{i}"


def read_all(client: socket.socket) -> None:
    """Read an answer of 16 MiB."""
    count = 0
    with client:
        while count < 2**24:
            part = client.recv(2**20)
            assert part
            count += len(part)


def peak_mib(process: int) -> int:
    return int(re.findall(r"VmHWM:\s+(\d+)", Path(f"/proc/{process}/status").read_text())[0]) // 1024


# Boxes.


def read(answer: httpx.Response) -> np.ndarray[Any, Any]:
    assert answer.status_code == 200, answer.text
    if answer.headers["content-type"].startswith("image"):
        return image(answer.content)
    if answer.content.startswith(b"\x93NUMPY"):
        found: np.ndarray[Any, Any] = np.load(io.BytesIO(answer.content))
        return found
    shape = [int(n) for n in answer.headers["x-shape"].split(",") if n]
    return np.frombuffer(answer.content, answer.headers["x-dtype"]).reshape(shape)


@pytest.mark.parametrize("form", ["npy", "raw"])
def test_a_box_anywhere_is_the_pixels_of_the_tensor(world: InfiniteTensor, form: str) -> None:
    far = 2**50
    with served(world) as server:
        for query, region in {
            f"y=-5:20&x={far}:{far + 7}": sl[-5:20, far : far + 7],
            f"x=-3&y={-far}:{-far + 9}": sl[-far : -far + 9, -3],
            "y=4&x=5": sl[4, 5],
            "y=4:4&x=0:9": sl[4:4, 0:9],
        }.items():
            found = read(server.get(f"/world/box?{query}&format={form}"))
            assert found.dtype == np.float32
            assert np.array_equal(found, world[region])
        answer = server.get("/world/box?y=0:9&x=0:9")
        assert server.get("/world/box?y=0:9&x=0:9", **{"If-None-Match": answer.headers["etag"]}).status_code == 304


def test_a_box_of_a_finite_tensor_may_leave_out_dimensions() -> None:
    volume = np.arange(5 * 30 * 40, dtype=np.uint16).reshape(5, 30, 40)
    with served({"volume": from_array(volume, dims=("z", "y", "x"))}) as server:
        assert np.array_equal(read(server.get("/volume/box")), volume)
        assert np.array_equal(read(server.get("/volume/box?z=-1&x=3:9&format=raw")), volume[-1, :, 3:9])


def test_a_box_as_png_has_the_colours_of_map_tiles() -> None:
    colours = np.random.default_rng(0).integers(0, 256, (3, 50, 60), np.uint8)
    photo, heights = from_array(colours, dims=("c", "y", "x")), made()
    with served({"photo": photo, "heights": heights}) as server:
        found = read(server.get("/photo/box?y=5:20&x=0:60&format=png"))
        assert np.array_equal(found[..., :3], colours[:, 5:20].transpose(1, 2, 0))
        assert np.array_equal(
            read(server.get("/heights/box?y=0:100&x=7:90&format=png")),
            read(server.get("/heights/0/0/0.png"))[:100, 7:90],
        )
        refused = server.get("/photo/box?y=5:20&x=3&format=png")
        assert refused.status_code == 422
        assert "['y', 'x', 'c']" in refused.text


def test_what_is_no_box_is_told(world: InfiniteTensor, capfd: pytest.CaptureFixture[str]) -> None:
    refusals = {
        "": "y must be a range",
        "y=0:9": "x must be a range",
        "y=0:9&x=a": "x=-128:128",
        "y=0:9&x=0:9&z=3": "['z']",
        "y=0:9&x=0:9&format=jpg": "npy, raw or png",
        f"y=0:9&x={2**62}": "2**51",
        f"y=0:{2**20}&x=0:{2**20}": "ask for less",
        f"y=0:99999&x={'9' * 30}": "x must be",
        "y=0:3000&x=0:3000": "this answer needs",
    }
    with served(world, settings=Settings(max_windows=15)) as server:
        for query, reason in refusals.items():
            for _ in range(2):
                answer = server.get(f"/world/box?{query}")
                assert answer.status_code == 422
                assert reason in answer.text
                assert reason in answer.headers["x-reason"]
    # Clients such as zarr show the status only, so that the server says each reason once.
    said = [line for line in capfd.readouterr().err.splitlines() if line.startswith("world: ")]
    assert len(said) == len({*said}) == len(refusals)


def test_no_name_is_a_random_id(tmp_path: Path) -> None:
    def heights(ctx: tuple[int, ...]) -> torch.Tensor:
        return ramp(ctx)

    unnamed = made(f=heights, tensor_id=None)
    other = made(f=heights, tensor_id=None)
    with served(unnamed, made(tmp_path / "w.zarr"), {"given": unnamed + 1, "höhe": unnamed}, other) as server:
        page = server.get("/").text
        names = re.findall('href="/(.*?)/zarr', page)
        assert names == ["heights", "world", "given", "h%3DC3%3DB6he", "heights-2"]
        assert np.array_equal(read(server.get("/given/box?y=0:9&x=0:9")), unnamed[0:9, 0:9] + 1)
        assert server.get(f"/{unnamed.tensor_id}/0/0/0.png").status_code == 200
    for wrong in ({"a": 3}, {3: unnamed}, 3):
        with pytest.raises(ValidationError, match="dicts of names"):
            app.app_of([wrong], Settings())  # type: ignore[list-item]


def test_by_default_many_small_windows_are_computed_and_few_large_ones_are_not() -> None:
    # As the default chunk of the terrain tutorial needs: 348 windows of 64 x 64 pixels.
    small = made().map(torch.neg, window=64)
    large = made().map(torch.neg, window=4096)
    with served({"small": small, "large": large}) as server:
        assert server.get("/small/box?y=0:1280&x=0:1280&format=raw").status_code == 200
        assert server.get("/large/box?y=4000:4200&x=4000:4200&format=raw").status_code == 422
