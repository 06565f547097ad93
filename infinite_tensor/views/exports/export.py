"""Export of regions to files, for `t.export` and `group.export`."""

from __future__ import annotations

import errno
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import replace
from fractions import Fraction
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal, NamedTuple, TypeAlias, TypedDict

from infinite_tensor.engine.chain import node_of
from infinite_tensor.errors import ValidationError
from infinite_tensor.filling.progress import Reporting, Tally
from infinite_tensor.filling.stored_only import StoredOnly
from infinite_tensor.pipelines.pyramid import levels_of_region
from infinite_tensor.pipelines.reopening import sources_in
from infinite_tensor.support.disks import check_free, publish, synchronize, unfinished_file
from infinite_tensor.support.given import checked_flag, checked_progress, checked_workers, quoted, word
from infinite_tensor.support.nested import Key
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore.messages import warn_of_lost
from infinite_tensor.values.coarse import Method
from infinite_tensor.values.definition import Number
from infinite_tensor.values.meaning import PixelCode, nodata_of
from infinite_tensor.views.exports.cutout import (
    Cutout,
    Sink,
    Source,
    computed,
    explained,
    stored,
    stream,
    stream_level,
    units_in,
)
from infinite_tensor.views.exports.files import (
    check_labels_png,
    check_png,
    check_tiff,
    opened_npy,
    opened_png,
    opened_tiff,
    unsaid_by_png,
    unsaid_by_tiff,
)
from infinite_tensor.views.exports.zarrs import Content, opened_zarr
from infinite_tensor.views.face import with_distinct_dims
from infinite_tensor.views.frame import numpy_value, state_of
from infinite_tensor.views.metadata import array_name_of, path_of, unsaid_by_attributes
from infinite_tensor.views.multiscale import axes_of, image_of
from infinite_tensor_stores.targets import is_local, local_path, shown, text_of


class _Form(NamedTuple):
    """A single-file format.

    Attributes
    ----------
    check
        Function raising ValidationError if the format cannot store a cutout.
    opened
        Context manager for creating a file. Yields the sink, and finishes the file at the end.
    unsaid
        Function returning labels of the metadata left out of the file, for messages.
    sidecars
        Suffixes of files written by GDAL next to an image. They are deleted when the image is replaced.
    """

    check: Callable[[Cutout], None]
    opened: Callable[[Cutout, Path], AbstractContextManager[Sink]]
    unsaid: Callable[[Cutout], list[str]]
    sidecars: tuple[str, ...] = ()


_OF_GDAL = (".aux.xml", ".ovr", ".msk")
_FORMS = {
    "npy": _Form(lambda _cutout: None, opened_npy, lambda cutout: cutout.meaning.labels),
    "png": _Form(check_png, opened_png, unsaid_by_png, _OF_GDAL),
    "tiff": _Form(check_tiff, opened_tiff, unsaid_by_tiff, _OF_GDAL),
}
_LABELS = _Form(check_labels_png, partial(opened_png, palette=True), partial(unsaid_by_png, palette=True), _OF_GDAL)
"""A PNG with a palette."""
_ZARR: Final = "zarr"
Format: TypeAlias = Literal["zarr", "npy", "png", "tiff"]
_ENDINGS: Mapping[str, Format] = {".zarr": _ZARR, ".npy": "npy", ".png": "png", ".tif": "tiff", ".tiff": "tiff"}

_INTERRUPTED = "The export was interrupted. Call export again with the same arguments to continue it."


