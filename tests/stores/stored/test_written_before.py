"""Stores written by an earlier version open without a warning, and give the pixels that they gave.

Beside this file lie a Zarr folder and an HDF5 file that hold the tensors of `READS`, of which these regions were read
one after the other, with a flush behind each, and two blobs of `ROWS`: one as it lies in memory, one compressed by
Zstandard. They were written when a chunk of Zstandard carried a stamp that bound it to its place, and when definitions
were restored from copies.

Of a later version are a second folder and a second file, ``later``, of the tensors of `LATER`; what the then newest
version wrote is still read.

Each of the tensors has tiles that are complete, and tiles of which some windows are there:

- ``noise`` has windows that overlap, and a version; in Zarr, ``bare`` and ``blosc`` are the same with other codecs
  (``gzip`` and ``bz2`` too, which are not read any more);
- ``top`` is computed from ``noise``, is of bfloat16, and blended by name from a `blend_init`;
- ``strip`` has a finite dimension;
- ``both/height`` and ``both/sea`` are outputs of one f;
- ``hann`` and ``given`` are weighted means, whose partial tiles hold sums that are not divided;
- ``image`` is clipped at its ends, and ``padded`` reads beyond them, is clipped as well, and has names of dimensions.

``noise`` and ``top`` are saved as the group ``world``. A fingerprint of each f is stored, so to edit one of these here,
its docstring included, is a `FunctionChangedWarning`.
"""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, TypeAlias

import pytest
import torch

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    Output,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    WeightedMean,
    ZarrTileStore,
)
from infinite_tensor.tilestore.persistent import PersistentTileStore
from tests.support.reference import Box, Index, Reference, Stage, region

HERE = Path(__file__).parent

CALLS: Counter[tuple[str, Index]] = Counter()
"""Which windows of which tensors were computed."""


def noise(name: str, ctx: Index) -> torch.Tensor:
    CALLS[name, ctx] += 1
    return (torch.arange(36.0).reshape(6, 6) * 5 % 11 + 3 * ctx[0] - 2 * ctx[1]) / 7


def top(ctx: Index, below: torch.Tensor) -> torch.Tensor:
    CALLS["top", ctx] += 1
    return (below[1:5, 1:5] - below[2:, 2:] + ctx[0]).to(torch.bfloat16)


def strip(ctx: Index) -> torch.Tensor:
    CALLS["strip", ctx] += 1
    return torch.arange(10, dtype=torch.int16).reshape(2, 5) * ctx[1] - ctx[0]


def both(ctx: Index) -> dict[str, torch.Tensor]:
    CALLS["both/height", ctx] += 1
    height = (torch.arange(5.0) - ctx[0]) / 3
    return {"height": height, "sea": height < 0}


def hann(ctx: Index) -> torch.Tensor:
    CALLS["hann", ctx] += 1
    return (torch.arange(36.0).reshape(6, 6) * 7 % 13 - 3 * ctx[0] + ctx[1]).to(torch.bfloat16)


def given(ctx: Index) -> torch.Tensor:
    CALLS["given", ctx] += 1
    return torch.complex(torch.arange(5.0) / 7 + ctx[0], torch.arange(5.0) * ctx[0] / 3)


def image(ctx: Index) -> torch.Tensor:
    CALLS["image", ctx] += 1
    return torch.arange(16.0).reshape(4, 4) / 3 + 5 * ctx[0] - ctx[1]


def padded(ctx: Index, below: torch.Tensor) -> torch.Tensor:
    CALLS["padded", ctx] += 1
    return below[1:5, 1:5] - below[2:, 2:] / 3 + ctx[1]


SQUARE = TensorWindow((6, 6), stride=4)
AROUND = TensorWindow((6, 6), stride=3, offset=-1)
SMALL = TensorWindow((4, 4), stride=3)
ROWED = TensorWindow((2, 5), stride=(1, 4))
LINE = TensorWindow((5,), stride=4)
WEIGHTS = WeightedMean([1, 2, 3.5, 2, 0.3])

