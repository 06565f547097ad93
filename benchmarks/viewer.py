"""How fast the viewer draws in a browser: `python -m benchmarks.viewer`.

A Chromium without a screen opens the page over noise in a Zarr store five times, of 1200 x 800 pixels; the best counts.
It is measured from the request for the page; tiles are those of four places that one goes to. The browser must be on
the path, and `pip install playwright`.
"""

from __future__ import annotations

import shutil
import tempfile
import time
from pathlib import Path
from typing import Any

from playwright.sync_api import sync_playwright

from infinite_tensor import ZarrTileStore, noise, sl

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
TIMES = 5
TILES = """
window.Bokeh?.documents.length
    ? [...Bokeh.documents[0]._all_models.values()].filter(each => each.name == 'tiles')
          .reduce((sum, each) => sum + each.data.x.length, 0)
    : 0
"""
COMING = "[...Bokeh.documents[0]._all_models.values()].find(each => each.name == 'status').text.includes('to come')"


PLACES = ((1200, 1200), (1200, -1200), (-1200, -1200), (-1200, 1200))


def seconds_of(browser: Any, url: str) -> tuple[float, float]:
    """Seconds to the first tile, and tiles a second of places that one goes to afterwards."""
    page = browser.new_page(viewport={"width": 1200, "height": 800})
    begin = time.perf_counter()
    page.goto(url)
    page.wait_for_function(f"({TILES}) > 0", polling="raf")
    first = time.perf_counter() - begin
    page.wait_for_function(f"!{COMING}", polling="raf")
    start, before = time.perf_counter(), int(page.evaluate(TILES))
    for y, x in PLACES:
        held = page.evaluate(TILES)
        page.get_by_placeholder("y, x").fill(f"{y}, {x}")
        page.keyboard.press("Enter")
        page.wait_for_function(f"({TILES}) > {held} && !{COMING}", polling="raf")
    rate = (int(page.evaluate(TILES)) - before) / (time.perf_counter() - start)
    page.close()
    return first, rate


def main() -> None:
    path = next(filter(None, map(shutil.which, BROWSERS)))
    with tempfile.TemporaryDirectory() as name, sync_playwright() as started:
        store = ZarrTileStore(Path(name) / "world.zarr", tile_size=256)
        numbers = noise((None, None), seed=3)
        world = numbers.map(lambda x: x * 2, window=(256, 256), store=store, tensor_id="world")
        world.fill(sl[-2048:2048, -2048:2048], progress=False)
        browser = started.chromium.launch(executable_path=path, args=["--no-sandbox"])
        with world.view(open_browser=False) as view:
            found = [seconds_of(browser, f"{view.url}?y=0&x=0&zoom=0") for _ in range(TIMES)]
        first, rate = min(first for first, _ in found), max(rate for _, rate in found)
        print(f"the first tile after {first:.2f} s; {rate:.0f} tiles a second")  # noqa: T201
        browser.close()


if __name__ == "__main__":
    main()
