"""HTML as a browser would take it: whether it is whole, and that nothing in it runs or comes from elsewhere."""

from __future__ import annotations

import base64
import io
from html.parser import HTMLParser

import numpy as np
import numpy.typing as npt
from PIL import Image

_VOID = frozenset(("img", "br", "hr"))
_ALLOWED = frozenset(
    "div span strong code table caption thead tbody tr th td img svg g title rect text path".split()  # noqa: SIM905
)


class Page(HTMLParser):
    """Parses HTML, and fails where it is not well-formed, or could run or fetch something.

    Attributes
    ----------
    text : str
        What a reader sees, without the titles in drawings.
    images : list of str
        The addresses of its images.
    drawn : list of str
        The texts in its drawings.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
        self.images: list[str] = []
        self.drawn: list[str] = []
        self._open: list[str] = []
        self.feed(html)
        self.close()
        assert not self._open, f"left open: {self._open}"
        assert "url(" not in html

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Only elements that show something, with attributes that do no more."""
        assert tag in _ALLOWED, tag
        names = [name for name, _ in attrs]
        assert len(set(names)) == len(names)
        for name, value in attrs:
            assert value is not None
            assert not name.startswith("on"), name
            assert name not in ("href", "class", "id", "xlink:href"), name
            if name == "src":
                assert value.startswith("data:image/png;base64,")
                self.images.append(value)
            else:
                assert "//" not in value or name == "alt", value
        if tag not in _VOID:
            self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Each ends what was begun last."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """What is read."""
        if self._open and self._open[-1] == "text":
            self.drawn.append(data)
        if not self._open or self._open[-1] != "title":
            self.text += f"{data}\n"

    def handle_comment(self, data: str) -> None:
        """None is written."""
        raise AssertionError(data)

    def pixels(self, number: int = 0) -> npt.NDArray[np.uint8]:
        """An image, as another program reads it: RGBA."""
        data = base64.b64decode(self.images[number].partition(",")[2])
        return np.asarray(Image.open(io.BytesIO(data)).convert("RGBA"))
