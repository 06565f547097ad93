"""The conformance suite for backends of `PersistentTileStore`; runs under pytest.

Subclass `PersistentStoreTests` in a test module, say how the store is opened, and run pytest:

    from infinite_tensor.tilestore.testing import PersistentStoreTests

    class TestMyStore(PersistentStoreTests):
        def open_store(self, location, **options):
            return MyTileStore(location, **options)

What a test has written it looks at through another store object on the same location, so that neither a cache
nor the store object itself can vouch for what is stored.
"""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch

from infinite_tensor.boxes import Index
from infinite_tensor.definition import DTYPES, dtype_name
from infinite_tensor.errors import (
    DamagedDataWarning,
    FunctionChangedWarning,
    StoreError,
    TileAccessError,
    ValidationError,
)
from infinite_tensor.tensor import InfiniteTensor
from infinite_tensor.tilestore import Garbage, MemoryTileStore
from infinite_tensor.tilestore.persistent import PartialTile, PersistentTileStore
from infinite_tensor.window import TensorWindow

__all__ = ["PersistentStoreTests"]

_TILE = 5
_WINDOW = TensorWindow((4, 4), stride=3)
_FAR = 2**51 // _TILE

_HOSTILE_IDS = {
    "parent": "../x",
    "parents": "../../x",
    "slash": "a/b",
    "absolute": "/x",
    "backslash": "..\\x",
    "dot": ".",
    "dots": "..",
    "umlaut": "ü",
    "emoji": "\N{WORLD MAP}",
    "long": "x" * 1000,
    "long umlauts": "ü" * 1000,
    "nul": "a\0b",
    "newline": "a\nb",
    "space": " ",
    "percent": "a%2Fb",
    "metadata": "zarr.json",
    "device": "con",
    "url": "memory://x",
    "format": "{0} %s =41",
}
_each_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=dtype_name)


class _Ramp:
    """The ``f`` of the tensors here: tells window and pixel, and remembers its calls."""

    def __init__(self) -> None:
        self.calls: list[Index] = []

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        self.calls.append(ctx)
        ramp = torch.arange(16.0).reshape(4, 4) / 3 + 0.1 * ctx[0] + 1e4 * ctx[1]
        return sum((region[:4, :4] for region in regions), ramp)


class _OtherRamp(_Ramp):
    """A changed ``f``."""

    def __call__(self, ctx: Index, *regions: torch.Tensor) -> torch.Tensor:
        return -super().__call__(ctx, *regions)


def _tensor(store: PersistentTileStore | MemoryTileStore, f: _Ramp, name: str = "t", **options: Any) -> InfiniteTensor:
    return InfiniteTensor((None, None), f, options.pop("window", _WINDOW), tile_store=store, tensor_id=name, **options)


def _over(store: PersistentTileStore | MemoryTileStore, f: _Ramp, tensor: InfiniteTensor) -> InfiniteTensor:
    """A tensor that is computed from another one."""
    return _tensor(store, f, "top", args=[tensor], args_windows=[_WINDOW])


def _declare(store: PersistentTileStore, name: str = "t", dtype: torch.dtype = torch.float32) -> None:
    """Have the store know a tensor, for tests that then call its storage methods."""
    _tensor(store, _Ramp(), name, dtype=dtype)


def _pixels(dtype: torch.dtype, *shape: int, seed: int = 0) -> torch.Tensor:
    """Pixels of arbitrary bits: NaN with payloads, and -0.0, for dtypes that have them."""
    generator = torch.Generator().manual_seed(seed)
    size = (*shape, dtype.itemsize)
    raw = torch.randint(0, 2 if dtype is torch.bool else 256, size, dtype=torch.uint8, generator=generator)
    pixels = raw.view(dtype).squeeze(-1)
    if dtype.is_floating_point or dtype.is_complex:
        pixels.view(-1)[0] = -0.0
        raw.view(-1, dtype.itemsize)[1:3] = 0xFF
    return pixels


def _same_bits(a: torch.Tensor | None, b: torch.Tensor | None) -> bool:
    if a is None or b is None:
        return a is b
    if (a.dtype, a.shape) != (b.dtype, b.shape):
        return False
    return torch.equal(a.contiguous().view(torch.uint8), b.contiguous().view(torch.uint8))


