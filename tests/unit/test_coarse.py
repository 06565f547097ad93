"""Coarser pixels have the same bits on several threads of torch: inside, to make them in one piece and in several."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from infinite_tensor.values.coarse import AxisBlocks, coarse, fits


@pytest.mark.parametrize(
    ("method", "dtype"),
    [
        (method, dtype)
        for method in ("mean", "max", "min", "mode", "nearest")
        for dtype in (torch.float32, torch.float16, torch.uint8, torch.int64)
        if fits(method, dtype)
    ],
)
def test_several_threads_of_torch_change_no_bit(method: str, dtype: torch.dtype) -> None:
    pixels = torch.randint(0, 9, (3, 301, 503), generator=torch.Generator().manual_seed(1)).to(dtype)
    pixels[:, 128:131, 200:260] = 7
    if dtype.is_floating_point:
        pixels[torch.rand(pixels.shape, generator=torch.Generator().manual_seed(2)) < 0.2] = torch.nan
    along = [AxisBlocks(1), AxisBlocks(2, 4, 3), AxisBlocks(2)]
    before = torch.get_num_threads()
    for nodata in (None, torch.tensor([7, 3, 200])[:, None, None]):
        found = []
        for threads in (1, 2):
            torch.set_num_threads(threads)
            try:
                found.append(coarse(pixels, along, method, nodata))
            finally:
                torch.set_num_threads(before)
        one, two = found
        assert two.dtype == dtype
        assert np.array_equal(one.double(), two.double(), equal_nan=True)
