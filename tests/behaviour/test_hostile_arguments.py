"""Whatever is given for an argument, it works, or is a ValidationError that shows it, and nothing is left behind."""

from __future__ import annotations

import enum
import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    Mask,
    MemoryTileStore,
    Output,
    TensorGroup,
    TensorWindow,
    ValidationError,
    VirtualTensor,
    WeightedMean,
    digest,
    open_store,
    overlay,
    placed,
    predict,
    sl,
)

# Inside: torch.cat and torch.stack refuse some arguments themselves.
from infinite_tensor.pipelines.arithmetic import concatenate, stack
from tests.support.building import built
from tests.support.counting import Constant

WINDOW = TensorWindow((4, 4), stride=(2, 2))
HALO = TensorWindow((6, 6), stride=(2, 2), offset=(-1, -1))


class Word(str, enum.Enum):  # noqa: UP042  (str of a StrEnum is its value; of this it is "Word.CLIP")
    """What a program may have its words in."""

    CLIP = "clip"
    HANN = "hann"
    Y = "y"


HOSTILE: dict[str, Any] = {
    "nothing": "",
    "no members": (),
    "not a number": math.nan,
    "infinity": -math.inf,
    "an int of 400 digits": 10**400,
    "bytes": b"clip",
    "text": "\N{GRINNING FACE}" * 1000,
    "half a character": "\ud800",
    "a null": "a\0b",
    "a mapping": {"a": 1},
    "a set": {1},
    "an object": object(),
    "an iterator": iter("ab"),
    "a list of 10,000": list(range(10_000)),
    "a ragged list": [1, [2, 3]],
    "a scalar of numpy": np.float64("nan"),
    "a str of numpy": np.str_("abc"),
    "a dtype of numpy": np.dtype("float32"),
    "an array": np.array([1, 2]),
    "a tensor": torch.tensor([1, 2]),
    "a scalar of torch": torch.tensor(math.nan),
    "a tensor without values": torch.empty(16, 16, device="meta"),
    "a sparse tensor": torch.eye(16).to_sparse(),
}


@pytest.fixture(scope="module")
def filled() -> InfiniteTensor:
    return InfiniteTensor((16, 16), lambda _ctx: torch.ones(4, 4), TensorWindow((4, 4)))


def made(place: Path, **options: Any) -> InfiniteTensor:
    source = InfiniteTensor((16, 16), lambda _ctx: torch.ones(16, 16), TensorWindow((16, 16)))
    arguments: dict[str, Any] = {"tile_store": place / "s.zarr", "args": [source], "args_windows": [HALO]}
    arguments |= {"args_padding": "edge"} | options
    return InfiniteTensor((16, 16), lambda _ctx, region: region[1:5, 1:5], WINDOW, **arguments)


def outputs(place: Path, output: Any) -> object:
    return InfiniteTensor.from_multi(lambda _ctx: {}, output, tile_store=place / "s.zarr")


