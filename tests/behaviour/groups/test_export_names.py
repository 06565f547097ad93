"""Names that a file system cannot have, given to `save_tensordict`."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from infinite_tensor import InfiniteTensor, StoreError, TensorGroup, TensorWindow, ValidationError, sl

LONG = "n" * 300


def tensor() -> InfiniteTensor:
    return InfiniteTensor((None,), lambda _ctx: torch.ones(4), TensorWindow((4,)))


def files_in(folder: Path) -> list[Path]:
    return list(folder.iterdir())


@pytest.mark.parametrize("key", [(LONG,), ("a", LONG), (LONG, "a"), ("é" * 200,)])
def test_a_name_too_long_for_a_file_is_refused_and_leaves_nothing(key: tuple[str, ...], tmp_path: Path) -> None:
    group = TensorGroup({key[0]: {key[1]: tensor()} if len(key) > 1 else tensor()})
    with pytest.raises(ValidationError, match=r"File name too long.* give a shorter name"):
        group.save_tensordict(sl[0:4], tmp_path / "out")
    assert files_in(tmp_path) == []


def test_a_name_that_is_not_valid_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="UnicodeEncodeError"):
        TensorGroup({"\udcff": tensor()}).save_tensordict(sl[0:4], tmp_path / "out")
    assert files_in(tmp_path) == []


@pytest.mark.parametrize("name", [LONG, "n" * 240, "a\0b"])
def test_a_path_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"cannot write '.*too long|cannot write '.*null"):
        TensorGroup({"x": tensor()}).save_tensordict(sl[0:4], tmp_path / name)
    assert files_in(tmp_path) == []


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"cannot write '.*FileExistsError"):
        TensorGroup({"x": tensor()}).save_tensordict(sl[0:4], tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_of_f_comes_through_as_it_is(tmp_path: Path) -> None:
    def fails(_ctx: object) -> torch.Tensor:
        raise OSError("the camera is off")

    group = TensorGroup({"x": InfiniteTensor((None,), fails, TensorWindow((4,)))})
    with pytest.raises(OSError, match=r"^the camera is off"):
        group.save_tensordict(sl[0:4], tmp_path / "out")
