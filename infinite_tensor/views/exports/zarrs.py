"""Regions as plain Zarr arrays in a group, with the coordinates of their pixels.

On a local disk the group is written beside its place, and renamed. Elsewhere its root document comes last: without one,
there is no group.

An export that has not come to its end is told by a document in it of what is exported. Chunks that are there stay: each
is written whole.
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
from typing import Any, NamedTuple

import numpy as np
from numcodecs import Zstd  # type: ignore[import-untyped]
from zarr.abc.store import Store

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.publishing import publish, remove, unfinished_folder
from infinite_tensor.support.threads import on_threads
from infinite_tensor.views.documents import array_document, chunk_bytes, hierarchy
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink
from infinite_tensor.views.meanings import Shown, beside, zarr_attributes
from infinite_tensor.views.names import DOCUMENT, UNFINISHED, is_name
from infinite_tensor_stores.targets import is_local, local_path, shown, zarr_store
from infinite_tensor_stores.zarr.codec import threads_for
from infinite_tensor_stores.zarr.objects import Objects

_MARK = "infinite_tensor_export"
_ZSTD = Zstd(0)
_COMPRESSORS = [{"name": "zstd", "configuration": {"level": 0, "checksum": False}}]
"""What zarr itself compresses new arrays by."""

_CHUNK = re.compile(r"c(/[0-9]+)*")


class Identity(NamedTuple):
    """What names an export that gives the same pixels whenever it is done.

    Attributes
    ----------
    what : str
        Which pixels of which tensors.
    state : str
        What these are computed by, and when windows of them were last dropped. What is begun is of use in one state.
    """

    what: str
    state: str


@dataclass(frozen=True)
class Content:
    """What is written.

    Attributes
    ----------
    cutouts : mapping of str to Cutout
        The arrays, by their paths.
    dims : mapping of str to tuple of str
        The names of their dimensions.
    fill_values : mapping of str to number, or None
        What stands in chunks that are not written; None where all are.
    identity : Identity or None
        Names what is exported; None where that may give other pixels when it is done again.
    """

    cutouts: Mapping[str, Cutout]
    dims: Mapping[str, tuple[str, ...]]
    fill_values: Mapping[str, Any] | None
    identity: Identity | None


@contextmanager
def opened_zarr(
    content: Content, target: str, storage_options: dict[str, Any] | None, *, overwrite: bool
) -> Iterator[dict[str, Sink]]:
    """The arrays of a group, by their paths, which is there when this ends without an error."""
    opened = _opened_folder(content, local_path(target).absolute(), overwrite=overwrite) if is_local(target) else None
    with opened or _opened_in_place(content, target, storage_options, overwrite=overwrite) as hierarchy:
        yield hierarchy.sinks()
        hierarchy.finish()


@contextmanager
def _opened_folder(content: Content, path: Path, *, overwrite: bool) -> Iterator[_Hierarchy]:
    _check_free(path, overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    with unfinished_folder(path) as (folder, is_left):
        hierarchy = _Hierarchy(content, zarr_store(folder, None, read_only=False))
        if overwrite or not hierarchy.is_begun:
            for each in folder.iterdir():
                remove(each)
        try:
            hierarchy.begin()
            yield hierarchy
            for left in folder.rglob("*.partial"):
                # Of a process that was killed in the middle of a chunk; a folder is an array of such a name.
                if left.is_file():
                    remove(left)
            publish(folder, path, overwrite=overwrite)
        finally:
            if is_left() and not hierarchy.may_continue:
                remove(folder)


@contextmanager
def _opened_in_place(
    content: Content, target: str, storage_options: dict[str, Any] | None, *, overwrite: bool
) -> Iterator[_Hierarchy]:
    hierarchy = _Hierarchy(content, zarr_store(target, storage_options, read_only=False))
    if overwrite or not hierarchy.is_begun:
        hierarchy.make_room(shown(target), overwrite=overwrite)
    hierarchy.begin()
    yield hierarchy


def _check_free(path: Path, *, overwrite: bool) -> None:
    if not path.exists() and not path.is_symlink():
        return
    if not overwrite:
        raise ValidationError(f"there is something at {str(path)!r} already; give another path, or overwrite=True")
    root = path / DOCUMENT
    if path.is_symlink() or not root.is_file() or not _is_export(root.read_bytes()):
        raise ValidationError(f"what is at {str(path)!r} was not written by export, so it is not overwritten")


def _is_export(document: bytes) -> bool:
    try:
        return _MARK in json.loads(document)["attributes"]
    except (ValueError, KeyError, TypeError):
        return False


def _is_note(document: bytes) -> bool:
    """Whether it tells of an export that has not come to its end: any program may call a document so."""
    try:
        return bool(json.loads(document).keys() == {_MARK})
    except (ValueError, AttributeError):
        return False


class _Hierarchy:
    """The group, in a store.

    Parameters
    ----------
    content : Content
        What is written.
    store : Store
        Where.
    """

    def __init__(self, content: Content, store: Store) -> None:
        self._content = content
        self._objects = Objects(lambda: store)
        shown = {
            path: Shown.of(cutout.frame, dict(zip(cutout.kept, content.dims[path], strict=True)))
            for path, cutout in content.cutouts.items()
        }
        self._coordinates, self._chunks_beside, self._said = beside(shown, is_name, _COMPRESSORS)
        self._documents = {path: self._document(path, cutout) for path, cutout in content.cutouts.items()}

    def _document(self, path: str, cutout: Cutout) -> dict[str, Any]:
        fill_values = self._content.fill_values
        attributes: dict[str, Any] = {
            "infinite_tensor": {
                "tensor_id": cutout.tensor.tensor_id,
                "origin": [-first for first in cutout.of_kept(cutout.frame.origin)],
            }
        }
        nodata = {} if cutout.nodata is None else {"_FillValue": cutout.nodata}
        attributes |= self._said[path] | zarr_attributes(nodata)
        return array_document(
            cutout.shape,
            cutout.of_kept(cutout.frame.chunk_shape),
            cutout.dtype,
            self._content.dims[path],
            attributes,
            0 if fill_values is None else fill_values[path],
            _COMPRESSORS,
        )

    # What is there.

    @property
    def is_begun(self) -> bool:
        """Whether the same export has been begun, and can be continued."""
        return self._content.identity is not None and self._objects.get([UNFINISHED]) == [self._note]

    @property
    def may_continue(self) -> bool:
        """Whether it is worth to continue."""
        return self._content.identity is not None and any(map(self._chunks, self._documents))

    @property
    def _note(self) -> bytes:
        return json.dumps({_MARK: self._content.identity}).encode()

    def _is_outdated(self, note: bytes | None) -> bool:
        """Whether an export of the same pixels has been begun before they changed."""
        begun, own = json.loads(note or b"{}").get(_MARK), self._content.identity
        return isinstance(begun, list) and own is not None and begun[:1] == [own.what]

    def make_room(self, target: str, *, overwrite: bool) -> None:
        """Delete what an export has written there; ValidationError for what else is there, or if it is not to be."""
        root, note = self._objects.get([DOCUMENT, UNFINISHED])
        is_begun = note is not None and _is_note(note)
        if root is None and not is_begun:
            if next(self._objects.pages("", 1), None) is None:
                return
            raise ValidationError(f"what is at {target!r} was not written by export; give another place")
        if not overwrite and not (root is None and self._is_outdated(note)):
            found = "an export of something else that has not come to its end" if is_begun else "something"
            raise ValidationError(f"there is {found} at {target!r} already; give another place, or overwrite=True")
        if root is not None and not _is_export(root):
            raise ValidationError(f"what is at {target!r} was not written by export, so it is not overwritten")
        self._delete_all()

    def _delete_all(self) -> None:
        """Delete all but a note that something was being written, of no export that could be continued.

        Killed in between, what is left can be overwritten, and is not taken for chunks of the export to come.
        """
        self._objects.put({UNFINISHED: json.dumps({_MARK: None}).encode()})
        # First, so that nobody finds a group that lacks something.
        self._objects.delete([DOCUMENT])
        names = [name for name in self._objects.children("") if name != UNFINISHED]
        self._objects.each(self._objects.delete_folder, names)
        self._objects.delete(names)

    def _chunks(self, path: str) -> set[str]:
        """The keys of chunks of an array that are there."""
        keys = itertools.chain.from_iterable(self._objects.pages(path))
        return set(filter(_CHUNK.fullmatch, (key.removeprefix(f"{path}/") for key in keys)))

    # What is written.

    def begin(self) -> None:
        """Say what is being written."""
        self._objects.put({UNFINISHED: self._note})

    def sinks(self) -> dict[str, Sink]:
        """Where the arrays are written."""
        fills = self._content.fill_values
        return {
            path: _Array(self._objects, path, cutout, None if fills is None else fills[path], self._chunks(path))
            for path, cutout in self._content.cutouts.items()
        }

    def finish(self) -> None:
        """Write all that is not chunks, last of all what makes it a group."""
        for key, chunk in self._chunks_beside.items():
            self._objects.put({key: bytes(_ZSTD.encode(chunk))})
        written = hierarchy(self._documents | self._coordinates, {_MARK: self._content.identity})
        root = written.pop(DOCUMENT)
        self._objects.put(written)
        self._objects.put({DOCUMENT: root})
        self._objects.delete([UNFINISHED])


def _encoded(pixels: Pixels) -> bytes:
    return bytes(_ZSTD.encode(chunk_bytes(pixels)))


class _Array(Sink):
    def __init__(self, objects: Objects, path: str, cutout: Cutout, fill_value: Any, written: set[str]) -> None:
        self.unit = cutout.frame.chunk_shape
        self._objects = objects
        self._path = path
        self._chunk_shape = cutout.of_kept(self.unit)
        self._filled = np.full(self._chunk_shape, 0 if fill_value is None else fill_value, cutout.dtype)
        # Where all chunks are written, one that is not there is known to be missing.
        self._left_out = None if fill_value is None else self._filled.tobytes()
        self._written = written

    def put(self, place: Place, pixels: Pixels) -> None:
        missing = [chunk for chunk in self._chunks_in(place) if _key(chunk) not in self._written]
        encoded = on_threads(partial(self._encoded, place, pixels), missing, threads_for(pixels.nbytes))
        found = zip(missing, encoded, strict=True)
        self._objects.put({f"{self._path}/{_key(chunk)}": data for chunk, data in found if data is not None})

    def _encoded(self, place: Place, pixels: Pixels, chunk: Index) -> bytes | None:
        """A chunk of which some pixels are at hand, and nothing lies in the region else; None if it is left out."""
        box = [
            slice(i * n - b.start, (i + 1) * n - b.start)
            for i, n, b in zip(chunk, self._chunk_shape, place, strict=True)
        ]
        part = pixels[tuple(box)]
        if part.shape != self._chunk_shape:
            whole = self._filled.copy()
            whole[tuple(map(slice, part.shape))] = part
            part = whole
        return None if self._left_out is not None and part.tobytes() == self._left_out else _encoded(part)

    def has(self, place: Place) -> bool:
        return bool(self._written) and all(_key(chunk) in self._written for chunk in self._chunks_in(place))

    def _chunks_in(self, place: Place) -> Iterator[Index]:
        shape = self._chunk_shape
        return itertools.product(*[range(b.start // n, -(-b.stop // n)) for b, n in zip(place, shape, strict=True)])


def _key(chunk: Index) -> str:
    return "/".join(["c", *map(str, chunk)])
