"""What was measured, as Markdown."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from fractions import Fraction
from pathlib import Path

from benchmarks.curves import FLAT, Curve, exponent
from benchmarks.measuring import Measurement, Subject
from benchmarks.rows import Row

Values = Mapping[Measurement, float]
"""Seconds, or bytes for what looks at memory."""

BEGIN, END = "<!-- measured: begin -->", "<!-- measured: end -->"
NOTHING = "-"

_STORES = {"memory": "memory", "zarr": "Zarr", "hdf5": "HDF5", "tensorblob": "tensorblob", "blob": "TensorBlob"}


def say(line: str) -> None:
    """Print a line of progress."""
    sys.stderr.write(f"{line}\n")
    sys.stderr.flush()


def table(rows: Sequence[Row], values: Values) -> str:
    """A line per row."""
    head = ("case", "peer", "ours", "floor", "to peer", "to floor", "target", "met")
    return markdown(head, [_cells(row, values) for row in rows])


def curve_table(curves: Sequence[Curve], values: Values) -> str:
    """A line per curve."""
    head = ("cost", "whose", "sizes", "at the smallest", "at the largest", "exponent", "target", "met")
    return markdown(head, [_curve_cells(curve, values) for curve in curves])


def is_met(row: Row, values: Values) -> bool | None:
    """Whether a row reaches its target; None if it has none."""
    ours, others, checks = values[row.ours], {"peer": row.peer, "floor": row.floor}, []
    for part in filter(None, row.target.split(", ")):
        amount, _, unit = part.partition(" ")
        if unit == "MB":
            checks.append(ours <= int(amount) * 10**6)
        elif unit == "MB/s":
            checks.append(row.nbytes >= int(amount) * 10**6 * ours)
        elif (other := others[unit.removeprefix("of ")]) is not None:
            checks.append(ours <= Fraction(amount) * values[other])
    return all(checks) if checks else None


def inserted(page: str, text: str) -> str:
    """`page` with `text` between its two markers; ValueError if it lacks them."""
    before, begin, rest = page.partition(BEGIN)
    _, end, after = rest.partition(END)
    if not begin or not end:
        raise ValueError(f"the page has no {BEGIN} followed by {END}")
    return f"{before}{BEGIN}\n\n{text}\n\n{END}{after}"


def write_into(path: Path, text: str) -> None:
    """Replace what stands between the markers of a page."""
    path.write_text(inserted(path.read_text(encoding="utf-8"), text), encoding="utf-8")


def markdown(head: Sequence[str], lines: Sequence[Sequence[str]]) -> str:
    """A table."""
    return "\n".join("| " + " | ".join(cells) + " |" for cells in [head, ["---"] * len(head), *lines])


def in_seconds(seconds: float) -> str:
    """A time, in the unit that suits it."""
    factor, unit = (1, "s") if seconds >= 1 else (10**3, "ms") if seconds >= 1e-3 else (10**6, "µs")
    amount = seconds * factor
    return f"{amount:.3g} {unit}" if amount < 100 else f"{amount:.0f} {unit}"


def as_ratio(ratio: float) -> str:
    """A ratio with as many digits as matter."""
    return f"{ratio:.2g}" if ratio < 1 else f"{ratio:.2f}"


def met(is_met: bool | None) -> str:
    """Whether a target is reached; None where there is none."""
    return {None: NOTHING, True: "yes", False: "**no**"}[is_met]


def _cells(row: Row, values: Values) -> list[str]:
    ours = values[row.ours]
    return [
        row.what,
        _value(row.peer, values, "" if row.peer is None else _STORES[row.peer.variant]),
        _value(row.ours, values, _STORES[row.ours.variant], row.nbytes),
        _value(row.floor, values, row.floor_name, row.nbytes),
        NOTHING if row.peer is None else as_ratio(ours / values[row.peer]),
        NOTHING if row.floor is None else as_ratio(ours / values[row.floor]),
        row.target or NOTHING,
        met(is_met(row, values)),
    ]


def _curve_cells(curve: Curve, values: Values) -> list[str]:
    sizes = [point.size for point in curve.points]
    costs = curve.costs([values[point] for point in curve.points])
    found, first = exponent(sizes, costs), curve.points[0]
    whose = "ours" if first.subject is Subject.OURS else "peer"
    return [
        curve.what,
        f"{whose}, {_STORES[first.variant]}",
        f"{sizes[0]:,} to {sizes[-1]:,}",
        in_seconds(costs[0]),
        in_seconds(costs[-1]),
        f"{found:.2f}",
        f"at most {FLAT}" if curve.flat else NOTHING,
        met(found <= FLAT if curve.flat else None),
    ]


def _value(measurement: Measurement | None, values: Values, label: str, nbytes: int = 0) -> str:
    if measurement is None:
        return NOTHING
    value = values[measurement]
    rate = f"{nbytes / value / 10**6:.0f} MB/s, " if nbytes else ""
    return f"{f'{value / 10**6:.0f} MB' if measurement.alone else in_seconds(value)}, {rate}{label}"
