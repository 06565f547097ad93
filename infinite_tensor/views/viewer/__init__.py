"""The viewer: a Bokeh page with tiles of tensors."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from infinite_tensor.views.viewer.page import View


def open_view(tensors: Sequence[object], port: object, budget: object, open_browser: bool | None) -> View:
    """Show tensors side by side on a page; see `InfiniteTensor.view`."""
    try:
        import bokeh  # noqa: F401, PLC0415  (an extra)
    except ImportError as error:
        raise ImportError("t.view needs the package bokeh: pip install bokeh") from error
    from infinite_tensor.views.viewer.page import view  # noqa: PLC0415

    return view(tensors, port, budget, open_browser=open_browser)
