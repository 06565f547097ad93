"""Groups that read from a TensorDict, in each of its stored forms."""

from __future__ import annotations

import os
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import PersistentTensorDict, TensorDict

from infinite_tensor import (
    FunctionChangedWarning,
    InfiniteTensor,
    MemoryTileStore,
    TensorGroup,
    TensorWindow,
    ValidationError,
    ZarrTileStore,
    sl,
)
from tests.support.stored import DTYPES

ROWS = 700


def sample(*, with_bfloat16: bool = True) -> TensorDict:
    """700 rows, some tensors of which take several blocks."""
    generator = torch.Generator().manual_seed(0)
    weight = torch.rand(ROWS, 5, 7, generator=generator)
    return TensorDict(
        {
            "image": torch.randint(0, 255, (ROWS, 3, 40, 40), dtype=torch.uint8, generator=generator),
            "label": {
                "id": torch.arange(ROWS),
                "weight": weight.bfloat16() if with_bfloat16 else weight,
                "seen": weight[:, 0] > 0.5,
            },
        },
        batch_size=[ROWS],
    )


@pytest.fixture(params=["plain", "memmap", "h5", "zarr", "zarr in chunks"])
def form(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def stored(form: str, tmp_path: Path) -> Iterator[Any]:
    """A TensorDict in one of its forms, opened again."""
    td = sample(with_bfloat16=form in ("plain", "memmap"))
    if form == "plain":
        yield td
    elif form == "memmap":
        td.memmap(tmp_path / "td")
        yield TensorDict.load_memmap(tmp_path / "td")
    else:
        options: dict[str, Any] = {"chunks": 64} if form == "zarr in chunks" else {}
        backend = form.split(maxsplit=1)[0]
        PersistentTensorDict.from_dict(td, str(tmp_path / "td"), backend=backend, **options).close()
        place: Any = {"filename": str(tmp_path / "td"), "backend": backend}
        opened: Any = PersistentTensorDict(**place, batch_size=[ROWS], allow_pickle=False)
        yield opened
        opened.close()


def test_every_stored_form_reads_as_it_was_written(form: str, stored: Any) -> None:
    td = sample(with_bfloat16=form in ("plain", "memmap"))
    group: Any = TensorGroup.from_tensordict(stored)
    assert group.shape == (ROWS,)
    assert set(group.keys(True)) == {"image", ("label", "id"), ("label", "weight"), ("label", "seen"), "label"}
    part, row = group[[sl[123:456], -1]]
    assert (part.batch_size, row.batch_size) == (torch.Size([333]), torch.Size([]))
    for key in td.keys(True, True):
        assert torch.equal(part[key], td[key][123:456])
        assert torch.equal(row[key], td[key][-1])
        assert group[key].dtype == td[key].dtype


def test_a_part_is_read_without_the_rest(stored: Any) -> None:
    store = MemoryTileStore()
    group = TensorGroup.from_tensordict(stored, store=store, tensor_id="td")
    assert [store.tensor_info(name).bytes_stored for name in store.tensor_ids()] == [0, 0, 0, 0]
    group["image"][300:302]
    held = [store.tensor_info(name).bytes_stored for name in store.tensor_ids()]
    assert 0 < held[0] < 1.1 * 2**20 < ROWS * 3 * 40 * 40 / 2
    assert held[1:] == [0, 0, 0]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_every_dtype_keeps_its_bits(dtype: torch.dtype, tmp_path: Path) -> None:
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, (50, 9, dtype.itemsize), dtype=torch.uint8)
    pixels = raw.view(dtype).squeeze(-1)
    group = TensorGroup.from_tensordict(TensorDict({"x": pixels}, batch_size=[50]).memmap(tmp_path))
    assert torch.equal(group[7:33]["x"].contiguous().view(torch.uint8), pixels[7:33].view(torch.uint8))


@pytest.mark.parametrize("shape", [(1_000_003,), (1021, 1031), (2, 3, 999_983), (65537, 7)])
def test_blocks_cover_every_pixel_of_awkward_extents(shape: tuple[int, ...]) -> None:
    count = torch.arange(torch.Size(shape).numel()).reshape(shape)
    group: Any = TensorGroup.from_tensordict(TensorDict({"x": count}, batch_size=shape[:1]))
    assert torch.equal(group[...]["x"], count)
    window = group["x"].output_window
    assert window.stride == window.size
    assert torch.Size(window.size).numel() * 8 <= 2**20


def test_all_batch_dimensions_are_shared_and_none_where_there_are_none() -> None:
    tensors = {"a": torch.rand(6, 8, 2), "b": torch.rand(6, 8)}
    group = TensorGroup.from_tensordict(TensorDict(tensors, batch_size=[6, 8]))
    assert group[1:3, -2:].batch_size == torch.Size([2, 2])
    loose = TensorGroup.from_tensordict(TensorDict({"a": torch.rand(3), "b": torch.rand(4, 2)}))
    assert loose.shape == ()
    assert loose[...]["b"].shape == (4, 2)