PLANE, ROW = (None, None), (None,)

STAGES: dict[str, Stage] = {
    "noise": Stage(PLANE, torch.float32, SQUARE, partial(noise, "noise")),
    "top": Stage(PLANE, torch.bfloat16, SMALL, top, ((0, AROUND),), torch.minimum, 2.5),
    "strip": Stage((3, None), torch.int16, ROWED, strip),
    "both/height": Stage(ROW, torch.float32, LINE, lambda ctx: both(ctx)["height"], beside=3),
    "both/sea": Stage(ROW, torch.bool, LINE, lambda ctx: both(ctx)["sea"], beside=3),
    "bare": Stage(PLANE, torch.float32, SQUARE, partial(noise, "bare")),
    "blosc": Stage(PLANE, torch.float32, SQUARE, partial(noise, "blosc")),
    "hann": Stage(PLANE, torch.bfloat16, SQUARE, hann, blend=WeightedMean("hann")),
    "given": Stage(ROW, torch.complex64, LINE, given, blend=WEIGHTS),
    "image": Stage((7, 14), torch.float32, SMALL, image, edge=("clip", "clip")),
    "padded": Stage(
        (7, 14),
        torch.float32,
        SMALL,
        padded,
        ((9, AROUND),),
        WeightedMean("linear"),
        edge=("clip", "clip"),
        paddings=(("reflect", ("constant", 2.5)),),
    ),
}

CODECS = ("bare", "blosc")
LATER = ("hann", "given", "image", "padded")

ASKED: dict[str, dict[str, Any]] = {"given": {"blend": WEIGHTS}}
"""What must be given to open a tensor, besides its id."""

READS: dict[str, tuple[Box, ...]] = {
    **dict.fromkeys(("noise", *CODECS), (((0, -8), (11, 1)), ((3, 20), (4, 21)))),
    "top": (((0, -8), (8, 1)), ((7, 1), (11, 5))),
    "strip": (((0, 0), (3, 17)), ((0, 17), (3, 18))),
    "both/height": (((-8,), (2,)),),
    "both/sea": (((2,), (9,)),),
    "hann": (((0, -8), (11, 1)), ((3, 20), (4, 21))),
    "given": (((-8,), (2,)), ((9,), (10,))),
    "image": (((0, 0), (7, 3)),),
    "padded": (((0, 0), (7, 8)),),
}
"""What was read of each tensor, and so stored."""

MORE: dict[str, Box] = {
    **dict.fromkeys(("noise", "top", "hann", *CODECS), ((-9, -20), (18, 28))),
    "strip": ((0, -11), (3, 30)),
    "both/height": ((-30,), (30,)),
    "both/sea": ((-30,), (30,)),
    "given": ((-30,), (30,)),
    **dict.fromkeys(("image", "padded"), ((0, 0), (7, 14))),
}
"""What is filled now."""

ROWS = (torch.arange(60.0) / 7).reshape(10, 2, 3)

Build: TypeAlias = Callable[[PersistentTileStore], Mapping[str, InfiniteTensor]]


def build(store: PersistentTileStore) -> dict[str, InfiniteTensor]:
    """All tensors but those of `CODECS`, and the group."""
    place: dict[str, Any] = {"tile_store": store}
    base = InfiniteTensor(PLANE, partial(noise, "noise"), SQUARE, tensor_id="noise", version=3, **place)
    options: dict[str, Any] = {"dtype": torch.bfloat16, "blend": torch.minimum, "blend_init": 2.5, "tensor_id": "top"}
    above = InfiniteTensor(PLANE, top, SMALL, [base], [AROUND], **options, **place)
    rows = InfiniteTensor((3, None), strip, ROWED, dtype=torch.int16, tensor_id="strip", **place)
    outputs = {"height": Output(ROW, torch.float32, LINE), "sea": Output(ROW, torch.bool, LINE)}
    lines = InfiniteTensor.from_multi(both, outputs, tensor_id="both", **place)
    TensorGroup({"noise": base, "top": above}).save(store, "world")
    return {
        "noise": base,
        "top": above,
        "strip": rows,
        "both/height": lines["height"],
        "both/sea": lines["sea"],
    }


