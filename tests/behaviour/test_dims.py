"""Names of dimensions: stored with a tensor, and told in messages."""

from __future__ import annotations

import json
import pickle
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import zarr

from infinite_tensor import (
    InfiniteTensor,
    MemoryTileStore,
    Output,
    StoreError,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
)
from tests.support.building import built, store_of
from tests.support.reopening import reopened
from tests.support.sqlite_store import SQLiteTileStore
from tests.support.stores import sample

WINDOW = TensorWindow((3, 4, 4))
ROW = TensorWindow((3, 4, 4), dimension_map=(None, None, 0))
NAMES = ("c", "y", "x")
DEFAULT = ("dim_0", "dim_1", "dim_2")


@pytest.fixture(params=sample(["memory", "zarr", "hdf5", "sqlite"]))
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[TileStore]:
    """A store of each kind, one of a third party among them."""
    third_party = request.param == "sqlite"
    with (
        SQLiteTileStore(tmp_path / "s.db", tile_size=8) if third_party else store_of(request.param, tmp_path) as opened
    ):
        yield opened


def image(_ctx: tuple[int, ...]) -> torch.Tensor:
    return torch.ones(3, 4, 4)


def tensor(store: TileStore | None = None, dims: Any = None) -> InfiniteTensor:
    return built(image, WINDOW, shape=(3, None, None), store=store, name="t", dims=dims)


@pytest.mark.parametrize(
    ("dims", "names"),
    [
        (None, DEFAULT),
        (list(NAMES), NAMES),
        ((np.str_("c"), "y", "x"), NAMES),
        *((dims, dims) for dims in (DEFAULT, NAMES, ("c", "dim_1", "x"), ("c", "y" * 100, "x"))),
        *((dims, dims) for dims in (("c", "dim_1st", "x"), ("c", "dim_\N{ARABIC-INDIC DIGIT THREE}", "x"))),
    ],
)
def test_a_dimension_without_a_name_is_called_by_its_number(dims: Any, names: Any) -> None:
    assert tensor(dims=dims).dims == names


@pytest.mark.parametrize(
    ("dims", "said"),
    [
        ("cyx", "dimension"),
        *((dims, "tuple") for dims in (("y", "x"), (*NAMES, "t"), (), {"c", "y", "x"}, 3)),
        (("c", "y", None), "characters"),
        (("c", "", "x"), "dimension"),
        (("c", "y\0", "x"), r"'y.x00'"),
        *((("c", name, "x"), "printable") for name in ("y\n", "\ud800", b"y")),
        *((("c", "y" * count, "x"), "characters") for count in (101, 10_000)),
        (("c", "x", "x"), "printable"),
        (("dim_1", "y", "x"), "'dim_1'"),
        (("c", "dim_7", "x"), "'dim_7'"),
        (("dim_" + "9" * 90, "y", "x"), "dim_N"),
    ],
)
def test_what_are_no_names_is_refused(dims: Any, said: str) -> None:
    with pytest.raises(ValidationError, match=said) as caught:
        tensor(dims=dims)
    assert len(str(caught.value)) < 500


def test_names_are_no_part_of_what_a_tensor_is(store: TileStore) -> None:
    assert tensor(dims=NAMES)._spec.definition.digest == tensor()._spec.definition.digest
    above = [built(lambda _ctx, _region: torch.ones(4), 4, (tensor(dims=dims), ROW)) for dims in (None, NAMES)]
    assert above[0]._spec.definition.digest == above[1]._spec.definition.digest
    assert "dims" not in tensor(dims=DEFAULT).to_json()
    assert "dims" not in tensor(store).to_json()
    assert "dims" not in store.tensor_definition("t")


def test_stored_names_come_back(store: TileStore) -> None:
    t = tensor(store, NAMES)
    t[:, 0:4, 0:4]
    assert store.tensor_definition("t")["dims"] == list(NAMES)
    assert t.to_json()["dims"] == list(NAMES)
    data = pickle.dumps(t)
    reopened(store)
    assert store.open("t").dims == NAMES
    assert store.open("t", image).dims == NAMES
    assert tensor(store).dims == NAMES
    assert tensor(store, NAMES).dims == NAMES
    assert tensor(store, DEFAULT).dims == NAMES
    store.close()
    again = pickle.loads(data)  # noqa: S301  (ours)
    assert again.dims == NAMES
    again.tile_store.close()
    store.__enter__()


@pytest.mark.parametrize("again", [True, False])
def test_other_names_than_the_stored_ones_are_an_error_with_both(store: TileStore, again: bool) -> None:
    tensor(store, NAMES)
    if again:
        reopened(store)
    with pytest.raises(ValidationError, match="dims") as caught:
        tensor(store, ("c", "x", "y"))
    assert "To keep the stored names, leave out dims." in str(caught.value)
    # Nothing has changed.
    assert tensor(store).dims == store.open("t").dims == NAMES


def test_names_given_to_a_tensor_that_is_stored_without_are_stored(store: TileStore) -> None:
    tensor(store)[:, 0:4, 0:4]
    plain = store.tensor_definition("t")
    reopened(store)
    named = tensor(store, NAMES)
    assert named.dims == NAMES
    reopened(store)
    assert store.open("t").dims == tensor(store).dims == NAMES
    # Nothing else has changed: no pixel is computed again.
    assert torch.equal(store.open("t")[:, 0:4, 0:4], torch.ones(3, 4, 4))
    now = store.tensor_definition("t")
    assert {**now, "digest": None} == {**plain, "dims": list(NAMES), "digest": None}
    assert isinstance(store, SQLiteTileStore | MemoryTileStore) or store.verify("t") == []
    with pytest.raises(ValidationError, match="dims: stored"):
        tensor(store, ("band", "row", "column"))