class ExportOptions(TypedDict, total=False):
    """Options of `export`, all optional. Of a group, all but `every`, `max_pixels`, `palette` and `pyramid`.

    Attributes
    ----------
    compute : bool
        Whether missing windows are computed and stored, as by a read. Otherwise, pixels of missing tiles are
        `fill_value`, as in `stored_only`.
    fill_value : number, optional
        Used with ``compute=False``. If it is a real number, a TIFF declares it as nodata, and Zarr declares it in
        ``_FillValue``, which xarray reads. Default: 0, which is not declared.
    format : {"zarr", "npy", "png", "tiff"}, optional
        The format, whatever the suffix of `target` is.
    overwrite : bool
        Replace a file, or a Zarr group that an export has written. The target stays until the new one is complete,
        so the tensor may be computed from the target. A group is missing while it is replaced: for a moment on a
        local disk, and during the copies at a URL. Files that GDAL has written next to an image (``.aux.xml``,
        ``.ovr``, ``.msk``) are deleted with it; without `overwrite`, an export does not start if there are such
        files.
    storage_options : dict, optional
        Passed to fsspec.
    workers : int, optional
        As for `read`.
    progress : bool, "always" or callable
        As for `fill`, but a `Progress` counts tiles that have been written, not windows.
    every : int, optional
        For a PNG: write every n-th row and column, beginning with the first, in one read that computes only the
        windows of pixels that are written. Default: all.
    max_pixels : int, optional
        For a PNG, instead of `every`: the largest number of pixels in the image; `every` is then the smallest int
        that suffices.
    palette : bool
        For a PNG with one channel of uint8: give each number a colour, cycling through matplotlib's ``tab20``.
        Without it, an image of small labels is nearly black. `show` uses the same colours, unless there are numbers
        beyond 19: it then draws all pixels on a continuous scale. The numbers in the file do not change, and a
        `fill_value` is transparent.
    pyramid : bool, int or str
        For Zarr: write an OME-Zarr 0.5 image with levels, as viewers expect it. Its arrays are ``s0/<name>``,
        ``s1/<name>`` and so on, each in a group for ``xarray.open_zarr(target, group="s1")``. True writes as many
        levels as the region needs, an int writes that many, and a str names the method of `coarsen` for the levels.
        The default method is that of stored levels; if there are none, it is chosen as for `fill`. Each level is
        computed from the level just written, and begins at the first pixel of the region; pixels beyond the region
        do not count, and stored levels are not read. With ``compute=False``, pixels with a given `fill_value` are
        left out of levels, like nodata. The dimensions must be t, c, z, y and x, in this order, as in OME-Zarr. t, c
        and one of z, y and x may be missing. c may have another name.
    """

    compute: bool
    fill_value: Number | None
    format: Format | None
    overwrite: bool
    storage_options: dict[str, Any] | None
    workers: int | None
    progress: Reporting
    every: int | None
    max_pixels: int | None
    palette: bool
    pyramid: bool | int | Method


_DEFAULTS = ExportOptions(
    compute=True,
    fill_value=None,
    format=None,
    overwrite=False,
    storage_options=None,
    workers=None,
    progress=True,
    every=None,
    max_pixels=None,
    palette=False,
    pyramid=False,
)


def region_and_target(region: object, target: object) -> tuple[object, object]:
    """Return the arguments of an export, where a path alone is the target of all pixels."""
    return (..., region) if target is None else (region, target)


def export(tensor: InfiniteTensor, region: object, target: object, options: ExportOptions) -> None:
    """Write a region of a tensor; see `InfiniteTensor.export`."""
    region, target = region_and_target(region, target)
    place, form, options = _checked(target, options)
    cutout = Cutout.of(tensor, region, options["fill_value"])
    if form == _ZARR:
        _export_tensor(cutout, place, options)
        return
    written = _LABELS if options["palette"] else _FORMS[form]
    written.check(cutout)
    cutout = cutout.every(options["every"], options["max_pixels"])
    warn_of_lost(shown(place), written.unsaid(cutout))
    path = local_path(place)
    sidecars = [path.with_name(path.name + ending) for ending in written.sidecars]
    with _explaining(_begun(path, sidecars, overwrite=options["overwrite"]), str(path)) as unfinished:
        with (
            _explaining(written.opened(cutout, unfinished), str(path)) as sink,
            Tally(units := units_in(cutout.frame.shape, sink.unit), options["progress"], unit="tile") as tally,
        ):
            if cutout.step == 1:
                stream(cutout, sink, _source_of(tensor, options), tally, str(path))
            else:
                sink.put((...,), cutout.picked(compute=options["compute"], workers=options["workers"]))
                tally.count(node_of(tensor), units)
        with explained(str(path)):
            synchronize(unfinished)
            # The sidecars describe the replaced file, not the new one.
            for each in sidecars:
                each.unlink(missing_ok=True)
            publish(unfinished, path, overwrite=options["overwrite"])


