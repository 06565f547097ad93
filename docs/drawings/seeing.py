"""Takes the pictures of docs/viewing.md: of pages in a Chromium without a screen.

``python docs/drawings/seeing.py`` writes them; ``--folder`` says where to. It needs a Chromium,
``pip install playwright neuroglancer``, and ``npm install --no-save leaflet@1.9.4``.
"""

from __future__ import annotations

import argparse
import io
import re
import runpy
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from fractions import Fraction
from pathlib import Path
from typing import Any

import matplotlib as mpl
import neuroglancer
from matplotlib.cbook import get_sample_data
from PIL import Image
from playwright.sync_api import sync_playwright

mpl.use("Agg")

import matplotlib.pyplot as plt

from infinite_tensor import InfiniteTensor, MemoryTileStore, ZarrTileStore, from_array, from_image, open_store, sl

ROOT = Path(__file__).parents[2]
LEAFLET = ROOT / "node_modules" / "leaflet" / "dist"
BESIDE = sl[-1024:1024, -1024:1024]
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TILES = "[...Bokeh.documents[0]._all_models.values()].filter(each => each.name == 'tiles')"
STATUS = "[...Bokeh.documents[0]._all_models.values()].filter(each => each.name == 'status')"
SHOWN = f"""
window.Bokeh && Bokeh.documents.length && {TILES}.some(each => each.data.x.length)
&& {STATUS}.every(each => !each.text.includes('to come'))
"""
"""That the viewer has drawn what it is to draw."""
GREY = "#uicontrol invlerp normalized(range=[{}, {}])\nvoid main() {{ emitGrayscale(normalized()); }}"

Take = Callable[[str, str, str], None]


def terrain(folder: Path, take: Take, images: Path) -> None:
    """The terrain of the examples: the viewer at three zooms, neuroglancer, Leaflet, `show`."""
    example = runpy.run_path(str(ROOT / "examples" / "terrain.py"))
    store = ZarrTileStore(folder / "terrain.zarr", tile_size=256)
    heights, picture = example["terrain"](0, store)
    heights.fill(BESIDE, pyramid=True, progress=False)
    picture.fill(sl[:, *BESIDE], pyramid=True, progress=False)
    with picture.view(open_browser=False) as view:
        for zoom in (-1, 0, 2):
            take(f"view-zoom{zoom}", f"{view.url}?y=0&x=0&zoom={zoom}", SHOWN)
    stats = heights.stats(BESIDE)
    figure, axes = plt.subplots(figsize=(8, 6), layout="constrained")
    heights.show(BESIDE, ax=axes, cmap="terrain")
    figure.savefig(images / "seeing-show.webp", dpi=80, pil_kwargs={"quality": 85})
    plt.close(figure)
    store.close()
    viewer = neuroglancer.Viewer()
    page = viewer.get_viewer_url()
    with serving(folder, "terrain.zarr", "--cors", page.partition("/v/")[0]) as url:
        with viewer.txn() as state:
            state.dimensions = neuroglancer.CoordinateSpace(names=[*heights.dims][::-1], units="", scales=[1, 1])
            shader = GREY.format(stats.mean - 2 * stats.std, stats.mean + 2 * stats.std)
            state.layers["heights"] = neuroglancer.ImageLayer(source=f"{url}/heights/|zarr3:", shader=shader)
            state.layout, state.position, state.cross_section_scale = "xy", [0, 0], 1.5
            state.show_axis_lines = False
        take("neuroglancer", page, "")
        text = (ROOT / "docs" / "server.md").read_text(encoding="utf-8")
        (block,) = re.findall(r"```text\n(<!doctype.*?)```", text, re.DOTALL)
        (folder / "leaflet.html").write_text(block.replace("http://127.0.0.1:8000/height", f"{url}/picture"))
        take("leaflet", (folder / "leaflet.html").as_uri(), "document.querySelectorAll('img.leaflet-tile').length > 3")


def labels(folder: Path, take: Take) -> None:
    """A photograph, and what a network finds on it."""
    command = [sys.executable, ROOT / "examples" / "segment.py", "--size", "3200"]
    subprocess.run(command, cwd=folder, check=True)  # noqa: S603  (an example)
    example = runpy.run_path(str(ROOT / "examples" / "segment.py"))
    photograph = from_array(
        from_image(get_sample_data("grace_hopper.jpg", asfileobj=False))[:, :, 20:470], dims=("c", "y", "x")
    )
    enlarged = photograph.map(example["enlarge"], halo=3, window=60, scale=Fraction(8000, 600), store=MemoryTileStore())
    with open_store(folder / "segment.zarr", mode="r") as store:
        found = next(each for each in map(store.open, store.tensor_ids()) if isinstance(each, InfiniteTensor))
        with enlarged.view(found, open_browser=False) as view:
            take("labels", f"{view.url}?y=4100&x=3000&zoom=-2.4", SHOWN)


@contextmanager
def serving(folder: Path, store: str, *options: str) -> Iterator[str]:
    """The URL of `infinite-tensor serve`, which ends with the block."""
    command = [sys.executable, "-m", "infinite_tensor.cli", "serve", store, *options, "--port", "0"]
    with subprocess.Popen(command, cwd=folder, stderr=subprocess.PIPE, text=True) as process:  # noqa: S603
        assert process.stderr is not None
        try:
            yield process.stderr.readline().split()[2].rstrip("/")
        finally:
            process.terminate()


def main(images: Path) -> None:
    """Take all of them."""
    options = ["--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader"]
    path = next(filter(None, map(shutil.which, CHROMIUM)))
    with tempfile.TemporaryDirectory() as name, sync_playwright() as started:
        browser: Any = started.chromium.launch(executable_path=path, args=options)

        def take(name: str, url: str, shown: str) -> None:
            page = browser.new_page(viewport={"width": 1200 if name == "labels" else 900, "height": 560})
            leaflet = "https://unpkg.com/leaflet@1.9.4/dist/*"
            page.route(leaflet, lambda route: route.fulfill(path=LEAFLET / route.request.url.rpartition("/")[2]))
            page.goto(url)
            page.wait_for_function(shown or "true", timeout=120_000)
            # What fades in, and levels that come one after another.
            page.wait_for_timeout(5000)
            with Image.open(io.BytesIO(page.screenshot())) as found:
                found.convert("RGB").save(images / f"seeing-{name}.webp", quality=85)
            page.close()

        terrain(Path(name), take, images)
        labels(Path(name), take)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--folder", type=Path, default=ROOT / "docs" / "images")
    main(parser.parse_args().folder)
