"""`check` finds the pixels of a map that depend on where its windows lie, and no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch.nn.functional import avg_pool2d

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, from_array, map_windows, noise, sl

SEEN = sl[-40:70, 10:100]


def blur(reach: int, padding: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda x: avg_pool2d(x[None], 2 * reach + 1, 1, padding)[0]


def batched(x: torch.Tensor) -> torch.Tensor:
    return avg_pool2d(x[:, None], 5, 1, 2)[:, 0]


def halved(x: torch.Tensor) -> torch.Tensor:
    return avg_pool2d(avg_pool2d(x[None], 3, 1, 1), 2)[0]


ENOUGH: dict[str, tuple[Callable[..., torch.Tensor], dict[str, Any]]] = {
    "cropped by map": (blur(2, 2), {"halo": 2}),
    "cropped by the function": (blur(2, 0), {"halo": 2}),
    "in batches": (batched, {"halo": 2, "batch_size": 3}),
    "another resolution": (halved, {"halo": 2, "scale": 0.5}),
    "without a halo": (torch.neg, {}),
    "a network": (torch.nn.Sequential(torch.nn.ZeroPad2d(2), torch.nn.AvgPool2d(5, 1)).eval(), {"halo": 2}),
    "places": (lambda x, start: x + start[0] + torch.arange(len(x))[:, None], {"halo": 1, "coordinates": True}),
}
TOO_LITTLE: dict[str, tuple[Callable[..., torch.Tensor], dict[str, Any]]] = {
    "a halo of 1 for 2": (blur(2, 2), {"halo": 1}),
    "no halo": (halved, {"scale": 0.5}),
    "the whole region": (lambda x: x - x.mean(), {"halo": 1}),
    "the place of the region": (lambda x, start: x + start[0], {"halo": 1, "coordinates": True}),
}


@pytest.mark.parametrize("case", ENOUGH)
@pytest.mark.parametrize("finite", [False, True])
def test_a_halo_that_suffices_is_found_to_do_so(case: str, finite: bool) -> None:
    fn, options = ENOUGH[case]
    source = noise((None, None), seed=1)
    if finite:
        source = from_array(source[0:80, 0:120])
    checked = source.map(fn, window=16, dims=(0, 1), **options).check(... if finite else SEEN)
    assert not checked.differs.any()
    assert (checked.share, checked.largest, checked.first) == (0, 0, None)
    assert str(checked).startswith("none of")


@pytest.mark.parametrize("case", TOO_LITTLE)
def test_pixels_that_depend_on_windows_are_found(case: str) -> None:
    fn, options = TOO_LITTLE[case]
    t = noise((None, None), seed=1).map(fn, window=16, **options)
    checked = t.check(SEEN)
    assert checked.differs.shape == (110, 90)
    assert 0 < checked.share <= 1
    assert checked.largest > 0
    assert checked.first is not None
    row, column = checked.first
    assert checked.differs[row + 40, column - 10]
    assert "give map a larger halo=" in str(checked)
    if case == "a halo of 1 for 2":
        # A window with a pixel too few around it is wrong in its first and last pixel; so is one that is moved by 1.
        borders = torch.tensor([15, 0, 1])
        wrong = [(torch.arange(*ends) % 16)[:, None] == borders for ends in ((-40, 70), (10, 100))]
        rows, columns = (each.any(1) for each in wrong)
        assert torch.equal(checked.differs, rows[:, None] | columns)


def test_several_inputs_and_ints() -> None:
    a, b = noise((None, None), seed=1), noise((None, None), seed=2)

    def fn(fine: torch.Tensor, coarse: torch.Tensor) -> torch.Tensor:
        large = coarse.repeat_interleave(4, 0).repeat_interleave(4, 1)
        return avg_pool2d((fine + large[2:-2, 2:-2])[None], 3, 1, 1)[0]

    t = map_windows(fn, a, b, halo=(2, 1), scale=(1, 4), window=16)
    assert not t.check(sl[5:90, 7]).differs.any()
    assert t.check(sl[5:90, 7]).differs.shape == (85,)
    with pytest.raises(ValidationError, match="steps"):
        t.check(sl[0:90:2, 0:9])


def test_what_is_no_map_is_refused() -> None:
    t = InfiniteTensor((None,), lambda _: torch.ones(4), TensorWindow((4,)))
    for each in (t, t.map(torch.neg, window=8, overlap=0.5)):
        with pytest.raises(ValidationError, match="map and map_windows"):
            each.check(slice(0, 8))
