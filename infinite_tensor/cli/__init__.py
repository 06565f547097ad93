"""The command `infinite-tensor`: a thin skin over what the library offers.

Nothing that takes long is imported before a command needs it: what a store holds is listed without torch.
"""

from __future__ import annotations

import io
import os
import sys


def main() -> None:
    """Run the command that `sys.argv` names, and end the process with its exit code."""
    _complete_streams()
    try:
        from infinite_tensor.cli.running import run  # noqa: PLC0415  (what the extra brings)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit("the command infinite-tensor needs the packages click and rich: pip install click rich")
    sys.exit(run(sys.argv[1:]))


def _complete_streams() -> None:
    # A service may start a command without some of them. The first file that is opened would take their place.
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, "r" if name == "stdin" else "w", encoding="utf-8"))  # noqa: PTH123, SIM115
    # An id may hold what the encoding of the terminal has not.
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")
