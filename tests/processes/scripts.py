"""Scripts that start fast, in forks of the fork server, where everything has been imported.

For tests of what a script does with the library: one of how it starts, ends or imports needs an interpreter of its own.
"""

from __future__ import annotations

import multiprocessing
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from types import ModuleType

from tests.processes.fork_server import CONTEXT

_PATIENCE = 120.0


def run(*arguments: object, cwd: Path | None = None, patience: float = _PATIENCE) -> subprocess.CompletedProcess[str]:
    """What ``python arguments...`` returns and prints; the first is the path of a script, or ``-c`` before its code."""
    argv = list(map(str, arguments))
    with tempfile.TemporaryDirectory() as folder:
        printed = [Path(folder, name) for name in ("stdout", "stderr")]
        process = CONTEXT.Process(target=_become, args=(argv, cwd or Path.cwd(), printed))
        process.start()
        process.join(patience)
        if process.exitcode is None:
            process.kill()
            raise subprocess.TimeoutExpired(argv, patience)
        return subprocess.CompletedProcess(argv, process.exitcode, *(path.read_text() for path in printed))


def _become(argv: list[str], cwd: Path, printed: list[Path]) -> None:
    """Run a script as the main module."""
    # Its own processes are started as in any other interpreter.
    multiprocessing.set_start_method(None, force=True)
    for number, path in enumerate(printed, start=1):
        opened = os.open(path, os.O_WRONLY | os.O_CREAT)
        os.dup2(opened, number)
        os.close(opened)
    os.chdir(cwd)
    main = sys.modules["__main__"] = ModuleType("__main__")
    if argv[0] == "-c":
        name, source, sys.argv = "<string>", argv[1], ["-c", *argv[2:]]
        sys.path.insert(0, "")
    else:
        name, source, sys.argv = argv[0], Path(argv[0]).read_text(), argv
        sys.path.insert(0, str(Path(name).parent))
        main.__file__ = name
    exec(compile(source, name, "exec"), vars(main))  # noqa: S102  (as Python itself does)
