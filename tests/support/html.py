"""HTML as a browser would take it: whether it is whole, and that nothing in it runs or comes from elsewhere."""

from __future__ import annotations

from html.parser import HTMLParser

_ALLOWED = frozenset(("div", "span", "strong", "code", "table", "caption", "thead", "tbody", "tr", "th", "td"))


class Page(HTMLParser):
    """Parses HTML, and fails where it is not well-formed, or could run or fetch something.

    Attributes
    ----------
    text : str
        What a reader sees.
    """

    def __init__(self, html: str) -> None:
        super().__init__(convert_charrefs=True)
        self.text = ""
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
            assert name not in ("href", "class", "id", "src"), name
            assert "//" not in value, value
        self._open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        """Each ends what was begun last."""
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        """What is read."""
        self.text += f"{data}\n"

    def handle_comment(self, data: str) -> None:
        """None is written."""
        raise AssertionError(data)
