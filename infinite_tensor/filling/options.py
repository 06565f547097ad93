"""Options of `fill` and `predict`."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, TypedDict

from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.progress import Reporting
from infinite_tensor.support.given import check_client, checked_progress, checked_shard, checked_workers, quoted
from infinite_tensor.values.coarse import Method, check_name

if TYPE_CHECKING:
    from distributed import Client

_SIMILAR = 0.75
"""How similar an option and an unknown word must be for a hint. 'preprocess' is not taken for 'progress'."""
_OF_OTHERS = {
    "inputs": "source",
    "mode": "blend",
    "padding_mode": "padding",
    "patch_size": "window",
    "predictor": "net",
    "roi_size": "window",
    "tile_size": "window",
}
"""The words of MONAI and other libraries of sliding windows, and ours."""


class FillOptions(TypedDict, total=False):
    """Options of `fill` and `predict`, all optional.

    Use `FillOptions` to annotate your own function with the same options:
    ``def refresh(t: InfiniteTensor, **options: Unpack[FillOptions])``.

    Attributes
    ----------
    workers : int, optional
        The number of threads that compute windows. With more than one, several threads call ``f`` at the same time.
        Default: the `workers` of each tensor's store.
    max_memory : int or str, optional
        The limit on memory, in bytes or as ``"400MB"``. It includes the caches of the stores, but not the memory of
        ``f`` itself. Default: 512 MiB in addition to the caches.
    client : distributed.Client, optional
        A Dask cluster that does the work. Stored tensors are filled one after the other. Each is cut into shards, four
        for each thread of the current workers; `max_memory` then applies to each shard. Every tensor with a `tensor_id`
        must be in a Zarr store at a path or URL that all workers can reach.
    progress : bool, "always" or callable
        True shows a bar on a terminal or in a notebook. Elsewhere, and inside a live display of rich, it writes to
        standard error each minute how much is left. "always" shows the bar everywhere. At the end, the bar shows how
        many tiles were stored, and how many were skipped because of a mask. A callable is called with a `Progress`, at
        most about ten times a second. The last `Progress` has the report. Default: True.
    shard : tuple of int, optional
        ``(rank, world_size)``: fill only shard `rank` of the `world_size` shards of the region, and store nothing
        outside of it. Other processes fill the other shards. Windows across the border of two shards are computed for
        both.
    where : Mask, array, tensor, InfiniteTensor or callable, optional
        The wanted pixels. Anything but a `Mask` means ``Mask(where)``: a mask with one pixel for each pixel of the
        tensor or the group, beginning at 0. A tile with a wanted pixel of the region is computed as a whole. All other
        tiles are skipped, and nothing is stored for them. A later read, or a fill without a mask, computes skipped
        tiles, and repeats the windows on their border. Upstream tensors are computed where the wanted tiles need them.
    pyramid : bool or str
        Whether to also fill the levels of `InfiniteTensor.pyramid` over the same region. A tile of a level is
        computed if all its pixels lie over filled pixels. An unbounded tensor gets as many levels as the region needs.
        A str is the method; True uses the default method of `InfiniteTensor.pyramid`. Default: False.
    """

    workers: int | None
    max_memory: int | str | None
    client: Client | None
    progress: Reporting
    shard: tuple[int, int] | None
    where: Any
    pyramid: bool | Method


def check_fill_options(function: Callable[..., Any], options: Mapping[str, Any]) -> None:
    """Check the names and values of options.

    Raise TypeError for an unknown option, and ValidationError for an invalid value. Messages name `function`, the
    public function called with the options.
    """
    unknown = next((name for name in options if name not in FillOptions.__annotations__), None)
    if unknown is not None:
        own = [name for name in inspect.signature(function).parameters if name not in ("self", "options")]
        known = [*own, *FillOptions.__annotations__]
        other = [word for word in (_OF_OTHERS.get(unknown),) if word in known]
        close = other or difflib.get_close_matches(unknown, known, n=1, cutoff=_SIMILAR)
        advice = f"did you mean {close[0]!r}?" if close else f"its arguments are {', '.join(known)}"
        raise TypeError(f"{function.__name__}() got an unexpected keyword argument {unknown!r}; {advice}")
    checked_workers(options.get("workers"))
    if options.get("client") is not None:
        check_client(options["client"])
    checked_progress(options.get("progress", True))
    shard, pyramid = checked_shard(options.get("shard")), options.get("pyramid", False)
    if not isinstance(pyramid, bool | str):
        raise ValidationError(
            f"pyramid must be True, False or a method such as 'mode', got {quoted(pyramid)}; "
            "for a number of levels, call t.pyramid(levels=3)"
        )
    if isinstance(pyramid, str):
        check_name(pyramid)
    if shard is not None and pyramid:
        raise ValidationError(
            "a shard cannot fill levels, because levels extend over several shards; when all shards are filled, call "
            "fill once more with pyramid=True and without shard"
        )
