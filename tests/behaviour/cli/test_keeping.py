"""verify, gc and rm, none of which deletes anything that nobody has agreed to."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import zarr

from infinite_tensor import InfiniteTensor, TensorGroup, TensorWindow, ZarrTileStore
from tests.support.command_line import CommandLine


def chunks(store: Path, tensor_id: str) -> list[Path]:
    return sorted(path for path in store.glob(f"t-{tensor_id}/tiles-*/c/**/*") if path.is_file())


def damage(chunk: Path) -> None:
    content = bytearray(chunk.read_bytes())
    content[-6] ^= 1
    chunk.write_bytes(content)


def damaged_definition(folder: Path) -> str:
    """Other words, of which the checksum is not; what it says now."""
    document = folder / "zarr.json"
    document.write_text(document.read_text().replace("float32", "float64").replace("height", "weight"))
    return document.read_text()


def ids(store: Path) -> list[str]:
    with ZarrTileStore(store, mode="r") as opened:
        return opened.tensor_ids()


def test_verify_of_a_damaged_store_exits_with_3_and_lists_it(cli: CommandLine, store: Path) -> None:
    told = cli("verify", store, "rows", "--json")
    assert (told.code, told.json["damages"]) == (0, [])
    damage(chunks(store, "rows")[0])
    found = cli("verify", store)
    assert found.code == 3
    assert found.out.splitlines()[1].startswith("rows       tile  (-2, 0)  t-rows/")
    assert "the checksum" in found.out
    assert len(chunks(store, "rows")) == 8
    told = cli("verify", store, "--json")
    assert told.code == 3
    (each,) = told.json["damages"]
    assert (each["tensor_id"], each["kind"], each["tile"]) == ("rows", "tile", [-2, 0])


def test_a_repair_drops_what_is_damaged_once_it_is_confirmed(cli: CommandLine, store: Path) -> None:
    damage(chunks(store, "rows")[0])
    refused = cli("verify", store, "--repair")
    assert (refused.code, "This deletes 1 damaged object of 'rows'" in refused.err) == (2, True)
    assert "give --yes" in refused.err
    assert len(chunks(store, "rows")) == 8
    assert cli("verify", store, "--repair", "--yes").code == 0
    assert len(chunks(store, "rows")) == 7
    assert cli("verify", store).code == 0


def test_gc_deletes_what_nothing_refers_to(cli: CommandLine, store: Path) -> None:
    left = store / "t-rows" / "tiles-0123456789abcdef" / "c" / "0" / "0"
    left.parent.mkdir(parents=True)
    left.write_bytes(b"12345")
    refused = cli("gc", store)
    assert (refused.code, left.exists()) == (2, True)
    assert f"This deletes objects that no tensor of {store} refers to." in refused.err
    assert cli("gc", store, "--yes").out == "deleted 1 object, 5 B\n"
    assert not left.exists()
    told = cli("gc", store, "--yes", "--json").json
    assert told == {"objects": 0, "bytes": 0, "partial_tiles": 0, "partial_bytes": 0}


def test_gc_deletes_half_computed_tiles_that_are_old_and_says_how_much(cli: CommandLine, store: Path) -> None:
    with ZarrTileStore(store) as opened:
        window = TensorWindow((4,), stride=2)
        t = InfiniteTensor((None,), lambda _ctx: torch.ones(4), window, tile_store=opened, tensor_id="halves")
        t[0:4]
        opened.flush()
        size = opened.tensor_info("halves").bytes_stored
    refused = cli("gc", store, "--partial")
    assert (refused.code, "refers to, and what is stored of half-computed tiles." in refused.err) == (2, True)
    assert cli("gc", store, "--partial", "--yes").out == "deleted 0 objects, 0 B\n  of 0 half-computed tiles: 0 B\n"
    found = cli("gc", store, "--partial", "--older-than", "0", "--yes", "--json").json
    assert found == {"objects": 2, "bytes": size, "partial_tiles": 2, "partial_bytes": size}
    assert cli("info", store, "halves", "--json").json["tiles_partial"] == 0


def test_rm_warns_of_tensors_that_are_computed_from_it(cli: CommandLine, store: Path) -> None:
    found = cli("rm", store, "rows", "--yes")
    assert found.code == 0
    assert found.err.startswith("Warning: ")
    assert "are kept unchanged: 'twice'" in found.err
    assert ids(store) == ["twice"]


def test_rm_with_dependants_lists_and_deletes_them_too(cli: CommandLine, store: Path) -> None:
    refused = cli("rm", store, "rows", "--dependants")
    assert (refused.code, f"This deletes 'rows', 'twice' from {store}." in refused.err) == (2, True)
    found = cli("rm", store, "rows", "--dependants", "--yes", "--json")
    assert found.json == {"store": str(store), "deleted": ["rows", "twice"], "groups": []}
    assert ids(store) == []


def saved(store: Path, *names: str) -> None:
    """Groups of the tensor ``rows``."""
    with ZarrTileStore(store) as opened:
        for name in names:
            TensorGroup({"height": opened.open("rows")}).save(opened, name)


@pytest.mark.parametrize(("name", "place"), [("twice", "t-twice"), ("world", "g-world")])
def test_what_is_damaged_in_a_definition_is_not_repaired_and_can_be_removed(
    name: str, place: str, cli: CommandLine, store: Path
) -> None:
    saved(store, "world")
    damaged = damaged_definition(store / place)
    cli("verify", store, "--repair", "--yes")
    assert (store / place / "zarr.json").read_text() == damaged
    assert cli("info", store, name).code == 1
    assert cli("rm", store, name, "--yes").code == 0
    assert not (store / place / "zarr.json").exists()


def test_rm_of_a_group_says_that_its_tensors_stay(cli: CommandLine, store: Path) -> None:
    saved(store, "world")
    assert cli("rm", store, "world", "--dependants", "--yes").code == 2
    refused = cli("rm", store, "world")
    assert (refused.code, f"This deletes group 'world' from {store}. Its tensors stay." in refused.err) == (2, True)
    assert cli("ls", store, "--json").json["groups"] == ["world"]
    found = cli("rm", store, "world", "--yes")
    assert (found.code, found.err) == (0, "deleted group 'world'; its tensors stay\n")
    assert cli("ls", store, "--json").json["groups"] == []
    assert ids(store) == ["rows", "twice"]


def test_rm_of_an_id_that_a_tensor_and_a_group_have_is_of_the_tensor_unless_the_group_is_named(
    cli: CommandLine, store: Path
) -> None:
    saved(store, "twice")
    assert "This deletes 'twice'" in cli("rm", store, "twice").err
    found = cli("rm", store, "twice", "--group", "--yes", "--json")
    assert found.json == {"store": str(store), "deleted": [], "groups": ["twice"]}
    assert ids(store) == ["rows", "twice"]
    missing = cli("rm", store, "twice", "--group", "--yes")
    assert (missing.code, "contains no group 'twice'; 'twice' is a tensor" in missing.err) == (1, True)


@pytest.mark.parametrize("command", [("rm", "rows"), ("gc",), ("verify", "--repair")])
def test_what_is_no_store_stays_as_it_is(command: tuple[str, ...], cli: CommandLine, tmp_path: Path) -> None:
    assert cli(command[0], tmp_path / "nothing", *command[1:], "--yes").code == 1
    assert not (tmp_path / "nothing").exists()
    zarr.create_group(tmp_path / "theirs", attributes={"year": 2024})
    before = (tmp_path / "theirs" / "zarr.json").read_bytes()
    found = cli(command[0], tmp_path / "theirs", *command[1:], "--yes")
    assert (found.code, "a Zarr group of another program" in found.err) == (1, True)
    assert (tmp_path / "theirs" / "zarr.json").read_bytes() == before