def build_with(name: str, store: PersistentTileStore) -> dict[str, InfiniteTensor]:
    """A tensor of `CODECS`."""
    f = partial(noise, name)
    return {name: InfiniteTensor(PLANE, f, SQUARE, tile_store=store, tensor_id=name, version=3)}


def build_later(store: PersistentTileStore) -> dict[str, InfiniteTensor]:
    """The tensors of `LATER`."""
    place: dict[str, Any] = {"tile_store": store}
    base = InfiniteTensor((7, 14), image, SMALL, edge="clip", tensor_id="image", **place)
    options: dict[str, Any] = {"blend": "linear", "edge": "clip", "args_padding": [("reflect", ("constant", 2.5))]}
    return {
        "hann": InfiniteTensor(PLANE, hann, SQUARE, dtype=torch.bfloat16, blend="hann", tensor_id="hann", **place),
        "given": InfiniteTensor(ROW, given, LINE, dtype=torch.complex64, blend=WEIGHTS, tensor_id="given", **place),
        "image": base,
        "padded": InfiniteTensor(
            (7, 14), padded, SMALL, [base], [AROUND], dims=("y", "x"), tensor_id="padded", **options, **place
        ),
    }


def reopened(store: PersistentTileStore) -> dict[str, InfiniteTensor]:
    """All tensors that may be opened by their ids alone, to compute what is missing; outputs are made again."""
    base = store.open("noise", partial(noise, "noise"))
    lines = {name: tensor for name, tensor in build(store).items() if name.startswith("both/")}
    return {"noise": base, "top": store.open("top", top, [base]), "strip": store.open("strip", strip), **lines}


def reopened_with(name: str, store: PersistentTileStore) -> dict[str, InfiniteTensor]:
    return {name: store.open(name, partial(noise, name))}


def reopened_later(store: PersistentTileStore) -> dict[str, InfiniteTensor]:
    weighed, base = store.open("given", given, **ASKED["given"]), store.open("image", image)
    above = store.open("padded", padded, [base])
    return {"hann": store.open("hann", hann), "given": weighed, "image": base, "padded": above}


REFERENCE = Reference(list(STAGES.values()))


def value(name: str, box: Box) -> torch.Tensor:
    return REFERENCE.region(list(STAGES).index(name), box)[0]


def windows_stored(names: Sequence[str]) -> set[tuple[str, Index]]:
    """The windows that were computed when the store was written, by the names under which they are counted."""
    order = list(STAGES)
    reads = {order.index(name): READS[name] for name in names}
    found = REFERENCE.missing(reads, [set() for _ in order])
    return {(name, index) for name, indices in zip(order, found, strict=True) for index in indices}


def zarr_at(path: Path, **options: Any) -> ZarrTileStore:
    return ZarrTileStore(path / "store.zarr", tile_size=8, **options)


def hdf5_at(path: Path, **options: Any) -> HDF5TileStore:
    return HDF5TileStore(path / "store.h5", tile_size=8, **options)


def later_zarr_at(path: Path, **options: Any) -> ZarrTileStore:
    return ZarrTileStore(path / "later.zarr", tile_size=8, **options)


def later_hdf5_at(path: Path, **options: Any) -> HDF5TileStore:
    return HDF5TileStore(path / "later.h5", tile_size=8, **options)


UNNAMED = [name for name in STAGES if name not in (*CODECS, *LATER)]
KINDS = [
    pytest.param(hdf5_at, UNNAMED, build, reopened, id="hdf5"),
    pytest.param(zarr_at, UNNAMED, build, reopened, id="zarr"),
    pytest.param(later_hdf5_at, LATER, build_later, reopened_later, id="later hdf5"),
    pytest.param(later_zarr_at, LATER, build_later, reopened_later, id="later zarr"),
    *(
        pytest.param(zarr_at, [name], partial(build_with, name), partial(reopened_with, name), id=name)
        for name in CODECS
    ),
]


