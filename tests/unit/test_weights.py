"""The weights of a weighted mean, and what is refused as such: inside, since in a tensor they show in sums only."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from infinite_tensor import InfiniteTensor, TensorWindow, ValidationError, WeightedMean
from infinite_tensor.values.weights import KINDS, weights_over

LINE = TensorWindow((8,), stride=4)


def of_monai(size: tuple[int, ...], sigma_scale: tuple[float, ...]) -> torch.Tensor:
    """The formula of `monai.data.utils.compute_importance_map`, written out."""
    weights = torch.ones(())
    for n, scale in zip(size, sigma_scale, strict=True):
        x = torch.arange(start=-(n - 1) / 2.0, end=(n - 1) / 2.0 + 1, dtype=torch.float32)
        weights = weights.unsqueeze(-1) * torch.exp(x**2 / (-2 * (n * scale) ** 2))
    return weights.clamp(min=max(weights.min().item(), 1e-3))


@pytest.mark.parametrize("size", [(7,), (64, 96), (256, 256), (17, 24, 31)])
@pytest.mark.parametrize("sigma_scale", [0.125, 0.02, 0.4])
def test_gaussian_weights_are_those_of_monai_in_every_bit(size: tuple[int, ...], sigma_scale: float) -> None:
    window = TensorWindow(size, stride=2)
    expected = of_monai(size, (sigma_scale,) * len(size))
    assert torch.equal(weights_over(WeightedMean("gaussian", sigma_scale), window), expected)


def test_sigma_scale_may_differ_between_dimensions() -> None:
    window = TensorWindow((12, 20), stride=3)
    assert torch.equal(weights_over(WeightedMean("gaussian", (0.1, 0.5)), window), of_monai((12, 20), (0.1, 0.5)))


def test_linear_and_hann_are_what_they_are_said_to_be() -> None:
    assert weights_over(WeightedMean("linear"), LINE).tolist() == [0.5, 1.5, 2.5, 3.5, 3.5, 2.5, 1.5, 0.5]
    hann = np.sin(np.pi * (np.arange(8) + 0.5) / 8) ** 2
    np.testing.assert_allclose(weights_over(WeightedMean("hann"), LINE).numpy(), hann, rtol=1e-7)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("n", [1, 2, 5, 6, 513])
def test_weights_are_symmetric_finite_and_positive(kind: str, n: int) -> None:
    weights = weights_over(WeightedMean(kind), TensorWindow((n, n), stride=1))
    assert weights.dtype == torch.float32
    assert bool((weights.isfinite() & (weights > 0)).all())
    assert torch.equal(weights, weights.flip(0))
    assert torch.equal(weights, weights.flip(1))


@pytest.mark.parametrize("mean", [WeightedMean("hann"), WeightedMean("gaussian", 0.02)])
def test_no_weight_vanishes_in_a_corner_of_512_cubed(mean: WeightedMean) -> None:
    # A slice of the cube, along the edge where weights are least.
    edge = weights_over(mean, TensorWindow((512,), stride=1))
    least = torch.tensor(1.0) * edge[0] * edge[0] * edge[0]
    assert least > torch.finfo(torch.float32).tiny


@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_1_along_dimensions_that_do_not_slide(kind: str) -> None:
    side_by_side, kept, apart = 3, 5, 4
    window = TensorWindow((side_by_side, kept, apart, 8), (3, 1, 7, 2), dimension_map=(0, None, 2, 3))
    weights = weights_over(WeightedMean(kind), window)
    assert weights.shape[:3] == (1, 1, 1)
    assert torch.equal(weights.flatten(), weights_over(WeightedMean(kind), TensorWindow((8,), stride=2)))


@pytest.mark.parametrize("given", [torch.tensor([1.0, 2.0]), [1, 2], np.array([1, 2], dtype=np.int16)])
def test_given_weights_broadcast_to_the_window(given: Any) -> None:
    weights = weights_over(WeightedMean(given), TensorWindow((3, 2), stride=1))
    assert weights.tolist() == [[1.0, 2.0]]


def test_given_weights_are_copied() -> None:
    given = torch.ones(2)
    mean = WeightedMean(given)
    given.zero_()
    mean.weights.zero_()  # type: ignore[union-attr]
    assert mean.weights.tolist() == [1, 1]  # type: ignore[union-attr]


def test_means_are_equal_where_their_pixels_are() -> None:
    ones = torch.ones(2, dtype=torch.float64)
    assert WeightedMean("gaussian") == WeightedMean("gaussian", 0.125) != WeightedMean("gaussian", 0.25)
    assert WeightedMean("gaussian", (0.25, 0.25)) == WeightedMean("gaussian", 0.25)
    assert WeightedMean(ones) == WeightedMean(ones.float()[None]) != WeightedMean(2 * ones)
    assert hash(WeightedMean(ones)) == hash(WeightedMean(ones.float()))
    assert WeightedMean("hann") != WeightedMean("linear")


@pytest.mark.parametrize("mean", [*map(WeightedMean, KINDS), WeightedMean("gaussian", (0.25, 1)), WeightedMean([2, 3])])
def test_a_mean_survives_a_pickle(mean: WeightedMean) -> None:
    assert pickle.loads(pickle.dumps(mean)) == mean  # noqa: S301


WRONG: list[tuple[Any, Any, str]] = [
    *(
        (weights, 0.125, "weights")
        for weights in [
            *("bell", None, ["a"], torch.ones(2, dtype=torch.complex64), torch.ones(0), torch.tensor([1.0, 0.0])),
            *([1, -2], [1, float("nan")], [1, float("inf")], np.ma.masked_less([1.0, 2.0], 2)),
        ]
    ),
    *(("gaussian", scale, "sigma_scale") for scale in (0, -1.0, float("nan"), 1e-9, "wide", True, (0.1, None))),
    ("hann", 0.5, "sigma_scale is for 'gaussian'"),
]


@pytest.mark.parametrize(("weights", "sigma_scale", "word"), WRONG)
def test_what_is_no_mean_is_refused(weights: Any, sigma_scale: Any, word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        WeightedMean(weights, sigma_scale)


def make(blend: Any, **options: Any) -> InfiniteTensor:
    return InfiniteTensor(
        (None, None), lambda _: torch.ones(4, 6), TensorWindow((4, 6), stride=2), blend=blend, **options
    )


@pytest.mark.parametrize(
    ("blend", "options", "word"),
    [
        *(("hann", {"dtype": dtype}, "dtype=torch.float32") for dtype in (torch.bool, torch.uint8, torch.int64)),
        ("hann", {"blend_init": 0}, "no blend_init"),
        (WeightedMean("gaussian", (0.1, 0.1, 0.1)), {}, "one number per dimension"),
        (WeightedMean(torch.ones(5)), {}, "broadcast"),
        (WeightedMean(torch.ones(1, 4, 6)), {}, "broadcast"),
        (WeightedMean([1e-60]), {}, "finite and positive"),
    ],
)
def test_a_mean_that_does_not_fit_is_refused_at_construction(blend: Any, options: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        make(blend, **options)
