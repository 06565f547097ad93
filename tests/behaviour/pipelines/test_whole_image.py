"""A network over the whole image at once, and window by window: where they are equal, and where they are not."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.functional import avg_pool2d, interpolate

from infinite_tensor import from_array
from tests.support.stores import sample

CELL = 8
HALO = 64
"""What the network sees around the cell of a pixel: 7 cells, and one more since scores are enlarged."""
ROWS, COLUMNS = 320, 416


class Segmenter(nn.Module):
    """As that of examples/segment.py: looks at cells, pads in every layer, and enlarges its scores again."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        layers: list[nn.Module] = []
        for given, dilation in ((3, 1), (8, 2), (8, 4)):
            layers += [nn.Conv2d(given, 8, 3, padding=dilation, dilation=dilation), nn.BatchNorm2d(8), nn.ReLU()]
        self.of_cells = nn.Sequential(*layers, nn.Conv2d(8, 4, 1))
        # What an untrained network makes of values would be hardly seen.
        for layer in layers[1::3]:
            assert isinstance(layer, nn.BatchNorm2d)
            assert layer.running_var is not None
            layer.running_var.fill_(0.05)

    def forward(self, pixels: torch.Tensor) -> torch.Tensor:
        """Scores, for as many pixels."""
        return interpolate(self.of_cells(avg_pool2d(pixels, CELL)), scale_factor=CELL, mode="bilinear")


def two_layers(first: int, second: int) -> nn.Module:
    """A network that looks 4 pixels far, and pads with so many zeros before each of its layers."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Conv2d(3, 8, 5, padding=first), nn.ReLU(), nn.Conv2d(8, 4, 5, padding=second)).eval()


def image() -> torch.Tensor:
    return torch.rand(3, ROWS, COLUMNS, generator=torch.Generator().manual_seed(1))


def at_once(net: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        scores: torch.Tensor = net(image()[None])[0]
    return scores


def by_windows(net: nn.Module, halo: int, padding: object) -> torch.Tensor:
    source = from_array(image(), dims=("c", "y", "x"))
    scores: torch.Tensor = source.map(net, halo=halo, window=64, channels=4, padding=padding)[...]
    return scores


def off(found: torch.Tensor, expected: torch.Tensor, margin: int) -> tuple[float, float]:
    """The largest differences beyond a margin from the border of the image, and within it."""
    inside = torch.zeros(found.shape[1:], dtype=torch.bool)
    inside[margin : ROWS - margin, margin : COLUMNS - margin] = True
    differences = (found - expected).abs().amax(dim=0)
    return differences[inside].max().item(), differences[~inside].max().item()


@pytest.mark.parametrize("padding", sample(["reflect", ("constant", 0)], ("constant", 0)))
def test_windows_with_a_halo_of_the_receptive_field_equal_the_whole_image_but_for_the_halo_of_its_border(
    padding: object,
) -> None:
    net = Segmenter().eval()
    inside, border = off(by_windows(net, HALO, padding), at_once(net), HALO)
    assert inside < 1e-5
    # A network that pads in every layer sees other values there than any padding of the image gives.
    assert border > 1e-3


def test_a_halo_of_less_than_the_receptive_field_does_not() -> None:
    net = Segmenter().eval()
    inside, _ = off(by_windows(net, HALO - CELL, "reflect"), at_once(net), HALO)
    assert inside > 1e-4


def test_with_zeros_the_border_is_equal_too_if_the_network_pads_only_its_input() -> None:
    net = two_layers(4, 0)
    assert max(off(by_windows(net, 4, ("constant", 0)), at_once(net), 4)) < 1e-5
    inside, border = off(by_windows(net, 4, "reflect"), at_once(net), 4)
    assert (inside < 1e-5, border > 1e-3) == (True, True)


def test_with_zeros_the_border_is_not_equal_if_each_layer_pads() -> None:
    net = two_layers(2, 2)
    inside, border = off(by_windows(net, 4, ("constant", 0)), at_once(net), 4)
    assert (inside < 1e-5, border > 1e-3) == (True, True)
