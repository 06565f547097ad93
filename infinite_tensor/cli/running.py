"""A command from its arguments to its exit code: what fails is told in a line, and never by a traceback of ours."""

from __future__ import annotations

import io
import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import TracebackType

import click

from infinite_tensor.cli import changing, looking, serving
from infinite_tensor.cli.output import note, tell
from infinite_tensor.errors import InfiniteTensorError

FAILED = 1
BROKEN_CODE = 4
INTERRUPTED = 130
"""As shells have it: 128, and the number of the signal."""
CLOSED = 141

_ENDING = """\
STORE is the path of a Zarr folder or an HDF5 file, or any URL that fsspec opens; credentials and other options come
from the environment. ID is the id of a tensor, or of a group for info and rm.

\b
Exit codes:
  0    done
  1    the library has failed; the message says why
  2    the command line makes no sense, or nobody can confirm a deletion
  3    verify has found damage, which is still there
  4    code of yours has failed, with its traceback
  130  interrupted; what was finished is stored
  141  who reads the output has closed it
"""


@click.group(epilog=_ENDING, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100})
@click.version_option(package_name="infinite-tensor", message="%(version)s")
def commands() -> None:
    """Look at tensors in stores, fill them, and take them elsewhere."""


for _command in (*looking.COMMANDS, *changing.COMMANDS, *serving.COMMANDS):
    commands.add_command(_command)


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command; the page on the command line lists them."""
    if isinstance(sys.stdout, io.TextIOWrapper):
        # An id may hold what the encoding of the terminal has not.
        sys.stdout.reconfigure(errors="backslashreplace")
    with warnings.catch_warnings():
        # Each of ours says something else, and those of others are for who runs Python.
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_where, **_file: tell("Warning", str(message))
        try:
            # Its own `main` takes a Ctrl-C and a closed pipe for failures of another kind.
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
        except (Exception, SystemExit) as error:  # noqa: BLE001  (code of the user raises what it pleases)
            return _failed(error)
    return found if isinstance(found, int) else 0


def _stopped(ended: BaseException) -> int:
    """The exit code where somebody has answered no, or has pressed Ctrl-C."""
    if isinstance(ended, click.Abort) and not isinstance(ended.__context__, KeyboardInterrupt):
        note("Nothing was changed.")
        return FAILED
    # What can be continued says so.
    said = "what was finished is stored; the same command continues" if hasattr(ended, "__notes__") else "by Ctrl-C"
    tell("Interrupted", _in_options(str(ended)) or said)
    return INTERRUPTED


def _failed(error: BaseException) -> int:
    """The exit code of what the library, the system, or code of the user has raised, which is told."""
    # An ImportError of the library names an extra, and no module.
    if isinstance(error, InfiniteTensorError) or (isinstance(error, ImportError) and error.name is None):
        tell("Error", _in_options("\n".join([str(error), *getattr(error, "__notes__", ())])))
        return FAILED
    trace = _theirs(error.__traceback__)
    if isinstance(error, OSError) and trace is None:
        return _refused(error)
    # A file that is no Python has no code that could have been on the way.
    shown = None if isinstance(error, SyntaxError) else error.__traceback__
    traceback.print_exception(error.with_traceback(trace or shown))
    return BROKEN_CODE


def _refused(error: OSError) -> int:
    """The exit code where the system refuses a path, or to print."""
    if error.filename is not None:
        tell("Error", f"{error.filename!r}: {error.strerror}")
        return FAILED
    # What is left in the buffer must not fail again at the end.
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    if isinstance(error, BrokenPipeError):
        # Who reads it has seen enough.
        return CLOSED
    tell("Error", f"cannot print: {error.strerror or error}")
    return FAILED


def _in_options(message: str) -> str:
    """What the library says of its arguments, for who has only options."""
    return re.sub(r"; mode '[^;\n]* creates one[^;\n]*", "", message).replace("overwrite=True", "--overwrite")


_BETWEEN = (
    *("click", "infinite_tensor", "infinite_tensor_stores", "matplotlib", "PIL", "rich"),
    *("concurrent", "genericpath", "importlib", "os", "pathlib"),
)
"""What lies between a command and the code of a user."""


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with the code of the user; None where there is none of it."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        trace = trace.tb_next
    return trace
