"""Zarr Stores of other kinds than a folder or a URL: opened, or refused with what to do instead."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
import zarr
from zarr.storage import MemoryStore, WrapperStore, ZipStore

from infinite_tensor import InfiniteTensor, StoreError, TensorWindow, ValidationError, ZarrTileStore, sl
from tests.support.counting import Counted


def ramp(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.arange(6.0) + 4 * ctx[0]


def line(store: ZarrTileStore | None = None) -> InfiniteTensor:
    return InfiniteTensor((None,), Counted(ramp), TensorWindow((6,), (4,)), tile_store=store, tensor_id="line")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    """A store, packed, with complete tiles and parts of others."""
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=8) as store:
        line(store)[-20:21]
    return Path(shutil.make_archive(str(tmp_path / "s"), "zip", tmp_path / "s.zarr"))


def test_a_zip_file_that_nobody_has_opened_is_read(packed: Path) -> None:
    with ZarrTileStore(ZipStore(packed), mode="r") as store:
        assert store.tensor_ids() == ["line"]
        assert torch.equal(store.open("line")[-20:21], line()[-20:21])


def test_a_zip_file_that_is_not_there_is_no_store(tmp_path: Path) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        ZarrTileStore(ZipStore(tmp_path / "none.zip"), mode="r")


@pytest.mark.parametrize("mode", ["a", "r+", "w"])
def test_a_zip_file_is_not_written_to(packed: Path, mode: Any) -> None:
    before = packed.read_bytes()
    store = ZipStore(packed, mode="a")
    with pytest.raises(StoreError, match=r"ZipStore cannot delete, .* pack the content of the folder"):
        ZarrTileStore(store, mode=mode)
    store.close()
    assert packed.read_bytes() == before


def test_a_store_that_cannot_be_had_read_only_is_named(packed: Path) -> None:
    with pytest.raises(ValidationError, match=r"read-only ZipStore: give ZipStore\(..., mode='r'\)"):
        ZarrTileStore(ZipStore(packed, mode="a"), mode="r")


class OnlyArrays(WrapperStore[MemoryStore]):
    """Takes the keys of Zarr arrays alone, as icechunk does."""

    async def exists(self, key: str) -> bool:
        if not key.endswith("zarr.json") and "c" not in key.split("/"):
            raise ValueError(f"invalid zarr key format `{key}`")
        return await super().exists(key)


def test_a_store_of_arrays_alone_is_refused_and_takes_what_the_message_says() -> None:
    store, t = OnlyArrays(MemoryStore()), line()
    with pytest.raises(StoreError, match=r"OnlyArrays accepts only the keys .*zarr\.from_array") as caught:
        ZarrTileStore(store)
    (code,) = [part for part in str(caught.value).split(": ") if part.startswith("zarr.from_array")]
    written = eval(code, {"zarr": zarr, "store": store, "t": t, "region": sl[-8:8]})  # noqa: S307  (what the message shows)
    assert written[:].tolist() == t[-8:8].tolist()
