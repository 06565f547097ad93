"""The command for serving tensors over HTTP."""

from __future__ import annotations

from typing import Any

import click

import infinite_tensor
from infinite_tensor.cli import arguments
from infinite_tensor.cli.changing import opened_to_change
from infinite_tensor.cli.output import print_json


@click.command("serve", short_help="Serve tensors over HTTP, as Zarr and as map tiles.")
@arguments.store
@arguments.module("that computes missing pixels")
@click.option(
    "--region", type=arguments.REGION, metavar="REGION", help='Region of the Zarr arrays, as in "0:64,-32:32".'
)
@click.option("--store-results", is_flag=True, help="Store computed pixels, instead of keeping them in memory.")
@click.option("--host", default="127.0.0.1", show_default=True, metavar="ADDRESS", help="Where to listen.")
@click.option("--port", type=int, default=8000, show_default=True, metavar="N", help="The port; 0 for a free one.")
@click.option(
    "--cors", multiple=True, metavar="ORIGIN", help='Origin whose pages may read, as in "https://example.org".'
)
@click.option("--workers", type=int, metavar="N", help="Number of responses that are computed at a time.")
@click.option(
    "--max-windows", type=int, metavar="N", help="Limit of windows for one response.  [default: 2**24 pixels]"
)
@click.option("--vmin", type=float, metavar="N", help="Lower end of the colour range.")
@click.option("--vmax", type=float, metavar="N", help="Upper end of the colour range.")
@arguments.as_json
def serve(store: str, computed: Any, store_results: bool, workers: int | None, as_json: bool, **options: Any) -> None:
    """Serve the tensors of STORE over HTTP until Ctrl-C.

    Zarr arrays are at /NAME, and map tiles at /NAME/{z}/{x}/{y}.png. There is no authentication.
    """
    with opened_to_change(store) if store_results else infinite_tensor.open_store(store, mode="r") as opened:
        sources = [opened] if computed is None else [computed, opened]
        given = options if workers is None else options | {"workers": workers}
        ready = _print_url if as_json else None
        infinite_tensor.serve(*sources, store_results=store_results, ready=ready, **given)


def _print_url(url: str) -> None:
    print_json({"url": url})
    # Flush now, because a program may wait for the URL.
    click.get_current_context().obj.flush()


COMMANDS = (serve,)
