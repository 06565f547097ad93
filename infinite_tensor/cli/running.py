"""Runs a command, from arguments to exit code.

Errors of the library are printed without a traceback.
"""

from __future__ import annotations

import io
import os
import re
import signal
import sys
import threading
import traceback
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from types import TracebackType

import click

from infinite_tensor.cli import changing, looking, serving
from infinite_tensor.cli.output import note, tell
from infinite_tensor.errors import InfiniteTensorError
from infinite_tensor.support.interrupts import act_as_ctrl_c

FAILED = 1
BROKEN_CODE = 4
INTERRUPTED = 130
"""Exit code after Ctrl-C: 128 plus the signal number, as in shells."""
CLOSED = 141

_ENDING = """\
STORE is the path of a Zarr folder or an HDF5 file, or any URL that fsspec opens; credentials and other options come
from the environment. ID is the id of a tensor, or of a group for info and rm.

\b
Exit codes:
  0    success
  1    the library failed; the message says why
  2    invalid command line, or nobody can confirm a deletion
  3    verify found damage that is not repaired
  4    your code failed; its traceback is printed
  130  interrupted; finished work is stored
  141  the reader of the output has closed it
"""


@click.group(epilog=_ENDING, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="infinite-tensor", message="%(version)s")
def commands() -> None:
    """Look at tensors in stores, fill tensors, and copy or export tensors."""


for _command in (*looking.COMMANDS, *changing.COMMANDS, *serving.COMMANDS):
    commands.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """Run a command, and return the exit code.

    The documentation of the command line lists all exit codes.
    """
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An id may contain characters missing from the encoding of the terminal.
        sys.stdout.reconfigure(errors="backslashreplace")
    with _ended_by_sigterm(), warnings.catch_warnings():
        # Show all warnings of the library, because each is different. Other warnings are for programmers.
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_where, **_file: tell("Warning", str(message))
        try:
            # The `main` of click would handle Ctrl-C and closed pipes itself.
            with commands.make_context("infinite-tensor", list(arguments)) as context:
                found = commands.invoke(context)
            sys.stdout.flush()
        except click.exceptions.Exit as ended:
            return ended.exit_code
        except click.ClickException as error:
            error.show()
            return error.exit_code
        except (click.Abort, KeyboardInterrupt) as ended:
            return _stopped(ended)
        except (Exception, SystemExit) as error:  # noqa: BLE001  (user code may raise anything)
            return _failed(error)
    return found if isinstance(found, int) else 0


@contextmanager
def _ended_by_sigterm() -> Iterator[None]:
    """Make SIGTERM act like Ctrl-C, for schedulers and services.

    An ignored SIGTERM stays ignored.
    """
    here = threading.current_thread() is threading.main_thread()
    if not here or signal.getsignal(signal.SIGTERM) is signal.SIG_IGN:
        yield
        return
    # Do not turn SIGTERM into SIGINT, because background processes of a script ignore SIGINT.
    former = signal.signal(signal.SIGTERM, act_as_ctrl_c)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former or signal.SIG_DFL)


def _stopped(ended: BaseException) -> int:
    if isinstance(ended, click.Abort) and not isinstance(ended.__context__, KeyboardInterrupt):
        note("Nothing was changed.")
        return FAILED
    # A KeyboardInterrupt has a note if running the command again continues the work.
    said = (
        "finished work is stored; run the command again to continue" if hasattr(ended, "__notes__") else "by a signal"
    )
    tell("Interrupted", _in_options(str(ended)) or said)
    return INTERRUPTED


def _failed(error: BaseException) -> int:
    # For a missing extra, the library raises ImportError without a module name.
    if isinstance(error, InfiniteTensorError) or (isinstance(error, ImportError) and error.name is None):
        tell("Error", _in_options("\n".join([str(error), *getattr(error, "__notes__", ())])))
        return FAILED
    trace = _theirs(error.__traceback__)
    if isinstance(error, OSError) and trace is None:
        return _refused(error)
    # A SyntaxError occurs before any code of the file runs, so there are no frames to show.
    shown = None if isinstance(error, SyntaxError) else error.__traceback__
    traceback.print_exception(error.with_traceback(trace or shown))
    return BROKEN_CODE


def _refused(error: OSError) -> int:
    """Report an OSError, and return the exit code.

    An error without a `filename` comes from writing to standard output.
    """
    if error.filename is not None:
        tell("Error", f"{error.filename!r}: {error.strerror}")
        return FAILED
    # Discard the rest of the buffer, because flushing at exit would fail again.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        # The reader of the output has closed the pipe.
        return CLOSED
    tell("Error", f"cannot print: {error.strerror or error}")
    return FAILED


def _in_options(message: str) -> str:
    """Replace Python arguments in a message by options of the command, such as ``--overwrite``."""
    return re.sub(r"; mode '[^;\n]* creates one[^;\n]*", "", message).replace("overwrite=True", "--overwrite")


_BETWEEN = (
    *("click", "infinite_tensor", "infinite_tensor_stores", "matplotlib", "PIL", "rich"),
    *("concurrent", "genericpath", "importlib", "os", "pathlib"),
)
"""Packages with frames between a command and user code."""


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """Cut a traceback before the first frame of user code, or return None without such a frame."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        trace = trace.tb_next
    return trace
