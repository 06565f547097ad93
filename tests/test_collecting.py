"""The tests are collected where only some extras are installed: what is missing is skipped."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

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
ROOT = Path(__file__).parents[1]


def collect_without_extras(folder: Path, tests: str, **environment: str) -> subprocess.CompletedProcess[str]:
    (folder / "sitecustomize.py").write_text(HIDES)
    plugins = ["cacheprovider", "hypothesispytest", "benchmark"]
    options = ["--collect-only", "-qq", "--assert=plain", *(f"-pno:{name}" for name in plugins)]
    command = [sys.executable, "-m", "pytest", *options, tests]
    set_ = {name: value for name, value in os.environ.items() if name != "INFINITE_TENSOR_S3"}
    set_ |= environment | {"PYTHONPATH": str(folder)}
    return subprocess.run(command, cwd=ROOT, env=set_, capture_output=True, text=True, timeout=500, check=False)


def test_modules_that_need_a_package_of_an_extra_are_skipped(tmp_path: Path) -> None:
    done = collect_without_extras(tmp_path, "tests")
    assert done.returncode == 0, done.stdout[-2000:]
    assert "test_properties.py:1: needs the package hypothesis" in done.stdout
    assert "tests/test_behaviour.py: " in done.stdout
    assert "tests/s3/test_conformance.py: " not in done.stdout


def test_the_tests_of_s3_fail_where_they_are_required_and_cannot_run(tmp_path: Path) -> None:
    done = collect_without_extras(tmp_path, "tests/s3", INFINITE_TENSOR_S3="required")
    assert done.returncode != 0
    assert "No module named 's3fs'" in done.stdout
