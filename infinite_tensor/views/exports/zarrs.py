"""Export of regions to Zarr arrays in a group, with coordinates.

A target is replaced only once the new group is whole. On a local disk the group is written next to its target, then
renamed. Object storage cannot rename. There the chunks are written to a folder in the target, which has a name of its
own. At the end the storage copies them to their places, and the root document is written last: without it, there is no
group.

An unfinished export has a mark: a hash that identifies the exported pixels, or a random text if repeating the export
may give other pixels. The next export with the same mark skips the chunks written so far. None of the chunks is
incomplete, because each chunk is written as a whole. Exports with different marks never write to the same folder. While
an export changes its target, a document there has its mark, so that another export that begins to do so is noticed.
"""

from __future__ import annotations

import itertools
import json
import re
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from numcodecs import Zstd  # type: ignore[import-untyped]

from infinite_tensor.errors import InfiniteTensorError, StoreError, ValidationError
from infinite_tensor.geometry.points import Index
from infinite_tensor.support.disks import beside, check_free, publish, remove
from infinite_tensor.support.threads import on_threads
from infinite_tensor.views.exports.cutout import Cutout, Pixels, Place, Sink
from infinite_tensor.views.frame import chunk_bytes
from infinite_tensor.views.metadata import (
    DOCUMENT,
    UNFINISHED,
    documents_of,
    is_name,
)
from infinite_tensor_stores.homes import Home
from infinite_tensor_stores.many import threads_for
from infinite_tensor_stores.targets import home_of, is_local, local_path, shown

_MARK = "infinite_tensor_export"
_ZSTD = Zstd(0)
"""The default compression of zarr."""

_CHUNK = re.compile(r"c(/[0-9]+)*")
_STAGED = "__export-"
"""How the names of folders for unfinished exports begin. No array has such a name."""
_COPIES = 128
"""The number of chunks to copy before the mark in the target is checked again."""


@dataclass(frozen=True)
class Content:
    """The contents of an exported group.

    Attributes
    ----------
    cutouts : mapping of str to Cutout
        The pixels of the arrays, by path.
    fill_values : mapping of str to number, or None
        The value of chunks that are not written, by path; None if all chunks are written.
    identity : str or None
        Identifies the exported pixels; None if repeating the export may give other pixels.
    attributes : mapping, optional
        For an image with levels: the attributes of the group.
    """

    cutouts: Mapping[str, Cutout]
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
    mark = content.identity or secrets.token_hex(32)
    if is_local(target):
        with _opened_folder(content, local_path(target), mark, overwrite=overwrite) as group:
            yield group.sinks()
            group.finish()
        return
    home = home_of(target, storage_options, read_only=False)
    group = _Group(content, home, shown(target), mark, is_staged=True)
    group.check_free(overwrite=overwrite)
    try:
        yield group.sinks()
    except BaseException:
        if not group.may_continue:
            group.drop()
        raise
    group.replace(overwrite=overwrite)


@contextmanager
def _opened_folder(content: Content, path: Path, mark: str, *, overwrite: bool) -> Iterator[_Group]:
    check_free(path, lambda path: _is_export(_root_of(path)), "was not written by export", overwrite=overwrite)
    path.parent.mkdir(parents=True, exist_ok=True)
    folder = beside(path, mark[:16])
    group = _Group(content, home_of(folder, None, read_only=False), str(path), mark)
    try:
        group.mark()
        yield group
        for left in folder.rglob("*.partial"):
            # A process killed while writing a chunk leaves such a file. A folder of this name is an array.
            if left.is_file():
                remove(left)
        publish(folder, path, overwrite=overwrite)
    finally:
        if not group.may_continue:
            remove(folder)


def _root_of(path: Path) -> bytes | None:
    root = path / DOCUMENT
    return root.read_bytes() if root.is_file() else None


def _is_export(document: bytes | None) -> bool:
    """Whether a document is from an export, finished or unfinished."""
    return bool(_marks_in(document))


def _marks_in(document: bytes | None) -> list[object]:
    """Return the mark of an export in a list. The list is empty if the document is not from an export."""
    try:
        return [json.loads(document or b"{}")["attributes"][_MARK]]
    except (ValueError, KeyError, TypeError):
        return []


