"""The command with all of its commands."""

from __future__ import annotations

import click

import infinite_tensor
from infinite_tensor.cli import filling, keeping, looking, moving


class _InOrder(click.Group):
    """Lists its commands in the order in which they stand here."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click calls it so)
        return list(self.commands)


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


def _tell_version(ctx: click.Context, _param: click.Parameter, wanted: bool) -> None:
    if wanted:
        click.echo(infinite_tensor.__version__)
        ctx.exit()


@click.group(
    cls=_InOrder,
    epilog=_ENDING,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.option(
    "--version", is_flag=True, expose_value=False, is_eager=True, callback=_tell_version, help="Show the version."
)
def commands() -> None:
    """Look at tensors in stores, fill them, and take them elsewhere."""


for _command in (
    looking.ls,
    looking.info,
    looking.read,
    looking.coverage,
    filling.plan,
    filling.fill,
    filling.predict,
    keeping.verify,
    keeping.gc,
    keeping.rm,
    moving.cp,
    moving.export,
):
    commands.add_command(_command)
