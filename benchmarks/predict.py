"""`predict` beside MONAI and the plain loop, by turns in one run: `python -m benchmarks.predict`.

Each run is a process of its own, with one thread. All slide the same network over the same image in the same windows,
and store the labels as Zarr. Progress goes to standard error, the table to standard output.
"""

from __future__ import annotations

import argparse
import json
import math
import subprocess
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from statistics import median

import numpy as np

from benchmarks import environment, report
from benchmarks.measuring import HERE, PACKAGES, variables
from benchmarks.workloads.sliding import BATCH, CASES, Case, Job, lead

OURS, MONAI, LOOP, NET = "ours", "monai", "loop", "net"

LIMIT = 1.1
"""Of the time of MONAI, and of the loop."""
NEAR_TIE = 2e-5
"""Of two blended scores. Sums in another order may differ by less."""
MOST_TIES = 1e-4
"""The share of pixels that may be such ties."""
LOOKED_AT = 20
"""How many of these are looked at: each runs all windows that cover it."""


@dataclass(frozen=True)
class Run:
    """What one process measured.

    Attributes
    ----------
    case, subject : str
        What was run, by whom.
    seconds, cpu_seconds : float
        How long it took, and how long it computed. On a machine that does other things too, the latter says more.
    memory : int or None
        By how many bytes the most memory grew that the process ever held.
    windows, samples : int
        How many different windows the network was given, and how many in all.
    """

    case: str
    subject: str
    seconds: float
    cpu_seconds: float
    memory: int | None
    windows: int
    samples: int


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the runs into a file if that is asked for."""
    options = _parsed(arguments)
    cases = {name: CASES[name].tiny if options.smoke else CASES[name] for name in options.cases}
    python = _python_of_monai(options.environment, smoke=options.smoke)
    runs: list[Run] = []
    for name, case in cases.items():
        for _ in range(options.runs):
            runs += by_turns(name, case, python)
    header = f"{environment.header()}\n- Beside: {environment.MONAI.replace('==', ' ')}; the same torch, numpy and zarr"
    method = f"- Medians of {options.runs} runs, taken by turns; one thread"
    sys.stdout.write(f"{header}\n{method}\n\n{table(cases, runs)}\n")
    if options.json is not None:
        options.json.write_text(json.dumps({"machine": header, "runs": list(map(asdict, runs))}, indent=1))


def by_turns(name: str, case: Case, python_of_monai: Path | None) -> list[Run]:
    """Each subject once; RuntimeError if one fails, runs other windows, or stores other labels."""
    subjects = [OURS, LOOP, NET] if python_of_monai is None else [OURS, MONAI, LOOP, NET]
    with tempfile.TemporaryDirectory(prefix="benchmark-") as folder:
        runs = {each: run_once(each, name, case, python_of_monai, Path(folder) / each) for each in subjects}
        labels = {each: np.load(Path(folder) / each / "full" / "labels.npy") for each in subjects if each != NET}
    for each, found in labels.items():
        check_labels(case, labels[OURS], found, f"{name}: {each}")
    return list(runs.values())


def run_once(subject: str, name: str, case: Case, python_of_monai: Path | None, folder: Path) -> Run:
    """One process; RuntimeError if it fails, or runs other windows than those of the case."""
    python, packages = (python_of_monai, ()) if subject == MONAI else (Path(sys.executable), PACKAGES)
    extent = "full" if case == CASES[name] else "tiny"
    command = [str(python), "-m", "workloads.sliding", subject, name, extent, str(folder)]
    done = subprocess.run(command, cwd=HERE, env=variables(*packages), stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{command} ended with status {done.returncode}; it says why above")
    run = Run(name, subject, **json.loads(done.stdout))
    report.say(str(run))
    if subject != NET and run.windows != len(case.corners):
        raise RuntimeError(f"{name}: {subject} ran {run.windows} windows, not {len(case.corners)}")
    return run


def check_labels(case: Case, ours: np.ndarray, theirs: np.ndarray, who: str) -> None:
    """RuntimeError if labels differ where two scores are no near tie, or at many pixels."""
    differing = np.argwhere(ours != theirs)
    if len(differing) > math.ceil(MOST_TIES * ours.size):
        raise RuntimeError(f"{who} stores other labels than ours at {len(differing)} of {ours.size} pixels")
    if not len(differing):
        return
    job = Job(case, Path())
    for pixel in differing[:: math.ceil(len(differing) / LOOKED_AT)].tolist():
        if (by := lead(job, tuple(pixel))) >= NEAR_TIE:
            raise RuntimeError(f"{who} stores another label than ours at {pixel}, where the best leads by {by:.2g}")


def table(cases: Mapping[str, Case], runs: Sequence[Run]) -> str:
    """A line per case."""
    head = ["case", "windows", "ours", "MONAI", "loop", "to MONAI", "to loop"]
    head += ["memory: ours", "MONAI", "loop", "`net`", "at most", "speed of `net`", "met"]
    lines = [_cells(case, [run for run in runs if run.case == name]) for name, case in cases.items()]
    return report.markdown(head, lines)


def memory_limit(case: Case, net: float = 0) -> float:
    """The most bytes that sliding may take: a strip of scores, and three batches of outputs.

    Where the network alone takes more than these batches, that stands in their place.
    """
    strip = case.size * math.prod(sorted(case.extents)[:-1])
    batch = BATCH * math.prod([case.size] * len(case.extents))
    return 1.3 * 4 * case.classes * strip + max(3 * 4 * case.classes * batch, net)


def _cells(case: Case, runs: Sequence[Run]) -> list[str]:
    of = {subject: [run for run in runs if run.subject == subject] for subject in (OURS, MONAI, LOOP, NET)}
    seconds = {subject: median([run.seconds for run in some]) for subject, some in of.items() if some}
    found = {subject: [run.memory for run in some if run.memory is not None] for subject, some in of.items()}
    memory = {subject: median(some) for subject, some in found.items() if some}
    ratios = {other: seconds[OURS] / seconds[other] for other in (MONAI, LOOP) if other in seconds}
    alone = median([run.seconds / run.samples for run in of[NET]])
    most = memory_limit(case, memory.get(NET, 0))
    is_met = max(ratios.values()) <= LIMIT and memory.get(OURS, 0) <= most
    return [
        case.title,
        str(len(case.corners)),
        *[report.in_seconds(seconds[each]) if each in seconds else report.NOTHING for each in (OURS, MONAI, LOOP)],
        *[report.as_ratio(ratios[each]) if each in ratios else report.NOTHING for each in (MONAI, LOOP)],
        *[_megabytes(memory[each]) if each in memory else report.NOTHING for each in (OURS, MONAI, LOOP, NET)],
        _megabytes(most),
        f"{100 * alone * len(case.corners) / seconds[OURS]:.0f} %",
        report.met(is_met),
    ]


def _megabytes(count: float) -> str:
    return f"{count / 10**6:.0f} MB"


def _python_of_monai(folder: Path, *, smoke: bool) -> Path | None:
    if smoke:
        python = environment.found(folder, environment.of_monai())
        if python is None:
            report.say(f"MONAI is left out: {folder} is no environment with it, and --smoke makes none")
        return python
    report.say(f"environment of MONAI: {folder}")
    try:
        return environment.prepared(folder, environment.of_monai())
    except subprocess.CalledProcessError as error:
        report.say(f"MONAI is left out: {error}")
        return None


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.predict", description=__doc__)
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES), metavar="NAME", help=", ".join(CASES))
    parser.add_argument("--runs", type=int, default=5, help="how often everything is repeated (default: %(default)s)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what each run measured into this file")
    parser.add_argument("--smoke", action="store_true", help="tiny images, to see that it works; installs nothing")
    parser.add_argument(
        "--environment",
        type=Path,
        default=environment.default_folder("infinite-tensor-benchmarks-monai"),
        help="virtual environment of MONAI; made if it is not there (default: %(default)s)",
    )
    options = parser.parse_args(arguments)
    if options.runs < 1:
        parser.error(f"--runs must be at least 1, got {options.runs}")
    return options


if __name__ == "__main__":
    main()