class _Group:
    """An exported group in a store.

    Parameters
    ----------
    content : Content
        The contents to write.
    home : Home
        The home to write to.
    target : str
        The target of the export, for messages.
    mark : str
        The mark of the export.
    is_staged : bool
        Whether chunks are first written to a folder in the store.
    """

    def __init__(self, content: Content, home: Home, target: str, mark: str, *, is_staged: bool = False) -> None:
        self._content = content
        self._home = home
        self._target = target
        self._mark = mark
        # Another process may continue the same export, so the mark alone does not say who has written it.
        self._writer = secrets.token_hex(8)
        self._note = json.dumps({"attributes": {_MARK: self._mark, "writer": self._writer}}).encode()
        self._folder = f"{_STAGED}{self._mark}/" if is_staged else ""
        self._arrays: list[_Array] = []

    @property
    def may_continue(self) -> bool:
        """Whether a later export can use the written chunks.

        This requires an identity, and at least one chunk.
        """
        return self._content.identity is not None and any(self._keys(self._folder))

    def mark(self) -> None:
        """Write the mark of this export."""
        self._home.put({UNFINISHED: self._note})

    def drop(self) -> None:
        """Delete the chunks that are not yet in their places."""
        self._home.delete_folders([self._folder.rstrip("/")])

    def check_free(self, *, overwrite: bool) -> None:
        """Check that the target contains nothing, an unfinished export or, with `overwrite`, any export.

        Raise ValidationError otherwise.
        """
        root, note = self._home.get([DOCUMENT, UNFINISHED])
        if _marks_in(note) == [self._mark]:
            # This export was killed while it changed the target.
            return
        if root is not None and not overwrite:
            raise ValidationError(f"{self._target!r} already exists; give another target, or overwrite=True")
        if root is not None and not _is_export(root):
            raise ValidationError(f"{self._target!r} was not written by export, so it is not overwritten")
        # Only names with keys count, because some object storage also lists folders that were deleted.
        names = [] if root or _is_export(note) else self._home.names("")
        names = [name for name in names if not name.startswith(_STAGED)]
        if any(self._home.exist(names)) or any(next(self._home.keys(name), None) for name in names):
            raise ValidationError(f"{self._target!r} was not written by export; give another target")

    def replace(self, *, overwrite: bool) -> None:
        """Replace all contents of the target by the arrays of this export.

        Two exports that end at the same time are told apart by the mark in the target: the later one continues, and the
        other one raises StoreError. It may still delete a few objects of the later one, which counts its chunks again.
        """
        try:
            self.check_free(overwrite=overwrite)
            self.mark()
            # Both copy in the same order, so the last copies of one export are over long before the other gets there.
            chunks = sorted(self._keys(self._folder))
            self._check_count(chunks)
        except InfiniteTensorError:
            self._unmark()
            self.drop()
            raise
        # The root document is the first to be deleted, because nobody may open an incomplete group.
        self._home.delete([DOCUMENT])
        names = [name for name in self._home.names("") if name not in (UNFINISHED, self._folder.rstrip("/"))]
        self._home.delete_folders(names)
        self._home.delete(names)
        for at in range(0, len(chunks), _COPIES):
            self._check_marked()
            try:
                self._home.copy({f"{self._folder}{key}": key for key in chunks[at : at + _COPIES]})
            except FileNotFoundError as error:
                raise self._lost() from error
        root = self._write_documents()
        if self._home.create({DOCUMENT: root}) == [False] or not self._is_marked:
            if self._home.get([DOCUMENT]) == [root]:
                self._home.delete([DOCUMENT])
            raise self._lost()
        self.drop()
        self._unmark()

    def finish(self) -> None:
        """Write all metadata and coordinates, and the root document last.

        The root document makes the folder a group.
        """
        self._home.put({DOCUMENT: self._write_documents()})
        self._unmark()

    def _write_documents(self) -> bytes:
        """Write all metadata and coordinates. Return the root document."""
        content = self._content
        written, chunks_beside = documents_of(
            {path: cutout.frame for path, cutout in content.cutouts.items()},
            {_MARK: self._writer if self._folder else content.identity, **(content.attributes or {})},
            is_name,
            content.fill_values,
            {path: cutout.nodata for path, cutout in content.cutouts.items() if cutout.nodata is not None},
            "auto",
            in_levels=content.attributes is not None,
        )
        root = written.pop(DOCUMENT)
        self._check_marked()
        for key, chunk in chunks_beside.items():
            # One at a time, because the coordinates of a long dimension are computed only now.
            self._home.put({key: bytes(_ZSTD.encode(chunk()))})
        self._home.put(written)
        self._check_count(self._keys())
        self._check_marked()
        return root

    @property
    def _is_marked(self) -> bool:
        return self._home.get([UNFINISHED]) == [self._note]

    def _check_marked(self) -> None:
        if not self._is_marked:
            raise self._lost()

    def _check_count(self, keys: Sequence[str]) -> None:
        if len(keys) != sum(array.count for array in self._arrays):
            raise self._lost()

    def _unmark(self) -> None:
        if self._is_marked:
            self._home.delete([UNFINISHED])

    def _lost(self) -> StoreError:
        return StoreError(
            f"another export to {self._target!r} was under way, and has replaced what this one has written; wait until "
            "no other job exports to this target, then export again"
        )

    def _keys(self, folder: str = "") -> list[str]:
        """List the keys of all chunks within a folder with the arrays."""
        return [f"{path}/{key}" for path in self._content.cutouts for key in self._chunks(f"{folder}{path}")]

    def _chunks(self, array: str) -> set[str]:
        return set(filter(_CHUNK.fullmatch, (key.removeprefix(f"{array}/") for key in self._home.keys(array))))

    def sinks(self) -> dict[str, Sink]:
        """Return the sinks of the arrays, by path."""
        fills = self._content.fill_values
        sinks = {}
        for path, cutout in self._content.cutouts.items():
            fill_value = None if fills is None else fills[path]
            written = self._chunks(f"{self._folder}{path}")
            array = _Array(self._home, f"{self._folder}{path}", cutout, fill_value, written)
            self._arrays.append(array)
            sinks[path] = Sink(cutout.frame.chunk_shape, array.put, array.has, array.get)
        return sinks