def _export_tensor(cutout: Cutout, place: str, options: ExportOptions) -> None:
    name, frame = array_name_of(cutout.tensor), cutout.frame
    if options["pyramid"] is False:
        _export_zarr({name: replace(cutout, frame=frame.named())}, place, options)
        return
    axes_of(frame)
    nodata = nodata_of(node_of(frame.tensor).spec.definition)
    if cutout.nodata is not None:
        nodata = PixelCode("nodata", cutout.nodata)
    levels = levels_of_region(frame.tensor, frame.origin, frame.shape, options["pyramid"], nodata)
    frames, attributes = image_of(name, frame, levels, frame.origin)
    _export_zarr({path: replace(cutout, frame=each) for path, each in frames.items()}, place, options, attributes)


def export_members(
    members: Mapping[Key, tuple[InfiniteTensor, object, Sequence[Fraction]]], target: object, options: ExportOptions
) -> None:
    """Export the tensors of a group to Zarr; see `TensorGroup.export`.

    `members` maps each key to a tensor, a region, and a scale per dimension.
    """
    place, form, options = _checked(target, options)
    if form != _ZARR or options["pyramid"] is not False:
        raise ValidationError(
            f"a group can only be exported to Zarr, and without levels, got format {form!r} and "
            f"pyramid={options['pyramid']}; export its tensors one by one, or give a target ending in .zarr"
        )
    cutouts, scales = {}, {}
    for key, (tensor, region, scale) in members.items():
        path = path_of(key)
        cutouts[path], scales[path] = Cutout.of(tensor, region, options["fill_value"]), scale
    frames = with_distinct_dims({path: cutout.frame for path, cutout in cutouts.items()}, scales)
    _export_zarr({path: replace(cutout, frame=frames[path]) for path, cutout in cutouts.items()}, place, options)


def _export_zarr(
    cutouts: Mapping[str, Cutout],
    place: str,
    options: ExportOptions,
    attributes: Mapping[str, Any] | None = None,
) -> None:
    unsaid = [label for cutout in cutouts.values() for label in unsaid_by_attributes(cutout.meaning)]
    warn_of_lost(shown(place), list(dict.fromkeys(unsaid)))
    if options["overwrite"] and not is_local(place):
        _check_not_read(place, cutouts)
    identity = None if options["overwrite"] else _identity(cutouts, options, in_levels=attributes is not None)
    content = Content(cutouts, _fill_values(cutouts, options), identity, attributes)
    opened = opened_zarr(content, place, options["storage_options"], overwrite=options["overwrite"])
    try:
        with _explaining(opened, shown(place)) as sinks:
            total = sum(units_in(cutout.frame.shape, sinks[path].unit) for path, cutout in cutouts.items())
            with Tally(total, options["progress"], unit="tile") as tally:
                finer = None
                for path, cutout in cutouts.items():
                    if finer is None or attributes is None:
                        stream(cutout, sinks[path], _source_of(cutout.tensor, options), tally, shown(place))
                    else:
                        stream_level(cutout, sinks[path], finer, tally, shown(place))
                    finer = sinks[path]
    except KeyboardInterrupt as interrupt:
        if content.identity is not None:
            interrupt.add_note(_INTERRUPTED)
        raise


def _check_not_read(place: str, cutouts: Mapping[str, Cutout]) -> None:
    """Check that no tensor is computed from the target: object storage cannot replace a folder at once."""
    path = f"/{place.partition('://')[2].strip('/')}/"
    for text in sources_in([cutout.tensor for cutout in cutouts.values()]):
        if isinstance(text, str) and path in f"/{text.strip('/')}/":
            raise ValidationError(
                f"overwrite=True would delete {shown(place)!r}, from which the tensor is computed; give another target"
            )


