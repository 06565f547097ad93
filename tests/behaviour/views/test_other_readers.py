"""What other programs than zarr-python make of the keys and bytes of a face."""

from __future__ import annotations

import asyncio
from pathlib import Path

import numpy as np
import tensorstore
import xarray
import zarr
from zarr.abc.store import Store
from zarr.buffer import default_buffer_prototype

from infinite_tensor import sl
from tests.behaviour.views.shown import member, names_of, tensor_of


async def contents(store: Store) -> dict[str, bytes]:
    """All keys of a store, and what they stand for."""
    found = {}
    async for key in store.list():
        buffer = await store.get(key, default_buffer_prototype())
        assert buffer is not None
        found[key] = buffer.to_bytes()
    return found


def test_tensorstore_reads_its_keys(tmp_path: Path) -> None:
    face = tensor_of().as_zarr(sl[-5:9, 2:10])
    for key, value in asyncio.run(contents(face.store)).items():
        (tmp_path / key).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / key).write_bytes(value)
    for name in ("height", "y", "x"):
        spec = {"driver": "zarr3", "kvstore": {"driver": "file", "path": str(tmp_path / name)}}
        array = tensorstore.open(spec, read=True).result()
        assert np.array_equal(array.read().result(), member(zarr.open_group(face.store, mode="r"), name)[...])
        assert array.domain.labels == (names_of(face) if name == "height" else (name,))


def test_xarray_takes_any_names_of_dimensions() -> None:
    face = tensor_of(dims=("rows/y", "zarr.json")).as_zarr(sl[-5:9, 2:10])
    assert xarray.open_zarr(face.store)["height"].dims == ("rows/y", "zarr.json")
