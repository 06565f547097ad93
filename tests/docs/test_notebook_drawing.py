"""The script that draws what docs/notebooks.md shows."""

from __future__ import annotations

import re
from pathlib import Path

from matplotlib.image import imread

from tests.docs.test_examples import succeeds
from tests.support.html import Page

ROOT = Path(__file__).parents[2]
_DATA = re.compile(r"base64,[^\"]*")


def test_it_draws_what_the_page_shows(tmp_path: Path) -> None:
    script = ROOT / "docs" / "drawings" / "notebook.py"
    succeeds(script, "--folder", tmp_path, cwd=ROOT)
    page = (ROOT / "docs" / "notebooks.md").read_text(encoding="utf-8")
    assert "images/show.png" in page
    assert '--8<-- "docs/drawings/repr.html"' in page
    drawn, kept = imread(tmp_path / "show.png"), imread(ROOT / "docs" / "images" / "show.png")
    assert drawn.shape == kept.shape
    # Fonts differ from machine to machine.
    assert abs(drawn - kept).mean() < 0.05
    html = [(folder / "repr.html").read_text(encoding="utf-8") for folder in (tmp_path, ROOT / "docs" / "drawings")]
    # And so may the last bit of a colour, and how it is compressed.
    assert len({_UNNAMED.sub("unnamed", _DATA.sub("", text)) for text in html}) == 1
    Page(html[1])


_UNNAMED = re.compile(r"unnamed [0-9a-f]{8}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")