class PersistentStoreTests:
    """What every backend must do. Override `open_store`, and `location` where a path will not do.

    Attributes
    ----------
    concurrent : bool
        Whether two store objects may be open on one location at a time. Where they may not, what needs
        two is skipped.
    """

    concurrent: ClassVar[bool] = True

    def open_store(self, location: Any, **options: Any) -> PersistentTileStore:
        """Open the store that lives at `location`, or create it.

        Parameters
        ----------
        location : object
            What the fixture `location` gave; the same for all stores that a test opens.
        **options
            `tile_size`, `cache_size_bytes` and `cache_size_tiles`, for `PersistentTileStore`.
        """
        raise NotImplementedError(f"{type(self).__name__} must say how its store is opened")

    @pytest.fixture
    def location(self, tmp_path: Path) -> Any:
        """A place that no other test uses and where nothing is yet; a path below `tmp_path` unless overridden."""
        return tmp_path / "store"

    def damage_tile(self, location: Any, tensor_id: str, tile: Index) -> None:
        """Change what is stored of a complete tile, behind the back of the store.

        Override it to have `verify` tested. No store is open on `location` meanwhile.

        Parameters
        ----------
        location : object
            Where the store is.
        tensor_id : str
            A tensor in it.
        tile : tuple of int
            One of its complete tiles.
        """
        raise NotImplementedError(f"{type(self).__name__} does not say how a tile is damaged")

    def _open(self, location: Any, **options: Any) -> PersistentTileStore:
        return self.open_store(location, **{"tile_size": _TILE, **options})

    # The seven storage methods.

    def test_a_definition_is_read_back_as_it_was_written(self, location: Any) -> None:
        """A backend may add fields, but leaves those it was given."""
        version = {"seed": 3, "scale": 0.1, "name": "ü", "none": None, "list": [1, [True]], "limit": float("inf")}
        with self._open(location) as store:
            tensor = _tensor(store, _Ramp(), version=version, blend_init=float("nan"))
            given = tensor._spec.definition.to_json()
        with self._open(location) as store:
            stored = store._read_definition("t")
        assert stored is not None
        assert {key: stored[key] for key in given} == given
        assert (stored["tensor_id"], stored["tile_size"]) == ("t", [_TILE, _TILE])

    def test_an_unknown_tensor_has_no_definition(self, location: Any) -> None:
        """It is None, not an error."""
        with self._open(location) as store:
            assert store._read_definition("t") is None

    def test_the_first_definition_stays(self, location: Any) -> None:
        """Whoever creates a tensor second leaves what is there."""
        with self._open(location) as store:
            _declare(store)
            first = store._read_definition("t")
            assert first is not None
            store._write_definition("t", {**first, "version": "second"})
        with self._open(location) as store:
            assert store._read_definition("t") == first

    @_each_dtype
    def test_tiles_keep_every_bit(self, location: Any, dtype: torch.dtype) -> None:
        """NaN payloads and -0.0 included."""
        tile = _pixels(dtype, _TILE, _TILE)
        with self._open(location) as store:
            _declare(store, dtype=dtype)
            store._write_tiles("t", {(0, 0): tile})
        with self._open(location) as store:
            _declare(store, dtype=dtype)
            (found,) = store._read_tiles("t", [(0, 0)])
        assert _same_bits(found, tile)

    def test_tiles_come_in_the_order_asked_for(self, location: Any) -> None:
        """Many in one call, with None where there is none."""
        tiles: dict[Index, torch.Tensor] = {(i, -i): _pixels(torch.float32, _TILE, _TILE, seed=i) for i in range(150)}
        with self._open(location) as store:
            _declare(store)
            store._write_tiles("t", tiles)
        asked = [(i, -i if i % 3 else 1) for i in reversed(range(150))]
        with self._open(location) as store:
            _declare(store)
            found = store._read_tiles("t", asked)
            assert store._read_tiles("t", []) == []
        assert all(_same_bits(tile, tiles.get(index)) for tile, index in zip(found, asked, strict=True))

    def test_a_tile_of_nothing_but_fill_values_is_there(self, location: Any) -> None:
        """An absent tile and an empty-looking one differ."""
        with self._open(location) as store:
            _declare(store)
            store._write_tiles("t", {(0, 0): torch.zeros(_TILE, _TILE)})
        with self._open(location) as store:
            _declare(store)
            there, absent = store._read_tiles("t", [(0, 0), (0, 1)])
        assert _same_bits(there, torch.zeros(_TILE, _TILE))
        assert absent is None

    def test_a_tile_that_is_written_again_replaces_the_old_one(self, location: Any) -> None:
        """As happens to a damaged tile once it is computed anew."""
        tile = _pixels(torch.float32, _TILE, _TILE)
        with self._open(location) as store:
            _declare(store)
            store._write_tiles("t", {(0, 0): torch.zeros(_TILE, _TILE), (0, 1): tile})
            store._write_tiles("t", {(0, 0): tile})
        with self._open(location) as store:
            _declare(store)
            assert all(_same_bits(found, tile) for found in store._read_tiles("t", [(0, 0), (0, 1)]))

    def test_tiles_and_partial_tiles_reach_to_the_limits_of_the_coordinates(self, location: Any) -> None:
        """Pixels from -2**51 to 2**51, and neighbours are not mixed up."""
        far: list[Index] = [(_FAR, -_FAR), (-_FAR - 1, _FAR), (_FAR - 1, -_FAR), (-1, 0), (0, -1)]
        tiles = {index: _pixels(torch.float32, _TILE, _TILE, seed=n) for n, index in enumerate(far)}
        with self._open(location) as store:
            _declare(store)
            store._write_tiles("t", tiles)
            store._write_partials("t", {(i + 5, j): PartialTile(tile, 1) for (i, j), tile in tiles.items()})
        with self._open(location) as store:
            _declare(store)
            assert all(map(_same_bits, store._read_tiles("t", far), tiles.values()))
            partials = store._read_partials("t", [(i + 5, j) for i, j in far])
            prefixes = [None if found is None else found.prefix for found in partials]
        assert all(map(_same_bits, prefixes, tiles.values()))

    def test_equal_indices_of_two_tensors_do_not_meet(self, location: Any) -> None:
        """Each tensor has tiles of its own."""
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store:
            _declare(store, "a")
            _declare(store, "b")
            store._write_tiles("a", {(0, 0): ones})
            store._write_partials("b", {(0, 0): PartialTile(ones, 1)})
        with self._open(location) as store:
            _declare(store, "a")
            _declare(store, "b")
            assert store._read_tiles("b", [(0, 0)]) == [None]
            assert store._read_partials("a", [(0, 0)]) == [None]
            assert _same_bits(store._read_tiles("a", [(0, 0)])[0], ones)

    @_each_dtype
    def test_partial_tiles_keep_every_bit(self, location: Any, dtype: torch.dtype) -> None:
        """Of the prefix and of each piece."""
        prefix, piece, other = (_pixels(dtype, *shape) for shape in ((_TILE, _TILE), (2, 3), (1, 4)))
        with self._open(location) as store:
            _declare(store, dtype=dtype)
            store._write_partials("t", {(0, 0): PartialTile(prefix, 2, {(0, -7): piece, (1, 2**50): other})})
        with self._open(location) as store:
            _declare(store, dtype=dtype)
            found, absent = store._read_partials("t", [(0, 0), (0, 1)])
        assert absent is None
        assert found is not None
        assert found.prefix_length == 2
        assert _same_bits(found.prefix, prefix)
        assert found.pieces.keys() == {(0, -7), (1, 2**50)}
        assert _same_bits(found.pieces[0, -7], piece)
        assert _same_bits(found.pieces[1, 2**50], other)

    def test_parts_of_a_partial_tile_add_up(self, location: Any) -> None:
        """Whichever store object wrote them: the longest prefix wins, pieces unite."""
        a, b, c = (_pixels(torch.float32, 2, 2, seed=n) for n in range(3))
        short, long = (_pixels(torch.float32, _TILE, _TILE, seed=n) for n in range(2))
        with self._open(location) as store:
            _declare(store)
            store._write_partials("t", {(0, 0): PartialTile(pieces={(0, 5): a})})
            store._write_partials("t", {(0, 0): PartialTile(long, 3, {(0, 6): b})})
        with self._open(location) as store:
            # Nothing has been read through this object: it must find the end of the log by itself.
            _declare(store)
            store._write_partials("t", {(0, 0): PartialTile(short, 1, {(0, 7): c}), (9, 9): PartialTile(short, 1)})
        with self._open(location) as store:
            _declare(store)
            (found,) = store._read_partials("t", [(0, 0)])
        assert found is not None
        assert found.prefix_length == 3
        assert _same_bits(found.prefix, long)
        assert found.pieces.keys() == {(0, 5), (0, 6), (0, 7)}
        assert all(_same_bits(found.pieces[0, 5 + n], piece) for n, piece in enumerate((a, b, c)))

    def test_a_partial_tile_is_no_complete_one(self, location: Any) -> None:
        """Nor the other way round."""
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store:
            _declare(store)
            store._write_partials("t", {(0, 0): PartialTile(ones, 1)})
            store._write_tiles("t", {(0, 1): ones})
        with self._open(location) as store:
            _declare(store)
            assert store._read_tiles("t", [(0, 0)]) == [None]
            assert store._read_partials("t", [(0, 1)]) == [None]

    def test_a_deleted_partial_tile_is_gone_and_can_begin_anew(self, location: Any) -> None:
        """All its parts; those of other tiles stay; one that is not there is no error."""
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store:
            _declare(store)
            for length in (1, 2, 3):
                store._write_partials("t", {(0, 0): PartialTile(ones, length), (1, 10): PartialTile(ones, length)})
            store._write_partials("t", {(0, 0): None, (1, 1): None})
        with self._open(location) as store:
            _declare(store)
            gone, kept = store._read_partials("t", [(0, 0), (1, 10)])
            store._write_partials("t", {(0, 0): PartialTile(pieces={(4, 4): ones})})
        assert gone is None
        assert kept is not None
        assert kept.prefix_length == 3
        with self._open(location) as store:
            _declare(store)
            (begun,) = store._read_partials("t", [(0, 0)])
        assert begun is not None
        assert begun.prefix is None
        assert begun.pieces.keys() == {(4, 4)}

    def test_deleted_tiles_are_gone_and_can_come_back(self, location: Any) -> None:
        """Complete and partial ones, by a store object that has not looked at them; others stay."""
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store:
            self._skip_unless_it_deletes_tiles(store)
            _declare(store)
            store._write_tiles("t", {(0, 0): ones, (-1, 7): ones, (1, 1): ones})
            for length in (1, 2, 3):
                store._write_partials("t", {(0, 5): PartialTile(ones, length), (1, 5): PartialTile(ones, length)})
        with self._open(location) as store:
            _declare(store)
            store._delete_tiles("t", [(0, 0), (-1, 7), (0, 5), (9, 9)])
            store._delete_tiles("t", [])
        with self._open(location) as store:
            _declare(store)
            tiles = store._read_tiles("t", [(0, 0), (-1, 7), (1, 1)])
            partials = store._read_partials("t", [(0, 5), (1, 5)])
            store._write_tiles("t", {(0, 0): 2 * ones})
            store._write_partials("t", {(0, 5): PartialTile(ones, 1)})
        assert tiles[:2] == [None, None]
        assert _same_bits(tiles[2], ones)
        assert [None if part is None else part.prefix_length for part in partials] == [None, 3]
        with self._open(location) as store:
            _declare(store)
            assert _same_bits(store._read_tiles("t", [(0, 0)])[0], 2 * ones)
            (begun,) = store._read_partials("t", [(0, 5)])
        assert begun is not None
        assert begun.prefix_length == 1

    def test_a_deleted_partial_tile_takes_the_parts_of_others_with_it(self, location: Any) -> None:
        """Also those that were added after this store object looked."""
        if not self.concurrent:
            pytest.skip("one store object at a time")
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store, self._open(location) as other:
            self._skip_unless_it_deletes_tiles(store)
            _declare(store)
            _declare(other)
            store._write_partials("t", {(0, 0): PartialTile(ones, 1)})
            other._read_partials("t", [(0, 0)])
            for length in (2, 3):
                other._write_partials("t", {(0, 0): PartialTile(ones, length)})
            store._delete_tiles("t", [(0, 0)])
            assert store._read_partials("t", [(0, 0)]) == [None]
            store._write_partials("t", {(0, 0): PartialTile(2 * ones, 1)})
        with self._open(location) as store:
            _declare(store)
            (found,) = store._read_partials("t", [(0, 0)])
        assert found is not None
        assert found.prefix_length == 1
        assert _same_bits(found.prefix, 2 * ones)

    @staticmethod
    def _skip_unless_it_deletes_tiles(store: PersistentTileStore) -> None:
        if type(store)._delete_tiles is PersistentTileStore._delete_tiles:
            pytest.skip("this backend deletes no tiles")

    def test_a_deleted_tensor_leaves_nothing(self, location: Any) -> None:
        """Also for one of the same id that comes after it; other tensors stay."""
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store:
            for name in ("t", "other"):
                _declare(store, name)
                store._write_tiles(name, {(0, 0): ones})
                store._write_partials(name, {(0, 1): PartialTile(ones, 1)})
            store._delete_tensor("t")
            store._delete_tensor("never there")
        with self._open(location) as store:
            assert store._read_definition("t") is None
            _declare(store, "t")
            _declare(store, "other")
            assert store._read_tiles("t", [(0, 0)]) == [None]
            assert store._read_partials("t", [(0, 1)]) == [None]
            assert _same_bits(store._read_tiles("other", [(0, 0)])[0], ones)
            assert store._read_partials("other", [(0, 1)]) != [None]

    @pytest.mark.parametrize("tensor_id", _HOSTILE_IDS.values(), ids=_HOSTILE_IDS)
    def test_a_hostile_id_is_stored_safely_or_refused(self, location: Any, tensor_id: str, tmp_path: Path) -> None:
        """Nothing is written beside the store, and other tensors are unharmed."""
        with self._open(location) as store:
            expected = _tensor(store, _Ramp(), "x")[0:9, 0:9]
            try:
                _tensor(store, _OtherRamp(), tensor_id)[0:9, 0:9]
            except ValidationError:
                return
        f, g = _Ramp(), _OtherRamp()
        with self._open(location) as store:
            assert _same_bits(_tensor(store, f, "x")[0:9, 0:9], expected)
            assert _same_bits(_tensor(store, g, tensor_id)[0:9, 0:9], -expected)
            store.clear_tensor(tensor_id)
            assert _same_bits(_tensor(store, f, "x")[0:9, 0:9], expected)
        assert not f.calls + g.calls
        if isinstance(location, Path):
            assert [path for path in tmp_path.iterdir() if path != location] == []

    def test_ids_that_differ_only_in_case_are_two(self, location: Any) -> None:
        """Also where file names do not tell them apart."""
        ids = ("map", "Map", "MAP", "=4Dap", "m=41p")
        with self._open(location) as store:
            for number, name in enumerate(ids):
                _declare(store, name)
                store._write_tiles(name, {(0, 0): torch.full((_TILE, _TILE), float(number))})
        with self._open(location) as store:
            for number, name in enumerate(ids):
                _declare(store, name)
                assert _same_bits(store._read_tiles(name, [(0, 0)])[0], torch.full((_TILE, _TILE), float(number)))

    def test_tensors_are_listed_and_described(self, location: Any) -> None:
        """Those of other store objects too."""
        with self._open(location) as store:
            if type(store)._list_tensors is PersistentTileStore._list_tensors:
                pytest.skip("this backend lists no tensors")
            _tensor(store, _Ramp(), "ü/b")[0:10, 0:10]
            _declare(store, "a")
        with self._open(location) as store:
            assert store.tensor_ids() == ["a", "ü/b"]
            empty, filled = store.tensor_info("a"), store.tensor_info("ü/b")
        assert (empty.tiles_complete, empty.tiles_partial, empty.bytes_stored) == (0, 0, 0)
        # Windows -1 to 3 reach from pixel -3 to 13, over tiles -1 to 2, of which 0 and 1 need no other window.
        assert (filled.tiles_complete, filled.tiles_partial) == (4, 12)
        assert filled.bytes_stored > 0
        assert filled.definition["tensor_id"] == "ü/b"

    # Looking after what is stored.

    def test_what_was_written_verifies(self, location: Any) -> None:
        """Complete and partial tiles, of a tensor that this store object knows and of one that it does not."""
        with self._verifying(location) as store:
            _tensor(store, _Ramp())[0:10, 0:10]
            assert store.verify("t") == []
        with self._open(location) as store:
            assert store.verify("t") == []
            assert store.verify("t", repair=True) == []
            with pytest.raises(StoreError, match="no tensor 'x'"):
                store.verify("x")

    def test_a_damaged_tile_is_missing_and_listed_and_a_repair_drops_it(self, location: Any) -> None:
        """The others stay; once it is written again, nothing is damaged."""
        if type(self).damage_tile is PersistentStoreTests.damage_tile:
            pytest.skip("nothing tells how to damage a tile")
        tiles: dict[Index, torch.Tensor] = {(0, j): _pixels(torch.float32, _TILE, _TILE, seed=j) for j in range(-2, 2)}
        with self._verifying(location) as store:
            _declare(store)
            store._write_tiles("t", tiles)
        self.damage_tile(location, "t", (0, -1))
        with self._open(location) as store:
            _declare(store)
            with pytest.warns(DamagedDataWarning):
                assert store._read_tiles("t", [(0, -1)]) == [None]
            for repair in (False, True):
                (damage,) = store.verify("t", repair=repair)
                assert (damage.kind, damage.tile) == ("tile", (0, -1))
        with self._open(location) as store:
            _declare(store)
            assert store.verify("t") == []
            for tile, found in zip(tiles, store._read_tiles("t", list(tiles)), strict=True):
                assert _same_bits(found, None if tile == (0, -1) else tiles[tile])
            store._write_tiles("t", {(0, -1): tiles[0, -1]})
        with self._open(location) as store:
            _declare(store)
            assert store.verify("t") == []
            assert _same_bits(store._read_tiles("t", [(0, -1)])[0], tiles[0, -1])

    def test_garbage_goes_and_what_is_in_use_stays(self, location: Any) -> None:
        """The log of a tile that is complete is garbage."""
        ones = torch.ones(_TILE, _TILE)
        with self._open(location) as store:
            if type(store)._collect_garbage is PersistentTileStore._collect_garbage:
                pytest.skip("this backend collects no garbage")
            f = _Ramp()
            expected = _tensor(store, f)[0:10, 0:10]
            calls = len(f.calls)
            _declare(store, "other")
            for length in (1, 2):
                store._write_partials("other", {(0, 0): PartialTile(ones, length), (0, 1): PartialTile(ones, length)})
            store._write_tiles("other", {(0, 0): ones})
        with self._open(location) as store:
            collected = store.gc()
            assert collected.objects in (1, 2)
            assert collected.bytes > 0
            assert store.gc() == Garbage()
        with self._open(location) as store:
            assert _same_bits(_tensor(store, f)[0:10, 0:10], expected)
            _declare(store, "other")
            assert store._read_partials("other", [(0, 0)]) == [None]
            assert store._read_partials("other", [(0, 1)]) != [None]
            assert _same_bits(store._read_tiles("other", [(0, 0)])[0], ones)
        assert len(f.calls) == calls

    def _verifying(self, location: Any) -> PersistentTileStore:
        store = self._open(location)
        if type(store)._verify_tensor is PersistentTileStore._verify_tensor:
            store.close()
            pytest.skip("this backend does not verify")
        return store

    # The life of a tensor.

    def test_a_tensor_that_is_made_again_calls_f_zero_times(self, location: Any) -> None:
        """Its values are those of a store in memory, bit for bit."""
        expected = _tensor(MemoryTileStore(), _Ramp())[-20:25, -9:30]
        with self._open(location) as store:
            assert _same_bits(_tensor(store, _Ramp())[-20:25, -9:30], expected)
        f = _Ramp()
        with self._open(location) as store:
            assert _same_bits(_tensor(store, f)[-20:25, -9:30], expected)
        assert f.calls == []

    def test_a_tensor_opens_from_its_id(self, location: Any) -> None:
        """Without ``f`` it serves what is stored, and names what is not."""
        with self._open(location) as store:
            expected = _tensor(store, _Ramp())[0:12, 0:12]
        with self._open(location) as store:
            tensor = store.open("t")
            assert _same_bits(tensor[0:12, 0:12], expected)
            with pytest.raises(TileAccessError, match="'t'"):
                tensor[0:12, 0:40]

    def test_partial_tiles_survive_a_close(self, location: Any) -> None:
        """Only windows that no session has computed run; the bits are those of one session."""
        expected = _tensor(MemoryTileStore(), _Ramp())[-6:18, -6:18]
        f = _Ramp()
        for corner in ((5, 5), (-6, 12), (12, -6), (-6, -6), (2, 2)):
            with self._open(location) as store:
                tensor = _tensor(store, f)
                y, x = corner
                tensor[y : y + 6, x : x + 6]
        with self._open(location) as store:
            assert _same_bits(_tensor(store, f)[-6:18, -6:18], expected)
        assert len(f.calls) == len(set(f.calls))

    def test_a_chain_reopens(self, location: Any) -> None:
        """Neither ``f`` of it runs again."""
        halo = TensorWindow((6, 6), stride=3, offset=-1)
        functions = [_Ramp(), _Ramp()]
        results = []
        for _ in range(2):
            with self._open(location) as store:
                source = _tensor(store, functions[0], "source")
                end = _tensor(store, functions[1], "end", args=(source,), args_windows=(halo,))
                results.append(end[0:20, 0:20])
                calls = [len(f.calls) for f in functions]
        assert _same_bits(*results)
        assert calls == [len(set(f.calls)) for f in functions]

    def test_clear_cache_drops_only_what_can_be_had_again(self, location: Any) -> None:
        """Also tiles that are not complete, and only of one tensor."""
        f = _Ramp()
        with self._open(location) as store:
            tensor, other = _tensor(store, f), _tensor(store, f, "other")
            expected = tensor[0:7, 0:7]
            other[0:1, 0:1]
            calls = len(f.calls)
            tensor.clear_cache()
            assert {record.spec.tensor_id for record, _ in store._tiles.entries} == {"other"}
            assert _same_bits(tensor[0:7, 0:7], expected)
        assert len(f.calls) == calls

    def test_a_cleared_tensor_starts_anew(self, location: Any) -> None:
        """The object that is there already, and one of another definition; other tensors keep what they have."""
        f, g = _Ramp(), _Ramp()
        with self._open(location) as store:
            tensor, other = _tensor(store, f), _tensor(store, g, "other")
            expected = tensor[0:7, 0:7]
            other[0:7, 0:7]
            store.clear_tensor("t")
            assert _same_bits(tensor[0:7, 0:7], expected)
            assert len(f.calls) == 2 * len(set(f.calls))
            store.clear_tensor("t")
        with self._open(location) as store:
            assert _same_bits(_tensor(store, _OtherRamp(), version=2)[0:7, 0:7], -expected)
            calls = len(g.calls)
            _tensor(store, g, "other")[0:7, 0:7]
        assert len(g.calls) == calls

    def test_what_is_invalidated_is_computed_anew_also_by_the_next_store_object(self, location: Any) -> None:
        """With what was computed from it; what is elsewhere stays."""
        with self._open(location) as store:
            self._skip_unless_it_deletes_tiles(store)
            tensor = _tensor(store, _Ramp())
            _over(store, _Ramp(), tensor)[0:20, 0:20]
        f, g = _Ramp(), _Ramp()
        with self._open(location) as store:
            tensor = _tensor(store, f)
            _over(store, g, tensor)
            told = tensor.invalidate((0, 0))
        assert [one.tensor_id for one in told.tensors] == ["t", "top"]
        assert all(one.tiles for one in told.tensors)
        with self._open(location) as store:
            tensor = _tensor(store, f)
            top = _over(store, g, tensor)
            assert _same_bits(top[0:20, 0:20], _over(MemoryTileStore(), _Ramp(), tensor)[0:20, 0:20])
        assert (0, 0) in f.calls
        assert (0, 0) in g.calls
        assert not {index for index in f.calls + g.calls if max(index) > 3}

    def test_another_definition_is_refused_with_each_field_that_differs(self, location: Any) -> None:
        """With what is stored and what is given."""
        with self._open(location) as store:
            _tensor(store, _Ramp(), version={"seed": 1, "name": "x"})
        changed: dict[str, Any] = {
            "dtype": torch.float64,
            "blend_init": 2,
            "blend": torch.maximum,
            "version": {"seed": 2, "name": "x"},
        }
        with (
            self._open(location, tile_size=7) as store,
            pytest.raises(ValidationError) as raised,
        ):
            _tensor(store, _Ramp(), window=TensorWindow((4, 4), offset=1), **changed)
        lines = str(raised.value).splitlines()[1:-1]
        fields = {line.split(":")[0].strip(): line for line in lines}
        window = {"output_window.stride", "output_window.offset"}
        assert fields.keys() == {"dtype", "blend", "blend_init", "version.seed", "tile_size", *window}
        assert "stored 1, given 2" in fields["version.seed"]
        assert "clear_tensor('t')" in str(raised.value)

    def test_a_changed_function_warns_and_stored_values_stay(self, location: Any) -> None:
        """Never silence, never an error."""
        with self._open(location) as store:
            expected = _tensor(store, _Ramp())[0:7, 0:7]
        with self._open(location) as store:
            with pytest.warns(FunctionChangedWarning, match="'t'"):
                tensor = _tensor(store, _OtherRamp())
            assert _same_bits(tensor[0:7, 0:7], expected)

    @pytest.mark.parametrize(
        "limits",
        [{"cache_size_tiles": 1}, {"cache_size_tiles": 3}, {"cache_size_bytes": 1}, {"cache_size_bytes": 350}],
        ids=str,
    )
    def test_cache_limits_hold_and_lose_nothing(self, location: Any, limits: dict[str, int]) -> None:
        """Also where a read alone needs more than that."""
        expected = _tensor(MemoryTileStore(), _Ramp())[-20:20, -20:20]
        f = _Ramp()
        with self._open(location, **limits) as store:
            tensor = _tensor(store, f)
            for y in range(-20, 20, 10):
                for x in range(-20, 20, 10):
                    tensor[y : y + 10, x : x + 10]
                    assert len(store._tiles.entries) <= limits.get("cache_size_tiles", 100)
                    assert store._tiles.entries.total_bytes <= limits.get("cache_size_bytes", 2**20)
            assert _same_bits(tensor[-20:20, -20:20], expected)
        assert len(f.calls) == len(set(f.calls))

    def test_a_closed_store_says_so_and_with_opens_it_again(self, location: Any) -> None:
        """Closing twice is no error, and tensors made before work again."""
        f = _Ramp()
        store = self._open(location)
        tensor = _tensor(store, f)
        expected = tensor[0:7, 0:7]
        store.close()
        store.close()
        for use in (lambda: tensor[0:7, 0:7], store.flush, lambda: _declare(store), lambda: store.clear_tensor("t")):
            with pytest.raises(StoreError, match="closed"):
                use()
        calls = len(f.calls)
        with store:
            assert _same_bits(tensor[0:7, 0:7], expected)
        assert len(f.calls) == calls
        with pytest.raises(StoreError, match="closed"):
            store.flush()

    @pytest.mark.parametrize(
        ("shape", "tile_size", "tile"),
        [
            ((3, None, None), 4, [3, 4, 4]),
            ((3, None, None), (2, 6), [3, 2, 6]),
            ((3, None, None), (2, 4, 6), [2, 4, 6]),
            ((9, 10, 11), 4, [4, 4, 4]),
            ((9, 10, 11), (20, 3, 11), [9, 3, 11]),
        ],
        ids=str,
    )
    def test_forms_of_tile_size(
        self, location: Any, shape: tuple[int | None, ...], tile_size: Any, tile: list[int]
    ) -> None:
        """An int, one int per unbounded dimension, or one per dimension; tiles reach past a finite end."""
        window = TensorWindow((3, 4, 5), stride=(3, 3, 3))
        ramp = torch.arange(60.0).reshape(3, 4, 5)

        def f(ctx: Index) -> torch.Tensor:
            return ramp + sum(ctx) / 3

        expected = InfiniteTensor(shape, f, window)[:, 0:9, 0:10]
        for opens in (False, True):
            with self._open(location, tile_size=tile_size) as store:
                make = partial(InfiniteTensor, shape, f, window, tile_store=store, tensor_id="t")
                tensor = store.open("t") if opens else make()
                assert _same_bits(tensor[:, 0:9, 0:10], expected)
                assert store.tensor_definition("t")["tile_size"] == tile

    def test_two_stores_at_once_lose_nothing_and_agree(self, location: Any) -> None:
        """Each adds to the partial tiles of the other."""
        if not self.concurrent:
            pytest.skip("one store object at a time")
        expected = _tensor(MemoryTileStore(), _Ramp())[0:15, 0:15]
        first, second, f = _Ramp(), _Ramp(), _Ramp()
        with self._open(location, cache_size_tiles=1) as a, self._open(location, cache_size_tiles=1) as b:
            tensors = _tensor(a, first), _tensor(b, second)
            for turn, (y, x) in enumerate([(0, 0), (0, 9), (9, 0), (9, 9), (5, 5), (3, 3)]):
                tensors[turn % 2][y : y + 2, x : x + 2]
            a.flush()
            b.flush()
        with self._open(location) as store:
            assert _same_bits(_tensor(store, f)[0:15, 0:15], expected)
        assert not set(f.calls) & {*first.calls, *second.calls}
