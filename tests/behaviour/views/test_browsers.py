"""What programs of others make of the server in a real browser: pixels on the screen are those of the tensor."""

from __future__ import annotations

import io
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from PIL import Image

from infinite_tensor import InfiniteTensor, TensorWindow, ZarrTileStore, sl
from tests.support.command_line import COMMAND
from tests.support.serving import served

ROOT = Path(__file__).parents[3]
BROWSER_OPTIONS = ("--use-angle=swiftshader", "--enable-unsafe-swiftshader")
"""WebGL without a graphics card, for neuroglancer."""
LEAFLET = ROOT / "node_modules" / "leaflet" / "dist"
SCREEN = 512
CLEAR = (slice(100, 400), slice(100, 400))
"""What no buttons of a page lie on."""
PATIENCE = 60.0
GREY = "void main() { emitGrayscale(toNormalized(getDataValue())); }"

pytestmark = pytest.mark.slow

WORLD = """
import torch
from infinite_tensor import InfiniteTensor, TensorWindow


def colours(ctx):
    y, x = (torch.arange(256) + 256 * i for i in ctx[1:])
    return torch.stack([(y[:, None] * a + x * b) % 256 for a, b in ((3, 1), (1, 2), (0, 5))]).byte()


photo = InfiniteTensor(
    (3, None, None), colours, TensorWindow((3, 256, 256)), dtype=torch.uint8, dims=("c", "y", "x"), tensor_id="photo"
)
"""


@contextmanager
def serving(folder: Path, *options: str) -> Iterator[str]:
    """The URL of `infinite-tensor serve`, which ends with the block."""
    command = [*COMMAND, "serve", "world.zarr", *options, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[2].rstrip("/")
        finally:
            process.terminate()


def comes_to_show(page: Any, pixels: npt.NDArray[np.uint8]) -> bool:
    """Whether the screen is equal to some pixels in the end."""
    end = time.monotonic() + PATIENCE
    while time.monotonic() < end:
        screen = np.asarray(Image.open(io.BytesIO(page.screenshot())).convert("RGB"))
        if np.array_equal(screen[CLEAR], pixels[CLEAR]):
            return True
    return False


def leaflet_page() -> str:
    text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
    return next(block for block in text.split("```") if "L.map" in block).removeprefix("text\n")


def test_the_page_of_leaflet_shows_the_pixels_of_the_tensor(browser: Any, tmp_path: Path) -> None:
    if not LEAFLET.exists():
        pytest.skip("npm install --no-save leaflet@1.9.4")
    (tmp_path / "world.py").write_text(WORLD)
    ZarrTileStore(tmp_path / "world.zarr", mode="w").close()
    names: dict[str, Any] = {}
    exec(WORLD, names)  # noqa: S102  (what the server shows)
    photo = names["photo"]
    page = browser.new_page(viewport={"width": SCREEN, "height": SCREEN})
    page.route(
        "https://unpkg.com/leaflet@1.9.4/dist/*",
        lambda route: route.fulfill(path=LEAFLET / route.request.url.rpartition("/")[2]),
    )
    with serving(tmp_path, "--module", "world.py:photo") as url:
        page.set_content(leaflet_page().replace("http://127.0.0.1:8000/height", f"{url}/photo"))
        for zoom, level in zip((0, -1, -2), [photo, *photo.pyramid(2)], strict=True):
            for row, column in ((0, 0), (-3000, -1000), (10**6, -8)):
                page.evaluate(f"map.setView([{row}, {column}], {zoom}, {{animate: false}})")
                top, left = (at // 2**-zoom - SCREEN // 2 for at in (row, column))
                expected = level[:, top : top + SCREEN, left : left + SCREEN].permute(1, 2, 0).numpy()
                assert comes_to_show(page, expected), (zoom, row, column)
    page.close()


def steps(ctx: tuple[int, ...]) -> torch.Tensor:
    y, x = (torch.arange(64) // 8 + 8 * i for i in ctx)
    return ((y[:, None] * 3 + x * 5) % 200 + 28).byte()


def test_neuroglancer_shows_the_pixels_of_the_tensor_and_of_its_levels(browser: Any, tmp_path: Path) -> None:
    neuroglancer = pytest.importorskip("neuroglancer")
    with ZarrTileStore(tmp_path / "world.zarr", tile_size=256) as store:
        options: dict[str, Any] = {"dtype": torch.uint8, "dims": ("y", "x"), "tensor_id": "world", "tile_store": store}
        world = InfiniteTensor((None, None), steps, TensorWindow((64, 64)), **options)
        levels = [world, *world.pyramid(2)]
        world.fill(sl[-1024:1024, -1024:1024], pyramid=True, progress=False)
        viewer = neuroglancer.Viewer()
        origin = viewer.get_viewer_url().partition("/v/")[0]
        page = browser.new_page(viewport={"width": SCREEN, "height": SCREEN})
        with viewer.config_state.txn() as config:
            config.show_ui_controls = config.show_panel_borders = False
        with served(store, cors=[origin]) as server:
            for k, (row, column) in enumerate([(100, -60), (-240, 160), (0, 0)]):
                with viewer.txn() as state:
                    state.dimensions = neuroglancer.CoordinateSpace(names=["x", "y"], units="", scales=[1, 1])
                    state.layers["world"] = neuroglancer.ImageLayer(source=f"{server.url}/world/|zarr3:", shader=GREY)
                    state.layout, state.show_axis_lines, state.show_scale_bar = "xy", False, False
                    # Of OME-Zarr, pixel i reaches from i - 0.5 to i + 0.5.
                    state.position, state.cross_section_scale = [column - 0.5, row - 0.5], 2**k
                page.goto(viewer.get_viewer_url())
                top, left = (at // 2**k - SCREEN // 2 for at in (row, column))
                expected = levels[k][top : top + SCREEN, left : left + SCREEN].numpy()
                assert comes_to_show(page, np.dstack([expected] * 3)), (k, row, column)
    page.close()
