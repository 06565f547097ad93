"""Which tiles a tensor has: those it was created with, unless others are given."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import HDF5TileStore, InfiniteTensor, TensorWindow, ValidationError, ZarrTileStore
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.support.building import built
from tests.support.dict_store import DictTileStore
from tests.support.stores import sample

Make = Callable[..., PersistentTileStore]


@pytest.fixture(params=sample([ZarrTileStore, HDF5TileStore, DictTileStore], ZarrTileStore))
def kind(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def place(kind: Any, tmp_path: Path) -> Any:
    return {} if kind is DictTileStore else tmp_path / "store"


@pytest.fixture
def make(kind: Any, place: Any) -> Make:
    """Opens one store again and again, with no tile_size but a given one."""
    return lambda **options: kind(place, **options)


def f(ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.full((4, 4), 100.0 * ctx[0] + ctx[1])


def tensor(store: PersistentTileStore, shape: Sequence[int | None] = (None, None)) -> InfiniteTensor:
    return built(f, (4, 4), shape=shape, store=store, name="t")


def tile_of(store: PersistentTileStore) -> object:
    return store.tensor_definition("t")["tile_size"]


@pytest.mark.parametrize(
    ("shape", "window", "dtype", "tile"),
    [
        # Images, of which many channels make smaller tiles.
        ((None, None), (64, 64), "float32", (512, 512)),
        ((None, None), (48, 64), "float64", (256, 512)),
        ((None, None), (64, 64), "uint8", (1024, 1024)),
        ((3, None, None), (3, 64, 64), "float32", (3, 512, 512)),
        ((3, 2000, 3000), (3, 2000, 3000), "float32", (1, 512, 512)),
        ((3, 2000, 3000), (3, 256, 256), "uint8", (3, 1024, 1024)),
        ((None, None, 100), (64, 64, 100), "float32", (64, 64, 100)),
        ((3, 300, 400), (3, 64, 64), "uint8", (3, 300, 400)),
        ((300, None), (64, 64), "float32", (300, 1024)),
        # What windows take apart are tiles of their own.
        ((10_000, 4000, 4000), (1, 500, 500), "float32", (1, 512, 512)),
        ((None, None), (256, 1024), "float32", (256, 1024)),
        ((None, 20_000), (1, 20_000), "float32", (16, 20_000)),
        # Volumes, and signals.
        ((600, 600, 600), (60, 60, 60), "float32", (64, 64, 64)),
        ((None, None, None), (32, 32, 32), "uint8", (128, 128, 128)),
        ((None,) * 4, (4,) * 4, "float32", (32,) * 4),
        ((2, None), (2, 1000), "int16", (2, 2**18)),
        ((None,), (100,), "float32", (2**18,)),
        ((None, 3_000_000), (1, 3_000_000), "uint8", (1, 3_000_000)),
        ((None, 5_000_000), (1, 5_000_000), "uint8", (1, 2**22)),
    ],
)
def test_without_one_a_tile_takes_one_to_four_mebibytes_in_the_shape_of_windows(
    shape: tuple[int | None, ...], window: tuple[int, ...], dtype: str, tile: tuple[int, ...]
) -> None:
    with DictTileStore({}) as store:
        t = built(torch.zeros, window, shape=shape, store=store, name="t", dtype=dtype, edge="clip")
        assert tile_of(store) == [*tile]
        assert 2**20 <= math.prod(tile) * t.dtype.itemsize <= 2**22 or tile == shape


@pytest.mark.parametrize("tile_size", [8, (8, 6), 512])
def test_a_stored_tensor_is_rebuilt_without_its_tile_size(make: Make, tile_size: Any) -> None:
    with make(tile_size=tile_size) as store:
        expected = tensor(store)[-4:8, 0:20]
    with make() as store:
        t = tensor(store)
        assert torch.equal(t[-4:8, 0:20], expected)
        t[100:104, 0:4]
    with make(tile_size=tile_size) as store:
        assert tile_of(store) == list(torch.broadcast_to(torch.tensor(tile_size), (2,)))
        assert torch.equal(tensor(store)[-4:8, 0:20], expected)


def test_tiles_too_large_for_a_new_tensor_are_no_matter_for_a_stored_one(make: Make) -> None:
    """512 in each of four dimensions are 256 GiB."""

    def build(store: PersistentTileStore) -> InfiniteTensor:
        window = TensorWindow((4,) * 4)
        return built(lambda _ctx: torch.ones((4,) * 4), window, store=store, name="t")

    with make(tile_size=512) as store, pytest.raises(ValidationError, match="tile_size"):
        build(store)
    with make(tile_size=4) as store:
        build(store)
    with make() as store:
        assert build(store)[0:4, 0:4, 0:4, 0:4].sum() == 256


@pytest.mark.parametrize("tile_size", [16, 512, (8, 9), (512, 512)])
def test_one_that_is_given_and_differs_is_refused(make: Make, tile_size: Any) -> None:
    given = list(torch.broadcast_to(torch.tensor(tile_size), (2,)).tolist())
    with make(tile_size=8) as store:
        tensor(store)
    with make() as store, pytest.raises(ValidationError, match="shape: stored") as raised:
        tensor(store, shape=(8, None))
    assert "tile_size" not in str(raised.value)
    with make(tile_size=tile_size) as store:
        with pytest.raises(ValidationError) as raised:
            tensor(store)
        assert f"tile_size: stored [8, 8], given {given}\n" in str(raised.value)
        assert "To keep the stored tile_size, leave out tile_size." in str(raised.value)
        # Whether it has been opened before makes no difference.
        store.open("t")
        with pytest.raises(ValidationError, match="tile_size: stored"):
            tensor(store)


@pytest.mark.parametrize("tile_size", [0, -1, True, 2.5, (), (8,), "8", (8, 8, 8), (8, 0), (8, None)])
def test_one_that_is_none_is_refused_for_a_stored_tensor_too(make: Make, tile_size: Any) -> None:
    with make(tile_size=8) as store:
        tensor(store)
    with make(tile_size=tile_size) as store, pytest.raises(ValidationError, match="tile_size must"):
        tensor(store)


@pytest.mark.parametrize("kind", [ZarrTileStore, HDF5TileStore], ids=str)
def test_a_pickled_store_gives_what_it_was_given(kind: Any, tmp_path: Path) -> None:
    with kind(tmp_path / "8", tile_size=8) as store:
        tensor(store)
    with kind(tmp_path / "8") as store:
        one = pickle.dumps(tensor(store))
    with pickle.loads(one).tile_store as again:  # noqa: S301
        assert (again.tile_size, tile_of(again)) == (None, [8, 8])
    with kind(tmp_path / "8", tile_size=8) as store:
        other = pickle.dumps(store)
    with pickle.loads(other) as again:  # noqa: S301
        assert again.tile_size == 8


@pytest.fixture
def too_late(kind: Any, place: Any, make: Make) -> Make:
    """Opens a store that finds no tensor and goes to create it, when another one has just done so with tiles of 8."""

    def too_late(**options: Any) -> PersistentTileStore:
        store: PersistentTileStore = kind(place, **options)
        backend = store._contents.storage.backend
        create = backend.create

        def create_late(*given: Any) -> None:
            with make(tile_size=8) as winner:
                tensor(winner)[0:4, 0:4]
            create(*given)

        backend.create = create_late  # type: ignore[method-assign, assignment]
        return store

    return too_late


def test_of_two_creators_one_without_a_size_adopts_the_winners(make: Make, too_late: Make) -> None:
    with too_late() as store:
        t = tensor(store)
        assert tile_of(store) == [8, 8]
        assert t[0:8, 0].tolist() == [0.0] * 4 + [100.0] * 4
    with make() as store:
        assert store.tensor_info("t").tiles_complete + store.tensor_info("t").tiles_partial == 1


def test_a_subclass_that_passes_a_size_of_its_own_gives_it() -> None:
    class Small(DictTileStore):
        def __init__(self, storage: dict[Any, Any], tile_size: Any = 64, **options: Any) -> None:
            super().__init__(storage, tile_size=tile_size, **options)

    storage: dict[Any, Any] = {}
    with DictTileStore(storage, tile_size=8) as store:
        tensor(store)
    with Small(storage) as small, pytest.raises(ValidationError, match="stored"):
        tensor(small)
    with Small(storage, tile_size=None) as small:
        assert tensor(small)[0:4, 0:4].sum() == 0


# The spelling of version 0.2.
