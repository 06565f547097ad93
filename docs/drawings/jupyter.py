"""Takes the picture of a notebook in docs/viewing.md: in JupyterLab, in a Chromium without a screen.

``python docs/drawings/jupyter.py`` writes it. It needs a Chromium, and ``pip install jupyterlab playwright``.
"""

from __future__ import annotations

import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import nbformat
from PIL import Image
from playwright.sync_api import sync_playwright

DOCS = Path(__file__).parents[1]
CELLS = ("heights.fill((slice(-512, 512), slice(-512, 512)))", "heights.view()")
CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
KERNEL = {"kernelspec": {"name": "python3", "display_name": "Python 3"}}
SHOWN = """
window.Bokeh && Bokeh.documents.length
&& [...Bokeh.documents[0]._all_models.values()].some(each => each.name == 'tiles' && each.data.x.length)
"""


def main() -> None:
    """Write the notebook, start JupyterLab, and take the picture."""
    tutorial = re.findall(r"```python\n(.*?)```", (DOCS / "terrain.md").read_text(encoding="utf-8"), re.DOTALL)
    cells = [nbformat.v4.new_code_cell(text) for text in ("\n".join(tutorial[:2]), *CELLS)]
    path = next(filter(None, map(shutil.which, CHROMIUM)))
    with tempfile.TemporaryDirectory() as name:
        nbformat.write(nbformat.v4.new_notebook(cells=cells, metadata=KERNEL), Path(name) / "terrain.ipynb")
        command = [sys.executable, "-m", "jupyterlab", "--no-browser", "--allow-root", "--port=0", "--ServerApp.token="]
        with subprocess.Popen(command, cwd=name, stderr=subprocess.PIPE, text=True) as server:  # noqa: S603
            assert server.stderr is not None
            url = next(filter(None, (re.search(r"http://127\.0\.0\.1:\d+/", line) for line in server.stderr)))[0]
            try:
                Image.open(io.BytesIO(picture(f"{url}lab/tree/terrain.ipynb", path))).save(
                    DOCS / "images" / "seeing-notebook.webp", quality=80, method=6
                )
            finally:
                server.terminate()


def picture(url: str, chromium: str) -> bytes:
    """Run all cells of a notebook; a PNG of all but the first one."""
    with sync_playwright() as started:
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 2600})
        page.goto(url)
        page.wait_for_selector(".jp-Notebook .jp-Cell >> nth=2")
        page.wait_for_selector("[data-status=idle]")
        page.locator("div.lm-MenuBar-itemLabel", has_text="Run").click()
        page.locator(".lm-Menu-itemLabel", has_text="Run All Cells").first.click()
        viewer = page.wait_for_selector("iframe").content_frame()
        assert viewer is not None
        viewer.wait_for_function(SHOWN)
        page.keyboard.press("Escape")
        page.wait_for_timeout(3000)
        boxes = [cell.bounding_box() for cell in page.query_selector_all(".jp-Notebook .jp-Cell")[1:]]
        first, *_, last = filter(None, boxes)
        height = last["y"] + last["height"] - first["y"]
        found = page.screenshot(clip={"x": first["x"], "y": first["y"], "width": first["width"], "height": height})
        browser.close()
    return found


if __name__ == "__main__":
    main()
