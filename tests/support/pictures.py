"""Whether a picture that was drawn anew is the one that is kept."""

from __future__ import annotations

from pathlib import Path

from matplotlib.image import imread

KEPT = Path(__file__).parents[2] / "docs" / "images"


def is_drawn(picture: Path) -> bool:
    """Whether it is the one of this name in `docs/images`, but for fonts, which differ from machine to machine."""
    drawn, kept = (imread(path) for path in (picture, KEPT / picture.name))
    return bool(drawn.shape == kept.shape and abs(drawn / 1.0 - kept).mean() < 0.05 * kept.max())
