"""Export of regions to Zarr arrays in a group, with coordinates.

On a local disk the group is written next to its target, then renamed. Elsewhere its root document is written last:
without it, there is no group.

An unfinished export contains a document with a hash that identifies the exported pixels. The document has no hash if
repeating the export may give other pixels. The next export with the same hash skips the chunks written so far, unless
it has ``overwrite=True``. None of the chunks is incomplete, because each chunk is written as a whole.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import Zstd  # type: ignore[import-untyped]
from zarr.abc.store import Store

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.disks import check_free, publish, remove, unfinished_folder
from infinite_tensor.support.threads import on_threads
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink
from infinite_tensor.views.metadata import (
    DOCUMENT,
    UNFINISHED,
    Shown,
    chunk_bytes,
    documents_of,
    is_name,
    zarr_attributes,
)
from infinite_tensor_stores.targets import is_local, local_path, shown, zarr_store
from infinite_tensor_stores.zarr.codec import threads_for
from infinite_tensor_stores.zarr.objects import Objects

_MARK = "infinite_tensor_export"
_ZSTD = Zstd(0)
_COMPRESSORS = [{"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
"""The default compression of zarr."""

_CHUNK = re.compile(r"c(/[0-9]+)*")


@dataclass(frozen=True)
class Content:
    """The contents of an exported group.

    Attributes
    ----------
    cutouts : mapping of str to Cutout
        The pixels of the arrays, by path.
    shown : mapping of str to Shown
        The metadata of the arrays, by path.
    fill_values : mapping of str to number, or None
        The value of chunks that are not written, by path; None if all chunks are written.
    identity : str or None
        Identifies the exported pixels; None if repeating the export may give other pixels.
    attributes : mapping, optional
        For an image with levels: the attributes of the group.
    """

    cutouts: Mapping[str, Cutout]
    shown: Mapping[str, Shown]
    fill_values: Mapping[str, Any] | None
    identity: str | None
    attributes: Mapping[str, Any] | None = None


@contextmanager
def opened_zarr(
    content: Content, target: str, storage_options: dict[str, Any] | None, *, overwrite: bool
) -> Iterator[dict[str, Sink]]:
    """Yield the sinks for the arrays of a group, by path.

    The group is published at the end, unless there was an error.
    """
    if is_local(target):
        with _opened_folder(content, local_path(target).absolute(), overwrite=overwrite) as group:
            yield group.sinks()
            group.finish()
        return
    group = _Group(content, zarr_store(target, storage_options, read_only=False))
    if overwrite or not group.is_begun:
        group.make_room(shown(target), overwrite=overwrite)
    group.begin()
    yield group.sinks()
    group.finish()


@contextmanager
def _opened_folder(content: Content, path: Path, *, overwrite: bool) -> Iterator[_Group]:
    check_free(path, lambda path: _is_export(_root_of(path)), "was not written by export", overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_folder(path) as (folder, is_left):
        group = _Group(content, zarr_store(folder, None, read_only=False))
        if overwrite or not group.is_begun:
            for each in folder.iterdir():
                remove(each)
        try:
            group.begin()
            yield group
            for left in folder.rglob("*.partial"):
                # A process killed while writing a chunk leaves such a file. A folder of this name is an array.
                if left.is_file():
                    remove(left)
            publish(folder, path, overwrite=overwrite)
        finally:
            if is_left() and not group.may_continue:
                remove(folder)


def _root_of(path: Path) -> bytes | None:
    root = path / DOCUMENT
    return root.read_bytes() if root.is_file() else None


def _is_export(document: bytes | None) -> bool:
    """Whether a document is from an export, finished or unfinished."""
    try:
        return _MARK in json.loads(document or b"{}")["attributes"]
    except (ValueError, KeyError, TypeError):
        return False


def _note(identity: str | None) -> dict[str, bytes]:
    return {UNFINISHED: json.dumps({"attributes": {_MARK: identity}}).encode()}


class _Group:
    """An exported group in a store.

    Parameters
    ----------
    content : Content
        The contents to write.
    store : Store
        The store to write to.
    """

    def __init__(self, content: Content, store: Store) -> None:
        self._content = content
        self._objects = Objects(lambda: store)

    @property
    def is_begun(self) -> bool:
        """Whether the store contains an unfinished export of the same pixels."""
        identity = self._content.identity
        return identity is not None and self._objects.get([UNFINISHED]) == [*_note(identity).values()]

    @property
    def may_continue(self) -> bool:
        """Whether a later export can use the written chunks.

        This requires an identity, and at least one chunk.
        """
        return self._content.identity is not None and any(map(self._chunks, self._content.cutouts))

    def make_room(self, target: str, *, overwrite: bool) -> None:
        """Delete an unfinished export or, with `overwrite`, any export.

        Raise ValidationError if the target contains anything else.
        """
        root, note = self._objects.get([DOCUMENT, UNFINISHED])
        if root is None and not _is_export(note):
            if next(self._objects.pages("", 1), None) is None:
                return
            raise ValidationError(f"{target!r} was not written by export; give another target")
        if root is not None and not overwrite:
            raise ValidationError(f"{target!r} already exists; give another target, or overwrite=True")
        if root is not None and not _is_export(root):
            raise ValidationError(f"{target!r} was not written by export, so it is not overwritten")
        # Drop the identity first. After a kill, the next export then ignores the remaining chunks.
        self._objects.put(_note(None))
        # Then delete the root document, because nobody may open an incomplete group.
        self._objects.delete([DOCUMENT])
        names = [name for name in self._objects.children("") if name != UNFINISHED]
        self._objects.each(self._objects.delete_folder, names)
        self._objects.delete(names)

    def _chunks(self, path: str) -> set[str]:
        keys = itertools.chain.from_iterable(self._objects.pages(path))
        return set(filter(_CHUNK.fullmatch, (key.removeprefix(f"{path}/") for key in keys)))

    def begin(self) -> None:
        """Write the identity of this export."""
        self._objects.put(_note(self._content.identity))

    def sinks(self) -> dict[str, Sink]:
        """Return the sinks of the arrays, by path."""
        fills = self._content.fill_values
        sinks = {}
        for path, cutout in self._content.cutouts.items():
            fill_value = None if fills is None else fills[path]
            array = _Array(self._objects, path, cutout, fill_value, self._chunks(path))
            sinks[path] = Sink(cutout.frame.chunk_shape, array.put, array.has)
        return sinks

    def _document(self, path: str, cutout: Cutout) -> dict[str, Any]:
        fill_values = self._content.fill_values
        nodata = {} if cutout.nodata is None else {"_FillValue": cutout.nodata}
        fill_value = 0 if fill_values is None else fill_values[path]
        return self._content.shown[path].document(fill_value, _COMPRESSORS, zarr_attributes(nodata))

    def finish(self) -> None:
        """Write all metadata and coordinates, and the root document last.

        The root document makes the folder a group.
        """
        content = self._content
        written, chunks_beside = documents_of(
            content.shown,
            {path: self._document(path, cutout) for path, cutout in content.cutouts.items()},
            {_MARK: content.identity, **(content.attributes or {})},
            is_name,
            _COMPRESSORS,
            in_levels=content.attributes is not None,
        )
        for key, chunk in chunks_beside.items():
            self._objects.put({key: bytes(_ZSTD.encode(chunk()))})
        root = written.pop(DOCUMENT)
        self._objects.put(written)
        self._objects.put({DOCUMENT: root})
        self._objects.delete([UNFINISHED])


class _Array:
    """Writer for the chunks of an array.

    Chunks in `written` are skipped.
    """

    def __init__(self, objects: Objects, path: str, cutout: Cutout, fill_value: Any, written: set[str]) -> None:
        self._objects = objects
        self._path = path
        self._chunk_shape = cutout.of_kept(cutout.frame.chunk_shape)
        self._filled = np.full(self._chunk_shape, 0 if fill_value is None else fill_value, cutout.dtype)
        # Without a fill value all chunks are written, and readers notice a missing chunk.
        self._left_out = None if fill_value is None else self._filled.tobytes()
        self._written = written

    def put(self, place: Place, pixels: Pixels) -> None:
        """See `Sink`."""
        missing = [chunk for chunk in self._chunks_in(place) if _key(chunk) not in self._written]
        encoded = on_threads(partial(self._encoded, place, pixels), missing, threads_for(pixels.nbytes))
        found = zip(missing, encoded, strict=True)
        self._objects.put({f"{self._path}/{_key(chunk)}": data for chunk, data in found if data is not None})

    def _encoded(self, place: Place, pixels: Pixels, chunk: Index) -> bytes | None:
        """Cut a chunk out of `pixels`, and encode it.

        `pixels` fill the box `place` of the array. Return None if the chunk has only fill values, and need not be
        written.
        """
        box = [
            slice(i * n - b.start, (i + 1) * n - b.start)
            for i, n, b in zip(chunk, self._chunk_shape, place, strict=True)
        ]
        part = pixels[tuple(box)]
        if part.shape != self._chunk_shape:
            whole = self._filled.copy()
            whole[tuple(map(slice, part.shape))] = part
            part = whole
        if self._left_out is not None and part.tobytes() == self._left_out:
            return None
        return bytes(_ZSTD.encode(chunk_bytes(part)))

    def has(self, place: Place) -> bool:
        """See `Sink`."""
        return bool(self._written) and all(_key(chunk) in self._written for chunk in self._chunks_in(place))

    def _chunks_in(self, place: Place) -> Iterator[Index]:
        shape = self._chunk_shape
        return itertools.product(*[range(b.start // n, -(-b.stop // n)) for b, n in zip(place, shape, strict=True)])


def _key(chunk: Index) -> str:
    return "/".join(["c", *map(str, chunk)])
