"""Any text as a tensor_id: stored safely and found again, or refused."""

from __future__ import annotations

import hashlib
import tempfile
import unicodedata
from collections.abc import Callable, Iterable
from itertools import count
from pathlib import Path, PurePosixPath, PureWindowsPath
from typing import TypeAlias

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from infinite_tensor import (
    HDF5TileStore,
    InfiniteTensor,
    InfiniteTensorError,
    StoreError,
    TensorBlob,
    TensorGroup,
    TensorWindow,
    TileStore,
    ValidationError,
    ZarrTileStore,
    from_array,
    from_image,
    from_raster,
)

# Inside: names of a million ids, without a store.
from infinite_tensor.tilestore.documents import id_of, name_of
from tests.support.stores import sample

Open: TypeAlias = Callable[[Path], TileStore]

STORES: dict[str, Open] = {
    "zarr": lambda root: ZarrTileStore(root / "store", tile_size=4),
    "hdf5": lambda root: HDF5TileStore(root / "store", tile_size=4),
}
_SAFE = "abcdefghijklmnopqrstuvwxyz0123456789._-"


def _seemingly_cut() -> tuple[str, str]:
    """A long id, and a short one that spells out how the name of the long one ends: escape, then digits."""
    for number in count():
        long = "a" * 130 + str(number)
        digest = hashlib.sha256(long.encode()).hexdigest()
        if digest[:2].isdigit() and chr(int(digest[:2], 16)) not in _SAFE:
            return long, "a" * 46 + chr(int(digest[:2], 16)) + digest[2:]
    raise AssertionError


HOSTILE = [
    *("..", ".", "/", "\\", "../x", "..\\x", "/etc/passwd", "C:\\x", "a/b", "a\\b", "a/../../b", "~", "//host/x"),
    *("a\0b", "\0", "\n", "\r\n", "\x1b[2J", "\x7f"),
    *(unicodedata.normalize(form, "Åéﬁ한") for form in ("NFC", "NFD", "NFKC", "NFKD")),
    *("x" * 1000, "X" * 1000, "x" * 999, "ü" * 1000, "../" * 400, *_seemingly_cut()),
    *("CON", "con", "nul", "NUL.txt", "aux", "LPT1", "zarr.json", ".zarray", ".zgroup", ".zattrs", "c", "t-", "tiles"),
    *("t-zarr.json", "__proto__", "constructor", "definition", "partial", "index", "None", "null", "0", "-0", "NaN"),
    *("map", "Map", "MAP", "=4Dap", "m=41p", "m=61p", "ß", "\u1e9e", "SS", "ss", "\u0131", "I", "i", "\u0130"),
    *("a.", "a..", ".a", " a", "a ", "a", " ", "  ", "\u00a0", "\u200b", "a\u200b", "\ufeff", "\ufeffa"),
    *("\N{WORLD MAP}", "\N{WORLD MAP}\ufe0f", "👩‍👩‍👧", "\u202eabc", "\u200fabc", "\U0010ffff", "\uffff"),
    *("memory://x", "s3://bucket/key", "file:///x", "a?b", "a#b", "a%2Fb", "%00", "{0}", "%s", "$(id)", "`id`", "';--"),
]


def tensor(store: TileStore, tensor_id: str, value: int) -> InfiniteTensor:
    window = TensorWindow((4,))
    return InfiniteTensor(
        (None,), lambda _ctx: torch.full((4,), float(value)), window, tile_store=store, tensor_id=tensor_id
    )


def keep_and_find(open_store: Callable[[], TileStore], ids: Iterable[str]) -> None:
    """Store a number under each id in one session, and find it again in another."""
    kept: dict[str, int] = {}
    with open_store() as store:
        for number, tensor_id in enumerate(ids):
            try:
                made = tensor(store, tensor_id, number)
            except ValidationError:
                continue
            made[0:6]
            kept[tensor_id] = number
    with open_store() as store:
        assert store.tensor_ids() == sorted(kept)
        for tensor_id, number in kept.items():
            assert store.open(tensor_id)[0:6].tolist() == [number] * 6
            assert store.tensor_info(tensor_id).tensor_id == tensor_id
        for tensor_id in kept:
            store.clear_tensor(tensor_id)
        assert store.tensor_ids() == []


