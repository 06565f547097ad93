"""The worlds among the examples, beside the same pixels by plain loops; and as a user draws them."""

from __future__ import annotations

import runpy
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image
from torch.nn.functional import interpolate, pad

from infinite_tensor import noise, open_store, sl
from tests.docs.test_examples import EXAMPLES, succeeds


def example(name: str) -> dict[str, Any]:
    """What an example defines, without what it draws."""
    return runpy.run_path(str(EXAMPLES / f"{name}.py"))


def enlarged(pixels: torch.Tensor, size: int) -> torch.Tensor:
    """Pixels at `size` times the resolution, without two pixels on each side, which only lie around them."""
    fine: torch.Tensor = interpolate(pixels[None, None], scale_factor=size, mode="bicubic")[0, 0]
    return fine[2 * size : -2 * size, 2 * size : -2 * size]


def hann(size: int) -> torch.Tensor:
    """The weights of a window for the blend of this name."""
    line = torch.sin(torch.pi * (torch.arange(size, dtype=torch.float64) + 0.5) / size).square().float()
    return line[:, None] * line


def gaussian(size: int) -> torch.Tensor:
    """The weights of a window for the blend of this name."""
    line = torch.exp((torch.arange(size) - (size - 1) / 2) ** 2 / (-2 * (size / 8) ** 2))
    return (line[:, None] * line).clamp(min=1e-3)


Sources = Sequence[tuple[torch.Tensor, int]]
"""Pixels, and how many of the first source lie on one of them."""


