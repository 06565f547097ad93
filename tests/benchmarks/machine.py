"""What a run ran on."""

from __future__ import annotations

import os
import platform
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

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
