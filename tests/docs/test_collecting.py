"""The tests are collected where only some extras are installed: what is missing is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

HIDES = """
import sys
HIDDEN = {
    "aiobotocore", "aiohttp", "botocore", "cloudpickle", "dask", "distributed", "h5py", "hypothesis", "matplotlib",
    "obstore", "PIL", "pytest_benchmark", "s3fs", "tensordict", "tensorstore",
}
class Hides:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in HIDDEN:
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Hides())
"""
ROOT = Path(__file__).parents[2]


COLLECTS = """
import os, sys, pytest
OPTIONS = ["--collect-only", "-qq", "--assert=plain", "-pno:cacheprovider", "-pno:hypothesispytest", "-pno:benchmark"]
print("all of them:", pytest.main([*OPTIONS, *sys.argv[1:]]))
os.environ["INFINITE_TENSOR_S3"] = "required"
print("those of S3:", pytest.main([*OPTIONS, "tests/stores/s3"]))
"""


@pytest.mark.slow
def test_modules_that_need_a_package_of_an_extra_are_skipped_and_those_of_s3_fail_where_they_are_required(
    tmp_path: Path,
) -> None:
    """In one interpreter, which has nothing else to import for the second."""
    (tmp_path / "sitecustomize.py").write_text(HIDES)
    environment = {name: value for name, value in os.environ.items() if name != "INFINITE_TENSOR_S3"}
    environment["PYTHONPATH"] = str(tmp_path)
    command = [sys.executable, "-c", COLLECTS, "tests"]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=500, check=False)
    collected, told, required = done.stdout.partition("all of them: ")
    assert told, done.stdout[-2000:] + done.stderr[-2000:]
    assert required.startswith("0\n"), collected[-2000:]
    assert "test_properties.py:1: needs the package hypothesis" in collected
    assert "tests/behaviour/test_imports.py: " in collected
    assert "tests/stores/s3/test_conformance.py: " not in collected
    assert "those of S3: 0\n" not in required
    assert "those of S3: " in required
    assert "No module named 's3fs'" in required
