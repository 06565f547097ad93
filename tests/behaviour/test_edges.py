"""Windows that reach past the end of a finite dimension: dropped, or clipped."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    Output,
    TensorWindow,
    TileStore,
    UncoveredPixelsWarning,
    ValidationError,
    ZarrTileStore,
    from_array,
    sl,
)
from infinite_tensor.tilestore.stored_definition import definition_of
from tests.support.building import built, each_store
from tests.support.counting import Counted
from tests.support.reference import Index

store = each_store(tile_size=(3, 4))


def numbered(ctx: Index) -> torch.Tensor:
    """4x4 pixels that tell their window and their place in it."""
    return torch.arange(16.0).reshape(4, 4) + 100 * ctx[0] + 10_000 * ctx[1]


SQUARE = TensorWindow((4, 4), stride=3)


def test_a_clipped_window_is_computed_whole_and_kept_as_far_as_it_lies_inside(store: TileStore) -> None:
    f = Counted(numbered)
    t = built(f, SQUARE, shape=(5, 6), store=store, edge="clip")
    expected = torch.zeros(10, 10)
    for y, x in itertools.product(range(2), range(2)):
        expected[3 * y : 3 * y + 4, 3 * x : 3 * x + 4] += numbered((y, x))
    assert torch.equal(t[4, 2:6], expected[4, 2:6])
    assert torch.equal(t[...], expected[:5, :6])
    assert sorted(f.calls) == list(itertools.product(range(2), range(2)))


@pytest.mark.parametrize("extent", range(1, 40))
@pytest.mark.parametrize(("size", "stride"), [(8, 4), (8, 8), (7, 3), (8, 1), (16, 12)])
def test_there_are_just_enough_windows_to_cover_all(extent: int, size: int, stride: int) -> None:
    window = TensorWindow((size,), stride)
    clipped = [i for (i,) in window.intersecting_windows([slice(0, extent)], (extent,), edge="clip")]
    assert clipped == list(range(max(0, math.ceil((extent - size) / stride)) + 1))
    dropped = [i for (i,) in window.intersecting_windows([slice(0, extent)], (extent,))]
    assert dropped == [i for i in clipped if i * stride + size <= extent]


@pytest.mark.parametrize(
    ("window", "extent", "expected"),
    [
        (TensorWindow((4,), stride=3, offset=-2), 5, [0, 1]),
        (TensorWindow((4,), stride=3, offset=-6), 5, [2, 3]),
        (TensorWindow((4,), stride=3, offset=2), 5, [-1, 0]),
        (TensorWindow((2,), stride=5, offset=-1), 11, [0, 1, 2]),
        (TensorWindow((2,), stride=5, offset=-3), 6, [1]),
        (TensorWindow((9,), stride=2, offset=-4), 3, [2]),
    ],
    ids=str,
)
def test_an_offset_moves_the_windows_that_are_clipped(window: TensorWindow, extent: int, expected: list[int]) -> None:
    found = window.intersecting_windows([slice(0, extent)], (extent,), edge="clip")
    assert [i for (i,) in found] == expected


@pytest.mark.parametrize("offset", [0, -1, -8, 5])
def test_all_windows_that_meet_a_dimension_may_exist(offset: int) -> None:
    window = TensorWindow((4,), stride=3, offset=offset)
    found = [i for (i,) in window.intersecting_windows([slice(0, 7)], (7,), edge="all")]
    assert found == [i for i in range(-20, 20) if -4 < 3 * i + offset < 7]


def test_each_dimension_has_its_own_edge(store: TileStore) -> None:
    with pytest.warns(UncoveredPixelsWarning, match=r"no window covers 6 of the 30 pixels"):
        t = built(Counted(numbered), SQUARE, shape=(5, 6), store=store, edge=("drop", "clip"), blend_init=0)
    assert t.edge == ("drop", "clip")
    assert t[4].tolist() == [0] * 6
    assert t[:4, 5].count_nonzero() == 4


def test_dimensions_that_share_a_coordinate_are_clipped_together(store: TileStore) -> None:
    diagonal = TensorWindow((4, 4), stride=3, dimension_map=(0, 0))
    f = Counted(numbered)
    with pytest.warns(UncoveredPixelsWarning):
        t = built(f, diagonal, shape=(5, 8), store=store, edge="clip")
    t[...]
    # The third begins below the last row.
    assert f.calls == [(0, 0), (1, 0)]


def test_a_kept_dimension_is_clipped_where_it_lies(store: TileStore) -> None:
    kept = TensorWindow((4, 4), stride=(4, 4), offset=(-1, 0), dimension_map=(None, 1))
    t = built(Counted(numbered), kept, shape=(3, None), store=store, edge="clip")
    assert torch.equal(t[:, 0:4], numbered((0, 0))[1:])


def test_what_lies_outside_is_never_stored(tmp_path: Path) -> None:
    store = ZarrTileStore(tmp_path / "s.zarr", tile_size=(4, 4))
    t = built(numbered, SQUARE, shape=(5, 6), store=store, name="t", edge="clip", blend_init=7)
    t.fill(sl[:, :], progress=False)
    tiles = store._contents.registry.records["t"].handle.read_tiles([(1, 1)])
    assert tiles[0] is not None
    assert (tiles[0][1:] == 7).all()
    assert (tiles[0][:, 2:] == 7).all()


def test_it_is_part_of_the_definition(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
        built(numbered, SQUARE, shape=(5, 6), store=store, name="t", edge="clip")[...]
        with (
            pytest.warns(UncoveredPixelsWarning),
            pytest.raises(ValidationError, match=r"edge: stored \['clip', 'clip'\], given \['clip', 'drop'\]"),
        ):
            built(numbered, SQUARE, shape=(5, 6), store=store, name="t", edge=("clip", "drop"))
        assert store.open("t").edge == ("clip", "clip")
        assert store.tensor_definition("t")["edge"] == ["clip", "clip"]


def test_where_nothing_is_clipped_nothing_is_stored_of_it(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
        plain = built(numbered, SQUARE, shape=(4, None), store=store, name="t")
        same = built(numbered, SQUARE, shape=(4, None), store=store, name="t", edge=("drop", "clip"))
        assert same.edge == plain.edge == ("drop", "drop")
        assert "edge" not in store.tensor_definition("t")


@pytest.mark.parametrize(
    "edge", ["wrap", "", None, 3, ["clip"], ["clip"] * 3, ["clip", {}], ["clip", 1], ["clip", np.array(["clip"] * 2)]]
)
def test_another_edge_is_refused(edge: object) -> None:
    with pytest.raises(ValidationError, match=r'edge must be "drop", "clip" or "all", .* per dimension \(2\)'):
        built(numbered, SQUARE, shape=(5, 6), edge=edge)


@pytest.mark.parametrize("edge", ["clip", "wrap", 3, ["clip"], ["clip", {}], [["clip"], "drop"], {"clip": 1}])
def test_a_stored_edge_is_checked(edge: object) -> None:
    stored = built(numbered, SQUARE, shape=(5, 6), edge="clip").to_json()
    assert definition_of(stored).edge == ("clip", "clip")
    with pytest.raises(ValidationError, match="edge"):
        definition_of(stored | {"edge": edge})


class TestNoWindow:
    @pytest.mark.parametrize(
        ("shape", "window", "told"),
        [
            ((50, 50), TensorWindow((64, 64)), "dimension 0 has 50 pixels, but windows of size 64 begin at 0 plus"),
            ((3, None, None), TensorWindow((3, 64, 64), 32, -16), "dimension 0 has 3 .* -16 plus multiples of 32"),
            (
                (3, None, None),
                TensorWindow((3, 64, 64), 32, -16, (None, 1, 2)),
                r"windows of size 3 begin at -16\. Give",
            ),
            ((5, 5), TensorWindow((5, 5), 1, (0, -5), (0, 0)), "none fits into all of them"),
            ((3, None), TensorWindow((3, 4), None, (-3, 0), (None, 1)), r"windows of size 3 begin at -3\. Give"),
        ],
    )
    def test_it_is_an_error(self, shape: tuple[int | None, ...], window: TensorWindow, told: str) -> None:
        with pytest.raises(ValidationError, match=f"no window of output_window .*{told}"):
            built(numbered, window, shape=shape)

    def test_clipping_is_offered_where_it_helps(self) -> None:
        with pytest.raises(ValidationError, match='edge="clip"'):
            built(numbered, (64, 64), shape=(50, 50))
        with pytest.raises(ValidationError) as caught:
            built(numbered, TensorWindow((3, 4), offset=-16, dimension_map=(None, 1)), shape=(3, None))
        assert "clip" not in str(caught.value)

    def test_only_dimensions_that_have_no_window_are_named(self) -> None:
        kept = TensorWindow((3, 64), offset=(3, 0), dimension_map=(None, 1))
        with pytest.raises(ValidationError, match=r"windows of size 3 begin at 3\. ") as caught:
            built(numbered, kept, shape=(3, 50), edge="clip")
        assert "dimension 1" not in str(caught.value)

    def test_what_was_stored_so_before_is_still_read(self) -> None:
        stored = built(numbered, (4, 4), shape=(50, 50), edge="clip").to_json()
        window = TensorWindow((64, 64)).to_dict()
        assert definition_of(stored | {"output_window": window, "edge": None}).output_window.size == (64, 64)


class TestUncoveredPixels:
    def test_their_number_is_told_with_the_remedy(self) -> None:
        window = TensorWindow((3, 512, 512), stride=(3, 448, 448))
        with pytest.warns(UncoveredPixelsWarning) as caught:
            InfiniteTensor((3, 4000, 6000), numbered, window)
        (warning,) = caught
        uncovered = 3 * (4000 * 6000 - (7 * 448 + 512) * (12 * 448 + 512))
        assert f"no window covers {uncovered} of the {3 * 4000 * 6000} pixels" in str(warning.message)
        assert str(warning.message).endswith(
            'uncovered pixels are 0. Give edge="clip" to let windows reach past the end'
        )
        assert warning.filename == __file__

    def test_gaps_need_another_stride(self) -> None:
        gaps = TensorWindow((2,), stride=3)
        with pytest.warns(UncoveredPixelsWarning, match="no window covers 3 of the 9 pixels.* Give a stride of"):
            built(numbered, gaps, shape=(9,), edge="clip")

    @pytest.mark.parametrize(
        ("mapped", "remedy"), [((None, 1), "a size and an offset that span"), ((0, 0), "another dimension_map")]
    )
    def test_what_stays_in_place_or_is_passed_by_needs_other_windows(self, mapped: Any, remedy: str) -> None:
        with pytest.warns(UncoveredPixelsWarning, match=rf"uncovered pixels are 0\. Give {remedy}"):
            built(numbered, TensorWindow((4, 4), dimension_map=mapped), shape=(8, 8), edge="clip")

    @pytest.mark.parametrize(
        ("shape", "number"), [((None, None), 40**2 - 32**2), ((None, 100), 40 * 100 - 32 * (32 * 2 + 20))]
    )
    def test_gaps_of_unbounded_dimensions_are_told(self, shape: Any, number: int) -> None:
        window = TensorWindow((32, 32), stride=40)
        with pytest.warns(UncoveredPixelsWarning, match=rf"no window covers {number} of .* a stride of"):
            built(numbered, window, shape=shape, edge="clip")

    def test_clipped_windows_leave_none(self) -> None:
        # Warnings are errors.
        window = TensorWindow((3, 512, 512), stride=(3, 448, 448))
        built(numbered, window, shape=(3, 4000, 6000), edge="clip")
        built(numbered, window, shape=(None, None, 6000), edge="clip")

    def test_each_output_is_told_of(self) -> None:
        outputs = {
            "fine": Output((8, 8), torch.float32, TensorWindow((4, 4))),
            "coarse": Output((4, 5), torch.float32, TensorWindow((2, 2))),
        }
        with pytest.warns(UncoveredPixelsWarning, match=r"/coarse': no window covers 4 of the 20 pixels"):
            InfiniteTensor.from_multi(numbered, outputs)

    def test_reopening_is_silent(self, tmp_path: Path) -> None:
        with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
            with pytest.warns(UncoveredPixelsWarning):
                built(numbered, SQUARE, shape=(5, 6), store=store, name="t")
            # Warnings are errors.
            store.open("t", numbered)[...]


class TestSeams:
    """Where the ends of a dimension join, windows must repeat."""

    @staticmethod
    def around(extent: int, stride: int, arg: int, edge: Any = "all", padding: Any = "wrap") -> None:
        window = TensorWindow((8,), stride=stride)
        source = from_array(torch.zeros(arg))
        InfiniteTensor(
            (extent,), lambda _ctx, x: x, window, [source], [window.padded(1)], args_padding=[padding], edge=edge
        )

    @pytest.mark.parametrize(("extent", "stride", "arg"), [(30, 4, 30), (32, 4, 24)])
    def test_windows_that_do_not_repeat_are_told(self, extent: int, stride: int, arg: int) -> None:
        with pytest.warns(UserWarning, match=rf"wraps around.* Give a stride that divides {extent}"):
            self.around(extent, stride, arg)

    def test_windows_that_repeat_are_not(self) -> None:
        self.around(32, 4, 32)
        self.around(32, 4, 16)
        self.around(30, 4, 30, edge="clip")
        self.around(30, 4, 30, padding="reflect")


@pytest.mark.filterwarnings("ignore::infinite_tensor.UncoveredPixelsWarning")
class TestStates:
    """Tiles that no window covers are told from tiles that are stored."""

    @pytest.fixture
    def t(self, tmp_path: Path) -> InfiniteTensor:
        store = ZarrTileStore(tmp_path / "s.zarr", tile_size=5)
        return built(lambda _ctx: torch.ones(2), TensorWindow((2,), stride=20), store=store)

    def test_coverage_shows_one_state(self, t: InfiniteTensor) -> None:
        assert t.coverage(sl[0:25], "uncovered").tolist() == [False, True, True, True, False]
        assert t.coverage(sl[0:25], "missing").tolist() == [True, False, False, False, True]
        t[0:5]
        assert t.coverage(sl[0:25], "stored").tolist() == [True, False, False, False, False]
        assert t.coverage(sl[0:25]).tolist() == [True, True, True, True, False]

    def test_another_state_is_refused(self, t: InfiniteTensor) -> None:
        with pytest.raises(ValidationError, match="state must be None or one of 'stored', 'missing', 'uncovered'"):
            t.coverage(sl[0:20], "skipped!")  # type: ignore[arg-type]

    def test_a_plan_counts_tiles_that_are_to_be_stored(self, t: InfiniteTensor) -> None:
        (plan,) = t.plan(sl[0:50]).tensors
        assert plan.tiles == 3
        t[0:5]
        (plan,) = t.plan(sl[0:50]).tensors
        assert plan.tiles == 2

    def test_nothing_is_stored_of_them(self, t: InfiniteTensor) -> None:
        assert t.is_filled(sl[5:20])
        assert t.fill(sl[0:50], progress=False).tiles == 3
        assert t.coverage(sl[0:50], "uncovered").sum() == 7
        assert t.is_filled(sl[0:50])
        (plan,) = t.plan(sl[5:20]).tensors
        assert (plan.windows, plan.tiles) == (0, 0)
        assert t.fill(sl[5:20], progress=False).tiles == 0

    def test_nothing_is_filled_beyond_the_last_window(self, tmp_path: Path) -> None:
        store = ZarrTileStore(tmp_path / "tail.zarr", tile_size=2)
        with pytest.warns(UncoveredPixelsWarning):
            t = built(lambda _ctx: torch.ones(4), 4, shape=(10,), store=store)
        assert t.plan(sl[8:10]).windows == 0
        assert t.fill(sl[8:10], progress=False).tiles == 0

    def test_a_tile_is_uncovered_that_windows_miss_along_one_dimension(self, tmp_path: Path) -> None:
        store = ZarrTileStore(tmp_path / "rows.zarr", tile_size=(4, 4))
        with pytest.warns(UncoveredPixelsWarning):
            t = built(numbered, (4, 4), shape=(6, None), store=store)
        for expected in (2, 1):
            (plan,) = t.plan(sl[:, 0:8]).tensors
            assert plan.tiles == expected
            assert t.coverage(sl[:, 0:8], "uncovered").sum() == 2
            t[0:4, 0:4]
