"""The examples as a user runs them: processes of their own, on small input, and each of them twice."""

from __future__ import annotations

import importlib
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from infinite_tensor import MemoryTileStore, noise
from tests.support.interpreters import run

EXAMPLES = Path(__file__).parents[2] / "examples"
HEIGHT, WIDTH, SIGMA = 70, 160, 4.0

Pixels = npt.NDArray[np.uint8]


def succeeds(*arguments: object, cwd: Path) -> str:
    done = run(*arguments, cwd=cwd)
    assert (done.returncode, done.stderr) == (0, "")
    return done.stdout


def calls(printed: str) -> int:
    found = re.match(r"(\d+) calls of f in ", printed)
    assert found, printed
    return int(found[1])


def pixels_of(path: Path) -> Pixels:
    with Image.open(path) as picture:
        assert (picture.format, picture.mode) == ("PNG", "RGB")
        return np.array(picture)


@dataclass(frozen=True)
class Runs:
    """What two equal runs printed, and the pictures that they wrote."""

    folder: Path
    printed: list[str]
    pictures: list[Pixels]


def run_twice(folder: Path, *command: object) -> Runs:
    outputs = [folder / "first.png", folder / "second.png"]
    printed = [succeeds(*command, "--output", output, cwd=folder) for output in outputs]
    return Runs(folder, printed, [pixels_of(output) for output in outputs])


@pytest.fixture(scope="module")
def photograph(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Noise over a gradient, so that every pixel is told from its neighbours."""
    noise = np.random.default_rng(0).integers(0, 128, (HEIGHT, WIDTH, 3))
    ramp = np.linspace(0, 127, WIDTH).astype(int)[None, :, None]
    path = tmp_path_factory.mktemp("input") / "photograph.png"
    Image.fromarray((noise + ramp).astype(np.uint8)).save(path)
    return path


@pytest.fixture(scope="module", params=["blur.zarr", "blur.h5"])
def blurred(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, photograph: Path) -> Runs:
    folder = tmp_path_factory.mktemp("blur")
    return run_twice(folder, EXAMPLES / "blur.py", photograph, "--store", request.param)


def test_blur_computes_each_window_once_and_then_none(blurred: Runs) -> None:
    # Two windows hold the picture; their margins need 3x4 of the blur before, and those 5x6 of the plane; the image is
    # read where it lies.
    assert [calls(printed) for printed in blurred.printed] == [2 + 12 + 30, 0]


def test_blur_shows_the_image_beside_what_two_gaussians_make_of_it(blurred: Runs, photograph: Path) -> None:
    picture = blurred.pictures[0]
    assert picture.shape == (HEIGHT, 2 * WIDTH + 8, 3)
    image = pixels_of(photograph)
    assert (picture[:, :WIDTH] == image).all()
    assert (picture[:, WIDTH:-WIDTH] == 255).all()
    expected = gaussian_twice(image / 255) * 255
    assert np.abs(picture[:, -WIDTH:] - expected).max() < 0.51


def gaussian_twice(image: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The blur of the whole image at once, mirrored at its borders."""
    reach = round(3 * SIGMA)
    kernel = np.exp(-0.5 * (np.arange(-reach, reach + 1) / SIGMA) ** 2)
    kernel /= kernel.sum()
    margin = 2 * reach
    padded = np.pad(image, ((margin, margin), (margin, margin), (0, 0)), mode="symmetric")
    for axis in (0, 1, 0, 1):
        padded = np.apply_along_axis(np.convolve, axis, padded, kernel, mode="valid")
    return padded


def test_blur_draws_the_same_picture_from_the_store(blurred: Runs) -> None:
    assert (blurred.pictures[0] == blurred.pictures[1]).all()


READER = """
import hashlib, json, sys
from pathlib import Path
import torch
from infinite_tensor import MemoryTileStore, open_store
folder, photograph, target = sys.argv[1:]
sys.path.insert(0, folder)
import blur
torch.set_num_threads(1)
image = blur.read_image(Path(photograph))
region = (slice(None), slice(0, image.shape[1]), slice(0, image.shape[2]))
with open_store(target, tile_size=blur.SIDE) as store:
    opened = store.open("twice")[region]
with open_store(target, tile_size=blur.SIDE) as store:
    _, twice = blur.blurred_plane(image, 4.0, store)
    report = twice.fill(region, progress=False)
    rebuilt = twice[region]
_, twice = blur.blurred_plane(image, 4.0, MemoryTileStore())
computed = twice[region]
bits = [hashlib.sha256(read.numpy().tobytes()).hexdigest() for read in (opened, rebuilt, computed)]
print(json.dumps({"calls": report.windows, "bits": bits}))
"""


def test_another_process_opens_or_rebuilds_the_blur_and_reads_the_same_bits(blurred: Runs, photograph: Path) -> None:
    store = next(path for path in blurred.folder.iterdir() if path.suffix in (".zarr", ".h5"))
    found = json.loads(succeeds("-c", READER, EXAMPLES, photograph, store, cwd=blurred.folder))
    assert found["calls"] == 0
    assert len(set(found["bits"])) == 1


def test_blur_refuses_a_store_that_holds_another_image(blurred: Runs, tmp_path: Path) -> None:
    other = tmp_path / "other.png"
    Image.new("RGB", (WIDTH, HEIGHT), "red").save(other)
    store = next(path for path in blurred.folder.iterdir() if path.suffix in (".zarr", ".h5"))
    done = run(EXAMPLES / "blur.py", other, "--store", store, cwd=tmp_path)
    assert done.returncode == 1
    assert re.search(r"args\[0\]\.digest: stored '\w{64}', given '\w{64}'", done.stderr)
    assert "give another --store" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "blur.png").exists()


