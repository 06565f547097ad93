"""The root of a Zarr store: opening, creating and cleaning up.

A folder belongs to this library if its name is ``t-...`` or ``g-...`` and it contains nothing but ``zarr.json``,
``tiles-<incarnation>`` and ``partial-<incarnation>``. All other folders are left alone. Files left in folders by killed
writers and by operating systems are ignored.

Garbage is stored data without any use: deleted incarnations, logs of complete tiles, temporary files.
"""

from __future__ import annotations

import itertools
import math
import os
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

from infinite_tensor.errors import StoreError
from infinite_tensor.geometry.points import Index
from infinite_tensor.tilestore.documents import GROUP, TENSOR
from infinite_tensor.tilestore.inventory import Garbage
from infinite_tensor.tilestore.stored_definition import FORMAT, StoredTensor
from infinite_tensor_stores.files import LARGEST_DOCUMENT, left_alone, read_file
from infinite_tensor_stores.homes import Home, Stored, StoreHome, batches
from infinite_tensor_stores.many import each
from infinite_tensor_stores.targets import check_format, check_found, check_writable
from infinite_tensor_stores.zarr.layout import (
    DOCUMENT,
    ArrayPlace,
    array_in,
    attributes_in,
    group_document,
    incarnation_of,
    is_temporary,
    is_zarr_of_others,
    member_in,
    part_of,
)

# Some storages list the folder itself, without a name.
_LEFT_BEHIND = re.compile(r"|.*\.partial|\.DS_Store|Thumbs\.db|lost\+found|\.nfs.*", re.DOTALL)
_MOST_TOLD = 3
_PAGE = 1000
_PLACE = "an empty folder"

_MARK = {"format": FORMAT}
_LOG = "partial/0/0"
"""A key similar to the key of a log, to test whether a Store accepts such keys."""


@dataclass(frozen=True)
class _Folder:
    """A folder at the root of a store.

    Attributes
    ----------
    name : str
        The name of the folder.
    inside : list of str
        The names of the objects and folders directly in it.
    stranger : str or None
        The key of something in it that does not belong to this library.
    """

    name: str
    inside: list[str]
    stranger: str | None


