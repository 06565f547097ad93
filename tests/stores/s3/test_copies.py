"""Copies to, from and between places on S3."""

from __future__ import annotations

from pathlib import Path

import torch
from zarr.codecs import BloscCodec

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore
from tests.support.counting import Counted
from tests.support.reference import same_bits
from tests.support.s3_proxy import Proxy
from tests.support.s3_server import S3Server

WINDOW = TensorWindow((6, 6), stride=4)


def made(store: ZarrTileStore, f: Counted) -> InfiniteTensor:
    return InfiniteTensor((None, None), f, WINDOW, tile_store=store, tensor_id="t")


def pixels(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.rand(6, 6, generator=torch.Generator().manual_seed(100 * ctx[0] + ctx[1] + 5000))


def test_a_tensor_goes_to_s3_within_s3_and_back(server: S3Server, url: str, tmp_path: Path) -> None:
    f, options = Counted(pixels), server.options()
    local = ZarrTileStore(tmp_path / "a.zarr", tile_size=8)
    expected = made(local, f)[0:30, 0:30]
    calls = len(f.calls)
    first = ZarrTileStore(f"{url}/first", storage_options=options)
    second = ZarrTileStore(f"{url}/second", storage_options=options, compressors=BloscCodec(cname="lz4"))
    back = ZarrTileStore(tmp_path / "b.zarr")
    reports = [
        source.copy("t", target, progress=False) for source, target in ((local, first), (first, second), (second, back))
    ]
    assert len({report.tiles for report in reports}) == 1
    for store in (first, second, back):
        assert same_bits(made(store, f)[0:30, 0:30], expected)
        assert store.verify("t") == []
        store.close()
    assert len(f.calls) == calls


def test_a_copy_costs_a_put_a_tile_and_copying_again_a_list(
    proxy: Proxy, server: S3Server, url: str, tmp_path: Path
) -> None:
    # Complete tiles alone: 144 of them, in one batch.
    local = ZarrTileStore(tmp_path / "a.zarr", tile_size=6)
    whole = InfiniteTensor((None, None), pixels, TensorWindow((6, 6)), tile_store=local, tensor_id="t")
    whole[0:72, 0:72]
    target = ZarrTileStore(url, storage_options={**server.options(), "endpoint_url": proxy.url})
    with proxy.counting() as copied:
        assert local.copy("t", target, progress=False).tiles == 144
    with proxy.counting() as again:
        assert local.copy("t", target, progress=False).tiles == 0
    # The store, the tensor and its array.
    assert copied["PUT"] == 144 + 3
    assert copied["GET"] <= 10
    assert (again["PUT"], again["LIST"]) == (0, 2)
    # Nobody holds the copy: what it is has to be read again.
    assert again["GET"] <= 10
    assert proxy.most_at_a_time > 16
    target.close()
