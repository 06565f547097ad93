"""The command `infinite-tensor`, a thin layer over the public names of the library."""

from __future__ import annotations

import sys


def main() -> None:
    """Run the command in `sys.argv`, and end the process with the exit code."""
    try:
        from infinite_tensor.cli.running import run  # noqa: PLC0415  (needs an extra)
    except ModuleNotFoundError as error:
        if error.name not in ("click", "rich"):
            raise
        sys.exit("the command infinite-tensor needs the packages click and rich: pip install click rich")
    except KeyboardInterrupt:
        # Ctrl-C during the imports, about a second. As in shells, the exit code is 128 plus the signal number.
        sys.exit(130)
    sys.exit(run(sys.argv[1:]))