PLAIN = sl[0:8, 0:8]
ARGUMENTS: dict[str, Callable[[Path, InfiniteTensor, Any], object]] = {
    "edge": lambda place, _t, value: made(place, edge=value),
    "edge of a dimension": lambda place, _t, value: made(place, edge=("clip", value)),
    "edge of windows": lambda _place, _t, value: list(WINDOW.intersecting_windows([slice(0, 8)] * 2, (16, 16), value)),
    "padding": lambda place, _t, value: made(place, args_padding=value),
    "padding of an arg": lambda place, _t, value: made(place, args_padding=[value]),
    "padding of a dimension": lambda place, _t, value: made(place, args_padding=[("wrap", value)]),
    "constant": lambda place, _t, value: made(place, args_padding=("constant", value)),
    "blend": lambda place, _t, value: made(place, blend=value),
    "blend_init": lambda place, _t, value: made(place, blend_init=value),
    "weights": lambda place, _t, value: made(place, blend=WeightedMean(value)),
    "sigma_scale": lambda place, _t, value: made(place, blend=WeightedMean("gaussian", value)),
    "sigma_scale of a dimension": lambda place, _t, value: made(place, blend=WeightedMean("gaussian", (1, value))),
    "dims": lambda place, _t, value: made(place, dims=value),
    "name of a dimension": lambda place, _t, value: made(place, dims=("y", value)),
    "dtype": lambda place, _t, value: made(place, dtype=value),
    "version": lambda place, _t, value: made(place, version=[value]),
    "shape": lambda place, _t, value: InfiniteTensor(value, torch.ones, WINDOW, tile_store=place / "s.zarr"),
    "args": lambda place, _t, value: made(place, args=[value]),
    "args_windows": lambda place, _t, value: made(place, args_windows=value),
    "an output": lambda place, _t, value: outputs(place, {"a": value}),
    "edge of an output": lambda place, _t, value: outputs(place, {"a": Output((16, 16), "int8", WINDOW, edge=value)}),
    "size of a window": lambda _place, _t, value: TensorWindow(value),
    "dimension_map": lambda _place, _t, value: TensorWindow((4, 4), dimension_map=value),
    "margin": lambda _place, _t, value: WINDOW.padded(value),
    "margin of a dimension": lambda _place, _t, value: WINDOW.padded((1, value)),
    "max_memory": lambda _place, t, value: t.plan(PLAIN, max_memory=value),
    "cache of bytes": lambda _place, _t, value: MemoryTileStore(value),
    "cache of windows": lambda _place, _t, value: MemoryTileStore(cache_size_windows=value),
    "where": lambda _place, t, value: t.plan(PLAIN, where=value),
    "scale": lambda _place, t, value: t.plan(PLAIN, where=Mask(torch.ones(16, 16), scale=value)),
    "origin": lambda _place, t, value: t.plan(PLAIN, where=Mask(torch.ones(16, 16), origin=value)),
    "dims of a mask": lambda _place, t, value: t.plan(PLAIN, where=Mask(torch.ones(16), dims=value)),
    "answer of a mask": lambda _place, t, value: t.plan(PLAIN, where=Mask(lambda _pixels: value)),
    "state": lambda _place, t, value: t.coverage(PLAIN, value),
    "fill_value": lambda _place, t, value: t.stored_only(value),
    "module": lambda _place, _t, value: digest(value),
    "source of a place": lambda _place, _t, value: placed(value, (0, 0)),
    "origin of a place": lambda _place, t, value: placed(t, value),
    "fill of a place": lambda _place, t, value: placed(t, (0, 0), value),
    "edits": lambda _place, t, value: overlay(value, t),
    "nodata of edits": lambda _place, t, value: overlay(t, 0.0, nodata=value),
    "region of a crop": lambda _place, t, value: t.crop(value),
    "region of a check": lambda _place, t, value: t.map(torch.neg, dims=(0, 1)).check(value),
    "astype": lambda _place, t, value: t.astype(value),
    "or_else": lambda _place, t, value: t.or_else(value),
    "dims of a description": lambda _place, t, value: t.describe(dims=value),
    "transform": lambda _place, t, value: t.describe(transform=value),
    "crs": lambda _place, t, value: t.describe(crs=value),
    "nodata": lambda _place, t, value: t.describe(nodata=value),
    "colours": lambda _place, t, value: t.describe(colours=value),
    "a colour": lambda _place, t, value: t.astype(torch.uint8).describe(colours={0: value}),
    "units": lambda _place, t, value: t.describe(units=value),
    "attributes": lambda _place, t, value: t.describe(attributes=value),
    "an attribute": lambda _place, t, value: t.describe(attributes={"a": value}),
    "overlap": lambda _place, t, value: t.map(torch.neg, dims=(0, 1), overlap=value),
    "dim of a row": lambda _place, t, value: concatenate([t, t], value),
    "tensors of a stack": lambda _place, _t, value: stack(value),
}


