"""The rows of the table: what is compared with what, and the targets."""

from __future__ import annotations

from dataclasses import dataclass
from fractions import Fraction

from tests.benchmarks.measuring import Measurement, Subject

MEMORY, ZARR, HDF5 = "memory", "zarr", "hdf5"


@dataclass(frozen=True)
class Target:
    """What is to be reached; None where nothing is.

    Attributes
    ----------
    of_peer, of_floor : Fraction or None
        The most that the time may be, as a ratio.
    memory : int or None
        The most that the memory may grow by, in bytes.
    rate : int or None
        The fewest bytes of the result that a second may take.
    """

    of_peer: Fraction | None = None
    of_floor: Fraction | None = None
    memory: int | None = None
    rate: int | None = None


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
    target : Target
        What is to be reached.
    nbytes : int
        Bytes of the result, where it is told how many a second takes; else 0.
    """

    case: str
    what: str
    ours: Measurement
    peer: Measurement | None
    floor: Measurement | None = None
    floor_name: str = ""
    target: Target = Target()
    nbytes: int = 0


def _ours(workload: str, store: str, size: int = 0, *, alone: bool = False) -> Measurement:
    return Measurement(Subject.OURS, workload, store, size, alone)


def _peer(workload: str, store: str, size: int = 0, *, alone: bool = False) -> Measurement:
    return Measurement(Subject.PEER, workload, MEMORY if store == MEMORY else HDF5, size, alone)


def _floor(workload: str, size: int = 0) -> Measurement:
    return Measurement(Subject.FLOOR, workload, ZARR, size)


def _row(
    case: str,
    what: str,
    store: str,
    workload: str,
    floor: tuple[str, Measurement] | None = None,
    target: Target = Target(),
    size: int = 0,
) -> Row:
    name, measurement = floor or ("", None)
    ours, peer = _ours(workload, store, size), _peer(workload, store, size)
    return Row(case, what, ours, peer, measurement, name, target)


def _target(of_peer: str | None = None, of_floor: str | None = None) -> Target:
    return Target(
        None if of_peer is None else Fraction(of_peer),
        None if of_floor is None else Fraction(of_floor),
    )


def _cold() -> list[Row]:
    small, large = ("loop", _floor("reading.cold_8_floor", 16384)), ("loop", _floor("reading.cold_64_floor", 4096))
    return [
        _row("cold-64", "4096 new windows of 64x64", MEMORY, "reading.cold_64", large, _target("1/3"), 4096),
        _row("cold-8", "16384 new windows of 8x8", MEMORY, "reading.cold_8", small, _target("1/5"), 16384),
    ]


def _warm() -> list[Row]:
    # In our own process: how long a clone takes depends on whether the allocator has memory at hand, or asks for it.
    clone = "clone", _ours("reading.warm_floor", MEMORY)
    virtual = "virtual_chunked", Measurement(Subject.TENSORSTORE, "virtual.warm_random", MEMORY)
    what, random = "2048x2048 from memory, windows overlap", "64x64 from memory at random, windows overlap (per read)"
    return [
        _row("warm", what, MEMORY, "reading.warm", clone, _target("1/5")),
        _row("warm", what, ZARR, "reading.warm", clone, _target(of_floor="3/2")),
        _row("warm", what, HDF5, "reading.warm", clone, _target(of_floor="3/2")),
        _row("warm-random", random, MEMORY, "reading.warm_random", virtual, _target("1/5", "1")),
        _row("warm-random", random, ZARR, "reading.warm_random", virtual, _target("1/2", "1")),
        _row("warm-random", random, HDF5, "reading.warm_random", virtual, _target("1/2", "1")),
    ]


def _chains() -> list[Row]:
    loop = "loop", _floor("chains.chain_floor")
    what = "chain of 6 tensors with halo (per call of f)"
    rows = [_row("chain", what, store, "chains.chain", loop, _target("1/5")) for store in (MEMORY, ZARR, HDF5)]
    diamond, convolution = ("loop", _floor("chains.diamond_floor")), ("loop", _floor("chains.convolution_floor"))
    return [
        *rows,
        _row("diamond", "diamond of 5 tensors", MEMORY, "chains.diamond", diamond),
        _row("convolution", "network of 2 convolutions, batches of 16", MEMORY, "chains.convolution", convolution),
    ]


def _storing() -> list[Row]:
    fill, reopen = "store 64 MiB, tiles of 512x512", "reopen, and read 64 MiB, tiles of 512x512"
    small, looped = "16384 windows of 16x16 into tiles of 256x256", _floor("raw_zarr.small_windows")
    raw_fill, raw_reopen = ("zarr", _floor("raw_zarr.fill")), ("zarr", _floor("raw_zarr.reopen"))
    file_fill, file_reopen = ("files", _floor("raw_files.fill")), ("files", _floor("raw_files.reopen"))
    return [
        _row("fill", fill, ZARR, "storing.fill", raw_fill, _target("1/4", "1.3")),
        _row("fill", fill, HDF5, "storing.fill", file_fill),
        _row("reopen", reopen, ZARR, "storing.reopen", raw_reopen, _target("1/5", "1.3")),
        _row("reopen", reopen, HDF5, "storing.reopen", file_reopen),
        # The peer copies nothing.
        Row("copy", "copy 64 MiB, 64 tiles", _ours("moving.copy", ZARR), None, _floor("moving.copy_floor"), "cp -r"),
        _row("small-windows", small, ZARR, "storing.small_windows", ("loop, zarr", looped), _target("1/20")),
        _row("small-windows", small, HDF5, "storing.small_windows", ("loop, zarr", looped)),
    ]


def _exports() -> list[Row]:
    what, floor = "export 64 MiB to Zarr, tiles of 512x512", _floor("raw_zarr.new_array")
    # The peer exports nothing.
    return [Row("export", what, _ours("moving.export", store), None, floor, "zarr") for store in (MEMORY, ZARR)]


def _opening() -> list[Row]:
    few = "10 tiles", _ours("opening.tiles", ZARR, 10)
    same = _target(of_floor="1.25")
    many = 1_000_000
    return [
        _row("opening", "open, and read a tile of 10", ZARR, "opening.tiles", size=10),
        _row("opening", "open, and read a tile of 10,000", ZARR, "opening.tiles", few, same, 10_000),
        # The peer takes 2 ms to store a tile: making such a file would take it longer than all the rest.
        Row(
            "opening",
            "open, and read a tile of 1,000,000",
            _ours("opening.tiles", ZARR, many),
            None,
            few[1],
            few[0],
            same,
        ),
    ]


def _memory() -> list[Row]:
    limit = Target(memory=500 * 10**6)
    return [
        Row(
            "memory",
            "memory to fill 2 GiB with a cache of 64 MiB",
            _ours("storing.large", store, alone=True),
            _peer("storing.large", store, alone=True),
            target=limit,
        )
        for store in (ZARR, HDF5)
    ]


def _others() -> list[Row]:
    heavy, volume = ("f alone", _floor("reading.heavy_floor")), ("loop", _floor("reading.volume_floor"))
    stored, missing = ("zarr", _floor("raw_zarr.random_stored")), ("loop", _floor("reading.random_missing_floor"))
    block, disk = "128x128x128, windows overlap", "64x64 from disk at random (per read)"
    nothing = "64x64 at random, computed and stored (per read)"
    return [
        _row("heavy", "4 windows that take long", MEMORY, "reading.heavy", heavy, _target(of_floor="1.05")),
        *(_row("volume", block, store, "reading.volume", volume) for store in (MEMORY, ZARR, HDF5)),
        *(_row("random-stored", disk, store, "reading.random_stored", stored) for store in (ZARR, HDF5)),
        *(_row("random-missing", nothing, store, "reading.random_missing", missing) for store in (ZARR, HDF5)),
    ]


def _training() -> list[Row]:
    memmap = _floor("training.memmap")
    # The peer has no datasets.
    what, small = "random patches of 64x64 in batches (per patch)", "the same, a quarter of the tiles in memory"
    return [
        Row("patches", what, _ours("training.warm", ZARR), None, memmap, "memmap"),
        Row("patches", small, _ours("training.small_cache", ZARR), None, memmap, "memmap"),
    ]


def _faces() -> list[Row]:
    cached, stored = _ours("faces.cached", ZARR), _ours("faces.stored", ZARR)
    what, disk = "64 MiB through the Zarr face, tiles of 512x512 in memory", "the same, tiles on disk"
    at_most = _target(of_floor="1.5")
    # The peer shows nothing to other programs.
    return [
        Row("face", what, cached, None, _ours("faces.cached_directly", ZARR), "tensor", at_most),
        Row("face", what, cached, None, _floor("faces.cached_by_zarr"), "zarr, in memory", at_most),
        Row("face", disk, stored, None, _ours("faces.stored_directly", ZARR), "tensor", at_most),
        Row("face", disk, stored, None, _floor("faces.stored_by_zarr"), "zarr", at_most),
    ]


def _drawing() -> list[Row]:
    # The peer has no noise.
    return [
        Row(
            "noise",
            f"{side}x{side} of {kind} noise, anywhere (per read)",
            _ours(f"drawing.{kind}", MEMORY, side),
            None,
            _floor(f"drawing.{kind}_floor", side),
            "numpy",
            Target(rate=(200 if side == 64 else 400) * 10**6),
            4 * side**2,
        )
        for kind in ("uniform", "normal")
        for side in (64, 256, 1024)
    ]


def _blobs() -> list[Row]:
    return [
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
    ]


def _blob(case: str, what: str, workload: str, floor: str = "", size: int = 0) -> Row:
    ours = Measurement(Subject.OURS, f"blobs.{workload}", "blob", size)
    peer = Measurement(Subject.PEER, f"blobs.{workload}", "tensorblob", size)
    below = Measurement(Subject.FLOOR, f"blobs.{floor}", "blob", size) if floor else None
    return Row(case, what, ours, peer, below, "file" if floor else "", _target("1"))


ROWS = (
    *_cold(),
    *_warm(),
    *_chains(),
    *_storing(),
    *_exports(),
    *_opening(),
    *_memory(),
    *_others(),
    *_training(),
    *_faces(),
    *_drawing(),
    *_blobs(),
)
