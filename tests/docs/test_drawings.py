"""The scripts that draw what pages show."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.docs.test_examples import succeeds
from tests.support.html import Page
from tests.support.pictures import is_drawn

ROOT = Path(__file__).parents[2]

DRAWN = [
    ("borders.py", ["borders.png", "seams.png"], ["docs/blending.md"]),
    ("endless.py", ["endless.png"], ["docs/terrain.md"]),
]


@pytest.mark.slow
@pytest.mark.parametrize(("script", "pictures", "pages"), DRAWN)
def test_a_script_draws_the_pictures_that_pages_show(
    script: str, pictures: list[str], pages: list[str], tmp_path: Path
) -> None:
    succeeds(ROOT / "docs" / "drawings" / script, "--folder", tmp_path, cwd=ROOT)
    for name in pictures:
        assert all(f"images/{name}" in (ROOT / page).read_text(encoding="utf-8") for page in pages)
        assert is_drawn(tmp_path / name)


_DATA = re.compile(r"base64,[^\"]*")
_UNNAMED = re.compile(r"unnamed [0-9a-f]{8}|[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}")


def test_a_notebook_shows_what_its_page_shows(tmp_path: Path) -> None:
    succeeds(ROOT / "docs" / "drawings" / "notebook.py", "--folder", tmp_path, cwd=ROOT)
    page = (ROOT / "docs" / "viewing.md").read_text(encoding="utf-8")
    assert "images/show.png" in page
    assert '--8<-- "docs/drawings/repr.html"' in page
    assert is_drawn(tmp_path / "show.png")
    html = [(folder / "repr.html").read_text(encoding="utf-8") for folder in (tmp_path, ROOT / "docs" / "drawings")]
    # And so may the last bit of a colour, and how it is compressed.
    assert len({_UNNAMED.sub("unnamed", _DATA.sub("", text)) for text in html}) == 1
    Page(html[1])