class Root:
    """The root of one store.

    Parameters
    ----------
    home : Home
        The objects of the store.
    owner : str
        The name of the store, for messages.

    Attributes
    ----------
    is_new : bool
        Whether there was no store yet when last looked at.
    """

    def __init__(self, home: Home, owner: str) -> None:
        self._home = home
        self._owner = owner
        self.is_new = False

    def open(self, mode: str) -> None:
        """Open a store, or create a new store.

        Mode "a" creates nothing yet: `begin` does, before the first write.

        Parameters
        ----------
        mode : str
            One of `MODES`.

        Raises
        ------
        StoreError
            If the mode does not match the content of the root, or if the content cannot be read.
        """
        try:
            home = self._home
            if isinstance(home, StoreHome):
                self._open_of_others(home, mode)
            self._open(mode)
        except StoreError:
            raise
        except Exception as error:
            if isinstance(error, FileNotFoundError) and mode in ("r", "r+"):
                check_found(mode, self._owner, None, is_store=False, place=_PLACE)
            raise StoreError(f"{self._owner} cannot be opened: {type(error).__name__}: {error}") from error

    def begin(self) -> None:
        """Create the store, if it is new."""
        if self.is_new:
            # Another program may have written here since. On remote storage, to look again would cost a request.
            if self._home.root is not None:
                self._check_free()
            self._create("a")

    def _open(self, mode: str) -> None:
        self._check_folder()
        (document,) = self._home.get([DOCUMENT])
        if document is not None:
            self._check_ours(document)
        found = "a store" if document is not None else None
        if mode == "w-" and found is None and self._names(""):
            found = "something"
        check_found(mode, self._owner, found, is_store=True, place=_PLACE)
        if mode != "r":
            self._check_writable()
        # Tensors without a root, as after a deletion by mistake, get a new one.
        self.is_new = document is None and self._check_free() and mode == "a"
        if mode == "w":
            self._delete_ours()
        if document is None and not self.is_new:
            self._create(mode)

    def _create(self, mode: str) -> None:
        if self._home.create({DOCUMENT: group_document(_MARK)}) == [False]:
            if mode == "w-":
                raise StoreError(f"{self._owner}: another process has just created it; mode 'a' opens it")
            # Another process has just created it.
            self._open("r+")
        self.is_new = False

    def _check_folder(self) -> None:
        root = self._home.root
        # In this order, a folder created meanwhile is not taken for a file.
        if root is None or not os.path.lexists(root) or root.is_dir():
            return
        what = "a broken link" if root.is_symlink() and not root.exists() else "a file"
        raise StoreError(
            f"{self._owner}: there is {what}, but a Zarr store is a folder; choose another path, or open an HDF5 file "
            "with HDF5TileStore"
        )

    def _open_of_others(self, home: StoreHome, mode: str) -> None:
        home.open()
        if mode == "r":
            return
        kind = type(home.store).__name__
        if not home.store.supports_deletes:
            raise StoreError(
                f"{self._owner}: {kind} cannot delete, but a store must delete outdated data; write to a folder, pack "
                "the content of the folder, and open the packed store with mode='r'"
            )
        try:
            self._home.exist([_LOG])
        except ValueError as error:
            raise StoreError(
                f"{self._owner}: {kind} accepts only the keys of Zarr arrays, and incomplete tiles have other keys; "
                f"store tensors in a folder or at a URL, and copy regions to the {kind}: "
                "zarr.from_array(store, data=t.as_zarr(region), name='map')"
            ) from error

    def _check_free(self) -> bool:
        """Check that a new store can be created here.

        Return False if there are tensors or groups. Raise StoreError if there is other data, and on a local disk also
        inside another store.
        """
        names = self._names("")
        if strangers := self._strangers(names):
            raise self._refused(f"other data: {', '.join(map(repr, strangers))}")
        if self._home.root is None:
            # On remote storage, the check for another store would cost requests.
            return not names
        folder = self._home.root.resolve()
        for inner in (folder, *folder.parents):
            if (inner == folder or _is_name_of_ours(inner.name)) and _is_store(inner.parent):
                raise StoreError(
                    f"{self._owner}: there is no store, and the folder is inside the store {str(inner.parent)!r}; open "
                    "this store instead, or choose a folder outside of it"
                )
        return not names

    def _check_writable(self) -> None:
        """Check that a local folder is writable, or can be created.

        On remote storage, the first write fails instead.
        """
        root = self._home.root
        if root is not None:
            check_writable(root, self._owner)

    def _refused(self, found: str) -> StoreError:
        root = self._home.root
        inside = "exp.zarr/tensors" if root is None else str(root / "tensors")
        return StoreError(
            f"{self._owner}: there is no store, but {found}; choose {_PLACE}, or a new one inside, such as {inside!r}"
        )

    def _check_ours(self, document: bytes) -> None:
        """Check that the root's document is the document of a store.

        Raise StoreError otherwise.
        """
        array = array_in(document)
        if array is not None:
            raise StoreError(f"{self._owner} must be a store, but there is {array}")
        try:
            ours = attributes_in(document)
            if ours is None:
                raise self._without_mark()
            member = member_in(ours)
            if member is not None and not self._named_as_ours():
                raise StoreError(
                    f"{self._owner}: this is the folder of {member}, not a store; open the store in the folder "
                    f"above, and open {member} by its id there"
                )
            if member is not None:
                raise ValueError(f"the definition belongs to {member}")
            if not isinstance(ours.get("format"), int) or ours["format"] < 1:
                raise ValueError(f"the format is {ours.get('format')!r}")
        except ValueError as error:
            raise StoreError(
                f"{self._owner}: {DOCUMENT} of the store is damaged ({error}). Restore it from a copy, or move it "
                "away, and open the store with mode 'a'"
            ) from error
        check_format(ours["format"], self._owner)

    def _without_mark(self) -> Exception:
        # With only tensors and groups around, the group is ours, but damaged.
        names = [name for name in self._names("") if name != DOCUMENT]
        if names and not self._strangers(names):
            return ValueError("it contains no version of the store")
        return self._refused("a Zarr group of another program")

    def _strangers(self, names: Iterable[str]) -> list[str]:
        strangers: list[str] = []
        for name in names:
            folder = self._look(name) if _is_name_of_ours(name) else _Folder(name, [], name)
            if folder.stranger is not None and name != DOCUMENT:
                strangers.append(folder.stranger)
            if len(strangers) == _MOST_TOLD:
                break
        return strangers

    def ours(self) -> dict[str, list[str]]:
        """Return the content of all folders of tensors and groups.

        The result maps the name of each folder to the names directly in it. Folders without a definition are included,
        folders with data of other programs are not.
        """
        folders = each(self._look, self._named_as_ours(), self._home.at_once)
        return {folder.name: folder.inside for folder in folders if folder.stranger is None}

    def is_of_others(self, name: str) -> bool:
        """Return whether another program wrote the ``zarr.json`` of a tensor or group."""
        (document,) = self._home.get([f"{name}/{DOCUMENT}"])
        # `_look` comes last, because it costs more.
        return document is not None and is_zarr_of_others(document) and self._look(name).stranger is not None

    def _delete_ours(self) -> None:
        """Delete all tensors and groups, and nothing else at the root.

        Raises
        ------
        StoreError
            If one of these folders contains data of another program. Nothing is deleted then.
        """
        folders = each(self._look, self._named_as_ours(), self._home.at_once)
        for folder in folders:
            if folder.stranger is not None and DOCUMENT in folder.inside:
                raise StoreError(
                    f"{self._owner}: mode 'w' would delete {folder.stranger!r} of another program in {folder.name!r}; "
                    "move it away"
                )
        ours = [folder.name for folder in folders if folder.stranger is None]
        # Groups first: otherwise, a kill could leave a group with deleted tensors.
        for kind in (GROUP, TENSOR):
            each(self._delete, [name for name in ours if name.startswith(kind)], self._home.at_once)

    def _delete(self, name: str) -> None:
        if self._home.delete_link(name):
            return
        # Delete the definition first. After a kill, `gc` can then delete the rest as garbage.
        self._home.delete([f"{name}/{DOCUMENT}"])
        for child in self._home.names(name):
            if incarnation_of(child) is not None:
                self._home.delete_folders([f"{name}/{child}"])
            elif is_temporary(child):
                self._home.delete([f"{name}/{child}"])
        if self._home.root is not None:
            # Ignored files, or another process, may keep the folder from being deleted.
            with suppress(OSError):
                (self._home.root / name).rmdir()

    def _named_as_ours(self) -> list[str]:
        return list(filter(_is_name_of_ours, self._names("")))

    def _look(self, name: str) -> _Folder:
        inside = self._names(name)
        strangers = [f"{name}/{child}" for child in inside if child != DOCUMENT and incarnation_of(child) is None]
        document = None
        # With only folders of tiles around, the document is ours, even if damaged.
        if DOCUMENT in inside and (strangers or len(inside) == 1):
            (document,) = self._home.get([f"{name}/{DOCUMENT}"])
        if document is not None and is_zarr_of_others(document):
            strangers.append(f"{name}/{DOCUMENT}")
        # On a local disk, a file is in the way of a folder with the same name.
        if not inside and self._home.root is not None and any(self._home.exist([name])):
            strangers.append(name)
        return _Folder(name, inside, strangers[0] if strangers else None)

    def _names(self, prefix: str) -> list[str]:
        found = dict.fromkeys(self._home.names(prefix))
        return [name for name in found if not _LEFT_BEHIND.fullmatch(name)]


