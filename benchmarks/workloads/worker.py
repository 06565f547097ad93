"""A process that runs workloads one at a time: `python -m workloads.worker`, from the folder of the benchmarks.

It reads one request per line, as JSON (`workload`, `variant`, `size`), and answers each by a line: ``{"value": seconds
or bytes}``, or ``{"error": traceback}``. Its first line says which packages it runs.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import tempfile
import traceback
import warnings
from importlib import import_module
from pathlib import Path
from typing import Any

import torch

import infinite_tensor

from .stage import Stage


def main() -> None:
    """Answer requests until there are no more."""
    torch.set_num_threads(1)
    # A workload that warns is not the one that is meant.
    warnings.simplefilter("error")
    with (
        os.fdopen(os.dup(sys.stdout.fileno()), "w", buffering=1) as answers,
        tempfile.TemporaryDirectory(prefix="benchmark-") as kept,
    ):
        # What a library prints is no answer.
        os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
        answers.write(json.dumps({"package": infinite_tensor.__file__}) + "\n")
        for line in sys.stdin:
            answers.write(json.dumps(_answer(json.loads(line), Path(kept))) + "\n")
            gc.collect()


def _answer(request: dict[str, Any], kept: Path) -> dict[str, Any]:
    module, _, name = request["workload"].rpartition(".")
    with tempfile.TemporaryDirectory(prefix="run-", dir=kept) as scratch:
        stage = Stage(request["variant"], request["size"], Path(scratch), kept)
        try:
            getattr(import_module(f"{__package__}.{module}"), name)(stage)
        except Exception:  # noqa: BLE001  (whatever it is, the run is over and its caller says so)
            return {"error": traceback.format_exc()}
    return {"value": stage.value}


if __name__ == "__main__":
    main()