class _Array:
    """Writer for the chunks of an array.

    Chunks in `written` are skipped.

    Attributes
    ----------
    count : int
        The number of chunks written, including those in `written`.
    """

    def __init__(self, home: Home, path: str, cutout: Cutout, fill_value: Any, written: set[str]) -> None:
        self._home = home
        self._path = path
        self._chunk_shape = cutout.of_kept(cutout.frame.chunk_shape)
        self._filled = np.full(self._chunk_shape, 0 if fill_value is None else fill_value, cutout.dtype)
        # Without a fill value all chunks are written, and readers notice a missing chunk.
        self._left_out = None if fill_value is None else self._filled.tobytes()
        self._written = written
        self.count = len(written)

    def put(self, place: Place, pixels: Pixels) -> None:
        """See `Sink`."""
        missing = [chunk for chunk in self._chunks_in(place) if _key(chunk) not in self._written]
        encoded = on_threads(partial(self._encoded, place, pixels), missing, threads_for(pixels.nbytes))
        found = zip(missing, encoded, strict=True)
        present = {f"{self._path}/{_key(chunk)}": data for chunk, data in found if data is not None}
        self._home.put(present)
        self.count += len(present)

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

    def get(self, place: Place) -> Pixels:
        """See `Sink`."""
        chunks = [*self._chunks_in(place)]
        # Compression makes no chunk much larger.
        found = self._home.get([f"{self._path}/{_key(chunk)}" for chunk in chunks], 2 * self._filled.nbytes + 2**16)
        pixels = np.empty([part.stop - part.start for part in place], self._filled.dtype)
        paste = partial(self._paste, place, pixels)
        on_threads(paste, list(zip(chunks, found, strict=True)), threads_for(pixels.nbytes))
        return pixels

    def _paste(self, place: Place, pixels: Pixels, item: tuple[Index, bytes | None]) -> None:
        """Decode a chunk into `pixels`, which are at `place`. A chunk that was left out has fill values."""
        chunk, data = item
        part = self._filled
        if data is not None:
            little = part.dtype.newbyteorder("<")
            part = np.frombuffer(_ZSTD.decode(data), little).reshape(self._chunk_shape)
        into, of = [], []
        for i, n, span in zip(chunk, self._chunk_shape, place, strict=True):
            low, high = max(span.start, i * n), min(span.stop, (i + 1) * n)
            into.append(slice(low - span.start, high - span.start))
            of.append(slice(low - i * n, high - i * n))
        pixels[tuple(into)] = part[tuple(of)]

    def has(self, place: Place) -> bool:
        """See `Sink`."""
        return bool(self._written) and all(_key(chunk) in self._written for chunk in self._chunks_in(place))

    def _chunks_in(self, place: Place) -> Iterator[Index]:
        shape = self._chunk_shape
        return itertools.product(*[range(b.start // n, -(-b.stop // n)) for b, n in zip(place, shape, strict=True)])


def _key(chunk: Index) -> str:
    return "/".join(["c", *map(str, chunk)])
