"""The site in a browser, on a laptop and on a phone: no code and no table is cut, and nothing is missing."""

from __future__ import annotations

import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
CUT = """
laptop => {
    for (const each of document.querySelectorAll("details")) each.open = true
    const lines = code => code.textContent.trimEnd().split("\\n")
    const wide = code => lines(code).some(line => line.length > 80)
    const codes = [...document.querySelectorAll("pre > code")]
    const signatures = codes.filter(code => code.closest(".doc-signature") && wide(code))
    // What has 80 columns breaks no line on a laptop; scripts of the gallery are wider.
    if (laptop) codes.filter(code => !wide(code)).forEach(code => code.style.whiteSpace = "pre")
    const cut = codes.filter(code => code.scrollWidth > code.clientWidth + 1)
    const tables = [...document.querySelectorAll("article table")].filter(table => {
        const box = table.closest(".md-typeset__scrollwrap")
        const reach = (box || table).getBoundingClientRect().right
        return reach > innerWidth + 1 || (box && getComputedStyle(box).overflowX !== "auto")
    })
    return [...signatures, ...cut, ...tables].map(each => each.textContent.trim().slice(0, 60))
}
"""


class Files(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """The address of the built site, and the paths of its pages."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True)
    pages = [str(page.parent.relative_to(folder)) for page in sorted(folder.rglob("index.html"))]
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Files, directory=str(folder))) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", pages
        server.shutdown()


@pytest.mark.slow
@pytest.mark.parametrize("width", [1280, 390])
def test_no_page_cuts_code_or_tables_or_asks_for_what_is_missing(
    site: tuple[str, list[str]], browser: Any, width: int
) -> None:
    address, pages = site
    page = browser.new_page(viewport={"width": width, "height": 900})
    answers: dict[str, int] = {}
    page.on("response", lambda answer: answers.update({answer.url: answer.status}))
    cut = {}
    for path in pages:
        page.goto(f"{address}/{path}/")
        cut[path] = page.evaluate(CUT, width > 1000)
    assert len(cut) > 40
    assert {path: found for path, found in cut.items() if found} == {}
    assert [url for url, status in answers.items() if status >= 400] == []


def test_what_builds_the_site_folds_signatures() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert any(need.startswith(("black", "ruff")) for need in project["optional-dependencies"]["docs"])