@pytest.mark.parametrize("kind", sample(STORES, "zarr"))
def test_hostile_ids_live_side_by_side(kind: str, tmp_path: Path) -> None:
    keep_and_find(lambda: STORES[kind](tmp_path), HOSTILE)
    assert [path.name for path in tmp_path.iterdir()] == ["store"]


_ids = st.text(st.characters(exclude_categories=()), max_size=20) | st.sampled_from(HOSTILE)


@pytest.mark.parametrize("kind", STORES)
@given(ids=st.sets(_ids, min_size=1, max_size=4))
def test_any_text_is_kept_and_found_or_refused(kind: str, ids: set[str]) -> None:
    with tempfile.TemporaryDirectory() as folder:
        keep_and_find(lambda: STORES[kind](Path(folder)), ids)
        assert [path.name for path in Path(folder).iterdir()] == ["store"]


@pytest.mark.parametrize("wrong", ["", "\ud800", "a\udfffb", "\udcff.."])
@pytest.mark.parametrize("kind", STORES)
def test_what_is_no_text_is_refused_everywhere(kind: str, wrong: str, tmp_path: Path) -> None:
    with STORES[kind](tmp_path) as store:
        uses: list[Callable[[str], object]] = [
            *(lambda name: tensor(store, name, 0), store.open),
            *(store.tensor_definition, store.tensor_info, store.verify),
        ]
        for use in uses:
            with pytest.raises(InfiniteTensorError):
                use(wrong)
        assert store.tensor_ids() == []


def test_a_folder_that_defines_another_tensor_is_not_taken_for_it(tmp_path: Path) -> None:
    with STORES["zarr"](tmp_path) as store:
        tensor(store, "honest", 1)[0:6]
    (tmp_path / "store" / name_of("honest")).rename(tmp_path / "store" / name_of("other"))
    with STORES["zarr"](tmp_path) as store:
        with pytest.raises(StoreError, match="honest"):
            store.open("other")
        with pytest.raises(StoreError):
            store.open("honest")


# Names of files and groups.


@settings(max_examples=10 * settings().max_examples)
@given(st.text(max_size=60), st.text(max_size=60))
def test_names_are_short_and_plain_and_differ_also_where_case_does_not(one: str, other: str) -> None:
    name = name_of(one)
    assert set(name) <= {*_SAFE, *"=ABCDEF"}
    assert len(name) <= 120
    assert not name.endswith(".")
    assert PurePosixPath(name).parts == PureWindowsPath(name).parts == (name,)
    assert id_of(name) in (one, None)
    assert (name.casefold() == name_of(other).casefold()) is (one == other)


def test_every_hostile_id_has_a_name_of_its_own() -> None:
    assert len({name_of(tensor_id).casefold() for tensor_id in HOSTILE}) == len(set(HOSTILE)) >= 100


def test_no_report_sends_the_control_characters_of_an_id_to_a_terminal(tmp_path: Path) -> None:
    name = "\x1b]0;title\x07\x1b[2Kx\nall    0"
    store = ZarrTileStore(tmp_path / "a.zarr", tile_size=8)
    t = InfiniteTensor((8, 8), lambda _: torch.ones(8, 8), TensorWindow((8, 8)), tile_store=store, tensor_id=name)
    reports: list[object] = [
        t.plan(...),
        t.fill(..., progress=False),
        store.copy(name, tmp_path / "b.zarr", progress=False),
    ]
    reports += [
        t.stats(...),
        t.invalidate(...),
        t,
        store,
        store.tensor_info(name),
        TensorGroup({"a": t}, dims=(-2, -1)),
    ]
    for text in map(str, reports):
        assert all(line.isprintable() for line in text.splitlines())
        assert sum(line.startswith("all ") for line in text.splitlines()) <= 1


def test_no_error_sends_the_control_characters_of_a_foreign_name_to_a_terminal(tmp_path: Path) -> None:
    name = "\x1b[31m\u202e\n"
    (tmp_path / name).write_bytes(b"no image")

    class Named:
        def __repr__(self) -> str:
            return name

    attempts: list[Callable[[], object]] = [
        lambda: from_image(tmp_path / name),
        lambda: from_raster(tmp_path / name),
        lambda: TensorBlob.open(tmp_path / f"{name}none"),
        lambda: from_array(Named()),
    ]
    for attempt in attempts:
        with pytest.raises(InfiniteTensorError) as caught:
            attempt()
        assert all(line.isprintable() for line in str(caught.value).split("\n"))