@pytest.fixture
def copied(tmp_path: Path) -> Path:
    for path in (*HERE.glob("store.*"), *HERE.glob("later.*")):
        (shutil.copytree if path.is_dir() else shutil.copy)(path, tmp_path / path.name)
    for path in HERE.glob("*.blob"):
        shutil.copytree(path, tmp_path / path.name)
    CALLS.clear()
    return tmp_path


@pytest.mark.parametrize(("at", "names", "_built", "_opened"), KINDS)
def test_what_is_stored_is_read_without_f(
    copied: Path, at: Callable[..., PersistentTileStore], names: Sequence[str], _built: Build, _opened: Build
) -> None:
    with at(copied, mode="r") as store:
        assert set(names) <= set(store.tensor_ids())
        for name in names:
            assert store.verify(name) == []
            info = store.tensor_info(name)
            assert info.tiles_complete
            assert info.tiles_partial
            for box in READS[name]:
                assert torch.equal(store.open(name, **ASKED.get(name, {}))[region(box)], value(name, box))


@pytest.mark.parametrize(("at", "names", "built", "opened"), KINDS)
@pytest.mark.parametrize("again", ["reopened", "built"])
def test_the_rest_is_filled_and_no_stored_window_is_computed_again(
    copied: Path, at: Callable[..., PersistentTileStore], names: Sequence[str], built: Build, opened: Build, again: str
) -> None:
    with at(copied) as store:
        tensors = (opened if again == "reopened" else built)(store)
        assert list(tensors) == list(names)
        for name, tensor in tensors.items():
            for box in READS[name]:
                tensor[region(box)]
        assert not CALLS
        for name, tensor in tensors.items():
            tensor.fill(region(MORE[name]), progress=False)
        assert CALLS
        assert set(CALLS.values()) == {1}
        assert not CALLS.keys() & windows_stored(names)
    with at(copied, mode="r") as store:
        for name in names:
            assert store.verify(name) == []
            assert torch.equal(store.open(name)[region(MORE[name])], value(name, MORE[name]))


@pytest.mark.parametrize(("at", "names", "built"), [kind.values[:3] for kind in KINDS if kind.id not in CODECS])
def test_definitions_are_written_as_they_were(
    copied: Path, tmp_path: Path, at: Callable[..., PersistentTileStore], names: Sequence[str], built: Build
) -> None:
    (tmp_path / "now").mkdir()
    with at(copied, mode="r") as before, at(tmp_path / "now") as now:
        built(now)
        for name in names:
            stored, written = before.tensor_definition(name), now.tensor_definition(name)
            for own in ("incarnation", "digest", "functions"):
                del stored[own], written[own]
            assert written == stored


@pytest.mark.parametrize("at", [hdf5_at, zarr_at], ids=["hdf5", "zarr"])
def test_a_group_is_opened(copied: Path, at: Callable[..., PersistentTileStore]) -> None:
    (box, *_) = READS["top"]
    with at(copied, mode="r") as store:
        assert store.group_ids() == ["world"]
        place = store.open_group("world")[region(box)]
        for name in ("noise", "top"):
            assert torch.equal(place[name], value(name, box))


@pytest.mark.parametrize("name", ["plain", "packed"])
def test_a_blob_is_read_and_goes_on(copied: Path, name: str) -> None:
    path = copied / f"{name}.blob"
    with TensorBlob.open(path) as blob:
        assert torch.equal(blob[:], ROWS)
    with TensorBlob.open(path, "a") as blob:
        blob.write(-ROWS)
    with TensorBlob.open(path) as blob:
        assert torch.equal(blob[:], torch.cat([ROWS, -ROWS]))
