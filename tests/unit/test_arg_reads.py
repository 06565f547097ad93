"""Which pixels of an arg windows read beyond its ends, against what `numpy.pad` puts there."""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np
import pytest

from infinite_tensor import TensorWindow
from infinite_tensor.geometry.padding import PADDINGS, ArgReads
from infinite_tensor.geometry.window import WindowGrid
from infinite_tensor.geometry.window_sets import BoxUnion
from tests.support.reference import Box, Index, box_at

_FAR = 60
"""No window of these tests reaches farther out."""


def stand_for(mode: str, extent: int, first: int, end: int) -> set[int]:
    """The pixels of a dimension that stand for some, inside and beyond its ends."""
    if mode == "error":
        return set(range(first, end))
    options = {"constant_values": -1} if mode == "constant" else {}
    line = np.pad(np.arange(extent), _FAR, mode, **options)  # type: ignore[call-overload]
    return set(line[first + _FAR : end + _FAR].tolist()) - {-1}


def read_by(reads: ArgReads, shape: Index, modes: list[str], index: Index) -> set[Index]:
    """The pixels that one window reads."""
    ends = zip(*box_at(reads.window, index), strict=True)
    return set(
        itertools.product(*itertools.starmap(stand_for, zip(modes, shape, *zip(*ends, strict=True), strict=True)))
    )


def in_boxes(boxes: list[Box]) -> set[Index]:
    """The pixels of some boxes."""
    return {pixel for box in boxes for pixel in itertools.product(*map(range, *box))}


def args(ndim: int) -> Iterator[tuple[np.random.Generator, ArgReads, Index, list[str]]]:
    """Windows of all sizes over small args of all paddings."""
    rng = np.random.default_rng(ndim)
    for _ in range(150):
        shape = tuple(rng.integers(1, 7, ndim).tolist())
        modes = rng.choice(PADDINGS, ndim).tolist()
        size, stride, offset = (rng.integers(low, 8, ndim).tolist() for low in (1, 1, -12))
        follows = [None if rng.random() < 0.2 else d for d in range(ndim)]
        yield rng, ArgReads(TensorWindow(size, stride, offset, follows), shape, modes), shape, modes


@pytest.mark.parametrize("ndim", [1, 2])
def test_windows_read_the_pixels_that_stand_for_theirs(ndim: int) -> None:
    for rng, reads, shape, modes in args(ndim):
        indices = rng.integers(-3, 4, (3, ndim))
        starts = [reads.window.start(index) for index in indices.tolist()]
        for some in ([starts[0]], starts):
            low, high = reads.regions(np.array(some))
            found = in_boxes(list(zip(low.tolist(), high.tolist(), strict=True)))
            assert found == set().union(*(read_by(reads, shape, modes, i) for i in indices.tolist()[: len(some)]))


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_box_of_windows_reads_what_each_of_them_reads(ndim: int) -> None:
    for rng, reads, shape, modes in args(ndim):
        first = rng.integers(-4, 3, ndim)
        windows = BoxUnion.of([first], [first + rng.integers(1, 4, ndim)])
        expected = [read_by(reads, shape, modes, index) for index in windows.points()]
        assert reads.pixels(windows).points() == set().union(*expected)


@pytest.mark.parametrize("ndim", [1, 2])
def test_a_hull_holds_what_is_read_and_tells_whether_all_of_it_is(ndim: int) -> None:
    for rng, reads, shape, modes in args(ndim):
        index = rng.integers(-3, 4, ndim).tolist()
        bounds = [np.array([bound], dtype=np.int64) for bound in box_at(reads.window, index)]
        low, high, whole = reads.hulls(*bounds)
        expected = read_by(reads, shape, modes, index)
        hull = in_boxes([(tuple(low[0].tolist()), tuple(high[0].tolist()))])
        assert expected <= hull
        if expected:
            assert whole == (hull == expected)
            columns = np.array(sorted(expected))
            assert (low[0].tolist(), high[0].tolist()) == (columns.min(0).tolist(), (columns.max(0) + 1).tolist())


@pytest.mark.parametrize("ndim", [1, 2])
def test_the_readers_of_a_pixel_are_the_windows_that_read_one_that_it_stands_for(ndim: int) -> None:
    for rng, reads, shape, modes in args(ndim):
        grid = WindowGrid(TensorWindow((1,) * ndim, offset=tuple(rng.integers(-3, 4, ndim).tolist())), (6,) * ndim)
        low = [int(rng.integers(0, extent)) for extent in shape]
        high = [int(rng.integers(a + 1, extent + 1)) for a, extent in zip(low, shape, strict=True)]
        changed = in_boxes([(tuple(low), tuple(high))])
        windows = itertools.product(*(range(a, b + 1) for a, b in zip(grid.first, grid.last, strict=True)))
        expected = {index for index in windows if read_by(reads, shape, modes, index) & changed}
        found = reads.readers(BoxUnion.of([low], [high]), grid).points()
        assert expected <= found
        # Of small args that repeat, all windows are taken for readers.
        assert expected == found or min(shape) < 4