def jointly(step: Callable[..., torch.Tensor], sources: Sources, weights: torch.Tensor, batch: int) -> torch.Tensor:
    """Compute each window alone, half a window apart, and take means with these weights.

    Around the ends of the first source, pixels have too few windows.
    """
    (size, _), (rows, columns) = weights.shape, sources[0][0].shape[1:]
    summed, total = torch.zeros_like(sources[0][0]), torch.zeros(rows, columns)
    for y in range(0, rows - size + 1, size // 2):
        for x in range(0, columns - size + 1, size // 2):
            regions = [
                pixels[:, y // by : (y + size) // by, x // by : (x + size) // by].expand(batch, -1, -1, -1)
                for pixels, by in sources
            ]
            summed[:, y : y + size, x : x + size] += step(*regions)[0] * weights
            total[y : y + size, x : x + size] += weights
    return summed / total.where(total > 0, 1)


def test_planet() -> None:
    made = example("planet")
    rows, columns = made["ROWS"], made["COLUMNS"]
    expected = torch.zeros(rows, columns)
    for size in (128, 64, 32, 16, 8, 4):
        numbers = noise((rows // size, columns // size), seed=size)[...]
        around = torch.cat([numbers[:, -2:], numbers, numbers[:, :2]], 1)
        expected = expected + enlarged(pad(around[None], (0, 0, 2, 2), mode="reflect")[0], size) * size**0.8
    expected = expected / 50 - 1
    heights = made["heights"]
    torch.testing.assert_close(heights[...], expected, rtol=0, atol=1e-6)
    assert torch.equal(heights[:, -64:64], heights[...].roll(64, 1)[:, :128])
    latitude = (torch.arange(rows) + 0.5) / rows * torch.pi
    degrees = 45 * latitude.sin()[:, None] - 15 - 25 * expected
    kind = (expected > -0.2).int() + (expected > 0) + ((expected > 0) & (degrees > 22))
    kind[degrees < -5] = 4
    high = expected.clamp(min=0)
    painted = made["COLOURS"][kind].movedim(-1, 0) * (1 + 8 * (high.roll(-1, 1) - high))
    found = made["planet"][...]
    # Few pixels lie so near to a border between two colours that rounding decides.
    assert ((found - painted).abs() > 1e-4).float().mean() < 1e-4


def test_joint_diffusion() -> None:
    made = example("joint_diffusion")
    low, high = -128, 256
    latents = noise((1, None, None), seed=5, kind="normal")[:, low:high, low:high]
    drawing = torch.full((1, (high - low) // 8, (high - low) // 8), -1.0)
    drawing[:, 16:, 16:] = made["RING"].clamp(min=-1)[:, :32, :32]
    inside = slice(-low, -low + 96)
    for level, step in zip((0.7, 0.5), made["steps"], strict=False):
        sources = [(latents, 1), (drawing, 8)]
        latents = jointly(partial(made["step"], level), sources, hann(64), 8)
        assert torch.equal(step[:, 0:96, 0:96], latents[:, inside, inside])


def test_voxels() -> None:
    made = example("voxels")
    heights = sum(
        enlarged(noise((None, None), seed)[-2 : side // size + 2, -2 : side // size + 2], size) * high
        for (seed, size, high), side in zip(((1, 64, 48), (2, 16, 12)), (192, 192), strict=True)
    )
    mirrored = [2, 1, *range(8), 6, 5]
    numbers = noise((8, None, None), 3)[:, -2:26, -2:26]
    caves = interpolate(numbers[mirrored][None, None], scale_factor=8, mode="trilinear")[0, 0][16:-16, 16:-16, 16:-16]
    z = torch.arange(64)[:, None, None]
    below = z < heights
    expected = torch.where(z < 24, made["WATER"], made["AIR"]).expand(64, 192, 192).clone()
    expected[below] = made["STONE"]
    expected[below & (z > heights - 2)] = made["GRASS"]
    expected[below & (caves > 0.62)] = made["AIR"]
    here = expected[:, 100:112, 140:152]
    here[...] = torch.where(made["tower"] == made["NO_EDIT"], here, made["tower"])
    assert torch.equal(made["edited"][:, 0:192, 0:192], expected.to(torch.uint8))


def test_erosion() -> None:
    made = example("erosion")
    inside = slice(200, 232)
    land = made["land"][-200:232, -200:232]
    assert torch.equal(made["valleys"][0:32, 0:32], made["eroded"](land)[inside, inside])
    assert made["land"].map(made["eroded"], halo=16, window=32).check(sl[0:64, 0:64]).differs.any()


def test_generator(tmp_path: Path) -> None:
    made = example("generator")
    low, high = -256, 320
    with open_store(tmp_path / "generator.zarr") as store:
        landscape, biomes = made["world"](7, store)
        found, kinds = landscape[:, 0:200, 0:200], biomes[0:200, 0:200]
    coarse = noise((3, None, None), 7, kind="normal")[:, low // 8 - 32 : high // 8 + 40, low // 8 - 32 : high // 8 + 40]
    climate = jointly(made["coarse"], [(coarse, 1)], gaussian(32), 1)[:, 32:-40, 32:-40]
    latents = noise((3, None, None), 7, stream=1, kind="normal")[:, low:high, low:high]
    for level in (0.6, 0.2, 0.05):
        latents = jointly(partial(made["denoise"], level), [(latents, 1), (climate, 8)], gaussian(64), 4)
    part = slice(-low - 2, -low + 40)
    fine = made["decode"](latents[:, part, part])[:, 16:-16, 16:-16]
    assert torch.equal(found, fine[:, :200, :200])
    assert torch.equal(kinds, made["classify"](fine)[:200, :200])


@pytest.mark.slow
@pytest.mark.parametrize("name", ["planet", "joint_diffusion", "voxels", "erosion", "generator"])
def test_each_is_drawn_by_one_command(name: str, tmp_path: Path) -> None:
    first = succeeds(EXAMPLES / f"{name}.py", cwd=tmp_path)
    with Image.open(tmp_path / f"{name}.png") as picture:
        assert picture.format == "PNG"
        assert np.asarray(picture.convert("RGB")).std() > 30
    assert first.count("\n") == (2 if name == "erosion" else 0)