def test_blur_of_its_own_photograph_at_a_size_of_choice(tmp_path: Path) -> None:
    assert calls(succeeds(EXAMPLES / "blur.py", "--size", 40, cwd=tmp_path)) > 0
    assert pixels_of(tmp_path / "blur.png").shape == (40, 2 * 40 + 8, 3)
    assert (tmp_path / "blur.zarr").is_dir()


@pytest.mark.parametrize(
    "given", [("--sigma", "0"), ("--sigma", "-1"), ("--sigma", "nan"), ("--size", "0"), ("--size", "-5")]
)
def test_blur_refuses_a_sigma_or_size_that_is_none(
    given: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["blur", *given])
    with pytest.raises(SystemExit, match="2"):
        importlib.import_module("blur").main()
    assert "--sigma must be above 0" in capsys.readouterr().err
    assert not [*tmp_path.iterdir()]


FAR = ("--x", 50_000_000, "--y", -123_456_789)
SIZE = 96


@pytest.fixture(scope="module")
def far(tmp_path_factory: pytest.TempPathFactory) -> Runs:
    return run_twice(tmp_path_factory.mktemp("far"), EXAMPLES / "terrain.py", *FAR, "--size", SIZE)


def test_terrain_far_from_the_origin_is_computed_once(far: Runs) -> None:
    first, second = map(calls, far.printed)
    assert first > 0
    assert second == 0
    assert far.pictures[0].shape == (SIZE, SIZE, 3)
    assert far.pictures[0].std() > 5
    assert (far.pictures[0] == far.pictures[1]).all()


def test_neighbouring_terrain_from_another_store_continues_the_picture(far: Runs, tmp_path: Path) -> None:
    shift = SIZE // 3
    place = ("--x", FAR[1] + shift, "--y", FAR[3], "--size", SIZE, "--store", "terrain.h5")
    assert calls(succeeds(EXAMPLES / "terrain.py", *place, cwd=tmp_path)) > 0
    neighbour = pixels_of(tmp_path / "terrain.png")
    assert (neighbour[:, :-shift] == far.pictures[0][:, shift:]).all()
    assert (neighbour[:, -shift:] != far.pictures[0][:, :shift]).any()


def test_terrain_refuses_a_store_that_holds_another_world(far: Runs) -> None:
    done = run(EXAMPLES / "terrain.py", "--seed", 1, cwd=far.folder)
    assert done.returncode == 1
    assert "version.seed: stored 0, given 1" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.fixture
def one_thread() -> Iterator[None]:
    """As the examples themselves: for small windows, threads only get in each other's way."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def terrain(one_thread: None, monkeypatch: pytest.MonkeyPatch) -> ModuleType:  # noqa: ARG001
    monkeypatch.syspath_prepend(EXAMPLES)
    return importlib.import_module("terrain")


def test_terrain_is_what_its_functions_make_of_all_of_it_at_once(terrain: ModuleType) -> None:
    heights, picture = terrain.terrain(0, MemoryTileStore())
    octaves = []
    for size in (16, 4, 1):
        # More around it than the filter reaches.
        numbers = noise((None, None), 0, size, "normal")[-16 : 512 // size + 16, -16 : 512 // size + 16]
        octaves.append(terrain.octave(size, numbers)[16 * size : -16 * size, 16 * size : -16 * size])
    whole = terrain.total(*octaves)
    torch.testing.assert_close(heights[0:512, 0:512], whole, rtol=0, atol=0.05)
    shades = picture[:, 1:511, 1:511].int() - terrain.shaded(heights[0:512, 0:512])[:, 1:-1, 1:-1].int()
    assert shades.abs().max() <= 1


def test_terrain_is_as_rough_at_the_borders_of_coarse_pixels_as_anywhere(terrain: ModuleType) -> None:
    rows, columns = 512, 1024
    heights = terrain.terrain(0, MemoryTileStore())[0][0:rows, -1 : columns + 1].double()
    bends = heights[:, 2:] - 2 * heights[:, 1:-1] + heights[:, :-2]
    # The finest octave has the resolution of the picture, and cannot show any; the next is enlarged by four.
    by_column = bends.square().reshape(rows, columns // 4, 4).mean(dim=(0, 1))
    assert by_column.max() / by_column.min() < 1.15


def test_terrain_takes_no_more_than_40_lines() -> None:
    """As docs/terrain.md says of the example; what the page shows takes fewer."""
    script = (EXAMPLES / "terrain.py").read_text(encoding="utf-8")
    terrain = script[script.index("PIXEL = ") : script.index("def arguments")]
    page = (EXAMPLES.parent / "docs" / "terrain.md").read_text(encoding="utf-8")
    shown = "".join(re.findall(r"```python\n(.*?)```", page, re.DOTALL))
    for code in (terrain, shown):
        assert 20 < len([line for line in code.splitlines() if line.strip()]) <= 40


def test_terrain_is_lit_from_the_north_west(terrain: ModuleType) -> None:
    down = torch.arange(0, 640.0, 20)
    north_west, south_east = (terrain.shaded(100 + slope[:, None] + slope).sum() for slope in (down, down.flip(0)))
    assert north_west > 1.5 * south_east


@pytest.mark.parametrize("name", ["blur", "terrain"])
def test_help_explains_where_tiles_are_kept(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.syspath_prepend(EXAMPLES)
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    with pytest.raises(SystemExit, match="0"):
        importlib.import_module(name).main()
    assert "a path or URL of a Zarr store" in " ".join(capsys.readouterr().out.split())
