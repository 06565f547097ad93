"""Regions of a group as memory-mapped TensorDicts, which plain tensordict opens."""

from __future__ import annotations

import signal
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


@pytest.mark.parametrize("region", [sl[-6:14, 2:20], sl[4, 2:20], sl[4:4, 2:20]])
@pytest.mark.parametrize("block_bytes", [tensordicts._BLOCK_BYTES, 999])
def test_plain_tensordict_opens_what_was_written(
    block_bytes: int, region: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tensordicts, "_BLOCK_BYTES", block_bytes)
    group = group_with_a_coarse_one()
    group.save_tensordict(region, tmp_path / "out")
    expected, found = group[region], TensorDict.load_memmap(tmp_path / "out")
    assert set(found.keys(True)) == set(expected.keys(True))
    for key in expected.keys(True, True):
        assert torch.equal(found[key], expected[key])
    for key in ("world", ("world", "biome"), "coarse"):
        assert found[key].batch_size == expected[key].batch_size
    assert found.batch_size == expected.batch_size
    assert names_in(tmp_path) == ["out"]


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
    with pytest.raises(ValidationError, match="overwrite=True"):
        group.save_tensordict(sl[0:4, 0:4], path)
    assert TensorDict.load_memmap(path)["world", "height"].shape == (8, 8)
    group.save_tensordict(sl[0:4, 0:4], path, overwrite=True)
    assert TensorDict.load_memmap(path)["world", "height"].shape == (4, 4)
    assert names_in(tmp_path) == ["out"]


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


# What cannot be written.

LONG = "n" * 300


def exported(path: Path, *names: str, region: Any = sl[0:4], f: Any = lambda _ctx: torch.ones(4)) -> None:
    """A group whose only tensor is nested in these names."""
    members: Any = InfiniteTensor((None,), f, TensorWindow((4,)))
    for name in reversed(names or ("x",)):
        members = {name: members}
    TensorGroup(members).save_tensordict(region, path)


def fails(ctx: tuple[int, ...]) -> torch.Tensor:
    if ctx[0] > 3:
        raise OSError("the camera is off")
    return torch.zeros(4)


UNWRITABLE: list[tuple[str, tuple[str, ...], dict[str, Any], type[Exception], str]] = [
    *(("out", key, {}, ValidationError, "shorter names") for key in ((LONG,), ("a", LONG), (LONG, "a"), ("é" * 200,))),
    ("out", ("\udcff",), {}, ValidationError, "Unicode"),
    *((name, (), {}, ValidationError, "too long|null") for name in (LONG, "n" * 240, "a\0b")),
    ("out", (), {"region": sl[0:4:2]}, ValidationError, "step"),
    ("out", (), {"region": sl[:]}, RegionError, "unbounded"),
    ("out", (), {"region": sl[0:40], "f": fails}, OSError, "^the camera is off"),
]


@pytest.mark.parametrize(("name", "key", "options", "error", "said"), UNWRITABLE, ids=range(len(UNWRITABLE)))
def test_what_cannot_be_written_leaves_nothing(
    name: str, key: tuple[str, ...], options: dict[str, Any], error: type[Exception], said: str, tmp_path: Path
) -> None:
    with pytest.raises(error, match=said):
        exported(tmp_path / name, *key, **options)
    assert names_in(tmp_path) == []


def test_what_is_no_tensordict_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "thesis.txt").write_text("all of it")
    for path, error in (
        (tmp_path / "precious", ValidationError),
        (tmp_path / "precious" / "thesis.txt" / "out", StoreError),
    ):
        with pytest.raises(error, match="precious"):
            group_with_a_coarse_one().save_tensordict(sl[0:4, 0:4], path, overwrite=True)
    assert (tmp_path / "precious" / "thesis.txt").read_text() == "all of it"
