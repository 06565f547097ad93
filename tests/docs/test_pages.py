"""What pages show besides code: pictures with a text in their place, and a card of the gallery for each example."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
GALLERY = (ROOT / "docs" / "gallery.md").read_text(encoding="utf-8")

_PICTURE = re.compile(r"!\[(?P<alternative>[^\]]*)\]\((?P<path>[^)]+)\)")


class _Pictures(HTMLParser):
    """Alternative text and path of the pictures of a page that are written as HTML."""

    def __init__(self) -> None:
        super().__init__()
        self.found: list[tuple[str, str]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            given = dict(attrs)
            self.found.append((given.get("alt") or "", given.get("src") or ""))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_picture_has_an_alternative_text(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    pictures = _Pictures()
    pictures.feed(text)
    found = [*_PICTURE.findall(text), *pictures.found]
    assert [path for alternative, path in found if not alternative.strip()] == []


@pytest.mark.parametrize("script", sorted((ROOT / "examples").glob("*.py")), ids=lambda path: path.stem)
def test_every_example_is_in_the_gallery(script: Path) -> None:
    assert f'--8<-- "examples/{script.name}"' in GALLERY


def test_the_pictures_of_the_gallery_are_small() -> None:
    pictures = [ROOT / "docs" / path for _, path in _PICTURE.findall(GALLERY)]
    assert pictures
    assert [path.name for path in pictures if path.stat().st_size >= 60_000] == []