@contextmanager
def _begun(path: Path, sidecars: Sequence[Path], *, overwrite: bool) -> Iterator[Path]:
    """Create the folder of `path`, and yield an unfinished file in it.

    Raise an error if `path` or a sidecar may not be replaced. At the end, delete the file unless it was published.
    """
    for each in (path, *sidecars):
        check_free(each, Path.is_file, "is not a file", overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_file(path) as unfinished:
        yield unfinished


@contextmanager
def _explaining(opened: AbstractContextManager[Any], target: str) -> Iterator[Any]:
    """Open and close a file, and add the name `target` to errors of opening and closing."""
    opening = ExitStack()
    with explained(target):
        found = opening.enter_context(opened)
    try:
        yield found
    except BaseException as error:
        # Closing probably fails for the same reason. Raise the second error only for a full disk.
        try:
            opening.__exit__(type(error), error, error.__traceback__)
        except Exception as closing:
            if isinstance(error, Exception) and getattr(closing, "errno", None) == errno.ENOSPC:
                with explained(target):
                    raise
        raise
    with explained(target):
        opening.close()


def _checked(target: object, given: ExportOptions) -> tuple[str, str, ExportOptions]:
    """Check the options. Return the target as a str, the format, and the options with their defaults."""
    unknown = given.keys() - _DEFAULTS.keys()
    if unknown:
        raise TypeError(
            f"export() got an unexpected keyword argument {min(unknown)!r}; its options are {', '.join(_DEFAULTS)}"
        )
    options = _DEFAULTS | given
    if not isinstance(target, str | os.PathLike):
        raise ValidationError(f"target must be a path or a URL, got {quoted(target)}")
    place = text_of(target)
    form = _format_of(place, options["format"])
    if form != _ZARR and not is_local(place):
        raise ValidationError(
            f"format {form!r} needs a local path, got {shown(place)!r}; only Zarr can be written to a URL"
        )
    if form != _ZARR and options["storage_options"] is not None:
        raise ValidationError("storage_options are only for Zarr; leave them out")
    if checked_flag("compute", options["compute"]) and options["fill_value"] is not None:
        raise ValidationError("fill_value replaces missing pixels, so it needs compute=False; give both")
    if form != _ZARR and options["pyramid"] is not False:
        raise ValidationError(f"pyramid is only for Zarr, got format {form!r}; leave it out")
    checked_flag("overwrite", options["overwrite"])
    thinned = options["every"] is not None or options["max_pixels"] is not None
    if (checked_flag("palette", options["palette"]) or thinned) and form != "png":
        raise ValidationError(f"every, max_pixels and palette are only for PNG, got format {form!r}; leave them out")
    checked_progress(options["progress"])
    checked_workers(options["workers"])
    return place, form, options


def _format_of(place: str, given: object) -> str:
    if given is not None:
        form = word(given)
        if form != _ZARR and form not in _FORMS:
            raise ValidationError(f"format must be one of zarr, {', '.join(_FORMS)}, got {quoted(given)}")
        return str(form)
    trimmed = place.rstrip("/").lower()
    for ending, form in _ENDINGS.items():
        if trimmed.endswith(ending):
            return form
    raise ValidationError(
        f"the target must end in one of {', '.join(_ENDINGS)}, got {shown(place)!r}; "
        'or give format="zarr", "npy", "png" or "tiff"'
    )


def _source_of(tensor: InfiniteTensor, options: ExportOptions) -> Source:
    if not options["compute"]:
        return partial(stored, StoredOnly(tensor, options["fill_value"]))
    return partial(computed, tensor, None if options["workers"] is None else int(options["workers"]))


def _fill_values(cutouts: Mapping[str, Cutout], options: ExportOptions) -> dict[str, Any] | None:
    """Return the fill value of each array, or None if missing pixels are computed."""
    if options["compute"]:
        return None
    views = {path: StoredOnly(cutout.tensor, options["fill_value"]) for path, cutout in cutouts.items()}
    return {path: numpy_value(view.fill_value, view.dtype) for path, view in views.items()}


def _identity(cutouts: Mapping[str, Cutout], options: ExportOptions, *, in_levels: bool) -> str | None:
    """Return a hash for recognizing an interrupted export of the same pixels.

    Return None if the pixels may differ next time: if only stored pixels are exported, if a tensor is not stored, or if
    its functions cannot be identified.
    """
    nodes = [node_of(cutout.tensor) for cutout in cutouts.values()]
    # The pixels of levels depend only on the first tensor.
    states = [state_of(node) if node.tensor.named else None for node in (nodes[:1] if in_levels else nodes)]
    if not options["compute"] or None in states:
        return None
    places = []
    for (path, cutout), node in zip(cutouts.items(), nodes, strict=True):
        frame, dims = cutout.frame, [*cutout.frame.dims.values()]
        tensor = node.spec.tensor_id, node.spec.definition.digest
        places.append([path, *tensor, frame.origin, frame.shape, frame.tile, cutout.kept, dims])
    return hashlib.sha256(json.dumps([places, states], sort_keys=True).encode()).hexdigest()
