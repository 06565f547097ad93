"""Regions drawn with matplotlib, at their coordinates."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import matplotlib as mpl
import numpy as np
import numpy.typing as npt
import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, from_array, sl
from tests.behaviour.views.shown import ramp, tensor_of
from tests.support.counting import Counted
from tests.support.dict_store import DictTileStore

mpl.use("Agg")

import matplotlib.pyplot as plt


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


def show(t: InfiniteTensor, *region: Any, **options: Any) -> Any:
    """The axes, of which nobody knows the types."""
    return t.show(*region, **options)


def extent(ax: Any) -> list[float]:
    """From where to where the image of some axes reaches: left, right, bottom, top."""
    return list(ax.images[0].get_extent())


def drawn_on(ax: Any) -> npt.NDArray[Any]:
    """The values of the image of some axes; NaN where it is blank."""
    return np.asarray(np.ma.filled(np.ma.asarray(ax.images[0].get_array(), float), np.nan))


def value_at(ax: Any, y: float, x: float) -> Any:
    """What is drawn at a place, by the coordinates of the axes."""
    left, right, bottom, top = extent(ax)
    values = drawn_on(ax)
    row = int((y - top) / (bottom - top) * values.shape[0])
    column = int((x - left) / (right - left) * values.shape[1])
    return values[row, column]


def test_pixels_are_drawn_at_their_coordinates_with_row_0_above_row_1() -> None:
    ax = show(tensor_of(), sl[-5:9, 2:10])
    assert extent(ax) == [1.5, 9.5, 8.5, -5.5]
    assert value_at(ax, -5, 2) == -4998
    assert value_at(ax, 8, 9) == 8009
    top, bottom = ax.transData.transform([(2, -5), (2, 8)])[:, 1]
    assert top > bottom
    assert (ax.get_xlabel(), ax.get_ylabel(), ax.get_title()) == ("x", "y", "height")


def test_one_channel_has_a_colour_bar_and_colours_have_none() -> None:
    ax = show(tensor_of(), sl[0:4, 0:4])
    assert ax.images[0].colorbar is not None
    colours = from_array(torch.rand(3, 4, 5), dims=("c", "y", "x"))
    ax = show(colours)
    assert ax.images[0].colorbar is None
    assert np.allclose(drawn_on(ax), colours[...].movedim(0, -1))


def test_into_axes_that_are_given_with_options_of_matplotlib() -> None:
    _, axes = plt.subplots(1, 2)
    ax = show(tensor_of(), sl[0:4, 0:4], ax=axes[1], cmap="terrain", vmin=-1, vmax=7)
    assert ax is axes[1]
    assert ax.images[0].get_cmap().name == "terrain"
    assert ax.images[0].get_clim() == (-1, 7)


def test_labels_have_colours_of_their_own() -> None:
    labels = from_array(torch.arange(16, dtype=torch.uint8).reshape(4, 4))
    ax = show(labels)
    (image,), (bar,) = ax.images, ax.child_axes
    assert (bar.get_ylim(), [*bar.get_yticks()]) == ((-0.5, 15.5), [*range(16)])
    assert image.get_cmap().name == "tab20"
    colours = image.to_rgba(image.get_array()).reshape(-1, 4)
    assert len(np.unique(colours, axis=0)) == 16
    assert show(labels, cmap="gray").images[0].get_clim() == (0, 15)
    assert show(from_array(10 * torch.arange(16).reshape(4, 4))).images[0].get_cmap().name != "tab20"


def test_every_so_many_pixels_at_their_own_coordinates() -> None:
    f = Counted(ramp)
    t = tensor_of(f)
    ax = show(t, sl[-6:26, 0:40], every=8)
    assert drawn_on(ax).tolist() == [[1000 * y + x for x in range(0, 40, 8)] for y in range(-6, 26, 8)]
    assert extent(ax) == [-4, 36, 22, -10]
    assert value_at(ax, 18, 32) == 18032
    # One window of 4 x 4 for each pixel that is drawn.
    assert len(f.calls) == 20
    assert extent(show(t, sl[0:8:2, 0:8], every=2)) == [-1, 7, 6, -2]


def test_as_many_pixels_as_fit() -> None:
    ax = show(tensor_of(), sl[0:10, 0:20], max_pixels=50)
    assert drawn_on(ax).shape == (5, 10)
    assert drawn_on(show(tensor_of(), sl[0:10, 0:20], max_pixels=49)).shape == (4, 7)
    assert drawn_on(show(tensor_of(), sl[0:10, 0:20], max_pixels=1)).shape == (1, 1)
    assert show(tensor_of(), sl[2, 0:20], max_pixels=5).lines[0].get_xdata().tolist() == [0, 4, 8, 12, 16]


def test_by_default_a_large_tensor_is_drawn_whole_at_a_step_that_fits_a_screen() -> None:
    pixels = np.random.default_rng(0).integers(0, 256, (6000, 8000), np.uint8)
    ax = show(from_array(pixels))
    assert np.array_equal(drawn_on(ax), pixels[::7, ::7])
    assert extent(ax) == [-3.5, 7997.5, 6002.5, -3.5]
    colours = np.broadcast_to(pixels[::2, ::2], (3, 3000, 4000))
    assert drawn_on(show(from_array(colours), every=100)).shape == (30, 40, 3)


def test_from_afar_what_is_not_stored_is_left_blank() -> None:
    f = Counted(lambda ctx: torch.full((4, 4), float("nan")) if ctx[1] else torch.zeros(4, 4))
    t = tensor_of(f)
    t[0:8, 0:8]
    calls = list(f.calls)
    ax = show(t, sl[0 : 10**9, 0 : 10**9], every=2**28, compute=False)
    mask = np.ma.getmaskarray(ax.images[0].get_array())
    assert mask.tolist() == [[(y, x) != (0, 0) for x in range(4)] for y in range(4)]
    mask = np.ma.getmaskarray(show(t, sl[0:8, 0:12], every=4, compute=False).images[0].get_array())
    assert t[0, 4].isnan()
    assert f.calls == calls
    assert not mask[:, 0].any()
    assert mask[:, 2].all()


def test_by_default_all_of_a_finite_tensor_and_the_origin_of_another() -> None:
    assert extent(show(from_array(torch.rand(6, 9)))) == [-0.5, 8.5, 5.5, -0.5]
    t = InfiniteTensor((None, None), lambda _: torch.ones(64, 64), TensorWindow((64, 64)))
    assert extent(show(t)) == [-256.5, 255.5, 255.5, -256.5]


def test_names_are_drawn_letter_by_letter() -> None:
    name = r"$\frac{1}$"
    t = InfiniteTensor(
        (8, 8), lambda _: torch.ones(8, 8), TensorWindow((8, 8)), tensor_id=name + "\x1b", dims=("$y^$", "$x_$")
    )
    ax = show(t)
    ax.figure.draw_without_rendering()
    assert ax.get_title() == name + r"\x1b"


@pytest.mark.parametrize("shape", [(3, 6, 7), (6, 7, 3), (1, 6, 7), (6, 7, 1), (4, 6, 7)])
def test_three_or_four_channels_are_colours_as_in_the_viewer(shape: tuple[int, int, int]) -> None:
    pixels = torch.rand(shape)
    expected = pixels.movedim(0, -1) if shape[0] < 6 else pixels
    assert np.allclose(drawn_on(show(from_array(pixels))), expected[..., :3].squeeze(-1))


def test_other_dtypes() -> None:
    for dtype in (torch.bool, torch.uint16, torch.bfloat16, torch.int64):
        values = torch.arange(12).reshape(3, 4).to(dtype)
        assert np.allclose(drawn_on(show(from_array(values))), values.double())
    waves = torch.tensor([[3 + 4j, 0]])
    assert drawn_on(show(from_array(waves), sl[0:1, 0:2])).tolist() == [[5, 0]]


def test_one_dimension_is_a_line() -> None:
    t = InfiniteTensor((None,), lambda ctx: torch.arange(4.0) + 4 * ctx[0], TensorWindow((4,)), dims=("t",))
    ax = show(t, sl[-3:5:2])
    (line,) = ax.lines
    assert line.get_xdata().tolist() == [-3, -1, 1, 3]
    assert line.get_ydata().tolist() == [-3, -1, 1, 3]
    assert ax.get_xlabel() == "t"
    ax = show(tensor_of(), sl[2, 0:4])
    assert ax.lines[0].get_ydata().tolist() == [2000, 2001, 2002, 2003]
    assert ax.get_title() == "height, y=2"


def test_what_is_missing_is_computed_or_left_blank() -> None:
    f = Counted(ramp)
    t = tensor_of(f)
    t[0:4, 0:4]
    calls = list(f.calls)
    ax = show(t, sl[-2:6, 0:8], compute=False)
    assert f.calls == calls
    drawn = drawn_on(ax)
    known = np.zeros((8, 8), bool)
    known[2:6, 0:4] = True
    assert (np.isnan(drawn) == ~known).all()
    assert drawn[2, 3] == 3
    show(t, sl[0:4, 0:8])
    assert f.calls == [*calls, (0, 1)]


def test_missing_colours_are_blank() -> None:
    window = TensorWindow((3, 4, 4), dimension_map=(None, 1, 2))
    store, dims = DictTileStore({}, tile_size=4), ("c", "y", "x")
    t = InfiniteTensor((3, None, None), lambda _: torch.zeros(3, 4, 4), window, tile_store=store, dims=dims)
    t[:, 0:4, 0:4]
    ax = show(t, sl[:, 0:4, 0:8], compute=False)
    drawn = drawn_on(ax)
    assert (drawn[:, :4, :3] == 0).all()
    assert drawn[..., 3].tolist() == [[1] * 4 + [0] * 4] * 4
    assert mpl.colors.to_rgb(ax.get_facecolor()) == (0.85, 0.85, 0.85)


@pytest.mark.parametrize(
    ("region", "options", "message"),
    [
        (sl[0:0, 0:4], {}, "empty"),
        (sl[4:0:-1, 0:4], {}, "steps"),
        (sl[1, 2], {}, "one pixel"),
        (sl[0:100_000, 0:100_000], {"every": 1}, "100,000 x 100,000"),
        (sl[0:4, 0:4], {"compute": "skip"}, "compute"),
        (sl[0:4, 0:4], {"every": 0}, "every"),
        (sl[0:4, 0:4], {"max_pixels": 0.5}, "max_pixels"),
        (sl[0:4, 0:4], {"every": 2, "max_pixels": 9}, "not both"),
    ],
)
def test_what_cannot_be_drawn_is_refused_before_anything_is_computed(
    region: Any, options: dict[str, Any], message: str
) -> None:
    f = Counted(ramp)
    with pytest.raises(ValidationError, match=message):
        show(tensor_of(f), region, **options)
    assert f.calls == []
    assert plt.get_fignums() == []


def test_more_dimensions_than_a_picture_has() -> None:
    volume = from_array(torch.rand(5, 6, 7), dims=("z", "y", "x"))
    with pytest.raises(ValidationError, match="2 x 2 x 2"):
        show(volume, sl[0:2, 0:2, 0:2])
    assert show(volume, sl[:, 3, :]).get_ylabel() == "z"
