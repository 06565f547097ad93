"""A command from its arguments to its exit code: what fails is told in a line, and never by a traceback of ours."""

from __future__ import annotations

import os
import re
import sys
import traceback
import warnings
from collections.abc import Sequence
from types import TracebackType

import click

from infinite_tensor.cli.commands import commands
from infinite_tensor.cli.output import note, tell
from infinite_tensor.errors import InfiniteTensorError

FAILED = 1
BROKEN_CODE = 4
INTERRUPTED = 130
"""As shells have it: 128, and the number of the signal."""
CLOSED = 141


def run(arguments: Sequence[str]) -> int:
    """The exit code of a command; the page on the command line lists them."""
    with warnings.catch_warnings():
        # Each of ours says something else, and those of others are for who runs Python.
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = lambda message, *_where, **_file: tell("warning", str(message))
        try:
            code = _run(arguments)
            sys.stdout.flush()
        except OSError as error:
            # What is left in the buffer must not fail again at the end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            code = _unprinted(error)
    return code


def _run(arguments: Sequence[str]) -> int:
    try:
        # Its own `main` takes a Ctrl-C and a closed pipe for failures of another kind.
        with commands.make_context("infinite-tensor", list(arguments)) as context:
            found = commands.invoke(context)
    except click.exceptions.Exit as ended:
        return ended.exit_code
    except click.ClickException as error:
        _tell_usage(error)
        return error.exit_code
    except click.Abort as abort:
        return _interrupted(abort) if isinstance(abort.__context__, KeyboardInterrupt) else FAILED
    except KeyboardInterrupt as interrupt:
        return _interrupted(interrupt)
    except (Exception, SystemExit) as error:
        if _is_of_output(error):
            raise
        return _failed(error)
    return found if isinstance(found, int) else 0


def _tell_usage(error: click.ClickException) -> None:
    if isinstance(error, click.exceptions.NoArgsIsHelpError):
        # Its message is the help.
        note(error.format_message())
        return
    tell("error", error.format_message())
    if isinstance(error, click.UsageError) and error.ctx is not None:
        note(f"Try '{error.ctx.command_path} --help'.")


def _is_of_output(error: BaseException) -> bool:
    """Whether it is an OSError that nothing but the printing has met."""
    if not isinstance(error, OSError) or isinstance(error, InfiniteTensorError):
        return False
    # One of a path has that.
    return error.filename is None and _theirs(error.__traceback__) is None


def _unprinted(error: OSError) -> int:
    if isinstance(error, BrokenPipeError):
        # Who reads it has seen enough.
        return CLOSED
    tell("error", f"cannot print: {error.strerror or error}")
    return FAILED


def _interrupted(interrupt: BaseException | None) -> int:
    # What can be continued says so.
    continues = hasattr(interrupt, "__notes__")
    said = "what was finished is stored; the same command continues" if continues else "by Ctrl-C"
    tell("interrupted", _in_options(str(interrupt)) or said)
    return INTERRUPTED


def _failed(error: BaseException) -> int:
    # An ImportError of the library names an extra, and no module.
    if isinstance(error, InfiniteTensorError) or (isinstance(error, ImportError) and error.name is None):
        message = "\n".join([str(error), *getattr(error, "__notes__", ())])
        tell("error", _in_options(message))
        return FAILED
    trace = _theirs(error.__traceback__)
    if isinstance(error, OSError) and trace is None:
        tell("error", f"{error.filename!r}: {error.strerror}")
        return FAILED
    # A file that is no Python has no code that could have been on the way.
    if trace is None and not isinstance(error, SyntaxError):
        trace = error.__traceback__
    traceback.print_exception(error.with_traceback(trace))
    return BROKEN_CODE


def _in_options(message: str) -> str:
    """What the library says of its arguments, for who has only options."""
    return re.sub(r"; mode '[^;\n]* creates one[^;\n]*", "", message).replace("overwrite=True", "--overwrite")


_BETWEEN = (
    *("click", "infinite_tensor", "infinite_tensor_stores", "rich"),
    *("concurrent", "genericpath", "importlib", "os", "pathlib"),
)
"""What lies between a command and the code of a user."""


def _theirs(trace: TracebackType | None) -> TracebackType | None:
    """The part of a traceback that begins with the code of the user; None where there is none of it."""
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").partition(".")[0] in _BETWEEN:
        trace = trace.tb_next
    return trace
