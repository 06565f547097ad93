"""Environments that others run in, since the peer has our package's name; and what a run ran on."""

from __future__ import annotations

import os
import platform
import shutil
import subprocess
import sys
import venv
from collections.abc import Sequence
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

PEER = "infinite-tensor==0.4.0"
TENSORSTORE = "tensorstore==0.1.86"
TENSORBLOB = "tensorblob==0.3.0"
MONAI = "monai==1.6.1"

_INSTALLED = "installed.txt"


def default_folder(name: str = "infinite-tensor-benchmarks") -> Path:
    """Where an environment is kept if nobody says where."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / name


def of_peer() -> list[str]:
    """What the environment of the peer holds, as pip names it."""
    return [PEER, TENSORSTORE, TENSORBLOB, *_shared("torch", "numpy", "h5py")]


def of_monai() -> list[str]:
    """What the environment of MONAI holds."""
    return [MONAI, *_shared("torch", "numpy", "zarr", "numcodecs")]


def _shared(*names: str) -> list[str]:
    """Packages of which others and we run the same version."""
    # A local version, as in 2.13.0+cpu, says how a wheel was built; pip takes the one that its index has.
    return [f"{name}=={version(name).partition('+')[0]}" for name in names]


def found(folder: Path, requirements: Sequence[str]) -> Path | None:
    """The interpreter of the environment in `folder`; None unless it holds what it should."""
    stamp = folder / _INSTALLED
    is_there = stamp.exists() and stamp.read_text(encoding="utf-8") == _stamp(requirements)
    return _python(folder) if is_there else None


def prepared(folder: Path, requirements: Sequence[str]) -> Path:
    """The interpreter of the environment in `folder`, which is created again unless it holds what it should."""
    python = found(folder, requirements)
    if python is not None:
        return python
    if folder.exists() and not (folder / "pyvenv.cfg").exists():
        raise FileExistsError(f"{folder} is no virtual environment; name a folder that is one or does not exist")
    shutil.rmtree(folder, ignore_errors=True)
    venv.create(folder, with_pip=True)
    python = _python(folder)
    command = [str(python), "-m", "pip", "install", "--quiet", "--disable-pip-version-check", *requirements]
    # What pip says goes where progress goes: standard output holds the table alone.
    subprocess.run(command, check=True, stdout=sys.stderr)
    (folder / _INSTALLED).write_text(_stamp(requirements), encoding="utf-8")
    return python


def _python(folder: Path) -> Path:
    return folder.absolute() / "bin/python"


def _stamp(requirements: Sequence[str]) -> str:
    return "\n".join([sys.version, *requirements])


_PACKAGES = ("torch", "numpy", "zarr", "numcodecs", "zarrs", "h5py")


def header() -> str:
    """A line of Markdown for each: date, machine, versions."""
    packages = [f"{name} {found}" for name in _PACKAGES if (found := _version(name))]
    return "\n".join(
        [
            f"- Date: {datetime.now(UTC).date()}",
            f"- Machine: {_processor()}, {os.cpu_count()} cores, {platform.system()} {platform.machine()}",
            f"- Ours: infinite-tensor {_version('infinite-tensor')}, Python {platform.python_version()}, "
            + ", ".join(packages),
        ]
    )


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _processor() -> str:
    information = Path("/proc/cpuinfo")
    if information.exists():
        for line in information.read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    return platform.processor() or "unknown processor"
