"""Regions as plain Zarr arrays in a group, with the coordinates of their pixels.

On a local disk the group is written beside its place, and renamed. Elsewhere its root document comes last: without one,
there is no group.

An export that has not come to its end is told by a document in it of what is exported. Chunks that are there stay: each
is written whole.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import zarr
from zarr.abc.store import Store
from zarr.core.buffer import default_buffer_prototype
from zarr.storage import MemoryStore, StorePath

from infinite_tensor.errors import ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.publishing import publish, remove, unfinished_folder
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink
from infinite_tensor.views.names import DOCUMENT, UNFINISHED, is_name
from infinite_tensor_stores.loop import sync
from infinite_tensor_stores.targets import is_local, local_path, shown, zarr_store

_MARK = "infinite_tensor_export"
_PROTOTYPE = default_buffer_prototype()
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
        self._store = store
        self._arrays = {path: self._array(path, cutout) for path, cutout in content.cutouts.items()}
        self._coordinates = dict(self._coordinate_arrays())

    def _array(self, path: str, cutout: Cutout) -> zarr.Array[Any]:
        fill_values = self._content.fill_values
        return self._created(
            path,
            shape=cutout.shape,
            chunks=tuple(map(min, cutout.of_kept(cutout.frame.tile), cutout.shape)),
            dtype=cutout.dtype,
            fill_value=np.zeros((), cutout.dtype)[()] if fill_values is None else fill_values[path],
            dimension_names=self._content.dims[path],
            attributes={
                "infinite_tensor": {
                    "tensor_id": cutout.tensor.tensor_id,
                    "origin": [-first for first in cutout.of_kept(cutout.frame.origin)],
                }
            },
            # A chunk that is there is known to have been written. For zarr, all complex numbers with a NaN are equal.
            config={"write_empty_chunks": fill_values is None or cutout.dtype.kind == "c"},
        )

    def _coordinate_arrays(self) -> Iterator[tuple[str, tuple[zarr.Array[Any], Pixels]]]:
        known = set(self._arrays).union(*map(_groups_above, self._arrays))
        for path, cutout in self._content.cutouts.items():
            above, _, _ = path.rpartition("/")
            for d, dim in zip(cutout.kept, self._content.dims[path], strict=True):
                name, pixels = f"{above}/{dim}".lstrip("/"), cutout.frame.coordinates(d)
                if pixels is not None and is_name(dim) and name not in known:
                    known.add(name)
                    yield (
                        name,
                        (
                            self._created(
                                name,
                                shape=pixels.shape,
                                chunks=pixels.shape,
                                dtype=pixels.dtype,
                                dimension_names=[dim],
                                config={"write_empty_chunks": True},
                            ),
                            pixels,
                        ),
                    )

    def _created(self, path: str, **options: Any) -> zarr.Array[Any]:
        """An array in the store, of which no document is there yet."""
        made = zarr.create_array(MemoryStore(), **options).async_array
        return zarr.Array(zarr.AsyncArray(made.metadata, StorePath(self._store, path), made.config))

    # What is there.

    @property
    def is_begun(self) -> bool:
        """Whether the same export has been begun, and can be continued."""
        return self._content.identity is not None and self._get(UNFINISHED) == self._note

    @property
    def may_continue(self) -> bool:
        """Whether it is worth to continue."""
        return self._content.identity is not None and any(map(self._chunks, self._arrays))

    @property
    def _note(self) -> bytes:
        return json.dumps({_MARK: self._content.identity}).encode()

    def _is_outdated(self, note: bytes | None) -> bool:
        """Whether an export of the same pixels has been begun before they changed."""
        begun, own = json.loads(note or b"{}").get(_MARK), self._content.identity
        return isinstance(begun, list) and own is not None and begun[:1] == [own.what]

    def make_room(self, target: str, *, overwrite: bool) -> None:
        """Delete what an export has written there; ValidationError for what else is there, or if it is not to be."""
        root, note = self._get(DOCUMENT), self._get(UNFINISHED)
        is_begun = note is not None and _is_note(note)
        if root is None and not is_begun:
            if self._is_empty():
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
        self._put(UNFINISHED, json.dumps({_MARK: None}).encode())
        # First, so that nobody finds a group that lacks something.
        sync(self._store.delete, DOCUMENT)
        for name in sync(self._names):
            if name != UNFINISHED:
                sync(self._store.delete_dir, name)
                sync(self._store.delete, name)

    async def _names(self) -> list[str]:
        return [name async for name in self._store.list_dir("")]

    def _is_empty(self) -> bool:
        async def empty() -> bool:
            async for _ in self._store.list_prefix(""):
                return False
            return True

        return sync(empty)

    def _chunks(self, path: str) -> set[str]:
        """The keys of chunks of an array that are there."""

        async def listed() -> set[str]:
            return {key.removeprefix(f"{path}/") async for key in self._store.list_prefix(f"{path}/c")}

        return set(filter(_CHUNK.fullmatch, sync(listed)))

    def _get(self, key: str) -> bytes | None:
        found = sync(self._store.get, key, _PROTOTYPE)
        return None if found is None else found.to_bytes()

    # What is written.

    def begin(self) -> None:
        """Say what is being written."""
        self._put(UNFINISHED, self._note)

    def sinks(self) -> dict[str, Sink]:
        """Where the arrays are written."""
        return {
            path: _Array(array, self._content.cutouts[path], self._chunks(path)) for path, array in self._arrays.items()
        }

    def finish(self) -> None:
        """Write all that is not chunks, last of all what makes it a group."""
        for array, pixels in self._coordinates.values():
            array[...] = pixels
        arrays = self._arrays | {path: array for path, (array, _) in self._coordinates.items()}
        nodes: dict[str, Any] = {}
        for path, array in arrays.items():
            nodes.update({above: _group({}) for above in _groups_above(path)})
            nodes[path] = json.loads(array.metadata.to_buffer_dict(_PROTOTYPE)[DOCUMENT].to_bytes())
        for path, node in nodes.items():
            self._put(f"{path}/{DOCUMENT}", json.dumps(node).encode())
        root = _group({_MARK: self._content.identity}) | {
            # xarray looks for it, and need not list the store.
            "consolidated_metadata": {"kind": "inline", "must_understand": False, "metadata": nodes}
        }
        self._put(DOCUMENT, json.dumps(root).encode())
        sync(self._store.delete, UNFINISHED)

    def _put(self, key: str, data: bytes) -> None:
        sync(self._store.set, key, _PROTOTYPE.buffer.from_bytes(data))


def _groups_above(path: str) -> list[str]:
    """The paths of the groups that an array is in, but the root."""
    return ["/".join(above) for above in itertools.accumulate([[name] for name in path.split("/")[:-1]])]


def _group(attributes: Mapping[str, Any]) -> dict[str, Any]:
    return {"zarr_format": 3, "node_type": "group", "attributes": attributes}


class _Array(Sink):
    def __init__(self, array: zarr.Array[Any], cutout: Cutout, written: set[str]) -> None:
        self.unit = cutout.frame.chunk_shape
        self._array = array
        self._written = written

    def put(self, place: Place, pixels: Pixels) -> None:
        missing = [chunk for chunk in self._chunks_in(place) if not self._is_written(chunk)]
        if len(missing) == math.prod(map(len, self._indices(place))):
            self._array[place] = pixels
            return
        for chunk in missing:
            box = [slice(i * n, (i + 1) * n) for i, n in zip(chunk, self._array.chunks, strict=True)]
            inside = [slice(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(box, place, strict=True)]
            part = [slice(a.start - b.start, a.stop - b.start) for a, b in zip(inside, place, strict=True)]
            self._array[tuple(inside)] = pixels[tuple(part)]

    def has(self, place: Place) -> bool:
        return bool(self._written) and all(map(self._is_written, self._chunks_in(place)))

    def _indices(self, place: Place) -> list[range]:
        return [range(part.start // n, -(-part.stop // n)) for part, n in zip(place, self._array.chunks, strict=True)]

    def _chunks_in(self, place: Place) -> Iterator[Index]:
        return itertools.product(*self._indices(place))

    def _is_written(self, chunk: Index) -> bool:
        return self._array.metadata.encode_chunk_key(chunk) in self._written
