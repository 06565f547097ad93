"""`predict` beside MONAI's `sliding_window_inference`: ``pip install -e ".[monai]"`` to run this."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import nn

from infinite_tensor import predict
from tests.support.monai import padded, slid

# Several threads would wait for each other: the windows are small.
pytestmark = pytest.mark.usefixtures("one_thread")

Sizes = tuple[int, ...]

BLENDS = {"gaussian": "gaussian", "constant": "mean"}
"""What MONAI calls them, and what we do."""
WINDOWS: dict[int, Sizes] = {2: (16, 24), 3: (8, 12, 8)}
FIT: list[Sizes] = [(40, 60), (20, 30, 20)]
LARGER: list[Sizes] = [(41, 67), (40, 67), (21, 29, 13)]
SMALLER: list[Sizes] = [(9, 30), (5, 7), (5, 12, 30)]
"""Than the window, along a dimension at least."""


def layers(dims: int) -> nn.Sequential:
    """A network of 3 channels and 5 classes, whose classes 1 and 4 have equal scores."""
    kind = {2: nn.Conv2d, 3: nn.Conv3d}[dims]
    torch.manual_seed(dims)
    net = nn.Sequential(kind(3, 6, 3, padding=1), nn.ReLU(), kind(6, 5, 3, padding=1)).requires_grad_(
        requires_grad=False
    )
    for parameter in net[2].parameters():
        parameter[4] = parameter[1]
    return net.eval()


class Apart(nn.Module):
    """Gives the same bits for a window in any batch."""

    def __init__(self, dims: int) -> None:
        super().__init__()
        self.layers = layers(dims)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The scores of each window, computed alone."""
        return torch.cat([self.layers(window[None]) for window in batch])


class Together(Apart):
    """Gives other bits for a window alone than in a batch, on every machine."""

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        """The scores, rounded once more if there are several windows."""
        scores = super().forward(batch)
        return scores if len(batch) == 1 else scores / 3 * 3


def strides(window: Sizes, overlap: float) -> Sizes:
    return tuple(int(n * (1 - overlap)) for n in window)


def image(shape: Sizes) -> torch.Tensor:
    return torch.rand(3, *shape, generator=torch.Generator().manual_seed(sum(shape)))


def values_and_labels(net: nn.Module, picture: torch.Tensor, **how: Any) -> tuple[torch.Tensor, torch.Tensor]:
    values, labels = (predict(net, picture, reduce=reduce, progress=False, **how)[...] for reduce in (None, "argmax"))
    return values, labels


def below(ends: Sequence[int]) -> tuple[slice, ...]:
    return tuple(slice(0, end) for end in ends)


def check(found: tuple[torch.Tensor, torch.Tensor], expected: torch.Tensor, *, exact: bool) -> None:
    values, labels = found
    torch.testing.assert_close(values, expected, rtol=0, atol=1e-5)
    assert torch.equal(values, expected) == exact
    differ = labels != expected.argmax(0)
    best, second = expected.topk(2, dim=0).values
    assert not (differ & (best - second >= 2e-5)).any()
    assert not (exact and differ.any())


@pytest.mark.parametrize("kind", [Apart, Together])
@pytest.mark.parametrize("mode", BLENDS)
@pytest.mark.parametrize("overlap", [0.25, 0.5])
@pytest.mark.parametrize("shape", [*FIT, *LARGER, *SMALLER], ids=str)
def test_it_is_what_monai_makes_of_the_padded_image(shape: Sizes, overlap: float, mode: str, kind: type[Apart]) -> None:
    net, picture, window = kind(len(shape)), image(shape), WINDOWS[len(shape)]
    larger = padded(picture, window, strides(window, overlap), "reflect")
    assert (larger.shape == picture.shape) == (shape in FIT)
    expected = slid(net, larger, window, 1, overlap=overlap, mode=mode)[(slice(None), *below(shape))]
    found = values_and_labels(net, picture, window=window, overlap=overlap, blend=BLENDS[mode])
    check(found, expected, exact=kind is Apart)


@pytest.mark.parametrize("kind", [Apart, Together])
@pytest.mark.parametrize("mode", BLENDS)
@pytest.mark.parametrize("overlap", [0.25, 0.5])
@pytest.mark.parametrize("shape", [*FIT, *LARGER], ids=str)
def test_it_is_what_monai_makes_of_the_image_a_window_away_from_the_far_ends(
    shape: Sizes, overlap: float, mode: str, kind: type[Apart]
) -> None:
    net, picture, window = kind(len(shape)), image(shape), WINDOWS[len(shape)]
    expected = slid(net, picture, window, 1, overlap=overlap, mode=mode)
    values, labels = values_and_labels(net, picture, window=window, overlap=overlap, blend=BLENDS[mode])
    inside = below(shape if shape in FIT else [extent - n for extent, n in zip(shape, window, strict=True)])
    check((values[(slice(None), *inside)], labels[inside]), expected[(slice(None), *inside)], exact=kind is Apart)
    # MONAI has moved its last windows.
    assert torch.allclose(values, expected, rtol=0, atol=1e-5) == (shape in FIT)


@pytest.mark.parametrize("shape", [*FIT, *LARGER], ids=str)
def test_one_window_at_a_time_has_the_bits_of_monai_for_any_network(shape: Sizes) -> None:
    picture, window = image(shape), WINDOWS[len(shape)]
    for net in (Together(len(shape)), layers(len(shape))):
        larger = padded(picture, window, strides(window, 0.5), "reflect")
        expected = slid(net, larger, window, 1, overlap=0.5, mode="gaussian")[(slice(None), *below(shape))]
        check(values_and_labels(net, picture, window=window, overlap=0.5, batch_size=1), expected, exact=True)


@pytest.mark.parametrize("sigma_scale", [0.3, (0.05, 0.25)], ids=str)
def test_the_width_of_the_gaussian_is_that_of_monai(sigma_scale: float | Sizes) -> None:
    net, picture, window = Apart(2), image(FIT[0]), WINDOWS[2]
    expected = slid(net, picture, window, 4, overlap=0.5, mode="gaussian", sigma_scale=sigma_scale)
    check(values_and_labels(net, picture, window=window, overlap=0.5, sigma_scale=sigma_scale), expected, exact=True)


@pytest.mark.parametrize("layer", [nn.AvgPool2d(2), nn.Upsample(scale_factor=2)], ids=str)
def test_an_output_of_another_resolution_has_the_bits_of_monai_where_windows_count_alike(layer: nn.Module) -> None:
    net, picture, window = nn.Sequential(Apart(2), layer), image(FIT[0]), WINDOWS[2]
    expected = slid(net, picture, window, 4, overlap=0.5, mode="constant")
    check(values_and_labels(net, picture, window=window, overlap=0.5, blend="mean"), expected, exact=True)


def test_without_overlap_it_keeps_what_the_network_returned() -> None:
    net, picture, window = Apart(2), image((32, 48)), WINDOWS[2]
    values, _ = values_and_labels(net, picture, window=window, overlap=0)
    assert torch.equal(values[:, :16, :24], net(picture[None, :, :16, :24])[0])
    # MONAI multiplies by the weight, and divides by it.
    check((values, values.argmax(0).byte()), slid(net, picture, window, 1, overlap=0, mode="gaussian"), exact=False)
    check((values, values.argmax(0).byte()), slid(net, picture, window, 1, overlap=0, mode="constant"), exact=True)
