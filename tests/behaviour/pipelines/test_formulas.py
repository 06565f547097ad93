"""Maps without a window or a store are formulas: computed where they are read, with the pixels of brute force."""

from __future__ import annotations

import warnings
from fractions import Fraction
from typing import Any, NamedTuple

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from infinite_tensor import InfiniteTensor, map_windows, noise

MODES = ("edge", "reflect", "symmetric", "wrap", "constant")
REACH = 160
"""Pixels on each side of 0 that brute force computes of an unbounded dimension."""


class Whole(NamedTuple):
    """All pixels of a tensor, as brute force has them: of an unbounded dimension those around 0."""

    pixels: np.ndarray[Any, Any]
    first: tuple[int, ...]
    extents: tuple[int | None, ...]


def box_sum(x: torch.Tensor, halo: int) -> torch.Tensor:
    n = 2 * halo + 1
    rows = torch.stack([x[i : x.shape[0] - n + 1 + i] * (i + 1) for i in range(n)]).sum(0)
    return torch.stack([rows[:, i : x.shape[1] - n + 1 + i] * (i + 2) for i in range(n)]).sum(0) % 1009


def padded(source: Whole, halo: int, mode: str) -> np.ndarray[Any, Any]:
    pixels = source.pixels
    for d, extent in enumerate(source.extents):
        if extent is None:
            continue
        widths = [(halo, halo) if d == n else (0, 0) for n in range(2)]
        pixels = np.pad(pixels, widths, mode=mode)  # type: ignore[call-overload]
    return pixels


def summed(source: Whole, halo: int, mode: str) -> Whole:
    found = box_sum(torch.from_numpy(padded(source, halo, mode)), halo).numpy()
    first = tuple([a if n is not None else a + halo for a, n in zip(source.first, source.extents, strict=True)])
    return Whole(found, first, source.extents)


def enlarged(x: torch.Tensor) -> torch.Tensor:
    return x.repeat_interleave(2, 0).repeat_interleave(2, 1)


def halved(x: torch.Tensor) -> torch.Tensor:
    return (x[::2, ::2] + 3 * x[1::2, 1::2]) % 1009


class Pair(NamedTuple):
    """A lazy tensor, and what brute force computes."""

    lazy: InfiniteTensor
    whole: Whole


@st.composite
def chains(draw: st.DrawFn) -> Pair:
    """A chain of maps over integers, some of them with windows, some read by several others."""
    extents = tuple(draw(st.lists(st.sampled_from([None, 1, 7, 30]), min_size=2, max_size=2)))
    sides = [2 * REACH if n is None else n for n in extents]
    first = tuple([-REACH if n is None else 0 for n in extents])
    world = noise(extents, seed=draw(st.integers(0, 5)), dims=("y", "x")).map(
        lambda x: (x * 1009).long(), dtype=torch.int64
    )
    region = tuple([slice(a, a + n) for a, n in zip(first, sides, strict=True)])
    made = [Pair(world, Whole(world[region].numpy(), first, extents))]
    for _ in range(draw(st.integers(1, 5))):
        one = made[-1]
        kind = draw(st.sampled_from(["sum", "sum", "add", "enlarge", "halve"]))
        how: dict[str, Any] = {"window": draw(st.sampled_from([16, (8, 32)]))} if draw(st.integers(0, 3)) == 0 else {}
        made.append(step(draw, kind, made, one, how))
    return made[-1]


def step(draw: st.DrawFn, kind: str, made: list[Pair], one: Pair, how: dict[str, Any]) -> Pair:
    whole = one.whole
    if kind == "sum":
        halo = draw(st.integers(0, 3))
        mode = draw(st.sampled_from(MODES))
        if mode == "reflect" and 1 in whole.extents:
            mode = "edge"
        given_mode = ("constant", 0) if mode == "constant" else mode
        lazy = one.lazy.map(lambda x: box_sum(x, halo), halo=halo, padding=given_mode, **how)
        return Pair(lazy, summed(whole, halo, mode))
    if kind == "add":
        others = [each for each in made if each.whole.extents == whole.extents]
        other = draw(st.sampled_from(others))
        return Pair(map_windows(torch.add, one.lazy, other.lazy, **how), added(whole, other.whole))
    if kind == "enlarge" and whole.pixels.size < 500_000:
        pixels = enlarged(torch.from_numpy(whole.pixels)).numpy()
        extents = tuple([None if n is None else 2 * n for n in whole.extents])
        return Pair(one.lazy.map(enlarged, scale=2, **how), Whole(pixels, tuple([2 * a for a in whole.first]), extents))
    if kind == "halve" and not any(n is not None and n % 2 for n in whole.extents):
        begin = [a % 2 for a in whole.first]
        pixels = whole.pixels[begin[0] :, begin[1] :]
        pixels = pixels[: len(pixels) // 2 * 2, : pixels.shape[1] // 2 * 2]
        found = halved(torch.from_numpy(pixels)).numpy()
        first = tuple([(a + b) // 2 for a, b in zip(whole.first, begin, strict=True)])
        extents = tuple([None if n is None else n // 2 for n in whole.extents])
        return Pair(one.lazy.map(halved, scale=Fraction(1, 2), **how), Whole(found, first, extents))
    return one


def added(one: Whole, other: Whole) -> Whole:
    first = tuple(map(max, one.first, other.first))
    ends = [
        min(a + n, b + m)
        for a, n, b, m in zip(one.first, one.pixels.shape, other.first, other.pixels.shape, strict=True)
    ]
    parts = [
        each.pixels[tuple([slice(a - c, b - c) for a, b, c in zip(first, ends, each.first, strict=True)])]
        for each in (one, other)
    ]
    return Whole(parts[0] + parts[1], first, one.extents)


@st.composite
def boxes(draw: st.DrawFn, whole: Whole) -> tuple[slice, ...]:
    found = []
    for a, n in zip(whole.first, whole.pixels.shape, strict=True):
        begin = draw(st.integers(a, a + n - 1))
        found.append(slice(begin, min(a + n, begin + draw(st.integers(1, 90)))))
    return tuple(found)


@given(st.data())
def test_chains_of_formulas_have_the_pixels_of_brute_force(data: st.DataObject) -> None:
    lazy, whole = data.draw(chains())
    regions = data.draw(st.lists(boxes(whole), min_size=1, max_size=3))
    workers = data.draw(st.sampled_from([None, 1, 3]))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        found = lazy.read([*regions], workers=workers)
    for region, pixels in zip(regions, found, strict=True):
        inside = tuple([slice(s.start - a, s.stop - a) for s, a in zip(region, whole.first, strict=True)])
        np.testing.assert_array_equal(pixels.numpy(), whole.pixels[inside])
