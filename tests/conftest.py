"""Which tests are skipped where packages are missing, and how long Hypothesis searches.

A module of tests that imports a package of an extra is skipped where that package is not installed.
INFINITE_TENSOR_S3=required makes it an error where the tests of S3 cannot run.

Hypothesis profiles are chosen by the environment variable INFINITE_TENSOR_HYPOTHESIS:

``quick`` (default)
    10 cases per store, always the same ones.
``thorough``
    2000 random cases per store; takes many minutes:
    ``INFINITE_TENSOR_HYPOTHESIS=thorough pytest -m "slow or not slow" tests/behaviour/test_properties.py``.
"""

from __future__ import annotations

import gc
import os
import re
import shutil
import signal
from collections.abc import Generator, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

_S3_PACKAGES = {"aiobotocore", "aiohttp", "botocore", "obstore", "s3fs"}
_PACKAGES = _S3_PACKAGES | {
    "cloudpickle",
    "dask",
    "distributed",
    "h5py",
    "hypothesis",
    "matplotlib",
    "PIL",
    "rasterio",
    "tensordict",
    "tensorstore",
    "xarray",
}
"""What the extras install, by the names under which it is imported."""
_MISSING = re.compile(r"No module named '(\w+)")
BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome")
_GARBAGE_THRESHOLDS = gc.get_threshold()


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Skip a module that needs a package of an extra."""
    report = yield
    missing = _MISSING.search(str(report.longrepr)) if report.failed else None
    required = _S3_PACKAGES if os.environ.get("INFINITE_TENSOR_S3") == "required" else ()
    if missing and missing[1] in _PACKAGES and missing[1] not in required:
        report.outcome = "skipped"
        report.longrepr = (str(Path(collector.nodeid)), 1, f"Skipped: needs the package {missing[1]}")
    return report


# Several processes of tests run at once: threads of torch that wait for each other keep cores busy for nothing. Set
# before anything imports torch, and for processes that tests start.
os.environ.setdefault("OMP_NUM_THREADS", "1")


def pytest_configure() -> None:
    """Have Ctrl-C be what it is in a terminal: a shell has what it runs in the background ignore it."""
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)


def pytest_collection() -> None:
    """Have no garbage be looked for while modules are imported, and items made, of which nothing is garbage.

    It is not disabled: Dask would take that, as it is imported, for how it is to be.
    """
    gc.set_threshold(10**9, *_GARBAGE_THRESHOLDS[1:])


def pytest_collection_finish() -> None:
    """Have garbage be looked for in what tests make only: in all that was imported, it takes a tenth of a second."""
    gc.freeze()
    gc.set_threshold(*_GARBAGE_THRESHOLDS)


def _load_profile() -> None:
    from hypothesis import HealthCheck, settings  # noqa: PLC0415  (of an extra)

    shared = settings(
        deadline=None,
        print_blob=True,
        database=None,
        suppress_health_check=[HealthCheck.too_slow, HealthCheck.data_too_large],
    )
    settings.register_profile("quick", shared, max_examples=10, derandomize=True)
    settings.register_profile("thorough", shared, max_examples=2000)
    settings.load_profile(os.environ.get("INFINITE_TENSOR_HYPOTHESIS", "quick"))


with suppress(ImportError):
    _load_profile()


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
