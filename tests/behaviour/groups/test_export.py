"""Regions of a group as memory-mapped TensorDicts, which plain tensordict opens."""

from __future__ import annotations

import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from tensordict import TensorDict

from infinite_tensor import InfiniteTensor, StoreError, TensorGroup, TensorWindow, ValidationError, sl
from infinite_tensor.errors import RegionError
from infinite_tensor.groups import tensordicts
from tests.behaviour.groups.world import World, plain
from tests.support.interpreters import run


def names_in(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def group_with_a_coarse_one() -> TensorGroup:
    coarse = plain((None, None, 3))
    return TensorGroup({"world": World().group, "coarse": {"c": coarse}}, scale={"coarse": 0.5})


@pytest.mark.parametrize("block_bytes", [tensordicts._BLOCK_BYTES, 999])
def test_plain_tensordict_opens_what_was_written(
    block_bytes: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensordicts, "_BLOCK_BYTES", block_bytes)
    group = group_with_a_coarse_one()
    region = sl[-6:14, 2:20]
    group.save_tensordict(region, tmp_path / "out")
    expected, found = group[region], TensorDict.load_memmap(tmp_path / "out")
    assert set(found.keys(True)) == set(expected.keys(True))
    for key in expected.keys(True, True):
        assert torch.equal(found[key], expected[key])
    for key in ("world", ("world", "biome"), "coarse"):
        assert found[key].batch_size == expected[key].batch_size
    assert found.batch_size == expected.batch_size
    assert names_in(tmp_path) == ["out"]


def test_ints_and_empty_regions_are_written_too(tmp_path: Path) -> None:
    group = group_with_a_coarse_one().select("world")
    group.save_tensordict(sl[3, 2:20], tmp_path / "row")
    row = TensorDict.load_memmap(tmp_path / "row")
    for key in row.keys(True, True):
        assert torch.equal(row[key], group[3, 2:20][key])
    group.save_tensordict(sl[3:3, 2:20], tmp_path / "empty")
    empty = TensorDict.load_memmap(tmp_path / "empty")
    assert empty["world", "biome", "id"].shape == (0, 18)


def test_what_was_written_is_a_source_again(tmp_path: Path) -> None:
    group = group_with_a_coarse_one().select("world")
    group.save_tensordict(sl[0:16, 0:8], tmp_path / "out")
    again = TensorGroup.from_tensordict(TensorDict.load_memmap(tmp_path / "out"))
    assert again.shape == (16, 8)
    for key in again.keys(True, True):
        assert torch.equal(again[4:9, 2:8][key], group[4:9, 2:8][key])


@pytest.mark.parametrize(("name", "inner"), [("shape", "x"), ("a", "_type"), ("device", "x")])
def test_a_name_under_which_tensordict_would_lose_a_tensor_is_refused(name: str, inner: str, tmp_path: Path) -> None:
    group = TensorGroup({"ok": plain((None, None)), name: {inner: plain((None, None))}})
    with pytest.raises(ValidationError, match="rename"):
        group.save_tensordict(sl[0:4, 0:4], tmp_path / "out")
    assert names_in(tmp_path) == []


def test_an_existing_path_is_an_error_unless_told_otherwise(tmp_path: Path) -> None:
    group, path = group_with_a_coarse_one(), tmp_path / "out"
    group.save_tensordict(sl[0:8, 0:8], path)
    with pytest.raises(ValidationError, match=r"already exists; give another path, or overwrite=True"):
        group.save_tensordict(sl[0:4, 0:4], path)
    assert TensorDict.load_memmap(path)["world", "height"].shape == (8, 8)
    group.save_tensordict(sl[0:4, 0:4], path, overwrite=True)
    assert TensorDict.load_memmap(path)["world", "height"].shape == (4, 4)
    assert names_in(tmp_path) == ["out"]


def test_nothing_but_a_tensordict_is_overwritten(tmp_path: Path) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (precious / "thesis.txt").write_text("all of it")
    with pytest.raises(ValidationError, match=r"is not a memory-mapped TensorDict, so it is not overwritten"):
        group_with_a_coarse_one().save_tensordict(sl[0:4, 0:4], precious, overwrite=True)
    assert (precious / "thesis.txt").read_text() == "all of it"


def test_a_path_that_appears_meanwhile_is_left_as_it_is(tmp_path: Path) -> None:
    def f(_: object) -> torch.Tensor:
        (tmp_path / "out").mkdir(exist_ok=True)
        (tmp_path / "out" / "theirs").touch()
        return torch.zeros(4)

    group = TensorGroup({"x": InfiniteTensor((None,), f, TensorWindow((4,)))})
    with pytest.raises(ValidationError, match="could not be renamed"):
        group.save_tensordict(sl[0:4], tmp_path / "out")
    assert names_in(tmp_path) == ["out"]
    assert names_in(tmp_path / "out") == ["theirs"]


def test_an_error_of_f_leaves_nothing_behind(tmp_path: Path) -> None:
    def fails(ctx: tuple[int, ...]) -> torch.Tensor:
        if ctx[0] > 3:
            raise RuntimeError("no more")
        return torch.zeros(4)

    group = TensorGroup({"x": InfiniteTensor((None,), fails, TensorWindow((4,)))})
    with pytest.raises(RuntimeError, match="no more"):
        group.save_tensordict(sl[0:40], tmp_path / "out")
    assert names_in(tmp_path) == []


def test_what_cannot_be_written_is_an_error_before_anything_is(tmp_path: Path) -> None:
    group = World().group
    with pytest.raises(ValidationError, match="step"):
        group.save_tensordict(sl[0:4:2, 0:4], tmp_path / "out")
    with pytest.raises(RegionError, match="unbounded"):
        group.save_tensordict(sl[:, 0:4], tmp_path / "out")
    with pytest.raises(ValidationError, match="path must be a local path"):
        group.save_tensordict(sl[0:4, 0:4], 3)  # type: ignore[arg-type]
    assert names_in(tmp_path) == []


def test_names_that_are_no_file_names_are_kept(tmp_path: Path) -> None:
    group = TensorGroup({"a/b": plain((None,)), "..": {"ü": plain((None,))}})
    group.save_tensordict(sl[0:8], tmp_path / "out")
    found = TensorDict.load_memmap(tmp_path / "out")
    assert torch.equal(found["..", "ü"], group[0:8]["..", "ü"])
    assert torch.equal(found["a/b"], group[0:8]["a/b"])


SCRIPT = """
import os, resource, sys
import torch
from infinite_tensor import InfiniteTensor, MemoryTileStore, TensorGroup, TensorWindow, sl
path, rows, kill_at = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])

def f(ctx):
    if ctx[0] == kill_at:
        os.kill(os.getpid(), 9)
    return torch.full((256, 1024), float(ctx[0]))

store = MemoryTileStore(cache_size_bytes=2**20)
group = TensorGroup({"x": InfiniteTensor((None, 1024), f, TensorWindow((256, 1024)), tile_store=store)})
group.save_tensordict(sl[0:256], path + ".small")
before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
group.save_tensordict(sl[0:rows], path)
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before)
"""


def test_a_process_that_is_killed_leaves_no_half_written_folder(tmp_path: Path) -> None:
    # Within the second block of 8192 rows.
    killed = run("-c", SCRIPT, tmp_path / "out", 16_384, 40)
    assert killed.returncode == -signal.SIGKILL
    left = [name for name in names_in(tmp_path) if name != "out.small"]
    assert len(left) == 1
    assert left[0].startswith(".out.")
    assert left[0].endswith(".partial")


@pytest.mark.slow
def test_memory_is_bounded_whatever_is_written(tmp_path: Path) -> None:
    rows = 2**30 // 4096
    written = run("-c", SCRIPT, tmp_path / "out", rows, -1)
    assert written.returncode == 0, written.stderr
    # Of a gigabyte, blocks of 32 MiB.
    assert int(written.stdout) * 1024 < 2**28
    assert TensorDict.load_memmap(tmp_path / "out").get_at("x", rows - 1)[0] == (rows - 1) // 256


@pytest.mark.parametrize(
    ("suffix", "after", "extent"),
    [(".partial", False, 4), ("", True, 4), (".partial", True, 8)],
    ids=["before the new one is renamed", "after the old one is", "after the new one is"],
)
def test_a_ctrl_c_around_a_rename_leaves_one_in_its_place(
    suffix: str, after: bool, extent: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = TensorGroup({"a": plain((None,))})
    group.save_tensordict(slice(0, 4), tmp_path / "td")
    renamed = Path.rename

    def interrupted(path: Path, target: Path) -> Path:
        if path.suffix == suffix and not after:
            raise KeyboardInterrupt
        renamed(path, target)
        if path.suffix == suffix:
            raise KeyboardInterrupt
        return path

    with monkeypatch.context() as patched:
        patched.setattr(Path, "rename", interrupted)
        with pytest.raises(KeyboardInterrupt):
            group.save_tensordict(slice(0, 8), tmp_path / "td", overwrite=True)
    assert TensorDict.load_memmap(tmp_path / "td")["a"].shape == (extent,)
    assert names_in(tmp_path) == ["td"]


# Names that a file system cannot have.

LONG = "n" * 300


def exported(path: Path, *names: str, f: Callable[..., torch.Tensor] = lambda _ctx: torch.ones(4)) -> None:
    """A group whose only tensor is nested in these names."""
    members: Any = InfiniteTensor((None,), f, TensorWindow((4,)))
    for name in reversed(names or ("x",)):
        members = {name: members}
    TensorGroup(members).save_tensordict(sl[0:4], path)


@pytest.mark.parametrize("key", [(LONG,), ("a", LONG), (LONG, "a"), ("é" * 200,)])
def test_a_name_too_long_for_a_file_is_refused_and_leaves_nothing(key: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"File name too long.* give the tensors shorter names"):
        exported(tmp_path / "out", *key)
    assert [*tmp_path.iterdir()] == []


def test_a_name_that_is_not_valid_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="UnicodeEncodeError"):
        exported(tmp_path / "out", "\udcff")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", [LONG, "n" * 240, "a\0b"])
def test_a_path_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"cannot write '.*too long|cannot write '.*null"):
        exported(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"cannot write '.*FileExistsError"):
        exported(tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_of_f_comes_through_as_it_is(tmp_path: Path) -> None:
    def fails(_ctx: object) -> torch.Tensor:
        raise OSError("the camera is off")

    with pytest.raises(OSError, match=r"^the camera is off"):
        exported(tmp_path / "out", f=fails)
