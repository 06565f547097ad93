"""A Gaussian weighted mean beside MONAI's sliding windows, bit for bit: ``pip install ".[monai]"`` to run this."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch

from infinite_tensor import TensorWindow
from tests.support.building import built
from tests.support.monai import padded, slid
from tests.support.reference import Index

_CASES = [
    (random.Random(seed).choice([16, 24, 32]), random.Random(seed).choice([0.25, 0.5, 0.75]), seed)  # noqa: S311
    for seed in range(10)
]


@pytest.mark.parametrize(("size", "overlap", "seed"), _CASES)
def test_it_gives_the_bits_of_monai(size: int, overlap: float, seed: int) -> None:
    torch.manual_seed(seed)
    chosen = random.Random(100 + seed)  # noqa: S311
    height, width = chosen.randint(5, 90), chosen.randint(5, 90)
    stride = max(1, int(size * (1 - overlap)))
    net = torch.nn.Sequential(
        torch.nn.Conv2d(1, 4, 3, padding=1), torch.nn.Tanh(), torch.nn.Conv2d(4, 2, 3, padding=1)
    ).requires_grad_(requires_grad=False)
    image = torch.randn(1, height, width)

    larger = padded(image, (size, size), (stride, stride), "constant")
    expected = slid(net, larger, (size, size), 1, overlap=overlap, mode="gaussian")

    def f(_ctx: Index, region: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = net(region[None])[0]
        return result

    source = built(lambda _ctx: image, (1, height, width), shape=(1, height, width))
    window = TensorWindow((2, size, size), stride=(2, stride, stride))
    reads = TensorWindow((1, size, size), stride=(1, stride, stride), dimension_map=(None, 1, 2))
    options: dict[str, Any] = {"args_padding": "constant", "blend": "gaussian", "edge": "clip"}
    predicted = built(f, window, (source, reads), shape=(2, height, width), **options)
    assert torch.equal(predicted[...], expected[:, :height, :width])
