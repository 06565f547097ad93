"""Tensors of several resolutions in one group."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch

from infinite_tensor import RegionError, TensorGroup, ValidationError, sl
from tests.behaviour.groups.world import plain

COARSE, FINE, SAME = plain((None, None)), plain((None, None), 0.5), plain((3, None, None), 0.25)


@pytest.fixture
def group() -> TensorGroup:
    return TensorGroup(
        {"same": SAME, "other": {"coarse": COARSE, "fine": FINE}},
        scale={("other", "coarse"): 1 / 8, ("other", "fine"): 2},
    )


def test_every_tensor_is_read_at_its_own_resolution(group: TensorGroup) -> None:
    place = group[-8:16, 8:24]
    assert torch.equal(place["other", "coarse"], COARSE[-1:2, 1:3])
    assert torch.equal(place["other", "fine"], FINE[-16:32, 16:48])
    assert torch.equal(place["same"], SAME[:, -8:16, 8:24].movedim(0, -1))


def test_the_batch_size_is_that_of_tensors_of_one_resolution(group: TensorGroup) -> None:
    assert group[0:16, 0:8].batch_size == group[0:16, 0:8]["other"].batch_size == torch.Size([])
    coarse = TensorGroup({"same": SAME, "coarse": {"x": COARSE, "y": COARSE}}, scale={"coarse": 0.5})[0:16, 0:8]
    assert (coarse.batch_size, coarse["coarse"].batch_size) == (torch.Size([]), torch.Size([8, 4]))
    # Also where a region happens to have as many pixels of either.
    assert group[0:0, 0:0].batch_size == torch.Size([])


def test_the_batch_size_ends_before_the_first_dimension_of_several_scales() -> None:
    times = TensorGroup({"a": SAME, "b": plain((2, None, None))}, dims=(1, 2), scale={"b": (1, Fraction(1, 2))})
    assert times[0:5, 0:8].batch_size == torch.Size([5])
    assert times[0, 0:8].batch_size == torch.Size([])
    assert times[0:5, 3].batch_size == torch.Size([5])


def test_an_int_is_the_coarser_pixel_that_holds_it(group: TensorGroup) -> None:
    sampled = group.select("same", ("other", "coarse"))
    assert sampled[17, -1]["other", "coarse"] == COARSE[2, -1]
    assert torch.equal(sampled[17, -1]["same"], SAME[:, 17, -1])
    with pytest.raises(RegionError, match=r"'fine'. has scale 2, and pixel 17 of the group is not one pixel there"):
        group[17, -1]


@pytest.mark.parametrize(
    ("region", "message"),
    [
        (sl[1:8, 0:8], "dimension 0: .*'coarse'. has scale 1/8, and 1:8 does not begin and end with whole pixels"),
        (sl[0:8, 0:12], "dimension 1: .* multiples of 8; group.align.region. is the smallest"),
        (sl[0:8:2, 0:8], "dimension 0: .*a step of 2 cannot be scaled"),
    ],
)
def test_a_region_that_is_not_whole_pixels_is_an_error(group: TensorGroup, region: object, message: str) -> None:
    with pytest.raises(RegionError, match=message):
        group[region]


def test_align_is_the_smallest_region_of_whole_pixels_around_one(group: TensorGroup) -> None:
    assert group.align(sl[1:9, -3:3]) == sl[0:16, -8:8]
    assert group.align(sl[0:8, 5]) == sl[0:8, 5]
    assert group[group.align(sl[1:9, -3:3])]["same"].shape == (16, 16, 3)
    with pytest.raises(ValidationError, match="step"):
        group.align(sl[0:9:2, 0:8])


def test_align_meets_all_scales_at_once() -> None:
    group = TensorGroup({"thirds": COARSE, "halves": FINE}, scale={"thirds": 2 / 3, "halves": 0.5})
    assert group.align(sl[1:6, 7:8]) == sl[0:6, 6:12]
    assert group[0:6, 6:12]["thirds"].shape == (4, 4)


def test_finite_extents_agree_in_pixels_of_the_group() -> None:
    fine, coarse = plain((8, 12)), plain((2, 3))
    group = TensorGroup({"fine": fine, "coarse": coarse}, dims=(0, 1), scale={"coarse": 0.25})
    assert group.shape == (8, 12)
    assert group.align(sl[1:, -1:]) == sl[0:8, 8:12]
    assert torch.equal(group[4:, :8]["coarse"], coarse[1:, :2])
    with pytest.raises(ValidationError, match=r"'fine' has .8, 12., 'coarse' has .4, 6."):
        TensorGroup({"fine": fine, "coarse": coarse}, dims=(0, 1), scale={"coarse": 0.5})
    with pytest.raises(ValidationError, match="does not end with a whole pixel"):
        TensorGroup({"fine": fine}, dims=(0, 1), scale=5)


@pytest.mark.parametrize("scale", [0, -1, "1/8", float("inf"), float("nan"), 0.1234567891, True, (1,), (1, 1, 1), {}])
def test_what_is_no_scale_is_an_error(scale: object) -> None:
    if scale == {}:
        scale = {"q": 1}
    with pytest.raises(ValidationError, match="scale"):
        TensorGroup({"a": COARSE}, scale=scale)


def test_a_float_means_the_ratio_that_it_is_nearest_to() -> None:
    assert TensorGroup({"a": COARSE}, scale=1 / 3).scale("a") == (Fraction(1, 3), Fraction(1, 3))
    assert TensorGroup({"a": COARSE}, scale=(2, 0.125)).scale("a") == (Fraction(2), Fraction(1, 8))


def test_coordinates_stay_exact_far_away_and_within_the_limit(group: TensorGroup) -> None:
    far = 2**49
    assert group[far : far + 8, 0:8]["other", "coarse"].shape == (1, 1)
    with pytest.raises(RegionError, match="beyond the limit"):
        group[2 * far : 2 * far + 8, 0:8]