def test_a_change_in_place_is_seen_after_invalidate() -> None:
    td = TensorDict({"x": torch.zeros(10)}, batch_size=[10])
    group = TensorGroup.from_tensordict(td)
    assert not group[...]["x"].any()
    td["x"].fill_(1)
    assert not group[...]["x"].any()
    group["x"].invalidate()
    assert group[...]["x"].all()


def test_a_memory_mapped_source_is_pickled_by_its_files(tmp_path: Path) -> None:
    sample().memmap(tmp_path)
    group = TensorGroup.from_tensordict(TensorDict.load_memmap(tmp_path))
    data = pickle.dumps(group)
    assert len(data) < 50_000
    assert torch.equal(pickle.loads(data)[5:8]["image"], sample()["image"][5:8])  # noqa: S301


def computed_from(source: InfiniteTensor, size: tuple[int, ...], store: ZarrTileStore) -> InfiniteTensor:
    window = TensorWindow(size)
    options: Any = {"dtype": source.dtype, "tile_store": store, "tensor_id": "copy"}
    return InfiniteTensor(source.shape, _same, window, [source], [window], **options)


def weights_from(group: Any, store: ZarrTileStore) -> InfiniteTensor:
    return computed_from(group["label", "weight"], (70, 5, 7), store)


def _same(_ctx: object, region: torch.Tensor) -> torch.Tensor:
    return region


def test_what_was_computed_from_it_reopens_from_any_form_and_not_from_other_content(tmp_path: Path) -> None:
    sample().memmap(tmp_path / "td")
    file = tmp_path / "td" / "label" / "weight.memmap"
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        weights_from(TensorGroup.from_tensordict(TensorDict.load_memmap(tmp_path / "td")), store)
    os.utime(file, ns=(1, 1))
    for same in (TensorDict.load_memmap(tmp_path / "td"), sample()):
        with ZarrTileStore(tmp_path / "store.zarr") as store:
            weights_from(TensorGroup.from_tensordict(same), store)
    changed = sample()
    changed["label", "weight"][650, 2, 3] += 1
    with (
        ZarrTileStore(tmp_path / "store.zarr") as store,
        pytest.raises(ValidationError, match=r"tensor is stale: .* has changed"),
    ):
        weights_from(TensorGroup.from_tensordict(changed), store)
    with ZarrTileStore(tmp_path / "versions.zarr") as store:
        weights_from(TensorGroup.from_tensordict(sample(), version=1), store)
        weights_from(TensorGroup.from_tensordict(changed, version=1), store)
        with pytest.raises(ValidationError, match="stale"):
            weights_from(TensorGroup.from_tensordict(sample(), version=2), store)


def test_a_file_too_large_to_be_read_whole_is_known_by_its_stamp(tmp_path: Path) -> None:
    large = TensorDict({"x": torch.zeros(9, 2**23, dtype=torch.uint8)}, batch_size=[9]).memmap(tmp_path / "td")

    def rows(store: ZarrTileStore) -> Any:
        opened: Any = TensorGroup.from_tensordict(TensorDict.load_memmap(tmp_path / "td"))["x"]
        return computed_from(opened, (1, 1024), store)[0, :1024]

    with ZarrTileStore(tmp_path / "store.zarr") as store:
        assert not rows(store).any()
    large["x"][0, 9_000] = 1
    os.utime(tmp_path / "td" / "x.memmap", ns=(1, 1))
    changed = pytest.warns(FunctionChangedWarning, match=r"x\.memmap' has changed")
    with ZarrTileStore(tmp_path / "store.zarr") as store, changed:
        rows(store)


def test_blocks_may_be_kept_in_a_store_that_is_read_without_the_source(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "store.zarr") as store:
        faces = TensorGroup.from_tensordict(sample(), store=store, tensor_id="faces")
        faces["label", "id"].fill(..., progress=False)
    with ZarrTileStore(tmp_path / "store.zarr", mode="r") as store:
        assert store.tensor_ids() == ["faces/image", "faces/label/id", "faces/label/seen", "faces/label/weight"]
        assert torch.equal(store.open("faces/label/id")[...], torch.arange(ROWS))


@pytest.mark.parametrize(
    ("td", "message"),
    [
        (TensorDict({"name": "x", "a": torch.zeros(2)}), r"exclude\('name'\)"),
        (TensorDict({"a": {"b": torch.zeros(())}}), r"\('a', 'b'\)"),
        (TensorDict({"a": torch.zeros(0, 3)}), "'a'"),
        (TensorDict({"a": torch.zeros(3, dtype=torch.float8_e4m3fn)}), "dtype"),
        (TensorDict({}), "at least one"),
        ({"a": torch.zeros(3)}, "dict"),
    ],
)
def test_what_cannot_be_read_is_an_error_that_names_it(td: Any, message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        TensorGroup.from_tensordict(td)
