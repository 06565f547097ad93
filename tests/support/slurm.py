"""A stand-in for SLURM: it runs the tasks of a job array on this machine, and waits for them."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]


def sbatch(script: str) -> str:
    """What `sbatch script` prints; the script says `#SBATCH --array=0-N`. Return when all tasks have succeeded."""
    found = re.search(r"^#SBATCH --array=0-(\d+)$", Path(script).read_text(encoding="utf-8"), re.MULTILINE)
    assert found, f"{script} has no line #SBATCH --array=0-N"
    count = int(found[1]) + 1
    tasks = [subprocess.Popen(["bash", script], env=_variables(number, count)) for number in range(count)]  # noqa: S607
    assert [task.wait(300) for task in tasks] == [0] * count
    return "Submitted batch job 1\n"


def _variables(number: int, count: int) -> dict[str, str]:
    """Those of SLURM, and those that make `python` this interpreter and find the library."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    modules = os.pathsep.join(map(str, (ROOT, ROOT / "stores")))
    task = {"SLURM_ARRAY_TASK_ID": str(number), "SLURM_ARRAY_TASK_COUNT": str(count)}
    return os.environ | {"PATH": path, "PYTHONPATH": modules} | task