def _is_store(folder: Path) -> bool:
    with suppress(OSError, ValueError):
        ours = attributes_in(read_file(folder / DOCUMENT, LARGEST_DOCUMENT) or b"")
        return ours is not None and member_in(ours) is None
    return False


def _is_name_of_ours(name: str) -> bool:
    return name.startswith((TENSOR, GROUP))


Log: TypeAlias = Mapping[int, Stored]
"""The parts of a tile's log, by number."""


def logs_in(home: Home, place: ArrayPlace) -> Mapping[Index, Log]:
    """Return all logs of a tensor.

    Logs of complete tiles are included.
    """
    logs: dict[Index, dict[int, Stored]] = {}
    for key, stored in home.entries(place.logs):
        part = place.tile_of_part(key)
        if part is not None:
            logs.setdefault(part[0], {})[part[1]] = stored
    return logs


class Sweep:
    """Deletes and counts garbage.

    Data of other programs is kept. Links out of the store are not followed.

    Parameters
    ----------
    home : Home
        The objects of the store.
    root : Root
        The root of the store.
    definition_of : callable
        ``definition_of(name)`` returns the definition of a tensor, or None if there is none. It raises ValueError or
        StoreError if the definition cannot be read.
    """

    def __init__(self, home: Home, root: Root, definition_of: Callable[[str], StoredTensor | None]) -> None:
        self._logs = 0
        self._home = home
        self._root = root
        self._definition = definition_of
        self._collected = Garbage()

    def run(self) -> Garbage:
        """Delete the garbage of the whole store."""
        ours = self._root.ours()
        for name, inside in ours.items():
            if not name.startswith(TENSOR):
                continue
            incarnations = {incarnation_of(folder) for folder in inside} - {None}
            with left_alone():
                # An array is created before its definition. So a single incarnation with a definition is in use.
                if DOCUMENT not in inside or len(incarnations) > 1:
                    self._sweep_incarnations(name, inside)
                if DOCUMENT in inside and any(f"partial-{incarnation}" in inside for incarnation in incarnations):
                    self._delete_logs(name, self._complete)
        # Killed processes may have left temporary files. Such files are not objects.
        if self._home.root is not None:
            self._sweep_temporary_files([name for name in self._home.names("") if is_temporary(name, DOCUMENT)])
            for name in ours:
                with left_alone():
                    for keys in batches(self._home.keys(name), _PAGE):
                        self._sweep_temporary_files([key for key in keys if is_temporary(key)])
        return self._collected

    def drop_partials(self, older_than: float) -> Garbage:
        """Delete logs unchanged for `older_than` seconds."""
        latest = time.time() - older_than if older_than else math.inf

        def old(_place: ArrayPlace, logs: Mapping[Index, Log]) -> list[Index]:
            return [tile for tile, log in logs.items() if all(_is_old(part, latest) for part in log.values())]

        for name, inside in self._root.ours().items():
            if DOCUMENT in inside:
                with left_alone():
                    self._delete_logs(name, old)
        return replace(self._collected, partial_tiles=self._logs, partial_bytes=self._collected.bytes)

    def _delete_logs(self, name: str, chosen: Callable[[ArrayPlace, Mapping[Index, Log]], list[Index]]) -> None:
        """Delete the logs of a tensor, for the tiles returned by `chosen`.

        In the call ``chosen(place, logs)``, `logs` maps each tile with a log to this log. If the definition of the
        tensor cannot be read, nothing is deleted.
        """
        place = self._place(name)
        if place is None:
            return
        logs = logs_in(self._home, place)

        def drop(tile: Index) -> None:
            # Delete the last part first: a kill in between leaves a log without gaps.
            for number in sorted(logs[tile], reverse=True):
                self._home.delete([part_of(place.log(tile), number)])
            if self._home.root is not None:
                # Another process may have just started the log again.
                with suppress(OSError):
                    (self._home.root / place.log(tile)).rmdir()

        tiles = chosen(place, logs)
        each(drop, tiles, self._home.at_once)
        for log in map(logs.__getitem__, tiles):
            self._collected += Garbage(len(log), sum(part.size for part in log.values()))
        self._logs += len(tiles)

    def _complete(self, place: ArrayPlace, tiles: Iterable[Index]) -> list[Index]:
        wanted = list(tiles)
        return list(itertools.compress(wanted, self._home.exist(map(place.chunk, wanted))))

    def _place(self, name: str) -> ArrayPlace | None:
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return None
        return None if definition is None else ArrayPlace(definition)

    def _sweep_temporary_files(self, keys: list[str]) -> None:
        sizes = self._home.sizes(keys)
        self._home.delete(keys)
        self._collected += Garbage(len(keys), sum(sizes))

    def _sweep_incarnations(self, name: str, inside: Sequence[str]) -> None:
        for folder in inside:
            incarnation, prefix = incarnation_of(folder), f"{name}/{folder}"
            if incarnation is None or self._in_use(name, incarnation):
                continue
            if self._home.delete_link(prefix):
                continue
            sizes = [stored.size for _, stored in self._home.entries(prefix)]
            # Check again, because counting may have taken long.
            if not self._in_use(name, incarnation):
                self._home.delete_folders([prefix])
                self._collected += Garbage(len(sizes), sum(sizes))

    def _in_use(self, name: str, incarnation: str) -> bool:
        try:
            definition = self._definition(name)
        except (ValueError, StoreError):
            return True
        return definition is not None and definition.incarnation == incarnation


def _is_old(stored: Stored, latest: float) -> bool:
    return latest == math.inf or (stored.changed is not None and stored.changed <= latest)
