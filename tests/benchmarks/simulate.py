"""How long it takes to fill a region of any size, on any number of machines, predicted.

- ``python -m tests.benchmarks.simulate --side 1000000 --depth 3 --halo 32 --call-seconds 0.05 --how cluster
  --processes 100`` predicts one fill; ``--help`` lists what it depends on.
- ``--calibrate`` measures first what this library takes on this machine. Without it, figures of a machine like any
  other are taken.
- ``--calibrate-s3`` prints what tiles on S3 take more than that, measured on a server that it starts: `S3_COSTS`.
- ``--check`` predicts and measures three fills on this machine, and fails if one is more than 25 % off.
- ``--tables`` prints what docs/scaling.md shows.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, fields, replace
from typing import Any, TypeVar

import torch

from tests.benchmarks.calibration import Result, check, least_costs
from tests.benchmarks.prediction import Prediction, predict
from tests.benchmarks.s3_costs import s3_costs
from tests.benchmarks.scenario import Costs, Fleet, Storage, Work

T = TypeVar("T")

TOLERANCE = 0.25
SIDE = 10**6

S3 = Storage(latency=0.03, bandwidth=100e6, puts=3500, gets=5500, listing=0.1)
S3_COSTS = Costs(store=2.3e-3, encode=5e-9, fetch=1.2e-3, decode=1.6e-9)
"""A request to S3 takes more work than one to a local disk: what ``--calibrate-s3`` prints."""

CHAINS = {
    "one tensor, 1 ms": Work(SIDE, call_seconds=0.001),
    "3 with halos of 32, 50 ms": Work(SIDE, depth=3, halo=32, call_seconds=0.05),
    "2 whose windows overlap by 128, 1 s on a GPU": Work(
        SIDE, window=512, stride=384, depth=2, call_seconds=1.0, on_cpu=False
    ),
}
WORKERS = (1, 10, 100, 1000)


def row(*cells: object) -> str:
    """A line of a Markdown table."""
    return f"| {' | '.join(map(str, cells))} |"


def heading(*cells: str) -> Iterator[str]:
    """The first two lines of a Markdown table."""
    yield row(*cells)
    yield "|" + "---|" * len(cells)


def duration(seconds: float) -> str:
    """A time in a unit that suits it."""
    units = ((86400 * 365, "years"), (86400, "days"), (3600, "h"), (60, "min"), (1, "s"))
    size, unit = next(((size, unit) for size, unit in units if seconds >= 2 * size), (0.001, "ms"))
    number = seconds / size
    return f"{number:.{1 if number < 10 else 0}f} {unit}"


def amount(number: float) -> str:
    """A number of things, or of bytes, with a prefix."""
    exponent = min(5, max(0, math.floor(math.log10(number) / 3))) if number >= 1 else 0
    return f"{number / 1000**exponent:.3g}{['', ' k', ' M', ' G', ' T', ' P'][exponent]}"


def cells(found: Prediction) -> list[str]:
    """What a table tells of a prediction."""
    return [
        duration(found.seconds),
        f"{found.amplification:.2f}",
        amount(found.puts),
        amount(found.gets),
        amount(found.put_bytes) + "B",
        found.bound,
    ]


PREDICTED = ("time", "windows per window", "PUT, DELETE", "GET", "written", "takes longest")


def by_workers(costs: Costs) -> Iterator[str]:
    """10^12 pixels on S3, by chain and workers."""
    yield from heading("chain", "workers", *PREDICTED)
    for (name, work), workers in itertools.product(CHAINS.items(), WORKERS):
        yield row(name, f"{workers:,}", *cells(predict(work, costs, S3, _fleet(workers))))


def by_way(costs: Costs) -> Iterator[str]:
    """The chain with halos, changed in one thing at a time."""
    work, fleet = CHAINS["3 with halos of 32, 50 ms"], _fleet(WORKERS[-1])
    in_memory = replace(work, stored=False)
    coarse = replace(work, tile=1024, window=1024, stride=1024, call_seconds=4 * work.call_seconds)
    ways: dict[str, tuple[Work, Storage, Fleet]] = {
        "cluster of 1,000": (work, S3, fleet),
        "the same, requests over 8 prefixes": (work, replace(S3, prefixes=8), fleet),
        "the same, tiles of 1024": (replace(work, tile=1024), S3, fleet),
        "the same, tiles and windows of 1024": (coarse, S3, fleet),
        "the same, upstream in memory": (in_memory, S3, fleet),
    }
    for count in WORKERS[1:]:
        shards = Fleet("shards", count)
        ways[f"{count:,} shards"] = work, S3, shards
        ways[f"{count:,} shards, upstream in memory"] = in_memory, S3, shards
    yield from heading("way", *PREDICTED)
    for name, (what, storage, who) in ways.items():
        yield row(name, *cells(predict(what, costs, storage, who)))


def limits(costs: Costs) -> Iterator[str]:
    """What each stage of a fill by 1,000 workers would take by itself."""
    found = {name: predict(work, costs, S3, _fleet(WORKERS[-1])) for name, work in CHAINS.items()}
    stages = sorted({stage for each in found.values() for stage in each.stages})
    yield from heading("by itself", *found)
    for stage in stages:
        yield row(stage, *(duration(each.stages[stage]) for each in found.values()))


def _fleet(workers: int) -> Fleet:
    return Fleet("cluster" if workers > 1 else "shards", workers)


TABLES: dict[str, Callable[[Costs], Iterator[str]]] = {"by_workers": by_workers, "by_way": by_way, "limits": limits}


def compared(results: Sequence[Result]) -> Iterator[str]:
    """A table of what was measured and predicted; SystemExit if a prediction is too far off."""
    yield from heading("fill", "measured", "predicted", "off by", "PUT and GET", "predicted")
    yield from map(_result_row, results)
    if any(abs(result.error) > TOLERANCE for result in results):
        raise SystemExit(f"a prediction is more than {TOLERANCE:.0%} off")


def _result_row(result: Result) -> str:
    requests, predicted = (
        " and ".join(str(counts[kind]) for kind in ("put", "get"))
        for counts in (result.requests, result.predicted_requests)
    )
    seconds = duration(result.measured), duration(result.predicted)
    return row(result.case.name, *seconds, f"{result.error:+.0%}", requests, predicted)


def _add_fields(parser: argparse.ArgumentParser, given: Work | Storage | Fleet) -> None:
    """An option for each field, whose default is what `given` has."""
    group = parser.add_argument_group(type(given).__name__)
    for name, value in asdict(given).items():
        action: dict[str, Any] = {"type": type(value)}
        if isinstance(value, bool):
            action = {"action": argparse.BooleanOptionalAction}
        group.add_argument(f"--{name.replace('_', '-')}", default=value, help=f"default: {value}", **action)


def _made(kind: type[T], given: argparse.Namespace) -> T:
    return kind(**{field.name: getattr(given, field.name) for field in fields(kind)})  # type: ignore[arg-type]


def main(arguments: Sequence[str] | None = None) -> None:
    """What the module says."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--calibrate", action="store_true")
    parser.add_argument("--calibrate-s3", action="store_true")
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--tables", action="store_true")
    parser.add_argument("--rounds", type=int, default=3, help="of measurements; default: 3")
    for default in (Work(SIDE), Storage(), Fleet()):
        _add_fields(parser, default)
    given = parser.parse_args(arguments)
    if given.how not in ("shards", "cluster"):
        parser.error(f"--how is shards or cluster, not {given.how}")
    torch.set_num_threads(1)
    costs = Costs()
    if given.calibrate:
        costs = least_costs(given.rounds)
        print(costs, end="\n\n")  # noqa: T201
    if given.calibrate_s3:
        lines: Iterator[str] = iter([str(s3_costs(given.rounds, costs))])
    elif given.check:
        lines = compared(check(given.rounds))
    elif given.tables:
        lines = itertools.chain.from_iterable([*table(S3_COSTS), ""] for table in TABLES.values())
    else:
        lines = iter(
            [
                *heading(*PREDICTED),
                row(*cells(predict(*(_made(Work, given), costs, _made(Storage, given), _made(Fleet, given))))),
            ]
        )
    for line in lines:
        print(line)  # noqa: T201


if __name__ == "__main__":
    main(sys.argv[1:])
