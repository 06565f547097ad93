"""The environment that the peer runs in: it has our package's name, so the two cannot share one."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import venv
from importlib.metadata import version
from pathlib import Path

PEER = "infinite-tensor==0.4.0"
TENSORSTORE = "tensorstore==0.1.86"
TENSORBLOB = "tensorblob==0.3.0"
_SHARED = ("torch", "numpy", "h5py")
"""Packages of which peer and we run the same version."""

_INSTALLED = "installed.txt"


def default_folder() -> Path:
    """Where the environment is kept if nobody says where."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "infinite-tensor-benchmarks"


def requirements() -> list[str]:
    """What is installed, as pip names it."""
    # A local version, as in 2.13.0+cpu, says how a wheel was built; pip takes the one that its index has.
    shared = [f"{name}=={version(name).partition('+')[0]}" for name in _SHARED]
    return [PEER, TENSORSTORE, TENSORBLOB, *shared]


def prepared(folder: Path) -> Path:
    """The interpreter of the environment in `folder`, which is created again unless it holds what it should."""
    folder = folder.absolute()
    python = folder / ("Scripts/python.exe" if os.name == "nt" else "bin/python")
    stamp = folder / _INSTALLED
    wanted = "\n".join([sys.version, *requirements()])
    if stamp.exists() and stamp.read_text(encoding="utf-8") == wanted:
        return python
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise FileExistsError(f"{folder} is no virtual environment; name a folder that is one or does not exist")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements()]
    # What pip says goes where progress goes: standard output holds the table alone.
    subprocess.run(command, check=True, stdout=sys.stderr)
    stamp.write_text(wanted, encoding="utf-8")
    return python
