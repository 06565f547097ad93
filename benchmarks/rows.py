"""The rows of the table: what is compared with what, and the targets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from benchmarks.measuring import Measurement, Subject

MEMORY, ZARR, HDF5 = "memory", "zarr", "hdf5"


@dataclass(frozen=True)
class Row:
    """A case on one store.

    Attributes
    ----------
    case : str
        Name by which the case is chosen; its rows are measured by turns.
    what : str
        What is done.
    ours : Measurement
        Ours.
    peer : Measurement or None
        The peer's, on its store that is most like ours.
    floor : Measurement or None
        What the same cannot well take less time than.
    floor_name : str
        What the floor does.
    target : str
        What is to be reached, as the table shows it: the most time as a part "of peer" or "of floor", the most memory
        in "MB", and the least speed in "MB/s"; several with commas.
    nbytes : int
        Bytes of the result, where it is told how many a second takes; else 0.
    """

    case: str
    what: str
    ours: Measurement
    peer: Measurement | None
    floor: Measurement | None = None
    floor_name: str = ""
    target: str = ""
    nbytes: int = 0


def _ours(workload: str, store: str, size: int = 0) -> Measurement:
    return Measurement(Subject.OURS, workload, store, size)


def _rows(
    case: str,
    what: str,
    workload: str,
    stores: Sequence[str],
    floor: str | tuple[str, Measurement] = "",
    target: str = "",
    size: int = 0,
    *,
    peer: bool = True,
    alone: bool = False,
    nbytes: int = 0,
) -> list[Row]:
    """A row per store. A floor is given by its name, and its workload if that is not ours and "_floor"."""
    name, below = ("", None) if isinstance(floor, str) else floor
    if isinstance(floor, str) and floor:
        name, _, at = floor.partition(": ")
        below = Measurement(Subject.FLOOR, at or f"{workload}_floor", ZARR, size)
    found = []
    for store in stores:
        ours = Measurement(Subject.OURS, workload, store, size, alone)
        theirs = Measurement(Subject.PEER, workload, MEMORY if store == MEMORY else HDF5, size, alone)
        found.append(Row(case, what, ours, theirs if peer else None, below, name, target, nbytes))
    return found


def _blob(case: str, what: str, workload: str, floor: str = "", size: int = 0) -> Row:
    ours = Measurement(Subject.OURS, f"blobs.{workload}", "blob", size)
    peer = Measurement(Subject.PEER, f"blobs.{workload}", "tensorblob", size)
    below = Measurement(Subject.FLOOR, f"blobs.{floor}", "blob", size) if floor else None
    return Row(case, what, ours, peer, below, "file" if floor else "", "1 of peer")


# In our own process: how long a clone takes depends on whether the allocator has memory at hand, or asks for it.
_CLONE = "clone", _ours("reading.warm_floor", MEMORY)
_VIRTUAL = "virtual_chunked", Measurement(Subject.TENSORSTORE, "virtual.warm_random", MEMORY)
_FEW = "10 tiles", _ours("opening.tiles", ZARR, 10)
_WARM, _RANDOM = "2048x2048 from memory, windows overlap", "64x64 from memory at random, windows overlap (per read)"
_CHAIN = "chain of 6 tensors with halo (per call of f)"
_FILL, _REOPEN = "store 64 MiB, tiles of 512x512", "reopen, and read 64 MiB, tiles of 512x512"
_SMALL, _SMALL_FLOOR = "16384 windows of 16x16 into tiles of 256x256", "loop, zarr: raw_zarr.small_windows"
_PATCHES = "random patches of 64x64 in batches (per patch)"
_CACHED = "64 MiB through the Zarr face, tiles of 512x512 in memory"
_QUARTER, _MEMMAP = "the same, a quarter of the tiles in memory", "memmap: training.memmap"
_EXPORT, _NEW_ARRAY = "export 64 MiB to Zarr, tiles of 512x512", "zarr: raw_zarr.new_array"
_MILLION, _LARGE = "open, and read a tile of 1,000,000", "memory to fill 2 GiB with a cache of 64 MiB"
_VOXELS = "16x16x16 voxels of 3 maps, anywhere (per read)"
_CLIMATE = "5 channels of 256x256 of a map with a coarse input, anywhere (per read)"
_FROM_DISK, _ANYWHERE = "64x64 from disk at random (per read)", "64x64 at random, computed and stored (per read)"

ROWS: tuple[Row, ...] = (
    *_rows("cold-64", "4096 new windows of 64x64", "reading.cold_64", [MEMORY], "loop", "1/3 of peer", 4096),
    *_rows("cold-8", "16384 new windows of 8x8", "reading.cold_8", [MEMORY], "loop", "1/5 of peer", 16384),
    *_rows("warm", _WARM, "reading.warm", [MEMORY], _CLONE, "1/5 of peer"),
    *_rows("warm", _WARM, "reading.warm", [ZARR, HDF5], _CLONE, "1.5 of floor"),
    *_rows("warm-random", _RANDOM, "reading.warm_random", [MEMORY], _VIRTUAL, "1/5 of peer, 1 of floor"),
    *_rows("warm-random", _RANDOM, "reading.warm_random", [ZARR, HDF5], _VIRTUAL, "1/2 of peer, 1 of floor"),
    *_rows("chain", _CHAIN, "chains.chain", [MEMORY, ZARR, HDF5], "loop", "1/5 of peer"),
    *_rows("diamond", "diamond of 5 tensors", "chains.diamond", [MEMORY], "loop"),
    *_rows("convolution", "network of 2 convolutions, batches of 16", "chains.convolution", [MEMORY], "loop"),
    *_rows("fill", _FILL, "storing.fill", [ZARR], "zarr: raw_zarr.fill", "1/4 of peer, 1.3 of floor"),
    *_rows("fill", _FILL, "storing.fill", [HDF5], "files: raw_files.fill"),
    *_rows("reopen", _REOPEN, "storing.reopen", [ZARR], "zarr: raw_zarr.reopen", "1/5 of peer, 1.3 of floor"),
    *_rows("reopen", _REOPEN, "storing.reopen", [HDF5], "files: raw_files.reopen"),
    # The peer copies nothing, exports nothing, and has no datasets, no noise and nothing for other programs.
    *_rows("copy", "copy 64 MiB, 64 tiles", "moving.copy", [ZARR], "cp -r", peer=False),
    *_rows("small-windows", _SMALL, "storing.small_windows", [ZARR], _SMALL_FLOOR, "1/20 of peer"),
    *_rows("small-windows", _SMALL, "storing.small_windows", [HDF5], _SMALL_FLOOR),
    *_rows("export", _EXPORT, "moving.export", [MEMORY, ZARR], _NEW_ARRAY, peer=False),
    *_rows("opening", "open, and read a tile of 10", "opening.tiles", [ZARR], size=10),
    *_rows("opening", "open, and read a tile of 10,000", "opening.tiles", [ZARR], _FEW, "1.25 of floor", 10_000),
    # The peer takes 2 ms to store a tile: making such a file would take it longer than all the rest.
    *_rows("opening", _MILLION, "opening.tiles", [ZARR], _FEW, "1.25 of floor", 1_000_000, peer=False),
    *_rows("memory", _LARGE, "storing.large", [ZARR, HDF5], target="500 MB", alone=True),
    *_rows("heavy", "4 windows that take long", "reading.heavy", [MEMORY], "f alone", "1.05 of floor"),
    *_rows("volume", "128x128x128, windows overlap", "reading.volume", [MEMORY, ZARR, HDF5], "loop"),
    *_rows("random-stored", _FROM_DISK, "reading.random_stored", [ZARR, HDF5], "zarr: raw_zarr.random_stored"),
    *_rows("random-missing", _ANYWHERE, "reading.random_missing", [ZARR, HDF5], "loop"),
    *_rows("patches", _PATCHES, "training.warm", [ZARR], _MEMMAP, peer=False),
    *_rows("patches", _QUARTER, "training.small_cache", [ZARR], _MEMMAP, peer=False),
    *(
        row
        for what, workload, floor in (
            (_CACHED, "faces.cached", ("tensor", _ours("faces.cached_directly", ZARR))),
            (_CACHED, "faces.cached", "zarr, in memory: faces.cached_by_zarr"),
            ("the same, tiles on disk", "faces.stored", ("tensor", _ours("faces.stored_directly", ZARR))),
            ("the same, tiles on disk", "faces.stored", "zarr: faces.stored_by_zarr"),
        )
        for row in _rows("face", what, workload, [ZARR], floor, "1.5 of floor", peer=False)
    ),
    *(
        row
        for kind in ("uniform", "normal")
        for side in (64, 256, 1024)
        for row in _rows(
            "noise",
            f"{side}x{side} of {kind} noise, anywhere (per read)",
            f"drawing.{kind}",
            [MEMORY],
            "numpy",
            f"{200 if side == 64 else 400} MB/s",
            side,
            peer=False,
            nbytes=4 * side**2,
        )
    ),
    *(
        row
        for side, most in ((16, "5"), (256, "1.5"), (1024, "1.3"))
        for row in _rows(
            "erosion",
            f"{side}x{side} of 8 maps with halo 4, anywhere (per read)",
            "exploring.erosion",
            [MEMORY],
            "torch",
            f"{most} of floor",
            side,
            peer=False,
        )
    ),
    *_rows("voxels", _VOXELS, "exploring.voxels", [MEMORY], "torch", peer=False),
    *_rows("climate", _CLIMATE, "exploring.terrain", [MEMORY], "torch", peer=False),
    *(
        row
        for count in (3, 6)
        for row in _rows(
            "filters",
            f"2048x2048 of {count} maps with halo 4, anywhere",
            "exploring.filters",
            [MEMORY],
            "torch",
            "1.2 of floor",
            count,
            peer=False,
        )
    ),
    _blob("blob-write", "100,000 rows of 768 floats in one write", "write", "write_floor", 100_000),
    _blob("blob-write", "the same, 1000 rows a write", "write", "write_floor", 1000),
    _blob("blob-write-singly", "one row a write (per row)", "write_singly"),
    _blob("blob-read", "read 100,000 rows in one call", "read_all", "read_all_floor"),
    _blob("blob-rows", "random rows, one by one (per row)", "rows", "rows_floor"),
    _blob("blob-slices", "64 rows side by side", "slices", "slices_floor", 64),
    _blob("blob-slices", "1000 rows side by side", "slices", "slices_floor", 1000),
    _blob("blob-slices", "8192 rows side by side", "slices", "slices_floor", 8192),
    _blob("blob-gather", "10,000 random rows in one call", "gather", "gather_floor"),
    _blob("blob-walk", "iterate over rows (per row)", "walk"),
)
