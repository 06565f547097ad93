from __future__ import annotations

import shutil
from collections.abc import Iterator
from typing import Any

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")


@pytest.fixture(scope="module")
def browser(request: pytest.FixtureRequest) -> Iterator[Any]:
    """A Chromium without a screen, with the `BROWSER_OPTIONS` of the module; skipped where there is none."""
    playwright = pytest.importorskip("playwright.sync_api")
    path = next(filter(None, map(shutil.which, BROWSERS)), None)
    if path is None:
        pytest.skip("there is no Chromium on the path")
    options = getattr(request.module, "BROWSER_OPTIONS", ())
    with playwright.sync_playwright() as started:
        found = started.chromium.launch(executable_path=path, args=["--no-sandbox", *options])
        yield found
        found.close()
