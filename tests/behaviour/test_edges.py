"""Windows that reach past the end of a finite dimension: dropped, or clipped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import (
    InfiniteTensor,
    Output,
    TensorWindow,
    UncoveredPixelsWarning,
    ValidationError,
    ZarrTileStore,
    from_array,
)
from tests.support.building import built, each_store
from tests.support.reference import Index

store = each_store(tile_size=(3, 4))


def numbered(ctx: Index) -> torch.Tensor:
    """4x4 pixels that tell their window and their place in it."""
    return torch.arange(16.0).reshape(4, 4) + 100 * ctx[0] + 10_000 * ctx[1]


SQUARE = TensorWindow((4, 4), stride=3)


def test_it_is_part_of_the_definition(tmp_path: Path) -> None:
    with ZarrTileStore(tmp_path / "s.zarr", tile_size=4) as store:
        built(numbered, SQUARE, shape=(5, 6), store=store, name="t", edge="clip")[...]
        with (
            pytest.warns(UncoveredPixelsWarning),
            pytest.raises(ValidationError, match="edge"),
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


class TestNoWindow:
    @pytest.mark.parametrize(
        ("shape", "window", "told"),
        [
            ((50, 50), TensorWindow((64, 64)), "dimension"),
            ((3, None, None), TensorWindow((3, 64, 64), 32, -16), "dimension"),
            (
                (3, None, None),
                TensorWindow((3, 64, 64), 32, -16, (None, 1, 2)),
                "begin",
            ),
            ((5, 5), TensorWindow((5, 5), 1, (0, -5), (0, 0)), "none"),
            ((3, None), TensorWindow((3, 4), None, (-3, 0), (None, 1)), "begin"),
        ],
    )
    def test_it_is_an_error(self, shape: tuple[int | None, ...], window: TensorWindow, told: str) -> None:
        with pytest.raises(ValidationError, match=f"no window of output_window .*{told}"):
            built(numbered, window, shape=shape)


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
        with pytest.warns(UncoveredPixelsWarning, match="3 of the 9"):
            built(numbered, gaps, shape=(9,), edge="clip")

    @pytest.mark.parametrize(("mapped", "remedy"), [((None, 1), "offset"), ((0, 0), "another dimension_map")])
    def test_what_stays_in_place_or_is_passed_by_needs_other_windows(self, mapped: Any, remedy: str) -> None:
        with pytest.warns(UncoveredPixelsWarning, match=remedy):
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
        with pytest.warns(UncoveredPixelsWarning, match="/coarse'"):
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
