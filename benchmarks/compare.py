"""Ours, the peer and the floors, measured by turns in one run: `python -m benchmarks.compare`.

Progress goes to standard error, the table to standard output.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Iterable, Sequence
from itertools import groupby
from pathlib import Path

from benchmarks import environment, report
from benchmarks.curves import CURVES, Curve
from benchmarks.measuring import ROOT, Measurement, Workers
from benchmarks.rows import ROWS, Row

ENOUGH = 8.0
"""Seconds until which even a short case is repeated."""

PAGE = ROOT / "docs" / "benchmarks.md"


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, and write the page if that is asked for."""
    options = _parsed(arguments)
    rows = [row for row in ROWS if row.case in options.case]
    curves = [curve for curve in CURVES if curve.case in options.case]
    begun = time.monotonic()
    report.say(f"environment of the peer: {options.environment}")
    with Workers(environment.prepared(options.environment, environment.of_peer())) as workers:
        values = measured(workers, turns(rows, curves), options.repeats)
    text = _text(rows, curves, values, options.repeats)
    report.say(f"{time.monotonic() - begun:.0f} s in all")
    sys.stdout.write(text + "\n")
    if options.write:
        report.write_into(PAGE, text)


def turns(rows: Sequence[Row], curves: Sequence[Curve]) -> list[list[Measurement]]:
    """What is measured by turns: all of a case. Each measurement stands once, in the first case that needs it."""
    seen: dict[Measurement, None] = {}
    found = []
    entries: list[Row | Curve] = [*rows, *curves]
    for _, case in groupby(entries, key=lambda entry: entry.case):
        wanted = dict.fromkeys(cell for entry in case for cell in _cells(entry) if cell not in seen)
        seen |= wanted
        found.append(list(wanted))
    return found


def measured(workers: Workers, cases: Iterable[Sequence[Measurement]], repeats: int) -> dict[Measurement, float]:
    """The least of `repeats` of each, or of more where a case is short: noise only adds."""
    best: dict[Measurement, float] = {}
    for case in cases:
        case_begun = time.monotonic()
        repeat = 0
        while repeat < repeats or time.monotonic() - case_begun < ENOUGH:
            repeat += 1
            for cell in case:
                begun = time.monotonic()
                value = workers.measure(cell)
                best[cell] = min(value, best.get(cell, value))
                name = f"{cell.subject} {cell.workload} {cell.variant} {cell.size or ''}"
                report.say(f"repeat {repeat}, {name}: {value:.6g} ({time.monotonic() - begun:.1f} s in all)")
    return best


def _cells(entry: Row | Curve) -> list[Measurement]:
    if isinstance(entry, Curve):
        return list(entry.points)
    return [cell for cell in (entry.peer, entry.ours, entry.floor) if cell is not None]


def _text(rows: Sequence[Row], curves: Sequence[Curve], values: report.Values, repeats: int) -> str:
    method = f"- The least of {repeats} or more repeats, taken by turns; one thread for torch everywhere"
    peer, floor = (requirement.replace("==", " ") for requirement in (environment.PEER, environment.TENSORSTORE))
    others = f"- Peer: {peer}; the same versions of torch, numpy and h5py. Floor: {floor}"
    parts = [f"{environment.header()}\n{others}\n{method}"]
    if rows:
        parts.append(report.table(rows, values))
    if curves:
        parts.append(report.curve_table(curves, values))
    return "\n\n".join(parts)


def _parsed(arguments: Sequence[str] | None) -> argparse.Namespace:
    cases = list(dict.fromkeys([row.case for row in ROWS] + [curve.case for curve in CURVES]))
    parser = argparse.ArgumentParser(prog="python -m benchmarks.compare", description=__doc__)
    parser.add_argument("--case", action="append", choices=cases, metavar="NAME", help=", ".join(cases))
    parser.add_argument("--repeats", type=int, default=3, help="the fewest turns of each case (default: %(default)s)")
    parser.add_argument(
        "--environment",
        type=Path,
        default=environment.default_folder(),
        help="virtual environment of the peer; made if it is not there (default: %(default)s)",
    )
    parser.add_argument("--write", action="store_true", help="put the tables into docs/benchmarks.md")
    options = parser.parse_args(arguments)
    if options.repeats < 1:
        parser.error(f"--repeats must be at least 1, got {options.repeats}")
    if options.write and options.case:
        parser.error("--write takes the whole table: leave out --case")
    options.case = options.case or cases
    return options


if __name__ == "__main__":
    main()