def test_a_dimension_that_is_stored_without_a_name_may_be_given_one(store: TileStore) -> None:
    tensor(store, ("c", "dim_1", "dim_2"))
    reopened(store)
    assert store.open("t").dims == ("c", "dim_1", "dim_2")
    assert tensor(store, ("dim_0", "y", "x")).dims == NAMES
    for wrong in (("b", "y", "x"), ("dim_0", "c", "x")):
        with pytest.raises(ValidationError, match="dims"):
            tensor(store, wrong)


def test_a_tensor_that_is_cleared_may_get_other_names(store: TileStore) -> None:
    old = tensor(store, NAMES)
    old[:, 0:4, 0:4]
    store.clear_tensor("t")
    new = tensor(store, ("band", "row", "column"))
    assert new.dims == ("band", "row", "column")
    assert store.tensor_definition("t")["dims"] == ["band", "row", "column"]
    # The same pixels, by whatever names.
    assert torch.equal(old[:, 0:4, 0:4], new[:, 0:4, 0:4])


def test_outputs_of_one_f_have_names_of_their_own(store: TileStore) -> None:
    def outputs(dims: Any) -> dict[str, Output]:
        plane = TensorWindow((4, 4))
        return {
            "rgb": Output((3, None, None), "float32", TensorWindow((3, 4, 4), dimension_map=(None, 0, 1)), dims=dims),
            "mask": Output((None, None), "bool", plane, dims=("y", "x")),
            "other": Output((None, None), "bool", plane),
        }

    def f(_ctx: tuple[int, ...]) -> dict[str, torch.Tensor]:
        plane = torch.ones(4, 4, dtype=torch.bool)
        return {"rgb": torch.ones(3, 4, 4), "mask": plane, "other": plane}

    InfiniteTensor.from_multi(f, outputs(NAMES), tile_store=store, tensor_id="world")
    reopened(store)
    made = InfiniteTensor.from_multi(f, outputs(None), tile_store=store, tensor_id="world")
    assert [made[name].dims for name in ("rgb", "mask", "other")] == [NAMES, ("y", "x"), ("dim_0", "dim_1")]
    with pytest.raises(ValidationError, match=r"tensor 'world/rgb'(?s:.*)dims: stored \['c', 'y', 'x'\], given"):
        InfiniteTensor.from_multi(f, outputs(("b", "y", "x")), tile_store=store, tensor_id="world")
    with pytest.raises(ValidationError, match="output"):
        InfiniteTensor.from_multi(f, outputs(("y", "x")), tile_store=store, tensor_id="world")


def test_a_tensor_keeps_its_names_when_it_is_moved() -> None:
    t = tensor(dims=NAMES)
    t.to(torch.float64)
    assert (t.dims, t.dtype) == (NAMES, torch.float64)
    assert t.tile_store.tensor_definition("t")["dims"] == list(NAMES)


# The array of complete tiles.


def array_of(path: Path) -> Path:
    (found,) = (path / "s.zarr" / "t-t").glob("tiles-*")
    return found


@pytest.mark.parametrize(("dims", "written"), [(NAMES, NAMES), (None, DEFAULT), (("c", "dim_1", "x"),) * 2])
def test_the_array_tells_the_names_to_other_programs(dims: Any, written: Any, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
        tensor(store, dims)[:, 0:4, 0:4]
    array = zarr.open_array(array_of(tmp_path), mode="r")
    assert array.metadata.dimension_names == written  # type: ignore[union-attr]
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        assert store.verify("t") == []


def test_names_given_later_make_an_image_and_leave_what_others_wrote(tmp_path: Path) -> None:
    for dims in (None, NAMES):
        with ZarrTileStore(tmp_path / "s.zarr") as store:
            built(image, WINDOW, shape=(3, 8, 8), store=store, name="t", dims=dims)
        group: Any = zarr.open_group(tmp_path / "s.zarr" / "t-t", mode="r+")
        ((_, array),) = group.arrays()
        for node in (group, array):
            node.attrs["theirs"] = node.attrs.get("theirs", 0) + 1
    assert (group.attrs["theirs"], array.attrs["theirs"]) == (2, 2)
    assert [axis["name"] for axis in group.attrs["ome"]["multiscales"][0]["axes"]] == list(NAMES)
    assert array.metadata.dimension_names == NAMES


def test_a_store_that_is_open_for_reading_keeps_its_names(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        tensor(store)
    with ZarrTileStore(tmp_path / "s.zarr", mode="r") as store:
        assert tensor(store, NAMES).dims == NAMES
        assert store.open("t").dims == DEFAULT


@pytest.mark.parametrize("names", [None, [None, None, None], ["a", "y", "x"], ["c", "x", "y"], list(DEFAULT)])
def test_names_in_the_array_that_are_not_those_of_the_tensor_are_damage(names: Any, tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
        tensor(store, NAMES)
    path = array_of(tmp_path) / "zarr.json"
    before = path.read_bytes()
    document = json.loads(before)
    if names is None:
        del document["dimension_names"]
    else:
        document["dimension_names"] = names
    path.write_text(json.dumps(document))
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        (damage,) = store.verify("t", repair=True)
        assert damage.kind == "array"
        assert "dimension_names" in damage.reason
        assert path.read_bytes() == before
        assert store.verify("t") == []
        assert store.open("t").dims == NAMES


def test_damaged_names_are_a_damaged_definition(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
        tensor(store, NAMES)
    path = tmp_path / "s.zarr" / "t-t" / "zarr.json"
    path.write_text(path.read_text().replace('"y"', '"z"'))
    with ZarrTileStore(tmp_path / "s.zarr") as store:
        assert [damage.kind for damage in store.verify("t")] == ["definition"]
        with pytest.raises(StoreError, match="'t'"):
            tensor(store)