def error_of(use: Callable[[], object]) -> Exception | None:
    try:
        use()
    except Exception as error:  # noqa: BLE001
        return error
    return None


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_an_argument_is_refused_by_what_it_is(argument: str, filled: InfiniteTensor, tmp_path: Path) -> None:
    use, refused = ARGUMENTS[argument], 0
    for name, value in HOSTILE.items():
        place = tmp_path / name
        place.mkdir()
        error = error_of(lambda value=value, place=place: use(place, filled, value))  # type: ignore[misc]
        if error is not None:
            assert isinstance(error, ValidationError), f"{name}: {type(error).__name__}: {error}"
            assert len(str(error)) < 1500, name
            assert not [*place.iterdir()], name
            refused += 1
    assert refused > len(HOSTILE) / 3


def group_of(t: InfiniteTensor) -> TensorGroup:
    return TensorGroup({"t": t}, dims={"t": (0, 1)})


FLAGS: dict[str, Callable[[InfiniteTensor, Any], object]] = {
    "overwrite of an export": lambda t, flag: t.export(PLAIN, "out.npy", overwrite=flag),
    "overwrite of a group": lambda t, flag: group_of(t).export(PLAIN, "out.zarr", overwrite=flag),
    "overwrite of a TensorDict": lambda t, flag: group_of(t).save_tensordict(PLAIN, "out", overwrite=flag),
    "overwrite of a prediction": lambda t, flag: predict(torch.nn.ReLU(), t, window=(8, 8), overwrite=flag),
    "overwrite of a copy": lambda t, flag: t.tile_store.copy("t", "out.zarr", overwrite=flag),
    "upstream": lambda t, flag: t.tile_store.copy("t", "out.zarr", upstream=flag),
    "dependants of a clearing": lambda t, flag: t.tile_store.clear_tensor("t", dependants=flag),
    "dependants": lambda t, flag: t.invalidate(dependants=flag),
    "repair": lambda t, flag: t.tile_store.verify("t", repair=flag),
    "repair in memory": lambda _t, flag: MemoryTileStore().verify("t", repair=flag),
    "discard": lambda t, flag: t.tile_store.close(discard=flag),
    "coordinates": lambda t, flag: t.map(torch.neg, dims=(0, 1), coordinates=flag),
    "coordinates of a tensor": lambda _t, flag: InfiniteTensor((4,), torch.ones, TensorWindow((4,)), coordinates=flag),
    "coordinates of what is opened": lambda t, flag: t.tile_store.open("t", torch.ones, coordinates=flag),
    "lazy": lambda t, flag: t.to_xarray(PLAIN, lazy=flag),
    "persist": lambda _t, flag: VirtualTensor(torch.nn.ReLU(), "v", lambda *_: torch.ones(1), persist=flag),
}


@pytest.mark.parametrize("argument", FLAGS)
@pytest.mark.parametrize("value", ["no", 1, None], ids=str)
def test_a_flag_is_a_bool(argument: str, value: object, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Or "no" would be a yes."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with open_store(tmp_path / "store.zarr") as store:
        t = built(Constant(), (4, 4), shape=(16, 16), store=store, name="t")
        t.fill(..., progress=False)
        with pytest.raises(ValidationError, match=f"^{argument.split(maxsplit=1)[0]} must be a bool, got {value!r}$"):
            FLAGS[argument](t, value)
        assert t.is_filled(...)
    assert not [*(tmp_path / "here").iterdir()]


@pytest.mark.parametrize("name", ["nothing", "bytes", "an object"])
def test_a_place_is_refused_by_what_it_is(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ValidationError, match=r"tile_store must be|target must be"):
        made(tmp_path, tile_store=HOSTILE[name])
    with pytest.raises(ValidationError, match="target"):
        open_store(HOSTILE[name])
    assert not [*tmp_path.iterdir()]


def test_members_of_enums_are_the_words_that_they_are(tmp_path: Path) -> None:
    t = made(tmp_path, dims=(Word.Y, "x"), edge=Word.CLIP, blend=Word.HANN, tensor_id="t")
    assert (t.dims, t.edge, t.blend) == (("y", "x"), ("clip", "clip"), WeightedMean("hann"))
    assert repr(WeightedMean(Word.HANN)) == "WeightedMean('hann')"
    t.tile_store.close()
    with open_store(tmp_path / "s.zarr") as store:
        assert store.open("t").dims == ("y", "x")
