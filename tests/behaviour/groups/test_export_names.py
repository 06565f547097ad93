"""Names that a file system cannot have, given to `save_tensordict`."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from infinite_tensor import InfiniteTensor, StoreError, TensorGroup, TensorWindow, ValidationError, sl

LONG = "n" * 300


def saved(path: Path, *names: str, f: Callable[..., torch.Tensor] = lambda _ctx: torch.ones(4)) -> None:
    """A group whose only tensor is nested in these names."""
    members: Any = InfiniteTensor((None,), f, TensorWindow((4,)))
    for name in reversed(names or ("x",)):
        members = {name: members}
    TensorGroup(members).save_tensordict(sl[0:4], path)


@pytest.mark.parametrize("key", [(LONG,), ("a", LONG), (LONG, "a"), ("é" * 200,)])
def test_a_name_too_long_for_a_file_is_refused_and_leaves_nothing(key: tuple[str, ...], tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"File name too long.* give a shorter name"):
        saved(tmp_path / "out", *key)
    assert [*tmp_path.iterdir()] == []


def test_a_name_that_is_not_valid_unicode_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="UnicodeEncodeError"):
        saved(tmp_path / "out", "\udcff")
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize("name", [LONG, "n" * 240, "a\0b"])
def test_a_path_that_cannot_be_is_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match=r"cannot write '.*too long|cannot write '.*null"):
        saved(tmp_path / name)
    assert [*tmp_path.iterdir()] == []


def test_a_folder_that_is_a_file_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StoreError, match=r"cannot write '.*FileExistsError"):
        saved(tmp_path / "file" / "out")
    assert (tmp_path / "file").read_text() == "mine"


def test_an_error_of_f_comes_through_as_it_is(tmp_path: Path) -> None:
    def fails(_ctx: object) -> torch.Tensor:
        raise OSError("the camera is off")

    with pytest.raises(OSError, match=r"^the camera is off"):
        saved(tmp_path / "out", f=fails)
